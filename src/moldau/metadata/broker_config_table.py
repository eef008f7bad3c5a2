"""Settings of brokers that change at run time, besides the defaults of topic settings.

Under Kafka's names. `server/config/schema.py` names each beside its start-up setting (`runtime`).
"""

from collections.abc import Mapping
from typing import Final

from moldau.metadata.config_types import INT_MAX, ConfigDefinition, ConfigType

CONNECTIONS_MAX: Final = "max.connections"
CONNECTIONS_PER_ADDRESS_MAX: Final = "max.connections.per.ip"

RUNTIME_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        ConfigDefinition(
            name=CONNECTIONS_MAX,
            type=ConfigType.INT,
            default="4096",
            least=1,
            most=INT_MAX,
            documentation="Connections of clients to one Kafka listener; open ones stay.",
        ),
        ConfigDefinition(
            name=CONNECTIONS_PER_ADDRESS_MAX,
            type=ConfigType.INT,
            default="2048",
            least=1,
            most=INT_MAX,
            documentation="Connections from one client address; open ones stay.",
        ),
    )
}

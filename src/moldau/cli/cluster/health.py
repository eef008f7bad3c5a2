"""Health of each broker, checked at the addresses that it advertises to clients.

The topology shows which brokers send heartbeats. It does not show that a broker rejects writes or
that its advertised address is wrong, so each broker is called itself.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from moldau.cli.connection.current import current_security
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.security import Security
    from moldau.model.topology import Endpoint, Topology, TopologyBroker

_SECONDS_MAX: Final = 3.0
_BROKERS_AT_ONCE: Final = 16


def broker_problems(topology: "Topology", *, only: int | None = None) -> list[str]:
    """Problems that live brokers (or `only` one) report, and brokers that do not respond."""
    # Here, since click's context is that of one thread.
    security = current_security()
    alive = [b for b in topology.brokers if b.alive and (only is None or b.id == only)]
    with ThreadPoolExecutor(min(_BROKERS_AT_ONCE, max(1, len(alive)))) as threads:
        found = threads.map(
            lambda broker: list(_problems_of(broker, topology.cluster_id, security)), alive
        )
        return [line for lines in found for line in lines]


def _problems_of(broker: "TopologyBroker", cluster_id: str, security: "Security") -> Iterable[str]:
    reasons = [] if broker.http is None else list(_not_ready(broker.http, security))
    for reason in (*reasons, _wrong_address(broker.kafka, cluster_id, security)):
        if reason:
            yield f"broker {broker.id}: {reason}"


def _not_ready(http: "Endpoint", security: "Security") -> Iterable[str]:
    from moldau.client.cluster_client import ClusterClient

    try:
        client = ClusterClient(
            [f"{http.host}:{http.port}"], call_seconds_max=_SECONDS_MAX, security=security
        )
        state = client.ready()
    except MoldauError as error:
        return [f"does not respond at {http.host}:{http.port}, its HTTP address: {error}"]
    return state.reasons


def _wrong_address(kafka: "Endpoint", cluster_id: str, security: "Security") -> str:
    """What is wrong with the advertised Kafka address; empty if nothing is."""
    from moldau.client.wire.client import KafkaClient

    address = f"{kafka.host}:{kafka.port}"
    try:
        with KafkaClient(address, timeout=_SECONDS_MAX, security=security) as client:
            found = client.cluster_id()
    except (MoldauError, OSError) as error:
        return f"does not respond at {address}, its advertised address (kafka.advertised): {error}"
    if found != cluster_id:
        return f"advertises {address}, which belongs to another cluster (kafka.advertised)"
    return ""

"""Owns the cluster's state as one immutable value: the Image.

An image never changes. A handler takes one, and what it reads from it fits together, however long
it holds it. `apply` makes the next image; the maps that a record does not touch are shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
"""Names that only the broker itself may create, and that no client may delete or grow."""

CLUSTER_DEFAULT: Final = BrokerId(-1)
"""Key in `broker_configs` of the settings that hold for every broker."""

_FIRST_PRODUCER_ID: Final = ProducerId(0)
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that registered. `incarnation` names its data directory, made once per directory."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition and the brokers that shall hold it; the first is the preferred leader."""

    index: PartitionIndex
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; `partitions[i].index == i`. `configs` holds only what was set on the topic."""

    name: str
    topic_id: TopicId
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    internal: bool = False

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """All metadata of the cluster at one version. Only `apply` makes new ones."""

    cluster_id: str = ""
    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, Topic] = field(default_factory=dict)
    collision_names: Mapping[str, str] = field(default_factory=dict)
    """collision_key(name) -> name: finds names that differ only by '.' and '_' without a scan."""
    broker_configs: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    version: int = 0
    """Counts the records that changed something."""

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self.topics_by_id.get(topic_id)

    def broker_overrides(self, broker_id: BrokerId) -> Mapping[str, str]:
        """Settings changed at run time for one broker (or CLUSTER_DEFAULT)."""
        return self.broker_configs.get(broker_id, _EMPTY)


EMPTY_IMAGE: Final = Image()


def collision_key(name: str) -> str:
    """Names with one key would share a metric name in Kafka's tools, so only one may exist."""
    return name.replace(".", "_")

"""Owns the cluster's state as one immutable value: the Image.

An image never changes. A handler takes one, and what it reads from it fits together, however long
it holds it. `apply` makes the next image; the maps that a record does not touch are shared. The
names of fields are also the names in stored snapshots (`snapshot.py`): a new one needs a default.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from moldau.metadata.queue_groups import QueueGroup
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId
from moldau.model.topology import FEATURE_LEVEL_MAX as FEATURE_LEVEL_MAX
from moldau.model.topology import Endpoint as Endpoint

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
QUEUE_STATE_TOPIC: Final = "__queue_state"
INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, QUEUE_STATE_TOPIC}
)
"""Names that only the broker itself may create, and that no client may delete or grow."""

CLUSTER_DEFAULT: Final = BrokerId(-1)
"""Key in `broker_configs` of the settings that hold for every broker."""

_FIRST_PRODUCER_ID: Final = ProducerId(0)
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class BrokerState(IntEnum):
    """A broker's way out of the cluster. The numbers are stored."""

    ACTIVE = 0
    DRAINING = 1
    """Its replicas move away; it gets no new ones."""
    REMOVED = 2
    """Gone for good; only its id and its data directory are remembered, so that neither returns."""


class Broker(Struct, frozen=True, kw_only=True):
    """A broker that registered. `incarnation` names its data directory, made once per directory."""

    id: BrokerId
    host: str
    """With `port`: where clients reach it."""
    port: int
    rack: str | None = None
    incarnation: str = ""
    process: str = ""
    """Made once per start of the process: tells a new start from the repetition of a request."""
    raft: Endpoint | None = None
    """Where its peers reach it; None for a broker that never was in a cluster."""
    http: Endpoint | None = None
    epoch: int = 0
    """Rises with each registration; peers that name an older one are refused."""
    feature_level_max: int = 0
    """The newest feature level that its version knows."""
    state: BrokerState = BrokerState.ACTIVE
    grpc: Endpoint | None = None
    """None: it has no gRPC listener."""

    @property
    def active(self) -> bool:
        return self.state is BrokerState.ACTIVE


class Partition(Struct, frozen=True):
    """One partition, the brokers that hold it now, and those that shall.

    The log of the partition's own Raft group is the truth about its voters. What stands here is
    the wish, and what the group was last known to have reached.
    """

    index: PartitionIndex
    replicas: tuple[BrokerId, ...]
    """Brokers that keep a replica open. During a move: the wished ones, then all that may leave."""
    target: tuple[BrokerId, ...] = ()
    """The wished replicas during a move; empty when there is none."""
    origin: tuple[BrokerId, ...] = ()
    """The replicas before the move: what cancelling it returns to."""
    wish: int = 0
    """Rises with each change of the wish; a report about an older one no longer counts."""

    @property
    def moving(self) -> bool:
        return bool(self.target)

    @property
    def wanted(self) -> tuple[BrokerId, ...]:
        """The replicas that the partition shall have in the end; the preferred leader first."""
        return self.target or self.replicas

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.target if broker not in self.origin)

    @property
    def removing(self) -> tuple[BrokerId, ...]:
        if not self.target:
            return ()
        return tuple(broker for broker in self.replicas if broker not in self.target)


class Topic(Struct, frozen=True, kw_only=True):
    """A topic; `partitions[i].index == i`. `configs` holds only what was set on the topic."""

    name: str
    topic_id: TopicId
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    internal: bool = False

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].wanted) if self.partitions else 0


def changed_topics(before: Mapping[TopicId, Topic], after: Mapping[TopicId, Topic]) -> list[Topic]:
    """Those of `after` that are new or others than before. Images share what did not change, so
    one look at each is enough: with thousands of topics, this is done for every change of one."""
    if before is after:
        return []
    known = map(before.get, after)
    return [topic for topic, old in zip(after.values(), known, strict=True) if topic is not old]


class Image(Struct, frozen=True, kw_only=True):
    """All metadata of the cluster at one version. Only `apply` makes new ones."""

    cluster_id: str = ""
    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    """Active and draining ones."""
    removed_brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    feature_level: int = 0
    """What every broker is known to understand; never falls."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, Topic] = field(default_factory=dict)
    collision_names: Mapping[str, str] = field(default_factory=dict)
    """collision_key(name) -> name: finds names that differ only by '.' and '_' without a scan."""
    broker_configs: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    queue_groups: Mapping[str, QueueGroup] = field(default_factory=dict)
    """By name; topics that are deleted leave them."""
    version: int = 0
    """Counts the records that changed something."""

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self.topics_by_id.get(topic_id)

    def active_brokers(self) -> list[Broker]:
        """Those that may be given replicas."""
        return [broker for broker in self.brokers.values() if broker.active]

    def broker_overrides(self, broker_id: BrokerId) -> Mapping[str, str]:
        """Settings changed at run time for one broker (or CLUSTER_DEFAULT)."""
        return self.broker_configs.get(broker_id, _EMPTY)


EMPTY_IMAGE: Final = Image()


def collision_key(name: str) -> str:
    """Names with one key would share a metric name in Kafka's tools, so only one may exist."""
    return name.replace(".", "_")

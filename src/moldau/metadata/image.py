"""The cluster's metadata as one immutable value: the Image.

Everything that a handler reads from one image is consistent. `apply` makes the next image, which
shares the maps that a record does not change. Field names are also the names in stored snapshots
(`snapshot.py`): a new field needs a default.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from moldau.metadata.queue_groups import QueueGroup
from moldau.metadata.security import JoinToken, User
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId
from moldau.model.topology import FEATURE_LEVEL_MAX as FEATURE_LEVEL_MAX
from moldau.model.topology import Endpoint as Endpoint
from moldau.model.topology import Listeners as Listeners
from moldau.security.acl import Acl
from moldau.security.quotas import QuotaEntity

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
QUEUE_STATE_TOPIC: Final = "__queue_state"
INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, QUEUE_STATE_TOPIC}
)
"""Topics that only brokers create, and that clients can neither delete nor extend."""

CLUSTER_DEFAULT: Final = BrokerId(-1)
"""Key in `broker_configs` of the settings for all brokers."""

_FIRST_PRODUCER_ID: Final = ProducerId(0)
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class BrokerState(IntEnum):
    """The numbers are stored."""

    ACTIVE = 0
    DRAINING = 1
    """Its replicas move away; it gets no new ones."""
    REMOVED = 2
    """Removed permanently; remembered so that neither its id nor its directory is used again."""


Place = str | BrokerId
"""What brokers share that fail together: a machine, or the id of a broker on an unknown one."""


def place_of(broker: BrokerId, machine: str | None) -> Place:
    return machine or broker


class Broker(Struct, frozen=True, kw_only=True):
    """A registered broker. `incarnation` is the unique id of its data directory."""

    id: BrokerId
    host: str
    """With `port`: the address for Kafka clients."""
    port: int
    rack: str | None = None
    machine: str | None = None
    """None: unknown, as of a broker of an earlier version; it counts as a machine of its own."""
    incarnation: str = ""
    process: str = ""
    """Unique per start of the process: distinguishes a restart from a retried request."""
    raft: Endpoint | None = None
    """The address for peers; None for a broker that was never in a cluster."""
    http: Endpoint | None = None
    epoch: int = 0
    """Incremented with each registration; peers with an older one are rejected."""
    feature_level_max: int = 0
    """The highest feature level that its version supports."""
    state: BrokerState = BrokerState.ACTIVE
    grpc: Endpoint | None = None
    """None: no gRPC listener."""
    listeners: Listeners = ()
    """Addresses for Kafka clients by listener; empty if there is only the one above."""

    def address_at(self, listener: str) -> Endpoint | None:
        """Where clients of a listener find this broker; None if it has no such listener."""
        if not self.listeners:
            return Endpoint(self.host, self.port)
        return dict(self.listeners).get(listener)

    @property
    def active(self) -> bool:
        return self.state is BrokerState.ACTIVE

    @property
    def place(self) -> Place:
        return place_of(self.id, self.machine)


class Partition(Struct, frozen=True):
    """One partition, with its current and its desired replicas.

    The log of the partition's Raft group is authoritative for its voters. These are the desired
    replicas, and the last reported state of the group.
    """

    index: PartitionIndex
    replicas: tuple[BrokerId, ...]
    """Brokers with a replica. During a reassignment: the desired ones, then all that may leave."""
    target: tuple[BrokerId, ...] = ()
    """The desired replicas during a reassignment; empty without one."""
    origin: tuple[BrokerId, ...] = ()
    """The replicas before the reassignment, restored by cancelling it."""
    desired_version: int = field(default=0, name="wish")
    """Incremented with each change of the desired replicas; reports of older ones are ignored."""

    @property
    def moving(self) -> bool:
        return bool(self.target)

    @property
    def desired(self) -> tuple[BrokerId, ...]:
        """The desired replicas; the preferred leader first."""
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
    configs: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].desired) if self.partitions else 0


def changed_topics(before: Mapping[TopicId, Topic], after: Mapping[TopicId, Topic]) -> list[Topic]:
    """Topics of `after` that are new or changed. Images share unchanged topics, so comparing by
    identity is enough: this runs for every change, with thousands of topics."""
    if before is after:
        return []
    known = map(before.get, after)
    return [topic for topic, old in zip(after.values(), known, strict=True) if topic is not old]


class Image(Struct, frozen=True, kw_only=True):
    """All metadata of the cluster at one version. Only `apply` creates new ones."""

    cluster_id: str = ""
    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    """Active and draining ones."""
    removed_brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    feature_level: int = 0
    """The level that every broker supports; never lowered."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, Topic] = field(default_factory=dict)
    collision_names: Mapping[str, str] = field(default_factory=dict)
    """collision_key(name) -> name: names that differ only by '.' and '_' collide."""
    broker_configs: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    queue_groups: Mapping[str, QueueGroup] = field(default_factory=dict)
    """By name; deleted topics are removed from them."""
    users: Mapping[str, User] = field(default_factory=dict)
    acls: frozenset[Acl] = frozenset()
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    """For each entity its limits, by Kafka's names."""
    join_tokens: Mapping[str, JoinToken] = field(default_factory=dict)
    """By id; those that have expired are removed when another one is created."""
    version: int = 0
    """The number of records that changed something."""

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self.topics_by_id.get(topic_id)

    def has_partition(self, name: str, index: int) -> bool:
        topic = self.topics.get(name)
        return topic is not None and 0 <= index < len(topic.partitions)

    def active_brokers(self) -> list[Broker]:
        """Brokers that can get replicas."""
        return [broker for broker in self.brokers.values() if broker.active]

    def broker_overrides(self, broker_id: BrokerId) -> Mapping[str, str]:
        """Settings changed at run time for one broker (or CLUSTER_DEFAULT)."""
        return self.broker_configs.get(broker_id, _EMPTY)


EMPTY_IMAGE: Final = Image()


def brokers_at(image: Image, listener: str) -> Mapping[BrokerId, Broker]:
    """The brokers as clients of a listener find them: those without it are left out.

    A name that no broker has is that of a single Kafka listener, or of another protocol.
    """
    brokers = image.brokers
    if not any(listener == name for one in brokers.values() for name, _ in one.listeners):
        return brokers
    found = {}
    for number, broker in brokers.items():
        address = broker.address_at(listener)
        if address is not None:
            found[number] = replace(broker, host=address.host, port=address.port)
    return found


def collision_key(name: str) -> str:
    """Names with the same key share a metric name in Kafka's tools, so only one may exist."""
    return name.replace(".", "_")

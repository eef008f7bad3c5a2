"""The JSON structures of topics, brokers, groups and queues."""

from msgspec import UNSET, Struct, UnsetType

from moldau.model.topology import TopologyBroker


class TopicListed(Struct, frozen=True, kw_only=True):
    name: str
    id: str
    internal: bool
    partitions: int
    replication_factor: int
    leaderless: int
    under_replicated: int
    log_bytes: int | UnsetType | None = UNSET
    """This and what follows only with stats=true. Of the leaders: copies do not count."""
    records: int | UnsetType | None = UNSET
    """From start to end of all partitions; of compacted topics with those that are gone."""
    retention_ms: int | UnsetType | None = UNSET
    retention_bytes: int | UnsetType | None = UNSET
    cleanup_policy: str | UnsetType | None = UNSET
    records_in: float | UnsetType | None = UNSET
    """Per second; null until somebody has looked for some seconds."""
    bytes_in: float | UnsetType | None = UNSET


class TopicList(Struct, frozen=True, kw_only=True):
    topics: list[TopicListed]
    next: str | None
    """Pass as `after` to get the next page; null on the last one."""


class Setting(Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    """null if it is sensitive."""
    source: str
    type: str
    read_only: bool


class BrokerSetting(Setting, frozen=True, kw_only=True):
    doc: str
    """What it means, with its bounds."""
    default: str | None
    """null: it has none, or is another unit of a setting that has one."""


class PartitionShown(Struct, frozen=True, kw_only=True):
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    adding: list[int]
    removing: list[int]
    start_offset: int | None
    end_offset: int | None
    """The high watermark; null while the leader does not respond."""
    log_bytes: int | None


class TopicShown(Struct, frozen=True, kw_only=True):
    name: str
    id: str
    internal: bool
    partition_count: int
    replication_factor: int
    configs: list[Setting]
    partitions: list[PartitionShown]
    next: int | None
    may: list[str] = []
    """What the client may do with the topic, by Kafka's names of operations."""


class TopicDeleted(Struct, frozen=True, kw_only=True):
    name: str
    id: str


class BrokerList(Struct, frozen=True, kw_only=True):
    brokers: list[TopologyBroker]
    next: int | None


class BrokerShown(Struct, frozen=True, kw_only=True):
    broker: TopologyBroker
    configs: list[BrokerSetting]


class GroupListed(Struct, frozen=True, kw_only=True):
    group: str
    type: str
    state: str
    protocol_type: str
    coordinator: int
    lag: int | UnsetType | None = UNSET
    """In records; this and what follows only with lag=true. null: not known."""
    lag_seconds: float | UnsetType | None = UNSET
    """How long ago the first record that was not processed was stored."""


class GroupList(Struct, frozen=True, kw_only=True):
    groups: list[GroupListed]
    next: str | None
    silent: list[int]
    """Brokers that did not respond: the groups that they coordinate are missing."""


class QueueCounts(Struct, frozen=True, kw_only=True):
    """Of a queue group on one of its topics. Null: not all leaders have said it."""

    topic: str
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    """Dead letters that were not redriven, of all topics of the group."""


class QueueListed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    group: str
    topics: list[str]
    is_redrive: bool
    """No queue of workers: it notes which dead letters of another group were redriven."""
    visibility_ms: int
    attempts_max: int
    backoff_ms: int
    backoff_ms_max: int
    dead_letter_topic: str
    counts: list[QueueCounts] | None = None
    """With `counts=true`, of the topics that were counted."""


class QueueList(Struct, frozen=True, kw_only=True):
    queues: list[QueueListed]
    next: str | None


class TopicAssigned(Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class MemberShown(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: list[str]
    assigned: list[TopicAssigned]


class PositionShown(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    committed: int
    metadata: str
    end_offset: int | None
    lag: int | None
    """null while the leader of the partition does not respond."""
    lag_seconds: float | None = None
    """How long ago the first record that was not processed was stored; null: not known."""


class GroupShown(Struct, frozen=True, kw_only=True):
    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    member_count: int
    members: list[MemberShown]
    """At most 1,000."""
    lag: int | None
    """Over all partitions; null if the lag of one is unknown."""
    offsets: list[PositionShown]
    next: str | None
    may: list[str] = []
    """What the client may do with the group, by Kafka's names of operations."""

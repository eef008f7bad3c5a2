"""Owns the commands that change metadata: what someone asks for, not yet checked."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from moldau.metadata.image import FEATURE_LEVEL_MAX, Endpoint
from moldau.model.ids import BrokerId, PartitionIndex, TopicId


class ConfigOperation(IntEnum):
    """Numbers as in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(Struct, frozen=True, kw_only=True):
    """One change of one key. `value` is None for DELETE."""

    name: str
    operation: ConfigOperation
    value: str | None = None


class CreateCluster(Struct, frozen=True, kw_only=True):
    """Names the cluster; the first command of every cluster."""

    cluster_id: str


class RegisterBroker(Struct, frozen=True, kw_only=True):
    """A broker says where it is reached. The same incarnation may register again and move.

    Without an id, the broker gets the one that its data directory has, or one never used before.
    `process` is made once per start: a request repeated by the same process changes nothing.
    """

    id: BrokerId | None
    host: str
    port: int
    rack: str | None = None
    incarnation: str
    process: str = ""
    raft: Endpoint | None = None
    http: Endpoint | None = None
    feature_level_max: int = FEATURE_LEVEL_MAX
    grpc: Endpoint | None = None


class DrainBroker(Struct, frozen=True, kw_only=True):
    """The first half of removing a broker: no new replicas, and the old ones move away."""

    broker_id: BrokerId


class KeepBroker(Struct, frozen=True, kw_only=True):
    """Takes DrainBroker back. What has moved stays where it is."""

    broker_id: BrokerId


class RemoveBroker(Struct, frozen=True, kw_only=True):
    """The second half, once nothing is left on the broker.

    `metadata_members` are the voters and learners of the metadata group, by its own log.
    """

    broker_id: BrokerId
    metadata_members: Sequence[BrokerId]


class RaiseFeatureLevel(Struct, frozen=True, kw_only=True):
    """From now on, what needs this level may be written."""

    level: int


class CreateTopic(Struct, frozen=True, kw_only=True):
    """The caller makes the id (chance is not ours) and resolves -1 to its default counts.

    With `assignments` (partition -> brokers), `partitions` and `replication_factor` stay -1.
    """

    name: str
    topic_id: TopicId
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = {}
    internal: bool = False


class DeleteTopic(Struct, frozen=True, kw_only=True):
    """By name or by id; with both, both must name the same topic."""

    name: str | None = None
    topic_id: TopicId | None = None


class CreatePartitions(Struct, frozen=True, kw_only=True):
    """`count` is the total afterwards; `assignments` has one entry per new partition."""

    topic: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class ReassignPartition(Struct, frozen=True, kw_only=True):
    """One partition of AlterPartitionReassignments; `replicas` None cancels a move under way."""

    topic: str
    partition: PartitionIndex
    replicas: Sequence[int] | None
    allow_replication_factor_change: bool = True


class ReportReplicas(Struct, frozen=True, kw_only=True):
    """A partition's leader tells the committed members of its group, and the wish it followed."""

    topic_id: TopicId
    partition: PartitionIndex
    wish: int
    voters: Sequence[BrokerId]
    learners: Sequence[BrokerId] = ()


class SpreadInternalTopics(Struct, frozen=True, kw_only=True):
    """Raises the replication of internal topics to three, or to as many brokers as there are."""


class AlterTopicConfigs(Struct, frozen=True, kw_only=True):
    """IncrementalAlterConfigs: only the named keys change."""

    topic: str
    changes: Sequence[ConfigChange]


class ReplaceTopicConfigs(Struct, frozen=True, kw_only=True):
    """AlterConfigs: the given keys are all that is set afterwards."""

    topic: str
    configs: Mapping[str, str | None]


class AlterBrokerConfigs(Struct, frozen=True, kw_only=True):
    """As AlterTopicConfigs, for one broker or CLUSTER_DEFAULT."""

    broker_id: BrokerId
    changes: Sequence[ConfigChange]


class ReplaceBrokerConfigs(Struct, frozen=True, kw_only=True):
    """As ReplaceTopicConfigs, for one broker or CLUSTER_DEFAULT."""

    broker_id: BrokerId
    configs: Mapping[str, str | None]


class AllocateProducerIds(Struct, frozen=True, kw_only=True):
    """A block of ids, so that not every producer costs a write."""

    count: int


class DefineQueueGroup(Struct, frozen=True, kw_only=True):
    """Makes a queue group, or changes one: topics are added, and settings replaced that are given.

    `starts_at_end` is for a new one only; that of a group that exists stays.
    """

    name: str
    topics: Sequence[str] = ()
    visibility_ms: int | None = None
    attempts_max: int | None = None
    backoff_ms: int | None = None
    backoff_ms_max: int | None = None
    dead_letter_topic: str | None = None
    starts_at_end: bool = False


class DropQueueGroup(Struct, frozen=True, kw_only=True):
    """The name is nobody's again."""

    name: str


Command = (
    CreateCluster
    | RegisterBroker
    | DrainBroker
    | KeepBroker
    | RemoveBroker
    | RaiseFeatureLevel
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | ReassignPartition
    | ReportReplicas
    | SpreadInternalTopics
    | AlterTopicConfigs
    | ReplaceTopicConfigs
    | AlterBrokerConfigs
    | ReplaceBrokerConfigs
    | AllocateProducerIds
    | DefineQueueGroup
    | DropQueueGroup
)

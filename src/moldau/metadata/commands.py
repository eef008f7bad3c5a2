"""Commands that change metadata, not yet validated. Their names are sent between brokers."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import UNSET, Struct, UnsetType, field

from moldau.metadata.image import FEATURE_LEVEL_MAX, Endpoint, Listeners
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.security.acl import Acl, AclFilter
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism


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
    """Registers a broker's addresses. The same incarnation may register again with new ones.

    Without an id, the broker gets the id of its data directory, or a new one. `process` is unique
    per start: a request retried by the same process changes nothing.

    `join_token_id` names the token that was checked by the broker that got the request, at
    `now_ms`; without one, the caller has let the broker in by other means.
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
    listeners: Listeners = ()
    machine: str | None = None
    join_token_id: str = ""
    now_ms: int = 0
    lacking: tuple[BrokerId, ...] = ()
    """Brokers of whose machine this one knows nothing, since its snapshot of the metadata is of an
    earlier version: what the leader knows of them is stored again."""


class DrainBroker(Struct, frozen=True, kw_only=True):
    """Starts the removal of a broker: it gets no new replicas, and its replicas move away."""

    broker_id: BrokerId


class KeepBroker(Struct, frozen=True, kw_only=True):
    """Cancels DrainBroker. Replicas that have moved do not move back."""

    broker_id: BrokerId


class RemoveBroker(Struct, frozen=True, kw_only=True):
    """Completes the removal, when the broker has no replicas left.

    `metadata_members` are the committed voters and learners of the metadata group.
    """

    broker_id: BrokerId
    metadata_members: Sequence[BrokerId]


class RemoveLostBrokers(Struct, frozen=True, kw_only=True):
    """Removes brokers that are lost with their data directories, and replaces their replicas.

    The caller must be sure that they are: they can never come back.
    """

    broker_ids: Sequence[BrokerId]


class RaiseFeatureLevel(Struct, frozen=True, kw_only=True):
    """Allows records that need this feature level."""

    level: int


class CreateTopic(Struct, frozen=True, kw_only=True):
    """The caller generates the id and resolves -1 to its default counts.

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
    """One partition of AlterPartitionReassignments; `replicas` None cancels a reassignment."""

    topic: str
    partition: PartitionIndex
    replicas: Sequence[int] | None
    allow_replication_factor_change: bool = True


class ReportReplicas(Struct, frozen=True, kw_only=True):
    """A partition leader reports its committed voters, and the desired version they follow."""

    topic_id: TopicId
    partition: PartitionIndex
    desired_version: int = field(name="wish")
    voters: Sequence[BrokerId]
    learners: Sequence[BrokerId] = ()


class SpreadInternalTopics(Struct, frozen=True, kw_only=True):
    """Raises the replication factor of internal topics to three, or to the number of brokers."""


class AlterTopicConfigs(Struct, frozen=True, kw_only=True):
    """IncrementalAlterConfigs: only the named keys change."""

    topic: str
    changes: Sequence[ConfigChange]


class ReplaceTopicConfigs(Struct, frozen=True, kw_only=True):
    """AlterConfigs: replaces all overrides."""

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
    """Allocates a block of ids, so that not every producer needs a write."""

    count: int


class DefineQueueGroup(Struct, frozen=True, kw_only=True):
    """Creates or changes a queue group: topics are added, and the given settings replaced.

    `starts_at_end` only applies to a new group. With `expected` it is refused if the group differs
    from that by then; None: if there is a group.
    """

    name: str
    topics: Sequence[str] = ()
    visibility_ms: int | None = None
    attempts_max: int | None = None
    backoff_ms: int | None = None
    backoff_ms_max: int | None = None
    dead_letter_topic: str | None = None
    starts_at_end: bool = False
    expected: QueueGroup | UnsetType | None = UNSET


class DropQueueGroup(Struct, frozen=True, kw_only=True):
    """Deletes a queue group; its name can be used again."""

    name: str


class PutScramCredentials(Struct, frozen=True, kw_only=True):
    """Sets credentials of a user, which is created if needed.

    With `replace_all` those of other mechanisms are removed: an old password must not stay valid.
    """

    user: str
    credentials: Mapping[ScramMechanism, ScramCredential]
    replace_all: bool = False


class DeleteScramCredential(Struct, frozen=True, kw_only=True):
    """Deletes one credential of a user, and with the last one the user."""

    user: str
    mechanism: ScramMechanism


class DeleteUser(Struct, frozen=True, kw_only=True):
    """Deletes a user with all credentials. ACLs and quotas of this name stay."""

    user: str


class CreateAcls(Struct, frozen=True, kw_only=True):
    """Adds rules, all or none; those that exist already are left as they are."""

    acls: Sequence[Acl]


class DeleteAcls(Struct, frozen=True, kw_only=True):
    """Deletes all rules that match any of the filters."""

    filters: Sequence[AclFilter]


class AlterQuotas(Struct, frozen=True, kw_only=True):
    """Sets limits of one entity; None removes one."""

    entity: QuotaEntity
    limits: Mapping[str, float | None]


class CreateJoinToken(Struct, frozen=True, kw_only=True):
    """Lets one broker join. Removes tokens that have expired."""

    id: str
    hash: bytes
    expires_ms: int
    now_ms: int

    def __repr__(self) -> str:
        return f"CreateJoinToken(id={self.id!r})"


class DeleteJoinToken(Struct, frozen=True, kw_only=True):
    """A broker can no longer join with this token."""

    id: str


Command = (
    CreateCluster
    | RegisterBroker
    | DrainBroker
    | KeepBroker
    | RemoveBroker
    | RemoveLostBrokers
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
    | PutScramCredentials
    | DeleteScramCredential
    | DeleteUser
    | CreateAcls
    | DeleteAcls
    | AlterQuotas
    | CreateJoinToken
    | DeleteJoinToken
)

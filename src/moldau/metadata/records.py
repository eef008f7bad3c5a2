"""The records of the metadata log, and their format.

Values are absolute, so that replaying part of the log is idempotent. Format: one version byte, then
a msgpack map by field name. Later versions add fields with defaults, and earlier ones skip unknown
fields; the version byte changes only when that is not enough. Tags and field names are stored:
they stay when a class or attribute is renamed.
"""

from typing import Final

import msgspec

from moldau.metadata.image import BrokerState, Endpoint, Listeners
from moldau.metadata.queue_groups import QueueGroup
from moldau.metadata.security import JoinToken, User
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId
from moldau.security.acl import Acl
from moldau.security.quotas import QuotaEntity

FORMAT_VERSION: Final = 1


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """The permanent id of the cluster."""

    cluster_id: str


class BrokerRegistered(msgspec.Struct, frozen=True, kw_only=True, tag="broker"):
    """The addresses of a broker from now on."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    incarnation: str = ""
    process: str = ""
    raft: Endpoint | None = None
    http: Endpoint | None = None
    epoch: int = 0
    feature_level_max: int = 0
    grpc: Endpoint | None = None
    listeners: Listeners | msgspec.UnsetType = msgspec.UNSET
    """Stored only where there are several: other records keep their bytes."""
    machine: str | msgspec.UnsetType = msgspec.UNSET
    """Stored only where it is known."""


class BrokerStateSet(msgspec.Struct, frozen=True, kw_only=True, tag="broker-state"):
    """The broker is active, draining or removed."""

    broker_id: BrokerId
    state: BrokerState


class FeatureLevelSet(msgspec.Struct, frozen=True, kw_only=True, tag="feature-level"):
    """Every broker supports this level."""

    level: int


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True, tag="topic"):
    """A topic with the replicas of each partition, in the order of partitions."""

    name: str
    topic_id: TopicId
    partitions: tuple[tuple[BrokerId, ...], ...]
    configs: dict[str, str] = {}
    internal: bool = False


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="topic-deleted"):
    """By id: a later topic with the same name is a different one."""

    topic_id: TopicId


class PartitionsCreated(msgspec.Struct, frozen=True, kw_only=True, tag="partitions"):
    """Partitions from `first` on."""

    topic_id: TopicId
    first: int
    partitions: tuple[tuple[BrokerId, ...], ...]


class DesiredReplicasSet(msgspec.Struct, frozen=True, kw_only=True, tag="replicas-wished"):
    """The desired replicas are `target`; until they are reached, all of `replicas` keep their log.

    Cancelling the reassignment returns to `origin`.
    """

    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    origin: tuple[BrokerId, ...]
    desired_version: int = msgspec.field(name="wish")


class DesiredReplicasReached(msgspec.Struct, frozen=True, kw_only=True, tag="replicas-reached"):
    """The voters of the partition are the desired replicas; the reassignment is complete."""

    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    desired_version: int = msgspec.field(name="wish")


class TopicConfigsSet(msgspec.Struct, frozen=True, kw_only=True, tag="topic-configs"):
    """Replaces all overrides of the topic."""

    topic_id: TopicId
    configs: dict[str, str]


class BrokerConfigsSet(msgspec.Struct, frozen=True, kw_only=True, tag="broker-configs"):
    """Replaces all overrides of the broker (or CLUSTER_DEFAULT)."""

    broker_id: BrokerId
    configs: dict[str, str]


class ProducerIdsAllocated(msgspec.Struct, frozen=True, kw_only=True, tag="producer-ids"):
    """Ids first … first + count - 1 are allocated."""

    first: ProducerId
    count: int


class QueueGroupSet(msgspec.Struct, frozen=True, kw_only=True, tag="queue-group"):
    """Topics and settings of a queue group.

    `topic_ids` are those of its topics, in order: a replay after a topic was deleted and recreated
    must not add the new one.
    """

    group: QueueGroup
    topic_ids: tuple[TopicId, ...]


class QueueGroupDropped(msgspec.Struct, frozen=True, kw_only=True, tag="queue-group-dropped"):
    """The queue group was deleted."""

    name: str


class UserSet(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """A user with all credentials."""

    user: User


class UserDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="user-deleted"):
    """The user can no longer log in."""

    name: str


class AclsAdded(msgspec.Struct, frozen=True, kw_only=True, tag="acls"):
    """These rules exist."""

    acls: tuple[Acl, ...]


class AclsRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="acls-removed"):
    """These rules do not exist."""

    acls: tuple[Acl, ...]


class QuotaSet(msgspec.Struct, frozen=True, kw_only=True, tag="quota"):
    """Replaces all limits of the entity; without any, it has no quota."""

    entity: QuotaEntity
    limits: dict[str, float]


class JoinTokenSet(msgspec.Struct, frozen=True, kw_only=True, tag="join-token"):
    """A token was created or used."""

    token: JoinToken


class JoinTokenDropped(msgspec.Struct, frozen=True, kw_only=True, tag="join-token-dropped"):
    """A token was deleted, or has expired."""

    id: str


MetadataRecord = (
    ClusterCreated
    | BrokerRegistered
    | BrokerStateSet
    | FeatureLevelSet
    | TopicCreated
    | TopicDeleted
    | PartitionsCreated
    | DesiredReplicasSet
    | DesiredReplicasReached
    | TopicConfigsSet
    | BrokerConfigsSet
    | ProducerIdsAllocated
    | QueueGroupSet
    | QueueGroupDropped
    | UserSet
    | UserDeleted
    | AclsAdded
    | AclsRemoved
    | QuotaSet
    | JoinTokenSet
    | JoinTokenDropped
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[MetadataRecord]] = msgspec.msgpack.Decoder(MetadataRecord)
_PREFIX: Final = bytes([FORMAT_VERSION])


def encode_record(record: MetadataRecord) -> bytes:
    return _PREFIX + _encoder.encode(record)


def decode_record(data: bytes | bytearray | memoryview) -> MetadataRecord:
    """Raises CorruptionError."""
    view = memoryview(data)
    if not len(view):
        raise CorruptionError("metadata record is empty")
    if view[0] != FORMAT_VERSION:
        raise CorruptionError(
            f"metadata record has format {view[0]}, this version reads {FORMAT_VERSION}: "
            "the data directory was written by a newer moldau"
        )
    try:
        return _decoder.decode(view[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"metadata record is malformed: {error}") from error

"""Owns the metadata records: facts in the metadata log, and their bytes.

A record says what is, not what to do: values are absolute, so that reading a stretch of the log
twice ends in the same state. Bytes: one format byte, then a msgpack map. Maps name their fields, so
a later version adds fields with defaults and an earlier one skips what it does not know; the format
byte changes only when that is not enough.
"""

from typing import Final

import msgspec

from moldau.metadata.image import BrokerState, Endpoint
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId

FORMAT_VERSION: Final = 1


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """The cluster has this id for good."""

    cluster_id: str


class BrokerRegistered(msgspec.Struct, frozen=True, kw_only=True, tag="broker"):
    """The broker is reached there from now on."""

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


class BrokerStateSet(msgspec.Struct, frozen=True, kw_only=True, tag="broker-state"):
    """The broker is active, leaves, or is gone for good."""

    broker_id: BrokerId
    state: BrokerState


class FeatureLevelSet(msgspec.Struct, frozen=True, kw_only=True, tag="feature-level"):
    """Every broker understands this level from now on."""

    level: int


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True, tag="topic"):
    """A topic with the replicas of each partition, in the order of partitions."""

    name: str
    topic_id: TopicId
    partitions: tuple[tuple[BrokerId, ...], ...]
    configs: dict[str, str] = {}
    internal: bool = False


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="topic-deleted"):
    """By id: a later topic of the same name is another one."""

    topic_id: TopicId


class PartitionsCreated(msgspec.Struct, frozen=True, kw_only=True, tag="partitions"):
    """Partitions from `first` on."""

    topic_id: TopicId
    first: int
    partitions: tuple[tuple[BrokerId, ...], ...]


class DesiredReplicasSet(msgspec.Struct, frozen=True, kw_only=True, tag="replicas-wished"):
    """The partition shall be on `target`; until that is reached, all of `replicas` keep it.

    `origin` is where cancelling the move leads back to.
    """

    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    origin: tuple[BrokerId, ...]
    wish: int


class DesiredReplicasReached(msgspec.Struct, frozen=True, kw_only=True, tag="replicas-reached"):
    """The partition's group has exactly these voters; its move is over."""

    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    wish: int


class TopicConfigsSet(msgspec.Struct, frozen=True, kw_only=True, tag="topic-configs"):
    """All overrides of the topic afterwards."""

    topic_id: TopicId
    configs: dict[str, str]


class BrokerConfigsSet(msgspec.Struct, frozen=True, kw_only=True, tag="broker-configs"):
    """All overrides of the broker (or CLUSTER_DEFAULT) afterwards."""

    broker_id: BrokerId
    configs: dict[str, str]


class ProducerIdsAllocated(msgspec.Struct, frozen=True, kw_only=True, tag="producer-ids"):
    """Ids first … first + count - 1 are given away."""

    first: ProducerId
    count: int


class QueueGroupSet(msgspec.Struct, frozen=True, kw_only=True, tag="queue-group"):
    """The group is so from now on.

    `topic_ids` are those of its topics, in order: read again after one was deleted and another made
    of the same name, the record is not about that one.
    """

    group: QueueGroup
    topic_ids: tuple[TopicId, ...]


class QueueGroupDropped(msgspec.Struct, frozen=True, kw_only=True, tag="queue-group-dropped"):
    """There is no such group any more."""

    name: str


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
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[MetadataRecord]] = msgspec.msgpack.Decoder(MetadataRecord)
_PREFIX: Final = bytes([FORMAT_VERSION])


def encode_record(record: MetadataRecord) -> bytes:
    return _PREFIX + _encoder.encode(record)


def decode_record(data: bytes | bytearray | memoryview) -> MetadataRecord:
    """Raises CorruptionError: the log's checksums passed, so wrong bytes are not the network's."""
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
        raise CorruptionError(f"metadata record cannot be read: {error}") from error

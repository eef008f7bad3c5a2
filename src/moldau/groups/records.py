"""The records of `__consumer_offsets`, in Kafka's format.

The version at the start of a key is also its kind: 0 and 1 an offset, 2 a classic group, 3 to 8
are in `consumer.records`. Written are the versions that every Kafka since 2.3 writes (key 1 and
value 3, key 2 and value 3), so that existing tools read the topic; all versions up to the flexible
ones are read. Unknown kinds decode to None and are skipped, as in Kafka; malformed bytes raise
CorruptionError.
"""

import struct
from typing import Final

from msgspec import Struct

from moldau.groups.consumer import records as consumer
from moldau.groups.results import CommittedOffset
from moldau.model.ids import NO_EPOCH, Epoch, Offset, PartitionIndex, TimestampMs, TopicPartition
from moldau.records.kafka_types import Reader, blob_bytes, string_bytes

TEXT_BYTES_MAX: Final = 2**15 - 1
"""Limit of the format; requests with longer texts are rejected."""
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_OFFSET_VALUE_VERSION_MAX: Final = 4
_GROUP_VALUE_VERSION: Final = 3
_GROUP_VALUE_VERSION_MAX: Final = 4
_INT16: Final = struct.Struct(">h")
_TWO_INT16: Final = struct.Struct(">hh")
_OFFSET_HEAD: Final = struct.Struct(">hqih")
"""Version, offset, leader epoch, and the size of the metadata."""


class OffsetRecord(Struct, frozen=True, kw_only=True):
    """The committed offset of a partition; None: deleted."""

    group_id: str
    partition: TopicPartition
    value: CommittedOffset | None


class StoredMember(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(Struct, frozen=True, kw_only=True):
    """A completed generation, or an empty group."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp: TimestampMs
    members: tuple[StoredMember, ...]


class GroupRecord(Struct, frozen=True, kw_only=True):
    """The last completed generation of a group; None: the group was deleted."""

    group_id: str
    value: StoredGroup | None


GroupsRecord = OffsetRecord | GroupRecord | consumer.ConsumerRecord


def encode(record: GroupsRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended; a value of None is a tombstone."""
    if isinstance(record, OffsetRecord):
        topic, partition = record.partition
        key = (
            struct.pack(">h", _OFFSET_KEY_VERSION)
            + string_bytes(record.group_id)
            + string_bytes(topic)
            + struct.pack(">i", partition)
        )
        return key, None if record.value is None else _encode_offset(record.value)
    if not isinstance(record, GroupRecord):
        return consumer.encode(record)
    key = struct.pack(">h", _GROUP_KEY_VERSION) + string_bytes(record.group_id)
    return key, None if record.value is None else _encode_group(record.value)


def decode(key: bytes, value: bytes | None) -> GroupsRecord | None:
    """The record, or None for an unknown kind."""
    plain = None if value is None else _decode_as_written(key, value)
    if plain is not None:
        return plain
    reader = Reader(key)
    version = reader.int16()
    if version in (0, _OFFSET_KEY_VERSION):
        group_id, topic = reader.string(), reader.string()
        return OffsetRecord(
            group_id=group_id,
            partition=TopicPartition(topic, PartitionIndex(reader.int32())),
            value=None if value is None else _decode_offset(Reader(value)),
        )
    if version == _GROUP_KEY_VERSION:
        return GroupRecord(
            group_id=reader.string(), value=None if value is None else _decode_group(Reader(value))
        )
    if version in consumer.KEYS:
        return consumer.decode(version, reader, value)
    return None


def _decode_as_written(key: bytes, value: bytes) -> OffsetRecord | None:
    """Fast path for offsets in the versions written here: a new coordinator reads hundreds of
    thousands of them. None for anything else, which `decode` then reads field by field."""
    try:
        kind, group_size = _TWO_INT16.unpack_from(key)
        topic_start = 6 + group_size
        (topic_size,) = _INT16.unpack_from(key, topic_start - 2)
        version, offset, leader_epoch, metadata_size = _OFFSET_HEAD.unpack_from(value)
        if (
            kind != _OFFSET_KEY_VERSION
            or version != _OFFSET_VALUE_VERSION
            or min(group_size, topic_size, metadata_size) < 0
            or len(key) != topic_start + topic_size + 4
            or len(value) != _OFFSET_HEAD.size + metadata_size + 8
        ):
            return None
        metadata_end = _OFFSET_HEAD.size + metadata_size
        return OffsetRecord(
            group_id=key[4 : topic_start - 2].decode(),
            partition=TopicPartition(
                key[topic_start : topic_start + topic_size].decode(),
                PartitionIndex(int.from_bytes(key[-4:], "big", signed=True)),
            ),
            value=CommittedOffset(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=value[_OFFSET_HEAD.size : metadata_end].decode(),
                commit_timestamp=TimestampMs(
                    int.from_bytes(value[metadata_end:], "big", signed=True)
                ),
            ),
        )
    except (struct.error, UnicodeDecodeError):
        return None


def _encode_offset(value: CommittedOffset) -> bytes:
    metadata = string_bytes(value.metadata)
    if value.expire_timestamp is not None:
        # Only version 1 has the field; it has no leader epoch, nor have the requests that set it.
        return (
            struct.pack(">hq", _OFFSET_VALUE_VERSION_WITH_EXPIRY, value.offset)
            + metadata
            + struct.pack(">qq", value.commit_timestamp, value.expire_timestamp)
        )
    return (
        struct.pack(">hqi", _OFFSET_VALUE_VERSION, value.offset, value.leader_epoch)
        + metadata
        + struct.pack(">q", value.commit_timestamp)
    )


def _decode_offset(reader: Reader) -> CommittedOffset:
    version = reader.version("offset record", _OFFSET_VALUE_VERSION_MAX)
    reader.flexible = version >= 4
    offset = Offset(reader.int64())
    leader_epoch = Epoch(reader.int32()) if version >= 3 else NO_EPOCH
    metadata = reader.string()
    commit_timestamp = TimestampMs(reader.int64())
    expire = reader.int64() if version == _OFFSET_VALUE_VERSION_WITH_EXPIRY else -1
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_timestamp,
        expire_timestamp=TimestampMs(expire) if expire >= 0 else None,
    )


def _encode_group(value: StoredGroup) -> bytes:
    parts = [
        struct.pack(">h", _GROUP_VALUE_VERSION),
        string_bytes(value.protocol_type),
        struct.pack(">i", value.generation),
        string_bytes(value.protocol_name),
        string_bytes(value.leader),
        struct.pack(">qi", value.state_timestamp, len(value.members)),
    ]
    for member in value.members:
        parts += (
            string_bytes(member.member_id),
            string_bytes(member.instance_id),
            string_bytes(member.client_id),
            string_bytes(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            blob_bytes(member.subscription),
            blob_bytes(member.assignment),
        )
    return b"".join(parts)


def _decode_group(reader: Reader) -> StoredGroup:
    version = reader.version("group record", _GROUP_VALUE_VERSION_MAX)
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation = reader.int32()
    protocol_name = reader.nullable_string()
    leader = reader.nullable_string()
    state_timestamp = TimestampMs(reader.int64() if version >= 2 else -1)
    members = []
    for _ in range(reader.array_length()):
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        members.append(
            StoredMember(
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host=client_host,
                rebalance_timeout_ms=(rebalance_timeout_ms if version >= 1 else session_timeout_ms),
                session_timeout_ms=session_timeout_ms,
                subscription=reader.blob(),
                assignment=reader.blob(),
            )
        )
        reader.tagged_fields()
    return StoredGroup(
        protocol_type=protocol_type,
        generation=generation,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp=state_timestamp,
        members=tuple(members),
    )

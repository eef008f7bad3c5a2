"""Owns the records of `__consumer_offsets`: their meaning, and Kafka's own bytes for them.

Keys begin with a version that also tells the kind: 0 and 1 an offset, 2 a group. Written are the
versions that every Kafka since 2.3 writes (key 1 and value 3, key 2 and value 3), so that existing
tools read the topic; read are all versions up to the flexible ones. Keys of kinds that are unknown
here decode to None and are skipped, as Kafka does; malformed bytes are a CorruptionError.
"""

import struct
from dataclasses import dataclass
from typing import Final

from moldau.groups.results import CommittedOffset
from moldau.model.errors import CorruptionError
from moldau.model.ids import NO_EPOCH, Epoch, Offset, PartitionIndex, TimestampMs, TopicPartition

TEXT_BYTES_MAX: Final = 2**15 - 1
"""Longest text that the format can hold; requests with longer ones are refused."""
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_OFFSET_VALUE_VERSION_MAX: Final = 4
_GROUP_VALUE_VERSION: Final = 3
_GROUP_VALUE_VERSION_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """What a group has stored for a partition; None: nothing any more."""

    group_id: str
    partition: TopicPartition
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A completed generation, or an empty group."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp: TimestampMs
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The last completed generation of a group; None: the group is gone."""

    group_id: str
    value: StoredGroup | None


GroupsRecord = OffsetRecord | GroupRecord


def encode(record: GroupsRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended; a value of None is a tombstone."""
    if isinstance(record, OffsetRecord):
        topic, partition = record.partition
        key = (
            struct.pack(">h", _OFFSET_KEY_VERSION)
            + _string(record.group_id)
            + _string(topic)
            + struct.pack(">i", partition)
        )
        return key, None if record.value is None else _encode_offset(record.value)
    key = struct.pack(">h", _GROUP_KEY_VERSION) + _string(record.group_id)
    return key, None if record.value is None else _encode_group(record.value)


def decode(key: bytes, value: bytes | None) -> GroupsRecord | None:
    """The record, or None for a kind that is unknown here."""
    reader = _Reader(key)
    version = reader.int16()
    if version in (0, _OFFSET_KEY_VERSION):
        group_id, topic = reader.string(), reader.string()
        return OffsetRecord(
            group_id=group_id,
            partition=TopicPartition(topic, PartitionIndex(reader.int32())),
            value=None if value is None else _decode_offset(_Reader(value)),
        )
    if version == _GROUP_KEY_VERSION:
        return GroupRecord(
            group_id=reader.string(),
            value=None if value is None else _decode_group(_Reader(value)),
        )
    return None


def _encode_offset(value: CommittedOffset) -> bytes:
    metadata = _string(value.metadata)
    if value.expire_timestamp is not None:
        # Only version 1 has the field; it has no leader epoch, and clients that ask for it neither.
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


def _decode_offset(reader: "_Reader") -> CommittedOffset:
    version = reader.version("offset", _OFFSET_VALUE_VERSION_MAX)
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
        _string(value.protocol_type),
        struct.pack(">i", value.generation),
        _string(value.protocol_name),
        _string(value.leader),
        struct.pack(">qi", value.state_timestamp, len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def _decode_group(reader: "_Reader") -> StoredGroup:
    version = reader.version("group", _GROUP_VALUE_VERSION_MAX)
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
        reader.skip_tagged_fields()
    return StoredGroup(
        protocol_type=protocol_type,
        generation=generation,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp=state_timestamp,
        members=tuple(members),
    )


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    """Reads Kafka's primitive types; every length is checked against what is left."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def version(self, what: str, most: int) -> int:
        version = self.int16()
        if not 0 <= version <= most:
            raise CorruptionError(
                f"{what} record has version {version}, this version reads up to {most}"
            )
        return version

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptionError("group record has no text where one is required")
        return text

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"group record holds text that is not UTF-8: {error}") from error

    def blob(self) -> bytes:
        return self._take(self._varint() - 1 if self.flexible else self.int32())

    def array_length(self) -> int:
        length = self._varint() - 1 if self.flexible else self.int32()
        # A member takes more than a byte, so this bounds the loop by the data.
        if not 0 <= length <= len(self._data) - self._position:
            raise CorruptionError(f"group record claims {length} members")
        return length

    def skip_tagged_fields(self) -> None:
        if not self.flexible:
            return
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptionError("group record holds a number that does not end")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptionError("group record ends early")
        taken = self._data[self._position : end]
        self._position = end
        return taken

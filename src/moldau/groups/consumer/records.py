"""Stored records of the consumer protocol (KIP-848), in Kafka's format.

    key 3  a group: its epoch, and a hash of the topics that its members subscribe to
    key 5  a member: its subscription and settings
    key 6  the epoch of the target assignment
    key 7  a member's target assignment
    key 8  a member's current assignment

Keys 4 (partitions of subscribed topics, older Kafkas) and 16 (matches of patterns) are not written:
both follow from the existing topics. Two tagged fields are Moldau's own, with tags that Kafka's
readers skip: since when a group has no members, and a member's own session timeout.
"""

import struct
from enum import IntEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.groups.assignors.interface import NOTHING, Assignment
from moldau.model.errors import CorruptionError
from moldau.model.ids import NO_TIMESTAMP, TimestampMs, TopicId
from moldau.records.kafka_types import (
    Reader,
    compact_array,
    compact_bytes,
    compact_string,
    string_bytes,
    tagged_fields_bytes,
)

EPOCH_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
KEYS: Final = frozenset({EPOCH_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, CURRENT_KEY})
_HASH_TAG: Final = 0
_EMPTY_SINCE_TAG: Final = 10_000
_SESSION_TAG: Final = 10_001
_CLASSIC_TAG: Final = 0
_PRESENT: Final = b"\1"
_TAGGED: Final = frozenset({EPOCH_KEY, MEMBER_KEY})
"""Kinds whose encoders write their tags."""
_VERSION: Final = b"\0\0"
_NO_TAGS: Final = b"\0"

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Epoch of a static member that left temporarily."""


class MemberState(IntEnum):
    """The numbers are stored."""

    STABLE = 0
    UNREVOKED = 1
    """It must revoke partitions before its next step."""
    UNRELEASED = 2
    """It waits for partitions that other members have not released."""
    UNKNOWN = 127


class GroupEpoch(Struct, frozen=True, kw_only=True):
    epoch: int
    topics_hash: int = 0
    empty_since: TimestampMs = NO_TIMESTAMP


class ClassicClient(Struct, frozen=True, kw_only=True):
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, subscription), most preferred first; at least one."""


class ConsumerMember(Struct, frozen=True, kw_only=True):
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Sorted."""
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    session_timeout_ms: int | None = None
    """None: the broker's default."""
    classic: ClassicClient | None = None


class CurrentAssignment(Struct, frozen=True, kw_only=True):
    """A member's partitions: `assigned`, and `revoking`, which it must release."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING


class EpochRecord(Struct, frozen=True, kw_only=True):
    group_id: str
    value: GroupEpoch | None


class MemberRecord(Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    value: ConsumerMember | None


class TargetEpochRecord(Struct, frozen=True, kw_only=True):
    group_id: str
    value: int | None


class TargetAssignmentRecord(Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    value: Assignment | None


class CurrentAssignmentRecord(Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    value: CurrentAssignment | None


ConsumerRecord = (
    EpochRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetAssignmentRecord
    | CurrentAssignmentRecord
)


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    match record:
        case EpochRecord():
            key, value = EPOCH_KEY, None if record.value is None else _encode_epoch(record.value)
        case MemberRecord():
            key, value = MEMBER_KEY, None if record.value is None else _encode_member(record.value)
        case TargetEpochRecord():
            key = TARGET_EPOCH_KEY
            value = None if record.value is None else struct.pack(">i", record.value)
        case TargetAssignmentRecord():
            key = TARGET_KEY
            value = None if record.value is None else _encode_assignment(record.value)
        case CurrentAssignmentRecord():
            key = CURRENT_KEY
            value = None if record.value is None else _encode_current(record.value)
    name = struct.pack(">h", key) + string_bytes(record.group_id)
    if not isinstance(record, EpochRecord | TargetEpochRecord):
        name += string_bytes(record.member_id)
    if value is None:
        return name, None
    return name, _VERSION + value + (b"" if key in _TAGGED else _NO_TAGS)


def decode(kind: int, key: Reader, value: bytes | None) -> ConsumerRecord:
    """`key` is positioned after its kind, which is one of KEYS."""
    group_id = key.string()
    reader = None if value is None else Reader(value)
    if reader is not None:
        reader.version("consumer group record", 0)
        reader.flexible = True
    if kind == EPOCH_KEY:
        return EpochRecord(group_id=group_id, value=None if reader is None else _epoch(reader))
    if kind == TARGET_EPOCH_KEY:
        return TargetEpochRecord(
            group_id=group_id, value=None if reader is None else reader.int32()
        )
    member_id = key.string()
    if kind == MEMBER_KEY:
        return MemberRecord(
            group_id=group_id,
            member_id=member_id,
            value=None if reader is None else _member(reader),
        )
    if kind == TARGET_KEY:
        return TargetAssignmentRecord(
            group_id=group_id,
            member_id=member_id,
            value=None if reader is None else _assignment(reader),
        )
    return CurrentAssignmentRecord(
        group_id=group_id, member_id=member_id, value=None if reader is None else _current(reader)
    )


def _encode_epoch(value: GroupEpoch) -> bytes:
    tags = [(_HASH_TAG, struct.pack(">q", value.topics_hash))]
    if value.empty_since != NO_TIMESTAMP:
        tags.append((_EMPTY_SINCE_TAG, struct.pack(">q", value.empty_since)))
    return struct.pack(">i", value.epoch) + tagged_fields_bytes(tags)


def _epoch(reader: Reader) -> GroupEpoch:
    epoch = reader.int32()
    tags = reader.tagged_fields()
    return GroupEpoch(
        epoch=epoch,
        topics_hash=Reader(tags[_HASH_TAG]).int64() if _HASH_TAG in tags else 0,
        empty_since=TimestampMs(Reader(tags[_EMPTY_SINCE_TAG]).int64())
        if _EMPTY_SINCE_TAG in tags
        else NO_TIMESTAMP,
    )


def _encode_member(value: ConsumerMember) -> bytes:
    tags = []
    if value.classic is not None:
        tags.append((_CLASSIC_TAG, _encode_classic(value.classic)))
    if value.session_timeout_ms is not None:
        tags.append((_SESSION_TAG, struct.pack(">i", value.session_timeout_ms)))
    return b"".join(
        (
            compact_string(value.instance_id),
            compact_string(value.rack),
            compact_string(value.client_id),
            compact_string(value.client_host),
            compact_array(compact_string(topic) for topic in value.topics),
            compact_string(value.pattern),
            struct.pack(">i", value.rebalance_timeout_ms),
            compact_string(value.assignor),
            tagged_fields_bytes(tags),
        )
    )


def _member(reader: Reader) -> ConsumerMember:
    member = ConsumerMember(
        instance_id=reader.nullable_string(),
        rack=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topics=tuple(reader.string() for _ in range(reader.array_length())),
        pattern=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        assignor=reader.nullable_string(),
    )
    tags = reader.tagged_fields()
    session, classic = tags.get(_SESSION_TAG), tags.get(_CLASSIC_TAG)
    if session is not None:
        member = replace(member, session_timeout_ms=Reader(session).int32())
    if classic is not None:
        member = replace(member, classic=_classic(Reader(classic)))
    return member


def _encode_classic(value: ClassicClient) -> bytes:
    protocols = compact_array(
        compact_string(name) + compact_bytes(data) + _NO_TAGS for name, data in value.protocols
    )
    return _PRESENT + struct.pack(">i", value.session_timeout_ms) + protocols + _NO_TAGS


def _classic(reader: Reader) -> ClassicClient | None:
    reader.flexible = True
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.blob()))
        reader.tagged_fields()
    if not protocols:
        raise CorruptionError("group record has a classic member without a protocol")
    return ClassicClient(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _encode_assignment(value: Assignment) -> bytes:
    return compact_array(
        topic + compact_array(struct.pack(">i", index) for index in sorted(value[topic])) + _NO_TAGS
        for topic in sorted(value)
    )


def _assignment(reader: Reader) -> Assignment:
    found: dict[TopicId, frozenset[int]] = {}
    for _ in range(reader.array_length()):
        topic = TopicId(reader.uuid())
        indexes = frozenset(reader.int32() for _ in range(reader.array_length()))
        reader.tagged_fields()
        if indexes:
            found[topic] = indexes
    return found


def _encode_current(value: CurrentAssignment) -> bytes:
    return (
        struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
        + _encode_assignment(value.assigned)
        + _encode_assignment(value.revoking)
    )


def _current(reader: Reader) -> CurrentAssignment:
    epoch, previous_epoch, number = reader.int32(), reader.int32(), reader.int8()
    try:
        state = MemberState(number)
    except ValueError:
        raise CorruptionError(f"group record holds the member state {number}") from None
    return CurrentAssignment(
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=state,
        assigned=_assignment(reader),
        revoking=_assignment(reader),
    )

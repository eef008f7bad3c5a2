"""Messages between brokers about groups and their members, and their encoding.

msgpack arrays: a later version appends fields with defaults.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeVar

import msgspec

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId
from moldau.model.malformed import MALFORMED

NO_OFFSET: Final = -1

Partitions = list[tuple[bytes, list[int]]]
"""Topic ids with partitions."""


class HeartbeatKind(IntEnum):
    JOIN = 0
    STAY = 1
    LEAVE = 2


class MemberHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A member joins, stays or leaves. The fields after `owned` are for joining."""

    group: str
    member: str
    kind: HeartbeatKind
    owned: Partitions | None = None
    """Partitions that it reports to own; None: unchanged."""
    client_id: str = ""
    topics: tuple[str, ...] = ()
    is_queue: bool = False
    session_timeout_ms: int = 0


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    member: str
    topics: tuple[str, ...]
    is_queue: bool
    assigned: Partitions
    revoking: Partitions
    """Partitions that it still has, and must give up."""


class MemberHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`member` None: it has left."""

    interval_ms: int
    member: MemberDescription | None = None


class GroupCommitRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Offsets are (topic, partition, offset)."""

    group: str
    member: str
    offsets: list[tuple[str, int, int]]


class OffsetCommitResult(msgspec.Struct, frozen=True, array_like=True):
    """Result for one partition; `before` is the offset that was committed before."""

    error: int
    """An ErrorCode, possibly of a later version."""
    before: int = NO_OFFSET

    @property
    def is_stored(self) -> bool:
        """That offset or a higher one is committed."""
        return self.error == ErrorCode.NONE


class GroupOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    group: str
    partitions: list[tuple[str, int]]


class GroupMemberRef(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group, and optionally a member of it."""

    group: str
    member: str = ""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group; `classic_members` use Kafka's classic group protocol."""

    members: list[MemberDescription]
    classic_members: int
    has_offsets: bool

    @property
    def is_taken(self) -> bool:
        """The name belongs to a Kafka consumer group."""
        return (
            self.has_offsets
            or self.classic_members > 0
            or any(not member.is_queue for member in self.members)
        )

    @property
    def exists(self) -> bool:
        return self.has_offsets or self.classic_members > 0 or bool(self.members)


T = TypeVar("T")


def decode(payload: bytes, kind: type[T]) -> T:
    """Raises RefusedError."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except MALFORMED as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"cannot decode a group message of a peer: {error}"
        ) from None


def encode(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


def pack_partitions(partitions: Mapping[TopicId, frozenset[int]]) -> Partitions:
    return [(topic, sorted(indexes)) for topic, indexes in partitions.items()]


def unpack_partitions(partitions: Partitions) -> dict[TopicId, frozenset[int]]:
    return {TopicId(topic): frozenset(indexes) for topic, indexes in partitions if indexes}

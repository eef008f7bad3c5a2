"""Owns what brokers say to each other about the members of groups, and its bytes.

msgpack, fields by their place: a later version adds some at the end, with defaults.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeVar

import msgspec

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId

HEARTBEAT_METHOD: Final = 35
MEMBER_LEFT_METHOD: Final = 36
COMMIT_METHOD: Final = 37
OFFSETS_METHOD: Final = 38
DESCRIBE_METHOD: Final = 39

NO_OFFSET: Final = -1

Partitions = list[tuple[bytes, list[int]]]
"""Topic ids with partitions."""


class HeartbeatKind(IntEnum):
    """What a heartbeat is for."""

    JOIN = 0
    STAY = 1
    LEAVE = 2


class MemberHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A member joins, stays or leaves. `topics`, `assignor` and the like are for joining."""

    group: str
    member: str
    kind: HeartbeatKind
    owned: Partitions | None = None
    """What it says that it has; None: as before."""
    client_id: str = ""
    topics: tuple[str, ...] = ()
    is_queue: bool = False
    session_timeout_ms: int = 0


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A member as the coordinator knows it."""

    member: str
    topics: tuple[str, ...]
    is_queue: bool
    assigned: Partitions
    revoking: Partitions
    """What it has beside, and must let go of."""


class MemberHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`told` None: it has left."""

    interval_ms: int
    told: MemberDescription | None = None


class GroupCommitRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Topics by name, with partition and offset."""

    group: str
    member: str
    offsets: list[tuple[str, int, int]]


class OffsetCommitResult(msgspec.Struct, frozen=True, array_like=True):
    """Of one partition: `before` is what was committed when it was asked."""

    error: int
    """An ErrorCode, or one of a later version."""
    before: int = NO_OFFSET

    @property
    def is_stored(self) -> bool:
        """That offset or a later one."""
        return self.error == ErrorCode.NONE


class GroupOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    group: str
    partitions: list[tuple[str, int]]


class GroupMemberRef(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group, and perhaps a member of it."""

    group: str
    member: str = ""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group: `classic_members` speak Kafka's older protocol."""

    members: list[MemberDescription]
    classic_members: int
    has_offsets: bool

    @property
    def is_taken(self) -> bool:
        """Somebody has used the name for partitions."""
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
    except msgspec.MsgspecError as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"a message between brokers cannot be read: {error}"
        ) from None


def encode(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


def packed(partitions: Mapping[TopicId, frozenset[int]]) -> Partitions:
    return [(topic, sorted(indexes)) for topic, indexes in partitions.items()]


def unpacked(partitions: Partitions) -> dict[TopicId, frozenset[int]]:
    return {TopicId(topic): frozenset(indexes) for topic, indexes in partitions if indexes}

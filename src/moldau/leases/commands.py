"""The commands of a queue. Every time in them is the leader's clock.

The caller ensures that `now` never goes back within an epoch, and that a command is decided only
after the record of the previous command is committed and applied.
"""

from typing import NamedTuple, TypeAlias

from msgspec import Struct

from moldau.leases.delay_buckets import BucketKey
from moldau.leases.tokens import Token
from moldau.model.ids import NO_TIMESTAMP, Epoch, Offset, TimestampMs

BACKOFF = -1
"""As a delay: the group's backoff for that attempt."""


class TakeOver(Struct, frozen=True, kw_only=True):
    """A leader begins its epoch. Leases of earlier epochs continue, and last as long as new ones,
    so that a leader change or a different clock does not cost a worker its lease.

    `start` is the first offset of a new queue. `end` is the end of the leader's log once all of it
    is committed: if a broker that does not flush lost the tail, offsets from `end` on will hold
    other messages, so their state is dropped.
    """

    epoch: Epoch
    now: TimestampMs
    start: Offset
    end: Offset


class LogMessage(NamedTuple):
    """A message of the log. `deliver_at` in the past, or NO_TIMESTAMP: deliver immediately.

    With `fault` it stands for the unreadable rest of its batch, and becomes a dead letter without
    being delivered.
    """

    offset: Offset
    deliver_at: TimestampMs = NO_TIMESTAMP
    fault: str = ""


class LogSlice(Struct, frozen=True, kw_only=True):
    """All committed messages of the log from `first` to before `end`, ascending.

    Other offsets in that range hold no message (markers, aborted or compacted records) and are
    settled when `next` moves past them.
    """

    first: Offset
    end: Offset
    messages: tuple[LogMessage, ...]


EMPTY_SLICE = LogSlice(first=Offset(0), end=Offset(0), messages=())


class Poll(Struct, frozen=True, kw_only=True):
    """A worker requests up to `count_max` messages, leased for `visibility_ms`."""

    member: str
    count_max: int
    now: TimestampMs
    visibility_ms: int
    read: LogSlice = EMPTY_SLICE


class Claim(Struct, frozen=True, kw_only=True):
    """A worker requests exactly these messages, if they are neither leased nor settled, nor delayed
    by `deliver_at`. Others that `read` has become open, and wait for a poll."""

    member: str
    offsets: frozenset[Offset]
    now: TimestampMs
    visibility_ms: int
    read: LogSlice = EMPTY_SLICE


class Recall(Struct, frozen=True, kw_only=True):
    """Take messages out of a delay bucket: `read` is the log from the bucket's first offset on.

    It may omit messages whose time is outside the bucket's span.
    """

    bucket: BucketKey
    now: TimestampMs
    read: LogSlice


class Ack(Struct, frozen=True, kw_only=True):
    """The messages were processed."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs


class Nack(Struct, frozen=True, kw_only=True):
    """Processing failed: redeliver the messages after a delay, while attempts are left."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs
    delay_ms: int = BACKOFF
    reason: str = ""


class Extend(Struct, frozen=True, kw_only=True):
    """Extend the leases to `visibility_ms` from now."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs
    visibility_ms: int


class ExpireDue(Struct, frozen=True, kw_only=True):
    """Expire the leases whose deadline is at or before `now`."""

    now: TimestampMs
    count_max: int = 1_000


class Evict(Struct, frozen=True, kw_only=True):
    """A member left: its messages are available to others immediately."""

    member: str
    now: TimestampMs


class SettleDead(Struct, frozen=True, kw_only=True):
    """These dead letters are committed in the dead-letter topic."""

    offsets: frozenset[Offset]


class Trim(Struct, frozen=True, kw_only=True):
    """The log now begins at `start`: messages below were deleted by retention."""

    start: Offset


Command: TypeAlias = (
    TakeOver | Poll | Claim | Recall | Ack | Nack | Extend | ExpireDue | Evict | SettleDead | Trim
)

"""Owns what a queue can be told. Times are the leader's, in every command that needs one.

Whoever sends them sees to it that `now` never goes back within an epoch, and that a command is
decided only when the record of the one before is committed and applied.
"""

from typing import NamedTuple, TypeAlias

from msgspec import Struct

from moldau.groups.queue.delay_buckets import BucketKey
from moldau.groups.queue.tokens import Token
from moldau.model.ids import NO_TIMESTAMP, Epoch, Offset, TimestampMs

BACKOFF = -1
"""As a delay: as long as the settings say for that attempt."""


class TakeOver(Struct, frozen=True, kw_only=True):
    """A leader begins its epoch. Leases of the epochs before go on, and last as long as new ones:
    a worker is not to suffer from a change of the leader, nor from a clock that differs.

    `start` is where a queue begins that did not exist. `end` is the end of the leader's log when
    all of it is committed: if a broker that does not flush lost the tail, offsets from there on
    will hold other messages, and what was known of them must go.
    """

    epoch: Epoch
    now: TimestampMs
    start: Offset
    end: Offset


class LogMessage(NamedTuple):
    """A message of the log. `deliver_at` in the past, or NO_TIMESTAMP: at once.

    With `fault` it is none that can be delivered, and stands for all to the end of its batch: a
    dead letter from the beginning.
    """

    offset: Offset
    deliver_at: TimestampMs = NO_TIMESTAMP
    fault: str = ""


class LogSlice(Struct, frozen=True, kw_only=True):
    """The log from `first` to before `end`: committed, and all messages there are, ascending.

    Offsets between that are not named hold no message (markers, aborted or compacted records) and
    are settled when they are passed.
    """

    first: Offset
    end: Offset
    messages: tuple[LogMessage, ...]


EMPTY_SLICE = LogSlice(first=Offset(0), end=Offset(0), messages=())


class Poll(Struct, frozen=True, kw_only=True):
    """A worker asks for up to `count_max` messages, to have them for `visibility_ms`."""

    member: str
    count_max: int
    now: TimestampMs
    visibility_ms: int
    read: LogSlice = EMPTY_SLICE


class Recall(Struct, frozen=True, kw_only=True):
    """Take messages off a shelf: `read` is the log from the shelf's first offset on.

    It may leave out messages whose time is not in the shelf's span.
    """

    shelf: BucketKey
    now: TimestampMs
    read: LogSlice


class Ack(Struct, frozen=True, kw_only=True):
    """The messages are done."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs


class Nack(Struct, frozen=True, kw_only=True):
    """The messages could not be done: deliver them again after a delay, while attempts are left."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs
    delay_ms: int = BACKOFF
    reason: str = ""


class Extend(Struct, frozen=True, kw_only=True):
    """The messages take longer: their leases end `visibility_ms` from now."""

    member: str
    tokens: tuple[Token, ...]
    now: TimestampMs
    visibility_ms: int


class ExpireDue(Struct, frozen=True, kw_only=True):
    """The leader's clock says `now`: leases that ended by then are over."""

    now: TimestampMs
    count_max: int = 1_000


class Evict(Struct, frozen=True, kw_only=True):
    """A member is gone: its messages are for others at once."""

    member: str
    now: TimestampMs


class SettleDead(Struct, frozen=True, kw_only=True):
    """These dead messages are committed in the dead-letter topic."""

    offsets: frozenset[Offset]


class Trim(Struct, frozen=True, kw_only=True):
    """The log begins at `start` now: what was below cannot be delivered any more."""

    start: Offset


Command: TypeAlias = (
    TakeOver | Poll | Recall | Ack | Nack | Extend | ExpireDue | Evict | SettleDead | Trim
)

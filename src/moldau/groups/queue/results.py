"""Owns what a decision says: the record to write first, and the answer that holds once it is."""

from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from moldau.groups.queue.state import QueueRecord
from moldau.groups.queue.tokens import Token
from moldau.model.ids import Offset, TimestampMs


class Refusal(Enum):
    """Why a command, or one token of it, is not carried out; the value is said to the client."""

    NONE = ""
    OTHER_QUEUE = "the token belongs to another group or partition"
    OTHER_EPOCH = (
        "the message was lost in a crash (log.flush is not always); its offset holds another one"
    )
    NEVER_DELIVERED = "the token names a delivery that never was"
    SETTLED = "the message is settled already"
    DEAD = "the lease has ended, and it was the last: the message is a dead letter"
    EXPIRED = "the lease has ended; the message is delivered again, or was"
    NOT_HOLDER = "the message is leased to another member"
    NOT_LEADING = "the queue is not led in this epoch"
    FENCED = "a leader of a later epoch has taken over"
    OUT_OF_STEP = "the stored queue is not where the writer believes it to be; load it anew"
    BAD_ARGUMENT = "a number or a name is out of bounds"


class Lease(NamedTuple):
    """A message that a worker was given."""

    token: Token
    deadline: TimestampMs


class GrantedLeases(Struct, frozen=True, kw_only=True):
    """`is_full`: there may be more, but too much is open; acks make room."""

    leases: tuple[Lease, ...]
    is_full: bool = False


class SettleResult(Struct, frozen=True, kw_only=True):
    """One verdict per token, in the order of the command."""

    refusals: tuple[Refusal, ...]


class Done(Struct, frozen=True, kw_only=True):
    """`count`: messages that it was about. `is_more`: the same command would find more."""

    count: int
    is_more: bool = False


class CommandRefused(Struct, frozen=True):
    """The command as a whole."""

    refusal: Refusal


CommandResult: TypeAlias = GrantedLeases | SettleResult | Done | CommandRefused


class Decision(Struct, frozen=True, kw_only=True):
    """Commit the record, apply it, then answer. Without a record: answer."""

    record: QueueRecord | None
    answer: CommandResult
    died: tuple[Offset, ...] = ()
    """What the record makes dead letters, for logs and counters; `QueueState.dead` has them all."""

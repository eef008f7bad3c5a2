"""The outcome of a decision: the record to commit first, and the result to return after that."""

from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from moldau.leases.state import QueueRecord
from moldau.leases.tokens import Token
from moldau.model.ids import Offset, TimestampMs


class Refusal(Enum):
    """Why a command, or one token of it, is rejected. Clients see the value; brokers exchange the
    name, so names must not change."""

    NONE = ""
    OTHER_QUEUE = "the token belongs to another group or partition"
    OTHER_EPOCH = (
        "the message was lost in a crash (log.flush is not always); "
        "its offset now holds another message"
    )
    NEVER_DELIVERED = "unknown delivery token"
    SETTLED = "the message is already settled"
    DEAD = "the lease expired after the last attempt; the message is a dead letter"
    EXPIRED = "the lease expired; the message has been or will be redelivered"
    NOT_HOLDER = "the message is leased to another consumer"
    NOT_LEADING = "this broker does not lead the queue in this epoch"
    FENCED = "a newer leader has taken over the queue"
    OUT_OF_STEP = "the stored state of the queue differs from the writer's; it must be loaded again"
    BAD_ARGUMENT = "a number or a name is out of bounds"


class Lease(NamedTuple):
    token: Token
    deadline: TimestampMs


class GrantedLeases(Struct, frozen=True, kw_only=True):
    """`is_full`: there may be more messages, but too many are open; acks make room."""

    leases: tuple[Lease, ...]
    is_full: bool = False


class SettleResult(Struct, frozen=True, kw_only=True):
    """One result per token, in the order of the command."""

    refusals: tuple[Refusal, ...]


class Done(Struct, frozen=True, kw_only=True):
    """`count`: messages affected. `is_more`: repeating the command would find more."""

    count: int
    is_more: bool = False


class CommandRefused(Struct, frozen=True):
    refusal: Refusal


CommandResult: TypeAlias = GrantedLeases | SettleResult | Done | CommandRefused


class Decision(Struct, frozen=True, kw_only=True):
    """Commit and apply the record, if there is one, before returning the result."""

    record: QueueRecord | None
    result: CommandResult
    died: tuple[Offset, ...] = ()
    """Messages that the record turns into dead letters; `QueueState.dead` has all of them."""

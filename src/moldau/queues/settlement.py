"""How a worker settles messages (ack, nack, extend), and the errors that it gets."""

from typing import Final, TypeAlias

from msgspec import Struct

from moldau.leases.commands import BACKOFF, Ack, Extend, Nack
from moldau.leases.results import Refusal
from moldau.leases.tokens import Token
from moldau.model.ids import TimestampMs
from moldau.queues.types import DONE, ErrorReason, QueueRefusedError, TokenResult


class Acked(Struct, frozen=True):
    """The messages were processed."""


class Nacked(Struct, frozen=True):
    """Processing failed. `delay_ms` None: the group's backoff."""

    delay_ms: int | None = None
    reason: str = ""


class Extended(Struct, frozen=True):
    """The lease is extended to `visibility_ms` from now."""

    visibility_ms: int


Settlement: TypeAlias = Acked | Nacked | Extended


def command_for(
    what: Settlement, member: str, tokens: tuple[Token, ...], now: TimestampMs
) -> Ack | Nack | Extend:
    match what:
        case Acked():
            return Ack(member=member, tokens=tokens, now=now)
        case Nacked(delay_ms=delay_ms, reason=reason):
            delay = BACKOFF if delay_ms is None else delay_ms
            return Nack(member=member, tokens=tokens, now=now, delay_ms=delay, reason=reason)
        case Extended(visibility_ms=visibility_ms):
            return Extend(member=member, tokens=tokens, now=now, visibility_ms=visibility_ms)


_REASON_BY_REFUSAL: Final = {
    Refusal.OTHER_QUEUE: ErrorReason.OTHER_GROUP,
    Refusal.OTHER_EPOCH: ErrorReason.LEADER_CHANGED,
    Refusal.NEVER_DELIVERED: ErrorReason.BAD_TOKEN,
    Refusal.SETTLED: ErrorReason.SETTLED,
    Refusal.EXPIRED: ErrorReason.EXPIRED,
    Refusal.DEAD: ErrorReason.EXPIRED,
    Refusal.NOT_HOLDER: ErrorReason.NOT_HOLDER,
    Refusal.NOT_LEADING: ErrorReason.UNAVAILABLE,
    Refusal.FENCED: ErrorReason.NOT_LEADER,
    Refusal.OUT_OF_STEP: ErrorReason.UNAVAILABLE,
    Refusal.BAD_ARGUMENT: ErrorReason.INVALID_ARGUMENT,
}

RESULT_BY_REFUSAL: Final = {
    Refusal.NONE: DONE,
    **{
        refusal: TokenResult(reason, refusal.value)
        for refusal, reason in _REASON_BY_REFUSAL.items()
    },
}
"""Results of single tokens."""


def refused(refusal: Refusal) -> QueueRefusedError:
    """The error for a whole command."""
    return QueueRefusedError(_REASON_BY_REFUSAL.get(refusal, ErrorReason.INTERNAL), refusal.value)

"""Owns what a worker can say about what it was given, and how a queue's refusals are told to it."""

from typing import Final, TypeAlias

from msgspec import Struct

from moldau.groups.queue.commands import BACKOFF, Ack, Extend, Nack
from moldau.groups.queue.results import Refusal
from moldau.groups.queue.tokens import Token
from moldau.model.ids import TimestampMs
from moldau.queues.types import DONE, ErrorReason, QueueRefusedError, TokenResult


class Acked(Struct, frozen=True):
    """The messages are done."""


class Nacked(Struct, frozen=True):
    """They could not be done. `delay_ms` None: as the group's backoff says."""

    delay_ms: int | None = None
    reason: str = ""


class Extended(Struct, frozen=True):
    """They take longer: so long from now."""

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


_WHY: Final = {
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
    **{refusal: TokenResult(why, refusal.value) for refusal, why in _WHY.items()},
}
"""Of single tokens."""


def refused(refusal: Refusal) -> QueueRefusedError:
    """Of a command as a whole."""
    return QueueRefusedError(_WHY.get(refusal, ErrorReason.INTERNAL), refusal.value)

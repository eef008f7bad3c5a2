"""Owns what a worker can say about what it was given, and how a queue's refusals are told to it."""

from typing import Final, TypeAlias

from msgspec import Struct

from moldau.groups.queue.answers import Refusal
from moldau.groups.queue.commands import BACKOFF, Ack, Extend, Nack
from moldau.groups.queue.tokens import Token
from moldau.model.ids import TimestampMs
from moldau.queues.types import DONE, QueueRefusedError, Verdict, Why


class Acked(Struct, frozen=True):
    """The messages are done."""


class Nacked(Struct, frozen=True):
    """They could not be done. `delay_ms` None: as the group's backoff says."""

    delay_ms: int | None = None
    reason: str = ""


class Extended(Struct, frozen=True):
    """They take longer: so long from now."""

    visibility_ms: int


Settling: TypeAlias = Acked | Nacked | Extended


def command_for(
    what: Settling, member: str, tokens: tuple[Token, ...], now: TimestampMs
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
    Refusal.OTHER_QUEUE: Why.OTHER_GROUP,
    Refusal.OTHER_EPOCH: Why.LEADER_CHANGED,
    Refusal.NEVER_DELIVERED: Why.BAD_TOKEN,
    Refusal.SETTLED: Why.SETTLED,
    Refusal.EXPIRED: Why.EXPIRED,
    Refusal.DEAD: Why.EXPIRED,
    Refusal.NOT_HOLDER: Why.NOT_HOLDER,
    Refusal.NOT_LEADING: Why.UNAVAILABLE,
    Refusal.FENCED: Why.NOT_LEADER,
    Refusal.OUT_OF_STEP: Why.UNAVAILABLE,
    Refusal.BAD_ARGUMENT: Why.INVALID_ARGUMENT,
}

VERDICTS: Final = {
    Refusal.NONE: DONE,
    **{refusal: Verdict(why, refusal.value) for refusal, why in _WHY.items()},
}
"""Of single tokens."""


def refused(refusal: Refusal) -> QueueRefusedError:
    """Of a command as a whole."""
    return QueueRefusedError(_WHY.get(refusal, Why.INTERNAL), refusal.value)

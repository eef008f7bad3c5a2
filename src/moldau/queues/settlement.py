"""How a worker settles messages (ack, nack, extend), and the errors that it gets."""

from typing import Final, Protocol

from moldau.leases.commands import Ack, Extend, Nack
from moldau.leases.results import Refusal
from moldau.leases.tokens import Token
from moldau.model.ids import TimestampMs
from moldau.queues.types import DONE, ErrorReason, QueueRefusedError, TokenResult


class Settlement(Protocol):
    """Makes the command for the tokens of one queue: Ack, or a partial Nack or Extend."""

    def __call__(
        self, *, member: str, tokens: tuple[Token, ...], now: TimestampMs
    ) -> Ack | Nack | Extend: ...


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

"""Owns what an idempotent producer has still to send before anything after it is taken.

A producer has up to five batches on their way, and not always by one way. If the first is refused
for a reason that passes (a leader is being elected, replicas are missing, the disk is full) and the
reason has passed when the second is looked at, that one seems to come after a gap. So it does if
the first still waits for its timeout at a broker that stands still, while the next one is sent to
the new leader; or if a leader that was deposed does not know what others have stored.

Clients take a gap for a loss. librdkafka then begins a new epoch, under which a batch that was
stored but not yet acknowledged is stored again. So whatever comes after a gap is refused for a
reason that passes, until the missing batch is there; only if it never comes, the gap is told.

How long it may take depends on why it is missing. Who was refused here, and nothing stands in its
way any longer, is back soon. What may wait at a former leader comes when the client has given up
waiting for that one. A transaction is over by then, and its producer fenced: it hears of the gap
soon, aborts, and sends all of it again, which stores nothing twice.
"""

from typing import Final, NamedTuple

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader
from moldau.replica.producers import ProducerState, next_sequence

RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Reasons that pass: clients try again."""
_SECONDS_MAX: Final = 60.0
"""Longer than clients wait for an answer. One that has not come back by then has given the batch
up, and has to hear of the gap."""
_SECONDS_MIN: Final = 10.0
"""Longer than clients pause before they send again, and than a deposed leader believes to lead."""
_MISSING: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""To look for the leader again is what every client does before it sends the rest again."""
_PRODUCERS_MAX: Final = 1000
_SEQUENCES: Final = 1 << 31


class _Refused(NamedTuple):
    epoch: ProducerEpoch
    sequence: int
    code: ErrorCode
    until: float
    is_told: bool = True
    """The client got it back from here, and will send it again."""


class SequenceGaps:
    """Of one partition on this broker. Empty nearly always."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[ProducerId, _Refused] = {}

    def note(self, header: BatchHeader, code: ErrorCode, now: float) -> None:
        """The batch was refused for a reason that passes."""
        known = self.waiting.get(header.producer_id)
        if (
            known is not None
            and known.epoch == header.producer_epoch
            and _is_less(known.sequence, header.base_sequence)
            and now <= known.until
        ):
            # It was refused because of that one.
            return
        until = now + _seconds_max(header)
        self._wait_for(header, _Refused(header.producer_epoch, header.base_sequence, code, until))

    def _wait_for(self, header: BatchHeader, missing: _Refused) -> None:
        if header.producer_id not in self.waiting and len(self.waiting) >= _PRODUCERS_MAX:
            del self.waiting[next(iter(self.waiting))]
        self.waiting[header.producer_id] = missing

    def check(self, header: BatchHeader, state: ProducerState | None, now: float) -> None:
        """Raises RefusedError if something before the batch is still missing.

        `state` is what the log has of the producer: the batch may have come by another broker.
        """
        known = self.waiting.get(header.producer_id)
        if known is None or _is_old(header, state):
            # Who was locked out must hear that, and not of a gap.
            return
        if _is_before(known, header) and not _is_stored(known, state):
            if now <= known.until:
                if known.is_told and known.until > now + _SECONDS_MIN:
                    # Nothing stands in its way any longer.
                    soon = known._replace(until=now + _SECONDS_MIN)
                    self.waiting[header.producer_id] = soon
                raise RefusedError(known.code, "a batch before it is missing and is to come first")
            if state is not None:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {known.sequence} of producer {header.producer_id} did not come",
                )
        del self.waiting[header.producer_id]

    def miss(
        self, header: BatchHeader, state: ProducerState, now: float, leader_since: float
    ) -> None:
        """The batch is not the next one in the log. Raises RefusedError if it comes too early.

        `leader_since`: when this broker became the leader, and clients turned to it.
        """
        is_same_epoch = state.epoch == header.producer_epoch
        expected = next_sequence(state) if is_same_epoch else 0
        if _is_less(expected, header.base_sequence):
            until = max(leader_since + _seconds_max(header), now + _SECONDS_MIN)
            self._wait_for(
                header,
                _Refused(header.producer_epoch, expected, _MISSING, until, is_told=False),
            )
            raise RefusedError(
                _MISSING,
                f"sequence {expected} of producer {header.producer_id} is missing before "
                f"{header.base_sequence}",
            )


def _seconds_max(header: BatchHeader) -> float:
    return _SECONDS_MIN if header.attributes & TRANSACTIONAL_BIT else _SECONDS_MAX


def _is_old(header: BatchHeader, state: ProducerState | None) -> bool:
    return state is not None and header.producer_epoch < state.epoch


def _is_before(known: _Refused, header: BatchHeader) -> bool:
    """Whether the refused batch precedes this one in the same epoch."""
    return known.epoch == header.producer_epoch and _is_less(known.sequence, header.base_sequence)


def _is_stored(known: _Refused, state: ProducerState | None) -> bool:
    if state is None or state.epoch != known.epoch or not state.batches:
        return False
    return not _is_less(state.batches[-1].last_sequence, known.sequence)


def _is_less(one: int, other: int) -> bool:
    """Sequences wrap around."""
    return 0 < (other - one) % _SEQUENCES < _SEQUENCES // 2

"""Tolerates temporary gaps in the sequence of an idempotent producer.

A producer has up to five batches in flight, possibly to different brokers. If the first is rejected
with a retriable error (election, too few replicas, disk full) which is resolved when the second
arrives, the second seems to follow a gap. The same happens if the first waits for its timeout at a
stalled broker while the next goes to the new leader, or if a deposed leader does not know what
others have stored.

Clients treat a gap as data loss. librdkafka then begins a new epoch, in which a batch that was
stored but not acknowledged is stored again. So batches after a gap are rejected with a retriable
error until the missing batch arrives; only if it never does, the gap is reported.

The wait depends on the cause. A batch that was rejected here is retried soon once the cause is
resolved. One that may wait at a former leader is retried after the client's request timeout. For a
transaction that is too late: its producer is fenced by then, so it gets the error soon, aborts, and
sends everything again, which stores nothing twice.
"""

from typing import Final, NamedTuple

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader
from moldau.replica.producers import ProducerState, next_sequence

_SECONDS_MAX: Final = 60.0
"""Longer than the request timeout of clients. A batch that was not retried by then was given up,
and the client has to learn of the gap."""
_SECONDS_MIN: Final = 10.0
"""Longer than the retry backoff of clients, and than a deposed leader may believe it leads."""
_MISSING: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""On this error every client refreshes its metadata before it retries the rest."""
_PRODUCERS_MAX: Final = 1000
_SEQUENCES: Final = 1 << 31


class _Gap(NamedTuple):
    """The batch that is missing, and how long it is waited for."""

    epoch: ProducerEpoch
    sequence: int
    code: ErrorCode
    until: float
    is_rejected_here: bool = True
    """This broker rejected it, so the client will retry it here."""


class SequenceGaps:
    """The gaps of one partition on this broker. Nearly always empty."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[ProducerId, _Gap] = {}

    def note(self, header: BatchHeader, code: ErrorCode, now: float) -> None:
        """The batch was rejected with a retriable error."""
        known = self.waiting.get(header.producer_id)
        if (
            known is not None
            and known.epoch == header.producer_epoch
            and _is_less(known.sequence, header.base_sequence)
            and now <= known.until
        ):
            # It was rejected because of that earlier one.
            return
        until = now + _seconds_max(header)
        self._wait_for(header, _Gap(header.producer_epoch, header.base_sequence, code, until))

    def _wait_for(self, header: BatchHeader, missing: _Gap) -> None:
        if header.producer_id not in self.waiting and len(self.waiting) >= _PRODUCERS_MAX:
            del self.waiting[next(iter(self.waiting))]
        self.waiting[header.producer_id] = missing

    def check(self, header: BatchHeader, state: ProducerState | None, now: float) -> None:
        """Raises RefusedError if an earlier batch is still missing.

        `state` is the producer's state in the log: another broker may have appended the batch.
        """
        known = self.waiting.get(header.producer_id)
        if known is None or _is_old(header, state):
            # A fenced producer must get that error, not one about a gap.
            return
        if _is_before(known, header) and not _is_stored(known, state):
            if now <= known.until:
                if known.is_rejected_here and known.until > now + _SECONDS_MIN:
                    # The cause is resolved, so the retry comes soon.
                    soon = known._replace(until=now + _SECONDS_MIN)
                    self.waiting[header.producer_id] = soon
                raise RefusedError(
                    known.code,
                    f"sequence {known.sequence} of producer {header.producer_id} must be retried "
                    f"before {header.base_sequence}",
                )
            if state is not None:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} never sent sequence {known.sequence}",
                )
        del self.waiting[header.producer_id]

    def on_gap(
        self, header: BatchHeader, state: ProducerState, now: float, leader_since: float
    ) -> None:
        """The batch is not the next one. Raises RefusedError if an earlier one is missing.

        `leader_since`: when this broker became the leader.
        """
        is_same_epoch = state.epoch == header.producer_epoch
        expected = next_sequence(state) if is_same_epoch else 0
        if _is_less(expected, header.base_sequence):
            until = max(leader_since + _seconds_max(header), now + _SECONDS_MIN)
            self._wait_for(
                header,
                _Gap(header.producer_epoch, expected, _MISSING, until, is_rejected_here=False),
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


def _is_before(known: _Gap, header: BatchHeader) -> bool:
    """Whether the missing batch precedes this one in the same epoch."""
    return known.epoch == header.producer_epoch and _is_less(known.sequence, header.base_sequence)


def _is_stored(known: _Gap, state: ProducerState | None) -> bool:
    if state is None or state.epoch != known.epoch or not state.batches:
        return False
    return not _is_less(state.batches[-1].last_sequence, known.sequence)


def _is_less(one: int, other: int) -> bool:
    """Sequences wrap around."""
    return 0 < (other - one) % _SEQUENCES < _SEQUENCES // 2

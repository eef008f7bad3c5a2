"""Counts what happens to the messages of one group on one topic, over its partitions here."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from moldau.leases.results import Lease
from moldau.leases.state import QueueState
from moldau.model.histogram import Histogram
from moldau.model.ids import Offset, TimestampMs

_STALE_MAX: Final = 1_000
"""Deliveries that are remembered beyond those that are leased."""


class Backlog(NamedTuple):
    """Messages of a queue by their state."""

    ready: int
    leased: int
    delayed: int
    dead: int
    """To be moved to the dead-letter topic."""


def backlog_of(state: QueueState, end: Offset, now: TimestampMs) -> Backlog:
    """`end`: the last stable offset of the partition."""
    due = state.due_count(now)
    return Backlog(
        ready=due + max(0, end - state.next),
        leased=state.leased_count,
        delayed=state.waiting_count - due + state.bucketed_count,
        dead=state.dead_count,
    )


class QueueCounts:
    """Counters that only rise. A queue that is loaded again goes on with those of before."""

    __slots__ = (
        "acked",
        "dead_letters",
        "deliveries",
        "expired",
        "nacked",
        "redeliveries",
        "settle_seconds",
    )

    def __init__(self) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self.acked = 0
        self.nacked = 0
        self.expired = 0
        """Leases."""
        self.dead_letters = 0
        self.settle_seconds: Final = Histogram()
        """From the delivery to the ack."""


class DeliveryTimes:
    """When leased messages of one queue were delivered; unknown for leases of earlier leaders."""

    __slots__ = ("_counts", "_times")

    def __init__(self, counts: QueueCounts) -> None:
        self._counts = counts
        self._times: dict[Offset, TimestampMs] = {}

    def delivered(self, leases: Iterable[Lease], now: TimestampMs, leased_count: int) -> None:
        counts, times = self._counts, self._times
        tokens = [token for token, _ in leases]
        counts.deliveries += len(tokens)
        for _, _, offset, attempt in tokens:
            times[offset] = now
            if attempt > 1:
                counts.redeliveries += 1
        if len(times) > leased_count + _STALE_MAX:
            # Retention deleted the oldest, or their leases expired and nobody came for them.
            for offset in list(times)[: len(times) - leased_count]:
                del times[offset]

    def acked(self, offsets: Sequence[Offset], now: TimestampMs) -> None:
        self._counts.acked += len(offsets)
        pop = self._times.pop
        # Most were delivered together.
        for delivered_at, count in Counter([pop(offset, None) for offset in offsets]).items():
            if delivered_at is not None:
                self._counts.settle_seconds.add(max(0, now - delivered_at) / 1000, count)

    def nacked(self, offsets: Sequence[Offset]) -> None:
        self._counts.nacked += len(offsets)
        for offset in offsets:
            self._times.pop(offset, None)

    def died(self, offsets: Iterable[Offset]) -> None:
        for offset in offsets:
            self._counts.dead_letters += 1
            self._times.pop(offset, None)

"""The timers of all groups: one heap and one event loop timer for all of them.

A core's deadline usually moves before it is reached, so timers are not cancelled: when one fires,
the group's current deadline is checked again.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from moldau.raft.progress import FOREVER
from moldau.replica.raft_group import RaftGroup

_STEP_MS: Final = 20
"""Timers are rounded up to this, so that a thousand groups wake the loop at most 50 times/s."""
_STALL_MS: Final = 200
"""A timer this late means that the process stalled, and so did the handling of heartbeats."""
_GRACE_MS_MIN: Final = 10
_GRACE_MS_MAX: Final = 500
"""After a stall, timers are delayed by its length, up to this, before a peer counts as dead."""
_GRACES_MAX: Final = 3
"""At most this many extensions in a row: a broker that is always slow must elect eventually."""


class GroupTimers:
    """Calls `on_due` for groups whose deadline has passed."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        now: Callable[[], int],
        on_due: Callable[[RaftGroup, int], None],
    ) -> None:
        self._loop = loop
        self._now = now
        self._on_due = on_due
        self._heap: list[tuple[int, int, RaftGroup]] = []
        self._number = 0
        self._timer: TimerHandle | None = None
        self._timer_at = FOREVER
        self._graces = 0
        self._not_before = 0

    def set(self, group: RaftGroup, deadline: int) -> None:
        """Set an earlier deadline; a later one needs no call."""
        group.timer_at = deadline
        self._number += 1
        heappush(self._heap, (deadline, self._number, group))
        self._arm(deadline)

    def _arm(self, at: int) -> None:
        at = max(at, self._not_before)
        at += -at % _STEP_MS
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0, at - self._now() + 1) / 1000
        self._timer = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        now = self._now()
        was_due, self._timer_at = self._timer_at, FOREVER
        self._timer = None
        late = now - was_due
        if late > _STALL_MS and self._graces < _GRACES_MAX:
            # This process stalled, perhaps for lack of CPU. Heartbeats may wait in the sockets, so
            # their senders must not be considered dead.
            self._graces += 1
            self._not_before = now + min(max(late, _GRACE_MS_MIN), _GRACE_MS_MAX)
            self._arm(self._not_before)
            return
        if late <= _STALL_MS:
            self._graces = 0
        heap = self._heap
        # What is set meanwhile arms nothing: the first of all is armed at the end.
        self._timer_at = was_due
        try:
            while heap and heap[0][0] <= now:
                at, _, group = heappop(heap)
                if group.timer_at == at and group.is_running:
                    group.timer_at = FOREVER
                    self._on_due(group, now)
        finally:
            self._timer_at = FOREVER
            if heap:
                self._arm(heap[0][0])

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()

"""Delays acks=all where min.insync.replicas is above a majority.

A commit needs a majority. Where acks=all needs more replicas, their progress is polled until enough
have flushed; such topics are rare.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from moldau.log.interface import PartitionLog
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.replica.driver import RaftDriver
from moldau.replica.raft_group import RaftGroup

_POLL_SECONDS = 0.005

Waiters = deque[tuple[Offset, Callable[[ErrorCode], None]]]


def insert_waiter(waiters: Waiters, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
    """Insert in offset order: a retry of an earlier batch may come after a later one."""
    if not waiters or waiters[-1][0] <= offset:
        waiters.append((offset, callback))
        return
    index = len(waiters)
    while index and waiters[index - 1][0] > offset:
        index -= 1
    waiters.insert(index, (offset, callback))


class InsyncWaiters:
    """The waiters of one partition, on its leader."""

    def __init__(
        self, driver: RaftDriver, group: RaftGroup, log: PartitionLog, count_min: Callable[[], int]
    ) -> None:
        self._driver = driver
        self._group = group
        self._log = log
        self._count_min = count_min
        self._waiting: Waiters | None = None
        """Committed, but flushed by too few replicas. Made when needed: an empty deque takes 760
        bytes, and there are thousands of idle partitions."""

    def is_reached(self, offset: Offset) -> bool:
        """Whether enough voters flushed everything below `offset`, which is committed."""
        if self._count_min() <= self._group.core.members.quorum:
            return True
        return self._log.index_of(offset) <= self.end()

    def end(self) -> int:
        """Enough voters flushed all entries below this index; -1 if there are too few voters."""
        voters = self._group.core.members.voters
        ends = [self._log.flushed_index] if self._driver.me in voters else []
        for broker, progress in self._group.core.progress.items():
            if broker in voters:
                ends.append(progress.match)
        wanted = self._count_min()
        if len(ends) < wanted:
            return -1
        return sorted(ends, reverse=True)[wanted - 1]

    def wait(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        if not self._waiting:
            self._poll_later()
        if self._waiting is None:
            self._waiting = deque()
        insert_waiter(self._waiting, offset, callback)

    def _poll_later(self) -> None:
        asyncio.get_running_loop().call_later(_POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        """One poll for all waiters: a follower that was down for long may hold up many."""
        waiting = self._waiting
        if not waiting:
            return
        end = self.end()
        while waiting and self._log.index_of(waiting[0][0]) <= end:
            waiting.popleft()[1](ErrorCode.NONE)
        if waiting:
            self._poll_later()

    def take_all(self) -> Waiters:
        waiting, self._waiting = self._waiting, None
        return deque() if waiting is None else waiting

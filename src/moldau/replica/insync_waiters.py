"""Owns who waits for more copies than a commit needs: min.insync.replicas above a majority.

A commit is a majority. Where acks=all asks for more than that, the others are looked after until
so many have it: such topics are rare.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from moldau.log.interface import PartitionLog
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.replica.driver import RaftDriver
from moldau.replica.raft_group import RaftGroup

_LOOK_SECONDS = 0.005

Waiters = deque[tuple[Offset, Callable[[ErrorCode], None]]]


def insert_waiter(waiters: Waiters, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
    """Keep the order by offset: a retry of an earlier batch may come after a later one."""
    if not waiters or waiters[-1][0] <= offset:
        waiters.append((offset, callback))
        return
    index = len(waiters)
    while index and waiters[index - 1][0] > offset:
        index -= 1
    waiters.insert(index, (offset, callback))


class InsyncWaiters:
    """Of one partition, on its leader."""

    def __init__(
        self, driver: RaftDriver, group: RaftGroup, log: PartitionLog, count_min: Callable[[], int]
    ) -> None:
        self._driver = driver
        self._group = group
        self._log = log
        self._count_min = count_min
        self._waiting: Waiters = deque()
        """Committed, but on too few disks."""

    def has(self, offset: Offset) -> bool:
        """Whether enough voters have everything below `offset`, which is committed."""
        if self._count_min() <= self._group.members.quorum:
            return True
        return self._log.index_of(offset) <= self.end()

    def end(self) -> int:
        """Below this, all entries are on as many disks as acks=all wants; -1: on too few."""
        voters = self._group.members.voters
        ends = [self._log.flushed_index] if self._driver.me in voters else []
        for broker, progress in self._driver.followers(self._group).items():
            if broker in voters:
                ends.append(progress.flushed)
        wanted = self._count_min()
        if len(ends) < wanted:
            return -1
        return sorted(ends, reverse=True)[wanted - 1]

    def wait(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        if not self._waiting:
            self._look_later()
        insert_waiter(self._waiting, offset, callback)

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """One look for all: a follower that is away for long may have kept many waiting."""
        waiting = self._waiting
        if not waiting:
            return
        end = self.end()
        while waiting and self._log.index_of(waiting[0][0]) <= end:
            waiting.popleft()[1](ErrorCode.NONE)
        if waiting:
            self._look_later()

    def take_all(self) -> Waiters:
        """Nobody waits here any more."""
        waiting, self._waiting = self._waiting, deque()
        return waiting

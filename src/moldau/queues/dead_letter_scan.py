"""Reads one partition of a dead-letter topic: the dead letters that were not redriven.

Which ones were, the state of the queue says that redrives them. Without it, none was.
"""

import asyncio
from typing import NamedTuple

from moldau.leases.state import Dead, Leased
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.limits import QueueLimits
from moldau.queues.queue_partition import QueuePartition
from moldau.queues.reader import LoadedMessage, QueueReader
from moldau.queues.types import unavailable
from moldau.replica.replica import Replica


class FoundLetter(NamedTuple):
    message: LoadedMessage
    is_leased: bool
    """A worker of another redrive has it."""


class ScanPage(NamedTuple):
    letters: list[FoundLetter]
    next: Offset
    is_end: bool


class DeadLetterScan:
    """Methods raise QueueRefusedError."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica,
        limits: QueueLimits,
        queue: QueuePartition | None,
    ) -> None:
        self._replica = replica
        self._queue = queue
        self._reader = QueueReader(loop, replica, limits) if queue is None else queue.reader

    async def page(self, position: Offset, count: int, bytes_max: int) -> ScanPage:
        """Up to `count` of them from `position` on, by offset: first those below the end of what
        the queue has read, then those of the rest of the log."""
        try:
            if self._queue is not None:
                page, read_to = await self._opened(self._queue, position, count)
                if page is not None:
                    return page
                position = max(position, read_to)
            entries, end = await self._reader.browse_on(position, count, bytes_max)
        except (RefusedError, CorruptionError) as error:
            raise unavailable(error) from None
        return self._page([FoundLetter(entry, False) for entry in entries], end, position)

    async def _opened(
        self, queue: QueuePartition, position: Offset, count: int
    ) -> tuple[ScanPage | None, Offset]:
        """Those that the queue has read and not settled, if there are any; and where it is."""

        def query(
            machine: QueueStateMachine, now: TimestampMs
        ) -> tuple[list[tuple[Offset, bool]], Offset]:
            state = machine.state
            found = []
            for offset in state.open_below(state.next):
                if offset >= position and not isinstance(entry := state.get(offset), Dead):
                    # Expired leases end with the next round.
                    found.append((offset, isinstance(entry, Leased) and entry.deadline > now))
                    if len(found) == count:
                        break
            return found, state.next

        opened, read_to = await queue.query(query)
        if not opened:
            return None, read_to
        loaded = await self._reader.load([offset for offset, _ in opened], lambda _: False)
        letters = [
            FoundLetter(entry, is_leased)
            for offset, is_leased in opened
            if (entry := loaded.get(offset)) is not None
        ]
        # Fewer than asked for, if their bytes exceed the limit; at least the first.
        last = max(loaded)
        return self._page(letters, Offset(last + 1), position), read_to

    def _page(self, letters: list[FoundLetter], end: Offset, before: Offset) -> ScanPage:
        is_end = end >= self._replica.last_stable_offset or end == before
        return ScanPage(letters, end, is_end)

"""Owns the way of one queue's dead messages to the dead-letter topic, and their burial then."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from moldau.groups.queue.commands import Command, SettleDead
from moldau.groups.queue.results import CommandResult
from moldau.groups.queue.state import Dead
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.dead_letter_writer import DeadLetterWriter, Letter, Origin
from moldau.queues.limits import QueueLimits
from moldau.queues.reader import QueueReader
from moldau.queues.types import QueueRefusedError

log = logging.getLogger(__name__)

_WORTH_A_WARNING_SECONDS: Final = 0.4


class DeadLetterMover:
    """Works while something is owed. What it is told is dead is committed as such.

    `tell` has a queue decide about a command; it returns when that is committed.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        letters: DeadLetterWriter,
        limits: QueueLimits,
        reader: QueueReader,
        origin: Origin,
        topic_of: Callable[[], str],
        tell: Callable[[Callable[[TimestampMs], Command]], Awaitable[CommandResult]],
        on_corrupt: Callable[[CorruptionError], None],
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._letters = letters
        self._limits = limits
        self._reader = reader
        self._origin = origin
        self._topic_of = topic_of
        self._tell = tell
        self._on_corrupt = on_corrupt
        self._on_defect = on_internal_error
        self._owed: dict[Offset, Dead] = {}
        self._safe: set[Offset] = set()
        """Written, but not known to be buried: not to be written again."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        return bool(self._owed)

    def owe_only(self, dead: Mapping[Offset, Dead]) -> None:
        """The queue was loaded: this is all there is."""
        self._owed.clear()
        self._safe &= dead.keys()
        self.owe(dead)

    def owe(self, dead: Mapping[Offset, Dead]) -> None:
        self._owed.update(dead)
        if self._owed and self._task is None and not self._is_stopped:
            self._task = self._loop.create_task(self._move())
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        self._is_stopped = True
        self._owed.clear()
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("dead messages are moved no more", exc_info=error)
            self._on_defect(error)
        elif self._owed:
            self.owe({})

    async def _move(self) -> None:
        pause = self._limits.pause_seconds_min
        while self._owed:
            try:
                await self._move_some()
                pause = self._limits.pause_seconds_min
            except CorruptionError as error:
                # Another replica may have it.
                self._on_corrupt(error)
                await asyncio.sleep(self._limits.pause_seconds_max)
            except (RefusedError, QueueRefusedError) as error:
                # At first it may be a topic that was made just now.
                level = logging.WARNING if pause >= _WORTH_A_WARNING_SECONDS else logging.DEBUG
                log.log(
                    level,
                    "%d dead messages of group %s on %s-%d wait: %s",
                    *(len(self._owed), *self._origin, error),
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._limits.pause_seconds_max)

    async def _move_some(self) -> None:
        """Raises what keeps it from going on."""
        some = [*self._owed][: self._limits.dead_per_write_max]
        for offset in some:
            # Behind the others: some that nobody takes shall not hold them up.
            self._owed[offset] = self._owed.pop(offset)
        found = await self._reader.load(
            [offset for offset in some if offset not in self._safe], lambda _: False
        )
        letters = []
        for offset, entry in found.items():
            dead = self._owed.get(offset)
            if entry is None:
                log.warning(
                    "a dead message is gone before it could be moved: group %s, %s-%d offset %d",
                    *(*self._origin, offset),
                )
                self._safe.add(offset)
            elif dead is not None:
                is_whole = not entry.message.fault
                letters.append(Letter(entry.record, dead.attempts, dead.reason, is_whole))
        if letters:
            self._safe |= await self._letters.write(self._origin, self._topic_of(), letters)
        done = frozenset(offset for offset in some if offset in self._safe)
        if done:
            await self._tell(lambda now: SettleDead(offsets=done))
            for offset in done:
                self._owed.pop(offset, None)
                self._reader.drop(offset)
            self._safe -= done

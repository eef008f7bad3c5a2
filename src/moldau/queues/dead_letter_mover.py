"""Moves the dead letters of one queue to the dead-letter topic, and settles them after that."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from moldau import tracing
from moldau.leases.commands import Command, SettleDead
from moldau.leases.results import CommandResult
from moldau.leases.state import Dead
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.dead_letter_writer import DeadLetter, DeadLetterWriter, Origin
from moldau.queues.limits import QueueLimits
from moldau.queues.reader import QueueReader
from moldau.queues.types import QueueRefusedError

log = logging.getLogger(__name__)

_WARN_FROM_PAUSE_SECONDS: Final = 0.4


class DeadLetterMover:
    """Runs while there are dead letters to move; those added are committed as dead in the queue.

    `submit` runs a command of the queue, and returns when it is committed.
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
        submit: Callable[[Callable[[TimestampMs], Command]], Awaitable[CommandResult]],
        on_corrupt: Callable[[CorruptionError], None],
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._letters = letters
        self._limits = limits
        self._reader = reader
        self._origin = origin
        self._topic_of = topic_of
        self._submit = submit
        self._on_corrupt = on_corrupt
        self._on_internal_error = on_internal_error
        self._pending: dict[Offset, Dead] = {}
        self._written: set[Offset] = set()
        """Written, but not yet settled: not to be written again."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    def reset(self, dead: Mapping[Offset, Dead]) -> None:
        """The queue was loaded: replace the pending dead letters."""
        self._pending.clear()
        self._written &= dead.keys()
        self.add(dead)

    def add(self, dead: Mapping[Offset, Dead]) -> None:
        self._pending.update(dead)
        if self._pending and self._task is None and not self._is_stopped:
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(self._on_task_done)

    def stop(self) -> None:
        self._is_stopped = True
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "internal error: dead letters of group %s on %s-%d are no longer moved",
                *self._origin,
                exc_info=error,
                extra=events.INTERNAL_ERROR(),
            )
            self._on_internal_error(error)
        elif self._pending:
            self.add({})

    async def _run(self) -> None:
        pause = self._limits.pause_seconds_min
        while self._pending:
            try:
                await self._move_batch()
                pause = self._limits.pause_seconds_min
            except CorruptionError as error:
                # Another replica may have an intact copy.
                self._on_corrupt(error)
                await asyncio.sleep(self._limits.pause_seconds_max)
            except (RefusedError, QueueRefusedError) as error:
                # The first failure may be due to a topic that was just created.
                level = logging.WARNING if pause >= _WARN_FROM_PAUSE_SECONDS else logging.DEBUG
                log.log(
                    level,
                    "cannot move %d dead letters of group %s on %s-%d, will retry: %s",
                    *(len(self._pending), *self._origin, error),
                    extra=events.DEAD_LETTERS_NOT_MOVED(),
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._limits.pause_seconds_max)

    async def _move_batch(self) -> None:
        """Raises RefusedError, QueueRefusedError, CorruptionError."""
        batch = [*self._pending][: self._limits.dead_per_write_max]
        for offset in batch:
            # Move to the back: letters that cannot be written must not block the others.
            self._pending[offset] = self._pending.pop(offset)
        found = await self._reader.load(
            [offset for offset in batch if offset not in self._written], lambda _: False
        )
        letters = []
        for offset, entry in found.items():
            dead = self._pending.get(offset)
            if entry is None:
                log.warning(
                    "dead letter lost, deleted by retention before it was moved: "
                    "group %s, %s-%d offset %d",
                    *(*self._origin, offset),
                    extra=events.DEAD_LETTER_LOST(),
                )
                self._written.add(offset)
            elif dead is not None:
                is_whole = not entry.message.fault
                letters.append(DeadLetter(entry.record, dead.attempts, dead.reason, is_whole))
        if letters:
            written = await self._letters.write(self._origin, self._topic_of(), letters)
            self._written |= written
            if tracing.active is not None:
                for letter in letters:
                    if letter.record.offset in written:
                        group, topic, partition = self._origin
                        where = (topic, partition, group, self._topic_of(), letter.reason)
                        tracing.active.dead_lettered(letter.record, *where)
        done = frozenset(offset for offset in batch if offset in self._written)
        if done:
            await self._submit(lambda now: SettleDead(offsets=done))
            for offset in done:
                self._pending.pop(offset, None)
                self._reader.drop(offset)
            self._written -= done

"""Owns the loop of a program that does nothing but work: poll, handle, settle, until told to stop.

A message whose handler returns is acked. One whose handler raises is nacked, with the error as the
reason. While handlers run, leases are extended, so a slow one keeps its message.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.queue.message import AsyncQueueMessage
from moldau.client.queue.worker import AsyncWorker

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.5
_REASON_LENGTH_MAX: Final = 500
_EXTENSIONS_PER_LEASE: Final = 3

Handler = Callable[[AsyncQueueMessage], Awaitable[object] | object]


class HasIsSet(Protocol):
    """An Event, of threads or of tasks."""

    def is_set(self) -> bool: ...


class WorkResult(NamedTuple):
    """How many messages were done, and how many were nacked or lost."""

    done: int
    failed: int


def check_work(handler: object, concurrency: int) -> None:
    """Before a group is joined: what cannot work would turn every message into a dead letter."""
    if not callable(handler):
        raise InvalidArgumentError(
            f"a handler of type {type(handler).__name__} cannot be called",
            hint="give a function that takes a message",
        )
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidArgumentError(f"a concurrency of {concurrency!r}", hint="1 or more")


class HandlerLoop:
    """One run of the loop over one worker."""

    def __init__(
        self,
        worker: AsyncWorker,
        handler: Handler,
        *,
        concurrency: int,
        stop: HasIsSet | None,
        idle: float | None,
        limit: int | None,
    ) -> None:
        self._worker = worker
        self._handler = handler
        self._is_ordered = worker.mode == "ordered"
        if self._is_ordered and concurrency > 1:
            raise InvalidArgumentError(
                "an ordered group does one message after the other",
                hint='connect more workers, or use mode="queue"',
            )
        self._concurrency = concurrency
        self._stop = stop
        self._idle = idle
        self._left = limit
        self._done = 0
        self._failed = 0
        self._in_hand: set[AsyncQueueMessage] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> WorkResult:
        """Work until `stop` is set, `limit` messages were taken, or nothing came for `idle`."""
        keeper = asyncio.create_task(self._keep_leases(), name="queue-leases")
        try:
            await self._loop()
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for task in self._running:
                task.cancel()
            keeper.cancel()
            await asyncio.wait([keeper, *self._running])
        return WorkResult(self._done, self._failed)

    async def _loop(self) -> None:
        busy_at = time.monotonic()
        while not self._is_over:
            room = self._concurrency - len(self._running)
            if room <= 0:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                continue
            count = room if self._left is None else min(room, self._left)
            messages = await self._worker.poll(count, _WAIT_SECONDS)
            if messages or self._running:
                busy_at = time.monotonic()
            elif self._idle is not None and time.monotonic() - busy_at >= self._idle:
                return
            if self._left is not None:
                self._left -= len(messages)
            if self._is_ordered:
                await self._in_order(messages)
                continue
            for message in messages:
                self._in_hand.add(message)
                task = asyncio.create_task(self._handle(message), name="queue-work")
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    @property
    def _is_over(self) -> bool:
        return self._left == 0 or (self._stop is not None and self._stop.is_set())

    async def _in_order(self, messages: list[AsyncQueueMessage]) -> None:
        for message in messages:
            failed = self._failed
            await self._handle(message)
            if self._failed > failed:
                # Those after it must not overtake it: the next poll brings it again.
                return

    async def _handle(self, message: AsyncQueueMessage) -> None:
        self._in_hand.add(message)
        try:
            found = self._handler(message)
            if inspect.isawaitable(found):
                await found
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._failed += 1
            log.warning("%r failed: %s: %s", message, type(error).__name__, error)
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
            await self._settle(message, lambda: message.nack(reason=reason))
        else:
            if await self._settle(message, message.ack):
                self._done += 1
            else:
                self._failed += 1
        finally:
            self._in_hand.discard(message)

    async def _settle(
        self, message: AsyncQueueMessage, settle: Callable[[], Awaitable[None]]
    ) -> bool:
        """Unless the handler did it."""
        self._in_hand.discard(message)
        if message.is_settled:
            return True
        try:
            await settle()
        except ClientError as error:
            log.warning("%s", error)
            return False
        return True

    async def _keep_leases(self) -> None:
        if self._is_ordered:
            return
        # Each partition by itself: one without a leader must not hold up the others.
        extending: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while True:
                visibility = self._worker.visibility
                await asyncio.sleep(visibility / _EXTENSIONS_PER_LEASE)
                in_hand: dict[tuple[str, int], list[AsyncQueueMessage]] = {}
                for message in self._in_hand:
                    in_hand.setdefault((message.topic, message.partition), []).append(message)
                for place, messages in in_hand.items():
                    if place not in extending or extending[place].done():
                        extending[place] = asyncio.create_task(self._extend(messages, visibility))
        finally:
            for task in extending.values():
                task.cancel()
            if extending:
                await asyncio.wait(extending.values())

    async def _extend(self, messages: list[AsyncQueueMessage], seconds: float) -> None:
        for refused in await self._worker.extend(messages, seconds):
            if refused.message in self._in_hand:
                log.warning("%s", refused.error())

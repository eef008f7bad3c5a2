"""The loop of `work()`: poll, call the handler, settle, until it is stopped.

A message whose handler returns is acked; if it raises, the message is nacked with the error as the
reason. Leases are extended while handlers run, so a slow handler keeps its message.
"""

import asyncio
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from moldau import tracing
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.queue.worker import AsyncQueueMessage, AsyncWorker

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.5
_REASON_LENGTH_MAX: Final = 500
_EXTENSIONS_PER_LEASE: Final = 3

Handler = Callable[[AsyncQueueMessage], Awaitable[object] | object]


class HasIsSet(Protocol):
    """An Event of threading or asyncio."""

    def is_set(self) -> bool: ...


class WorkResult(NamedTuple):
    """The number of messages that were done, and that were nacked or lost."""

    done: int
    failed: int


def check_work(handler: object, concurrency: int) -> None:
    """Called before a group is joined: a wrong handler would dead-letter every message."""
    if not callable(handler):
        raise InvalidArgumentError(
            f"the handler must be callable, not {type(handler).__name__}",
            hint="pass a function that accepts a message",
        )
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidArgumentError(f"concurrency must be an int, 1 or more, not {concurrency!r}")


_running: Final[list[Callable[[], None]]] = []
"""Stops each loop that runs in this process."""


def _on_sigterm(number: int, frame: object) -> None:
    """Stop all loops; the second SIGTERM, and one without loops, ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _running:
        os.kill(os.getpid(), signal.SIGTERM)
    for stop in list(_running):
        stop()


@contextmanager
def stop_on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM; the second one ends the process.

    Only if the program has no handler of its own, and if a loop runs in the main thread: only
    there a handler can be installed.
    """
    _running.append(stop)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        _running.remove(stop)
        is_ours = signal.getsignal(signal.SIGTERM) is _on_sigterm
        if is_main and is_ours and not _running:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class HandlerLoop:
    """One run of the loop of one worker."""

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
                "concurrency must be 1 in an ordered group",
                hint='connect more workers, or use mode="queue"',
            )
        self._concurrency = concurrency
        self._stop = stop
        self._is_stopping = False
        self._idle = idle
        self._left = limit
        self._done = 0
        self._failed = 0
        self._handling: set[AsyncQueueMessage] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> WorkResult:
        """Run until `stop` is set, after `limit` messages, or after `idle` seconds without any."""
        extender = asyncio.create_task(self._extend_leases(), name="queue-leases")
        try:
            await self._loop()
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for task in self._running:
                task.cancel()
            extender.cancel()
            await asyncio.wait([extender, *self._running])
        return WorkResult(self._done, self._failed)

    def request_stop(self) -> None:
        """From any thread: poll no more, and return when the running handlers have."""
        self._is_stopping = True

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
                self._handling.add(message)
                task = asyncio.create_task(self._handle(message), name="queue-work")
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    @property
    def _is_over(self) -> bool:
        if self._left == 0 or self._is_stopping:
            return True
        return self._stop is not None and self._stop.is_set()

    async def _in_order(self, messages: list[AsyncQueueMessage]) -> None:
        for message in messages:
            failed = self._failed
            await self._handle(message)
            if self._failed > failed:
                # Later messages must not overtake it: the next poll returns it again.
                return

    async def _handle(self, message: AsyncQueueMessage) -> None:
        self._handling.add(message)
        try:
            with tracing.process(message, group=self._worker.group):
                found = self._handler(message)
                if inspect.isawaitable(found):
                    await found
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._failed += 1
            log.warning(
                "handler failed for %r (attempt %d): nacking it",
                message,
                message.attempt,
                exc_info=error,
            )
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
            await self._settle(message, lambda: message.nack(reason=reason))
        else:
            if await self._settle(message, message.ack):
                self._done += 1
            else:
                self._failed += 1
        finally:
            self._handling.discard(message)

    async def _settle(
        self, message: AsyncQueueMessage, settle: Callable[[], Awaitable[None]]
    ) -> bool:
        """Settle the message, unless the handler did; whether it is settled."""
        self._handling.discard(message)
        if message.is_settled:
            return True
        try:
            await settle()
        except ClientError as error:
            log.warning("%s; it will be redelivered", error)
            return False
        return True

    async def _extend_leases(self) -> None:
        if self._is_ordered:
            return
        # Separately for each partition: one without a leader must not delay the others.
        extending: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while True:
                visibility = self._worker.visibility
                await asyncio.sleep(visibility / _EXTENSIONS_PER_LEASE)
                handling: dict[tuple[str, int], list[AsyncQueueMessage]] = {}
                for message in self._handling:
                    handling.setdefault((message.topic, message.partition), []).append(message)
                for partition, messages in handling.items():
                    if partition not in extending or extending[partition].done():
                        extending[partition] = asyncio.create_task(
                            self._extend(messages, visibility)
                        )
        finally:
            for task in extending.values():
                task.cancel()
            if extending:
                await asyncio.wait(extending.values())

    async def _extend(self, messages: list[AsyncQueueMessage], seconds: float) -> None:
        for refused in await self._worker.extend(messages, seconds):
            if refused.message in self._handling:
                log.warning("%s", refused.error())

"""The loop of `moldau queue work`: polls for as many messages as it can start, and settles them.

The lease of a message is extended while its command runs. On the first stop request, running
commands finish and newly polled messages are returned; on the second, commands are killed and
their messages returned.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.cli.errors import CommandError
from moldau.cli.output import counted, say

if TYPE_CHECKING:
    from moldau.client.queue.worker import AsyncWorker

POLL_SECONDS: Final = 1.0
ONCE_POLL_SECONDS: Final = 0.3
"""With --once: shorter than the default backoff of a redelivery."""
STOPPED: Final = "the worker was stopped"

_POLL_END_SECONDS_MAX: Final = 3.0
"""How long a poll may continue after a stop request."""
_EXTENDS_PER_LEASE: Final = 3

_LOST_SECONDS: Final = 1.0
_DRAIN_SECONDS_MAX: Final = 10.0
"""How long polls may return nothing although the group reports ready messages."""

Handler = Callable[[Any], Awaitable[str]]
"""Processes a message; returns why it failed, empty if it succeeded.

Raises OSError if no command can be started.
"""


@dataclass(slots=True)
class Tally:
    """Counts of messages by result."""

    done: int = 0
    failed: int = 0
    lost: int = 0
    """Processed but not settled: the lease expired, or no broker responded."""


class StopRequest:
    """The first signal sets `requested`, the second `at_once`: kill running commands."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.at_once = asyncio.Event()

    def signal(self) -> None:
        (self.at_once if self.requested.is_set() else self.requested).set()


class EmptyCheck:
    """Whether the queue is empty, for --once.

    An empty poll is not enough, as it may have been too short: the group's backlog is checked, too,
    up to a deadline, as other workers may have leased the rest.
    """

    def __init__(self, ready: Callable[[], Awaitable[int]]) -> None:
        self._ready = ready
        self._empty_since: float | None = None

    async def after(self, polled: int) -> bool:
        """`polled`: how many messages the last poll returned."""
        if polled:
            self._empty_since = None
            return False
        now = asyncio.get_running_loop().time()
        self._empty_since = self._empty_since or now
        return now - self._empty_since > _DRAIN_SECONDS_MAX or await self._ready() == 0


class RetryingPoll:
    """Polls, and retries when no broker responds; reports that once per outage."""

    def __init__(self, worker: "AsyncWorker") -> None:
        self._worker = worker
        self._is_lost = False

    async def __call__(self, room: int, seconds: float) -> list[Any]:
        from moldau.client.errors import TimedOutError, UnavailableError, UnreachableError

        try:
            found = await self._worker.poll(room, seconds)
        except (UnreachableError, UnavailableError, TimedOutError) as error:
            if not self._is_lost:
                say(f"{error}; retrying (Ctrl-C stops)")
            self._is_lost = True
            await asyncio.sleep(_LOST_SECONDS)
            return []
        self._is_lost = False
        return found


class WorkLoop:
    """One worker and its handler, until a limit is reached or a signal arrives."""

    def __init__(
        self,
        worker: "AsyncWorker",
        handler: Handler,
        stopping: StopRequest,
        *,
        concurrency: int = 1,
        messages_max: int | None = None,
        drained: EmptyCheck | None = None,
        retry_seconds: float | None = None,
        quiet: bool = False,
    ) -> None:
        self._worker = worker
        # With --once, fail rather than retry: the caller waits for the end.
        self._poll_call = RetryingPoll(worker) if drained is None else worker.poll
        self._handler = handler
        self._stopping = stopping
        self._concurrency = concurrency
        self._messages_max = messages_max
        self._drained = drained
        self._retry_seconds = retry_seconds
        self._quiet = quiet
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._taken = 0
        self.tally = Tally()

    async def run(self) -> Tally:
        """Run to the end. Raises CommandError if commands cannot be started."""
        try:
            await self._poll_all()
        finally:
            await self._finish()
        if self._failure is not None:
            raise self._failure
        return self.tally

    async def _poll_all(self) -> None:
        while not self._stopping.requested.is_set():
            room = self._concurrency - len(self._running)
            if self._messages_max is not None:
                room = min(room, self._messages_max - self._taken)
                if self._taken >= self._messages_max:
                    return
            if room <= 0:
                await self._await_room()
                continue
            messages = await self._poll(room)
            if self._stopping.requested.is_set():
                await self._return(messages)
                return
            for message in messages:
                self._begin(message)
            if self._drained is not None and await self._drained.after(len(messages)):
                if not self._running:
                    return
                await self._await_room()

    async def _poll(self, room: int) -> list[Any]:
        seconds = POLL_SECONDS if self._drained is None else ONCE_POLL_SECONDS
        polling = asyncio.ensure_future(self._poll_call(room, seconds))
        requested = asyncio.ensure_future(self._stopping.requested.wait())
        try:
            await asyncio.wait({polling, requested}, return_when=asyncio.FIRST_COMPLETED)
            if not polling.done():
                # Return its messages at once rather than let their leases expire.
                await asyncio.wait({polling}, timeout=_POLL_END_SECONDS_MAX)
            if polling.done():
                return polling.result()
            return []
        finally:
            await _cancelled(requested, polling)

    def _begin(self, message: Any) -> None:
        self._taken += 1
        task = asyncio.ensure_future(self._process(message))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        # Only the first error is reported.
        self._failure = self._failure or task.exception()
        self._stopping.requested.set()

    async def _await_room(self) -> None:
        requested = asyncio.ensure_future(self._stopping.requested.wait())
        try:
            await asyncio.wait({requested, *self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(requested)

    async def _finish(self) -> None:
        """Wait for running commands; kill them on a second stop request."""
        if self._running and self._stopping.requested.is_set() and not self._quiet:
            commands = counted(len(self._running), "running command")
            say(f"stopping after {commands}; press Ctrl-C again to kill")
        at_once = asyncio.ensure_future(self._stopping.at_once.wait())
        try:
            while self._running and not self._stopping.at_once.is_set():
                await asyncio.wait({at_once, *self._running}, return_when=asyncio.FIRST_COMPLETED)
            running = list(self._running)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        finally:
            await _cancelled(at_once)

    async def _process(self, message: Any) -> None:
        extending = asyncio.ensure_future(self._extend_lease(message))
        try:
            failure = await self._handler(message)
        except asyncio.CancelledError:
            # Returned at once, so that another worker can lease it.
            await self._return([message])
            raise
        except OSError as error:
            await self._return([message])
            what = error.filename or "the command"
            raise CommandError(
                f"cannot run {what}: {(error.strerror or str(error)).lower()}",
                hint="the message was returned to the queue",
            ) from error
        finally:
            await _cancelled(extending)
        await self._settle(message, failure)

    async def _settle(self, message: Any, failure: str) -> None:
        if not failure:
            refused = await self._worker.ack([message])
            self.tally.done += not refused
        else:
            self._report(f"{message_position(message)}, attempt {message.attempt}: {failure}")
            refused = await self._worker.nack([message], delay=self._retry_seconds, reason=failure)
            self.tally.failed += not refused
        for each in refused:
            self.tally.lost += 1
            say(f"{message_position(message)} was not settled: {each.text or each.reason}")

    async def _extend_lease(self, message: Any) -> None:
        """Extend the lease while the command runs."""
        seconds = self._worker.visibility
        while True:
            await asyncio.sleep(seconds / _EXTENDS_PER_LEASE)
            refused = await self._worker.extend([message], seconds)
            for each in refused:
                # The command continues; the ack shows whether the lease was lost.
                self._report(f"{message_position(message)}: cannot extend the lease: {each.text}")

    async def _return(self, messages: list[Any]) -> None:
        if messages:
            await self._worker.nack(messages, delay=0, reason=STOPPED)

    def _report(self, text: str) -> None:
        if not self._quiet:
            say(text)


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def message_position(message: Any) -> str:
    """TOPIC-PARTITION@OFFSET."""
    return f"{message.topic}-{message.partition}@{message.offset}"

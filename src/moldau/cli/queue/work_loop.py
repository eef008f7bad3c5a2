"""Owns the loop of `moldau queue work`: takes what there is room for, and settles it.

A message is taken only when it can be begun. While it is worked on its lease is extended. Told to
stop, the loop lets what runs finish and gives back what a poll still brings; told twice, it ends
what runs and gives that back too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from moldau.cli.errors import CommandError
from moldau.cli.output import say
from moldau.cli.queue.child_command import CommandResult

POLL_SECONDS: Final = 1.0
ONCE_POLL_SECONDS: Final = 0.3
"""Where nothing is waited for: less than the usual pause before the next attempt."""
STOPPED: Final = "the worker was stopped"

_POLL_END_SECONDS_MAX: Final = 3.0
"""How long a poll may go on once we are to stop."""
_EXTENDS_PER_LEASE: Final = 3

_LOST_SECONDS: Final = 1.0
_DRAIN_SECONDS_MAX: Final = 10.0
"""How long nothing may come although something seems to be there."""

Handler = Callable[[Any], Awaitable[CommandResult]]
"""Works on a message. Raises OSError if that cannot even be begun, for this or any other."""


class Worker(Protocol):
    """What is needed of the client's worker."""

    @property
    def visibility(self) -> float: ...
    async def poll(self, max_messages: int, wait: float) -> list[Any]: ...
    async def ack(self, messages: Sequence[Any]) -> list[Any]: ...
    async def nack(
        self, messages: Sequence[Any], *, delay: float | None = None, reason: str = ""
    ) -> list[Any]: ...
    async def extend(self, messages: Sequence[Any], seconds: float) -> list[Any]: ...


@dataclass(slots=True)
class Tally:
    """What became of the messages."""

    done: int = 0
    failed: int = 0
    lost: int = 0
    """Worked on, but not settled: their leases had ended, or nobody could be told."""


class StopRequest:
    """Set by the first signal; by the second, what runs is to end as well."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def signal(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


class EmptyCheck:
    """Whether nothing is left to be had, for --once.

    A poll that brings nothing does not tell: its time may have been too short. So the group is
    asked as well; but not for ever, as others may hold what there is.
    """

    def __init__(self, ready: Callable[[], Awaitable[int]]) -> None:
        self._ready = ready
        self._silent_since: float | None = None

    async def after(self, polled: int) -> bool:
        """Told how many a poll brought."""
        if polled:
            self._silent_since = None
            return False
        now = asyncio.get_running_loop().time()
        self._silent_since = self._silent_since or now
        return now - self._silent_since > _DRAIN_SECONDS_MAX or await self._ready() == 0


class RetryingPoll:
    """Polls, and goes on when it loses the brokers: says so once, until one answers again."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_lost = False

    async def __call__(self, room: int, seconds: float) -> list[Any]:
        from moldau.client.errors import TimedOutError, UnavailableError, UnreachableError

        try:
            found = await self._worker.poll(room, seconds)
        except (UnreachableError, UnavailableError, TimedOutError) as error:
            if not self._is_lost:
                say(f"{error}; trying again (Ctrl-C stops)")
            self._is_lost = True
            await asyncio.sleep(_LOST_SECONDS)
            return []
        self._is_lost = False
        return found


class WorkLoop:
    """One worker and its handler, until a bound is reached or a signal comes."""

    def __init__(
        self,
        worker: Worker,
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
        # With --once there is somebody who waits for the end.
        self._patient_poll = RetryingPoll(worker) if drained is None else worker.poll
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
        """Work until the end. Raises CommandError if the handler cannot be begun."""
        try:
            await self._take_all()
        finally:
            await self._finish()
        if self._failure is not None:
            raise self._failure
        return self.tally

    async def _take_all(self) -> None:
        while not self._stopping.asked.is_set():
            room = self._concurrency - len(self._running)
            if self._messages_max is not None:
                room = min(room, self._messages_max - self._taken)
                if self._taken >= self._messages_max:
                    return
            if room <= 0:
                await self._await_room()
                continue
            messages = await self._poll(room)
            if self._stopping.asked.is_set():
                await self._give_back(messages)
                return
            for message in messages:
                self._begin(message)
            if self._drained is not None and await self._drained.after(len(messages)):
                if not self._running:
                    return
                await self._await_room()

    async def _poll(self, room: int) -> list[Any]:
        seconds = POLL_SECONDS if self._drained is None else ONCE_POLL_SECONDS
        polling = asyncio.ensure_future(self._patient_poll(room, seconds))
        asked = asyncio.ensure_future(self._stopping.asked.wait())
        try:
            await asyncio.wait({polling, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not polling.done():
                # What it brings is to be given back rather than to wait for the lease's end.
                await asyncio.wait({polling}, timeout=_POLL_END_SECONDS_MAX)
            if polling.done():
                return polling.result()
            return []
        finally:
            await _cancelled(asked, polling)

    def _begin(self, message: Any) -> None:
        self._taken += 1
        task = asyncio.ensure_future(self._work_on(message))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        # The first is told; there will hardly be another one.
        self._failure = self._failure or task.exception()
        self._stopping.asked.set()

    async def _await_room(self) -> None:
        asked = asyncio.ensure_future(self._stopping.asked.wait())
        try:
            await asyncio.wait({asked, *self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(asked)

    async def _finish(self) -> None:
        """Wait for what runs; end it if that is asked for."""
        if self._running and self._stopping.asked.is_set() and not self._quiet:
            say(f"finishing {len(self._running)} (again to end them)")
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

    async def _work_on(self, message: Any) -> None:
        keeping = asyncio.ensure_future(self._keep(message))
        try:
            ended = await self._handler(message)
        except asyncio.CancelledError:
            # Given back at once: another worker may have it.
            await self._give_back([message])
            raise
        except OSError as error:
            await self._give_back([message])
            what = error.filename or "the command"
            raise CommandError(
                f"cannot run {what}: {(error.strerror or str(error)).lower()}",
                hint="the message was given back",
            ) from error
        finally:
            await _cancelled(keeping)
        await self._settle(message, ended)

    async def _settle(self, message: Any, ended: CommandResult) -> None:
        if ended.is_success:
            refused = await self._worker.ack([message])
            self.tally.done += not refused
        else:
            self._tell(f"{message_position(message)}, attempt {message.attempt}: {ended.reason}")
            refused = await self._worker.nack(
                [message], delay=self._retry_seconds, reason=ended.reason
            )
            self.tally.failed += not refused
        for each in refused:
            self.tally.lost += 1
            say(f"{message_position(message)} was not settled: {each.text or each.reason}")

    async def _keep(self, message: Any) -> None:
        """Extend the lease for as long as the message is worked on."""
        seconds = self._worker.visibility
        while True:
            await asyncio.sleep(seconds / _EXTENDS_PER_LEASE)
            refused = await self._worker.extend([message], seconds)
            for each in refused:
                # The work goes on: whether it was in vain, its settling will tell.
                self._tell(f"{message_position(message)}: cannot extend the lease: {each.text}")

    async def _give_back(self, messages: list[Any]) -> None:
        if messages:
            await self._worker.nack(messages, delay=0, reason=STOPPED)

    def _tell(self, text: str) -> None:
        if not self._quiet:
            say(text)


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel them and wait until they have noticed."""
    for task in tasks:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def message_position(message: Any) -> str:
    """Which message it is."""
    return f"{message.topic}-{message.partition}@{message.offset}"

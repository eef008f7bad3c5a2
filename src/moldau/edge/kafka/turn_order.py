"""Turns of large requests: all of them together take one short turn of the event loop at a time.

A request that needs more than one turn goes on alone until its response is encoded. So the broker
keeps the parts of one large response in memory, not those of all clients. Addresses take turns:
who sends many large requests over many connections waits for itself.

Handlers that wait for other brokers between two names only pass a gate, one at a time: nobody waits
for their waiting.
"""

import asyncio
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from moldau.model.clock import Clock
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply

_ORPHANS_MAX: Final = 16


class LargeRequests:
    """Those of one broker."""

    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By address, the next one first."""
        self.gate: Final = asyncio.Lock()
        self.orphans = 0
        """Requests that go on without their clients."""

    async def acquire(self, host: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                # It was granted at the same time.
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            host = next(iter(self._waiting))
            queue = self._waiting.pop(host)
            granted = queue.popleft()
            if queue:
                # Behind the other addresses.
                self._waiting[host] = queue
            if not granted.done():
                granted.set_result(None)
                return
        self._is_busy = False


class Turns:
    """The turns of one request, from the second on."""

    __slots__ = ("_connection", "_goes_on", "_host", "_is_orphan", "_large", "clock", "is_large")

    def __init__(
        self, large: LargeRequests, connection: Connection, host: str, clock: Clock
    ) -> None:
        self._large = large
        self._connection = connection
        self._host = host
        self._goes_on = False
        self.clock = clock
        """Decides when a turn ends."""
        self.is_large = False
        """Whether it needed more than one turn."""
        self._is_orphan = False

    async def next(self) -> None:
        """Waits for the next turn; no other request has one before `end`. Who calls it waits for
        nothing else until then."""
        self.is_large = True
        if not self._goes_on:
            await self._large.acquire(self._host)
            self._goes_on = True
        await asyncio.sleep(0)
        self._stop_if_abandoned()

    def end(self) -> None:
        if self._goes_on:
            self._goes_on = False
            self._large.release()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """The client is gone, and the task goes on without it; unless many do."""
        large = self._large
        if large.orphans >= _ORPHANS_MAX:
            task.cancel()
            return
        large.orphans += 1
        self._is_orphan = True
        task.add_done_callback(self._bury)

    def _bury(self, _: asyncio.Task[Any]) -> None:
        self._large.orphans -= 1

    async def pass_gate(self) -> None:
        """Serves others; of the requests that do this, one goes on per turn of the event loop."""
        self.is_large = True
        async with self._large.gate:
            await asyncio.sleep(0)
        self._stop_if_abandoned()

    def _stop_if_abandoned(self) -> None:
        if self._connection.is_closed and not self._is_orphan:
            # Nobody waits for the response.
            raise asyncio.CancelledError


TURNS: Final[ContextVar[Turns]] = ContextVar("TURNS")
"""Of the request that the current task handles."""


def on_leave(connection: Connection, later: DeferredReply, *, goes_on: bool) -> None:
    """What the current task does when its client leaves: it stops, or `goes_on` without it.

    A task that waits for its turn keeps its request in memory, for which nobody pays any more.
    """
    task, turns = asyncio.current_task(), TURNS.get()
    if task is None:
        return
    leave = partial(turns.adopt if goes_on else _cancel, task)
    if connection.is_closed:
        leave()
    else:
        later.on_abandoned = leave


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()

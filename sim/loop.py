"""The event loop of one simulated process: asyncio's own, in virtual time.

Callbacks, timers, tasks, transports and streams are those of the standard library. What differs:
time is the scheduler's, sockets are simulated ones, what goes to an executor runs at a later time
of its own, and a process can be ended between any two callbacks, or inside one.
"""

import asyncio
import heapq
import random
import socket
import sys
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any

from sim.network import SimSocket
from sim.scheduler import Scheduler, Turns
from sim.simdisk import SimCrash

_TURN_SECONDS_MIN = 20e-6
_TURN_SECONDS_MAX = 120e-6
"""What a turn takes: the next one is later by so much."""


class SimLoop(asyncio.SelectorEventLoop, Turns):
    """Made by a process; run by the scheduler, turn by turn."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, name: str) -> None:
        Turns.__init__(self)
        self._scheduler = scheduler
        self._rng = rng
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.spent = 0.0
        """Seconds that the callback at hand has waited."""
        self._free_at = 0.0
        self.work_delay: Callable[[], float] = lambda: 50e-6
        """How long what goes to a thread takes."""
        self.after_turn: Callable[[], None] | None = None
        self.on_crash: Callable[[], None] = lambda: None
        self.on_exception: Callable[[dict[str, Any]], None] = lambda _: None
        self._busy_executors: dict[Executor, float] = {}
        """Until when; they stay, so that no other is taken for one that was there before."""
        self._io: dict[SimSocket, None] = {}
        self._by_number: dict[int, SimSocket] = {}
        self._live_timers_seen = 0
        self._numbers = 0
        self._signals: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.new_socket: Callable[[], SimSocket]
        self._tasks: dict[asyncio.Task[Any], None] = {}
        asyncio.SelectorEventLoop.__init__(self, _NoSelector())  # type: ignore[arg-type]
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    # ---- time

    def time(self) -> float:
        return self._scheduler.now + self.spent

    def spend(self, seconds: float) -> None:
        """What runs now waits for the disk: the clock goes on, and so does everybody else."""
        self.spent += seconds

    def run_turn(self) -> None:
        """For the scheduler."""
        if self.is_dead:
            return
        now = self._scheduler.now
        if (busy_until := max(self.paused_until, self._free_at)) > now:
            self._scheduler.turn(self, busy_until)
            return
        ready = self._ready  # type: ignore[attr-defined]
        self._process_events(None)
        self._take_due(now + 1e-9)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                if self._has_died():
                    return
        finally:
            events._set_running_loop(None)
        self._free_at, self.spent = now + self.spent, 0.0
        self._plan()
        if self.after_turn is not None:
            self.after_turn()

    def _has_died(self) -> bool:
        """Whether what ran just now was its end."""
        return self.is_dead

    def _take_due(self, now: float) -> None:
        """Timers whose time has come, behind what is ready."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if len(scheduled) > 2 * self._live_timers_seen + 100:
            for handle in scheduled:
                if handle._cancelled:
                    handle._scheduled = False
            scheduled[:] = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(scheduled)
            self._live_timers_seen = len(scheduled)
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def _plan(self) -> None:
        """Ask for the next turn."""
        if self._ready or self._io:  # type: ignore[attr-defined]
            took = _TURN_SECONDS_MIN + self._rng.random() * (_TURN_SECONDS_MAX - _TURN_SECONDS_MIN)
            self._scheduler.turn(self, self._scheduler.now + took)
        elif self._scheduled:  # type: ignore[attr-defined]
            self._scheduler.turn(self, self._scheduled[0].when())  # type: ignore[attr-defined]

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run something in this process, from outside of it."""
        task: asyncio.Task[Any] = self.create_task(coroutine)
        self._scheduler.turn(self, self._scheduler.now)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        if events._get_running_loop() is not self:
            self._scheduler.turn(self, self._scheduler.now)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        if events._get_running_loop() is not self:
            self._scheduler.turn(self, when)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._scheduler.turn(self, self._scheduler.now)
        return handle

    # ---- what other threads do

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """At a later time, between two turns. What shares an executor's one thread keeps order."""
        future: asyncio.Future[Any] = self.create_future()
        time = self._scheduler.now + self.work_delay()
        if executor is not None:
            time = max(time, self._busy_executors.get(executor, 0.0))
            self._busy_executors[executor] = time
        self._scheduler.at(time, lambda: self._work(future, func, args))
        return future

    def _work(
        self, future: "asyncio.Future[Any]", func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if self.is_dead or future.cancelled():
            return
        if self.paused_until > self._scheduler.now:
            self._scheduler.at(self.paused_until, lambda: self._work(future, func, args))
            return
        try:
            result = func(*args)
            self.spent = 0.0
        except SimCrash:
            self.on_crash()
        except Exception as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    def run_as_thread(self, seconds: float, work: Callable[[], None]) -> None:
        """The same for a thread that answers by `call_soon_threadsafe`."""

        def run() -> None:
            if self.is_dead:
                return
            if self.paused_until > self._scheduler.now:
                self._scheduler.at(self.paused_until, run)
                return
            try:
                work()
            except SimCrash:
                self.on_crash()
            self.spent = 0.0

        self._scheduler.after(seconds, run)

    # ---- sockets

    def woken(self, sock: SimSocket) -> None:
        """For the network: there may be something to do for this socket."""
        if not self.is_dead:
            self._io[sock] = None
            self._scheduler.turn(self, self._scheduler.now)

    def _process_events(self, event_list: object) -> None:
        """Before the callbacks of a turn: add those of sockets, in an order by chance."""
        if not self._io:
            return
        found: list[events.Handle] = []
        for sock in list(self._io):
            is_ready = False
            if sock.reader is not None and sock.is_readable:
                found.append(sock.reader)
                is_ready = True
            if sock.writer is not None and sock.is_writable:
                found.append(sock.writer)
                is_ready = True
            if not is_ready:
                del self._io[sock]
        if len(found) > 1:
            self._rng.shuffle(found)
        self._ready.extend(found)  # type: ignore[attr-defined]

    def find_socket(self, fd: Any) -> SimSocket | None:
        return fd if isinstance(fd, SimSocket) else self._by_number.get(int(fd))

    def opened(self, sock: SimSocket) -> None:
        self._by_number[sock.fileno()] = sock

    def closed(self, sock: SimSocket, number: int) -> None:
        self._by_number.pop(number, None)
        self._io.pop(sock, None)

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> events.Handle:
        handle = events.Handle(callback, args, self, None)
        sock = self.find_socket(fd)
        if sock is None:
            raise ValueError(f"no such socket: {fd!r}")
        if sock.reader is not None:
            sock.reader.cancel()
        sock.reader = handle
        self._io[sock] = None
        return handle

    def _remove_reader(self, fd: Any) -> bool:
        sock = self.find_socket(fd)
        if sock is None or sock.reader is None:
            return False
        sock.reader.cancel()
        sock.reader = None
        return True

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> events.Handle:
        handle = events.Handle(callback, args, self, None)
        sock = self.find_socket(fd)
        if sock is None:
            raise ValueError(f"no such socket: {fd!r}")
        if sock.writer is not None:
            sock.writer.cancel()
        sock.writer = handle
        self._io[sock] = None
        return handle

    def _remove_writer(self, fd: Any) -> bool:
        sock = self.find_socket(fd)
        if sock is None or sock.writer is None:
            return False
        sock.writer.cancel()
        sock.writer = None
        return True

    async def _connect_sock(self, exceptions: Any, addr_info: Any, *_: Any) -> SimSocket:
        """For `create_connection`, and so for streams."""
        sock = self.new_socket()
        try:
            await self.sock_connect(sock, addr_info[4])
        except OSError as error:
            sock.close()
            exceptions.append([error])
            raise
        except BaseException:
            sock.close()
            raise
        return sock

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., Any], *args: Any
    ) -> None:
        self._signals[sig] = (callback, args)

    def signalled(self, sig: int) -> None:
        """From outside: ask the process to end."""
        if not self.is_dead and sig in self._signals:
            callback, args = self._signals[sig]
            self.call_soon_threadsafe(callback, *args)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    # ---- the end

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, SimCrash):
            self.on_crash()
        elif not self.is_dead:
            self.on_exception(context)

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def kept(self, task: "asyncio.Task[Any]") -> None:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def die(self) -> None:
        """The process is gone: nothing of it runs any more, and nobody hears what it still says."""
        self.is_dead = True
        self.turn_at = None
        running = events._get_running_loop()
        # What its coroutines do when they are closed happens now, and to nobody: later it would
        # happen whenever memory is collected.
        reported, sys.unraisablehook = sys.unraisablehook, lambda _: None
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if task is not _current(self) and coroutine is not None:
                events._set_running_loop(self)
                try:
                    with warnings.catch_warnings():
                        # One that was to be awaited next is not awaited any more.
                        warnings.simplefilter("ignore", RuntimeWarning)
                        coroutine.close()
                except BaseException:
                    pass
                finally:
                    events._set_running_loop(running)
        sys.unraisablehook = reported
        for transport in list(self._transports.values()):  # type: ignore[attr-defined]
            transport._sock = None
        self._tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._io.clear()
        self._by_number.clear()

    def __del__(self) -> None:
        """Nothing was opened that the system would have to close."""

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass


def _current(loop: SimLoop) -> "asyncio.Task[Any] | None":
    return asyncio.current_task(loop)


class _Future(asyncio.Future[Any]):
    """Sets of them must have the same order in each run, whatever their place in memory."""

    def __init__(self, *, loop: "SimLoop") -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, loop: "SimLoop", **named: Any
    ) -> None:
        # Before the base class puts it into a set.
        self._number = loop.next_number()
        super().__init__(coroutine, loop=loop, **named)

    def __hash__(self) -> int:
        return self._number


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **named: Any
) -> "asyncio.Task[Any]":
    assert isinstance(loop, SimLoop)
    task = _Task(coroutine, loop=loop, **named)
    loop.kept(task)
    return task


class _NoSelector:
    """Sockets are looked at by the loop itself."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None:
        pass

    def get_map(self) -> dict[int, Any]:
        return {}

    def get_key(self, fd: object) -> None:
        """For the text of a transport."""
        raise KeyError(fd)

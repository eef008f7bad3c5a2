"""Runs blocking calls for coroutines in threads, so that the event loop never blocks.

The loop's own executor is not used: it has few threads, and an application that occupies them must
not stop its clients.
"""

import asyncio
import concurrent.futures
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Job(Generic[T]):
    """A call and the future of its result."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run(self) -> None:
        """Run the call, unless it was cancelled before."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:
            # Any error belongs to the caller, not to this thread.
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


def submit(call: Callable[[], T], name: str) -> "concurrent.futures.Future[T]":
    """Run it in a new thread. For calls that take milliseconds or longer."""
    job = Job(call)
    threading.Thread(target=job.run, name=name, daemon=True).start()
    return job.future


async def in_thread(call: Callable[[], T], name: str = "moldau-call") -> T:
    """Run it in a thread. If the caller is cancelled, the call continues in the background, and its
    error is logged.
    """
    future = submit(call, name)
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        future.add_done_callback(_log_error)
        raise


async def to_its_end(call: Callable[[], T], name: str = "moldau-call") -> T:
    """The same, but a cancelled caller waits for the end of the call first."""
    future = asyncio.wrap_future(submit(call, name))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    if (failure := future.exception()) is not None:
        cancelled.add_note(str(failure))
    raise cancelled


def _log_error(future: "concurrent.futures.Future[T]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("background call failed after its caller was cancelled: %s", error)


class CallThread:
    """One thread that runs calls one after the other, for a client that is not thread-safe.

    A call may call back into the event loop (`call_back`). Calls that the callback awaits run
    inside of that call, in the same thread, because all others wait for its end.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._inside: contextvars.ContextVar[_Inside | None] = contextvars.ContextVar(
            "moldau_inside", default=None
        )
        self.turn = asyncio.Lock()
        """Held while a call runs; protects the client's state."""
        thread = threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True)
        thread.start()

    @property
    def is_called_back(self) -> bool:
        """Whether the current code runs in a callback, which must not wait for its own turn."""
        inside = self._inside.get()
        return inside is not None and inside.is_open

    async def run(self, call: Callable[[], T]) -> T:
        """Run it when it is its turn. Cancelling the caller does not stop a call that has begun."""
        job = Job(call)
        inside = self._inside.get()
        if inside is not None and inside.submit(job):
            return await asyncio.wrap_future(job.future)
        task = asyncio.ensure_future(self._take_turn(job))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not job.future.running() and not job.future.done():
                task.cancel()
            raise

    async def _take_turn(self, job: Job[T]) -> T:
        async with self.turn:
            self._jobs.put(job)
            return await asyncio.wrap_future(job.future)

    def call_back(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], "asyncio.Future[T] | T"]
    ) -> None:
        """For the thread: run a callback in the loop and wait for it. Raises its error."""
        inside = _Inside()

        async def run() -> None:
            self._inside.set(inside)
            result = callback()
            if asyncio.iscoroutine(result) or asyncio.isfuture(result):
                await result

        outcome = asyncio.run_coroutine_threadsafe(run(), loop)
        outcome.add_done_callback(lambda _: inside.end())
        inside.serve()
        outcome.result()

    def stop(self) -> None:
        """End the thread after the calls before."""
        self._jobs.put(None)


class _Inside:
    """Calls made from within a callback."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def submit(self, job: Job[Any]) -> bool:
        """False if the callback has ended: a task that it started waits like any other."""
        with self._lock:
            if not self._ended:
                self._jobs.put(job)
            return not self._ended

    @property
    def is_open(self) -> bool:
        return not self._ended

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self._jobs.put(None)

    def serve(self) -> None:
        _serve(self._jobs)


def _serve(jobs: "queue.SimpleQueue[Job[Any] | None]") -> None:
    while (job := jobs.get()) is not None:
        job.run()

"""The flusher: what it does when a log refuses, a callback fails, the disk is full."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from memory_log import MemoryLog

from moldau.log.disk_log import open_disk_log
from moldau.log.interface import FlushTask, LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import DiskFullError, StorageError
from moldau.replica.flush_threads import FlushThreads, FlushWork, FlushWorkers
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.testing.logs import append
from moldau.testing.replicas import ManualClock, lead_replica, make_driver
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


class Task:
    is_heavy = False
    descriptor: int | None = None

    def __init__(self, inner: FlushTask, run: Callable[[], None]) -> None:
        self.inner = inner
        self._run = run

    def run(self) -> None:
        self._run()
        self.inner.run()

    def failed(self, error: OSError) -> None:
        self.inner.failed(error)


class TroubledLog(MemoryLog):
    """Raises what the test puts in, at each step of a flush."""

    def __init__(self) -> None:
        super().__init__(LogConfig())
        self.at_begin: list[StorageError] = []
        self.at_end: list[StorageError] = []
        self.at_run: list[BaseException] = []
        self.ran_in: list[threading.Thread] = []

    def begin_flush(self) -> FlushTask | None:
        if self.at_begin:
            raise self.at_begin.pop()
        task = super().begin_flush()
        return None if task is None else Task(task, self._run)

    def _run(self) -> None:
        self.ran_in.append(threading.current_thread())
        if self.at_run:
            raise self.at_run.pop()

    def end_flush(self, task: FlushTask) -> None:
        assert isinstance(task, Task)
        super().end_flush(task.inner)
        if self.at_end:
            raise self.at_end.pop()


class World:
    def __init__(self, workers: FlushWorkers | None = None) -> None:
        self.failures: list[StorageError] = []
        self.defects: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.defects.append(context["exception"]))
        self.flusher = Flusher(
            loop=loop,
            clock=ManualClock(),
            workers=workers or FlushThreads(2),
            on_failure=self.failures.append,
        )
        self.flushed: list[TroubledLog] = []

    def handle(self, log: TroubledLog) -> FlushHandle:
        return FlushHandle(log, lambda: self.flushed.append(log))


async def test_a_flush_that_cannot_begin_fails_the_disk_and_commits_nothing() -> None:
    world, log = World(), TroubledLog()
    log.at_begin = [StorageError("the disk is gone")]
    append(log)
    world.flusher.request(world.handle(log), 1)
    await until(lambda: world.failures, "the disk fails")
    assert (world.flusher.failed, world.flushed, world.defects) == (True, [], [])
    world.flusher.stop()


async def test_a_flush_that_finds_no_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.replica.flusher._DISK_FULL_RETRY_SECONDS", 0.01)
    world, log, other = World(), TroubledLog(), TroubledLog()
    log.at_begin = [DiskFullError("full"), DiskFullError("full")]
    log.at_end = [DiskFullError("full")]
    for each in (log, other):
        append(each)
        world.flusher.request(world.handle(each), 1)
    await until(lambda: log in world.flushed and other in world.flushed, "both are flushed")
    assert (log.flushed_offset, world.failures, world.defects) == (1, [], [])
    world.flusher.stop()


async def test_a_failure_after_the_flush_ends_it_all() -> None:
    world, log = World(), TroubledLog()
    log.at_end = [StorageError("the disk is gone")]
    append(log)
    world.flusher.request(world.handle(log), 1)
    await until(lambda: world.failures, "the disk fails")
    assert world.flushed == []
    world.flusher.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_internal_error_in_the_thread_is_a_failure() -> None:
    world, log = World(), TroubledLog()
    log.at_run = [MemoryError()]
    append(log)
    world.flusher.request(world.handle(log), 1)
    await until(lambda: world.failures, "the disk fails")
    assert world.flushed == []
    world.flusher.stop()


async def test_an_internal_error_of_a_callback_costs_no_other_log_its_flush() -> None:
    world, log, other = World(), TroubledLog(), TroubledLog()

    def broken() -> None:
        raise ZeroDivisionError

    # Nothing to flush, so the first is told at once, before the second's turn.
    world.flusher.request(FlushHandle(log, broken), 0)
    append(other)
    world.flusher.request(world.handle(other), 1)
    await until(lambda: world.flushed, "the other is flushed")
    assert [type(error) for error in world.defects] == [ZeroDivisionError]
    world.flusher.stop()


async def test_a_flush_of_a_log_that_is_deleted_meanwhile_may_fail(tmp_path: Path) -> None:
    world = World()
    files = OsFiles(tmp_path)
    log = open_disk_log(files, "log", LogConfig())
    driver = make_driver(world.flusher)
    replica = await lead_replica(log, world.flusher, driver=driver)
    append(log, epoch=replica.epoch)
    begin_flush, may_run, has_run = log.begin_flush, threading.Event(), threading.Event()

    def run() -> None:
        may_run.wait(wait_seconds_max())
        has_run.set()

    has_begun = threading.Event()

    def begin_late() -> FlushTask:
        task = begin_flush()
        assert task is not None
        has_begun.set()
        late = Task(task, run)
        # In a thread, however quick the disk has proved to be.
        late.is_heavy = True
        return late

    log.begin_flush = begin_late  # type: ignore[method-assign, assignment]
    replica.flush_soon()
    await until(has_begun.is_set, "the flush begins")
    replica.drop()
    files.remove_tree("log")
    may_run.set()
    await until(has_run.is_set, "the flush ran")
    other = TroubledLog()
    append(other)
    world.flusher.request(world.handle(other), 1)
    await until(lambda: world.flushed, "the other is flushed")
    assert (world.failures, world.defects, world.flusher.failed) == ([], [], False)
    driver.stop()
    world.flusher.stop()


async def test_a_large_flush_never_runs_on_the_loop() -> None:
    world, log = World(), TroubledLog()
    handle = world.handle(log)
    for size in (1, 1, 1 << 20):
        append(log)
        before = len(world.flushed)
        world.flusher.request(handle, size)
        await until(lambda before=before: len(world.flushed) > before, "it is flushed")
    main = threading.main_thread()
    # The first measures how long a small one takes: no time at all, by the clock of this test.
    assert [thread is main for thread in log.ran_in] == [False, True, False]
    world.flusher.stop()


class Waiting:
    """Workers that begin nothing by themselves."""

    def __init__(self) -> None:
        self.calls: list[list[FlushWork]] = []

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        self.calls.append(list(works))

    def stop(self) -> None:
        pass


async def test_all_flushes_of_one_turn_are_handed_over_in_one_call() -> None:
    workers = Waiting()
    world = World(workers)
    for _ in range(3):
        log = TroubledLog()
        append(log)
        world.flusher.request(world.handle(log), 1)
    await until(lambda: workers.calls, "they are handed over")
    assert [len(works) for works in workers.calls] == [3]


async def test_the_loop_wakes_once_for_all_that_ended_and_a_broken_callback_costs_no_other() -> (
    None
):
    workers = Waiting()
    world = World(workers)
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    original = loop.call_soon_threadsafe

    def call(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        calls.append(callback)
        return original(callback, *args)

    loop.call_soon_threadsafe = call  # type: ignore[method-assign, assignment]

    def broken() -> None:
        raise ZeroDivisionError

    logs = [TroubledLog(), TroubledLog()]
    for log in logs:
        append(log)
    world.flusher.request(FlushHandle(logs[0], broken), 1)
    world.flusher.request(world.handle(logs[1]), 1)
    await until(lambda: workers.calls, "they are handed over")
    for work in workers.calls[0]:
        work()
    await until(lambda: world.flushed, "the other is flushed")
    assert (world.flushed, len(calls)) == ([logs[1]], 1)
    assert [type(error) for error in world.defects] == [ZeroDivisionError]

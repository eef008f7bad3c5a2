"""Flush workers that leave plain syncs to the kernel."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.kernel_sync import KernelSyncs
from moldau.log.os_filesystem import OsFiles
from moldau.log.slow_filesystem import DiskDelay, SlowFiles
from moldau.model.errors import StorageError
from moldau.replica.flush_threads import FlushThreads, FlushWork
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.replica.kernel_flushes import KernelFlushes
from moldau.testing.logs import append
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


class Counting(KernelSyncs[FlushWork]):
    """The kernel's, with results that the test puts in."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.error = 0
        self.is_full = False

    def add(self, descriptor: int, tag: FlushWork) -> bool:
        return not self.is_full and super().add(descriptor, tag)

    def submit(self) -> list[FlushWork]:
        self.calls.append(len(self._added))
        return super().submit()

    def ended(self) -> list[tuple[FlushWork, int]]:
        return [(work, error or self.error) for work, error in super().ended()]


class Threads(FlushThreads):
    def __init__(self) -> None:
        super().__init__(2)
        self.ran = 0

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        self.ran += len(works)
        super().run(works, running)


class World:
    def __init__(self) -> None:
        try:
            self.syncs, self.threads = Counting(), Threads()
        except OSError as error:
            pytest.skip(f"this kernel has no asynchronous I/O for us: {error}")
        self.clock = ManualClock()
        self.failures: list[StorageError] = []
        self.defects: list[object] = []
        self.flushed: list[PartitionLog] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.defects.append(context["exception"]))
        self.flusher = Flusher(
            loop=loop,
            clock=self.clock,
            workers=KernelFlushes(loop, self.syncs, self.threads),
            on_failure=self.failures.append,
        )

    async def flush(self, logs: list[PartitionLog], size: int = 1) -> None:
        """Append to all of them in one turn, and wait for the flush of each."""
        wanted = len(self.flushed) + len(logs)
        for log in logs:
            append(log)
            self.flusher.request(self.handle(log), size)
        await until(lambda: len(self.flushed) >= wanted, "all are flushed")

    def handle(self, log: PartitionLog, flushed: Callable[[], None] | None = None) -> FlushHandle:
        return FlushHandle(log, flushed or (lambda: self.flushed.append(log)))


def _logs(files: Files, count: int = 3) -> list[PartitionLog]:
    return [open_disk_log(files, f"log-{number}", LogConfig()) for number in range(count)]


async def test_plain_syncs_of_one_turn_are_one_call_and_threads_do_the_rest(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    # New files: their names have to be durable as well.
    await world.flush(logs)
    assert (world.threads.ran, sum(world.syncs.calls)) == (3, 0)
    for _ in range(3):
        await world.flush(logs)
    assert (world.threads.ran, world.syncs.calls[1:]) == (3, [3, 3, 3])
    assert [log.flushed_offset for log in logs] == [4, 4, 4]
    assert (world.failures, world.defects) == ([], [])
    world.flusher.stop()


async def test_a_lone_flush_runs_in_a_thread(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    await world.flush(logs)
    for log in logs:
        # Too large for the loop.
        await world.flush([log], 1 << 20)
    assert (world.threads.ran, sum(world.syncs.calls)) == (6, 0)
    world.flusher.stop()


async def test_only_flushes_of_this_process_tell_how_quick_the_disk_is(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    await world.flush(logs)
    for log in logs:
        append(log)
        world.flusher.request(world.handle(log), 1)
    await asyncio.sleep(0)
    # The loop is busy for a second before it sees them.
    world.clock.steady += 1
    await until(lambda: len(world.flushed) == 6, "all are flushed")
    assert (world.syncs.calls[-1], world.flusher.small_flush_seconds) == (3, 0)
    assert world.flusher.seconds.sum == 3
    world.flusher.stop()


async def test_what_the_kernel_has_no_room_for_runs_in_threads(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    await world.flush(logs)
    world.syncs.is_full = True
    await world.flush(logs)
    assert (world.threads.ran, [log.flushed_offset for log in logs]) == (6, [2, 2, 2])
    world.flusher.stop()


async def test_files_that_do_more_than_a_sync_are_left_to_threads(tmp_path: Path) -> None:
    world = World()
    logs = _logs(SlowFiles(str(tmp_path), DiskDelay()))
    for _ in range(2):
        await world.flush(logs)
    assert (world.threads.ran, sum(world.syncs.calls)) == (6, 0)
    world.flusher.stop()


async def test_a_failed_sync_ends_the_log_and_the_process_and_is_not_tried_again(
    tmp_path: Path,
) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path), 2)
    await world.flush(logs)
    world.syncs.error = errno.EIO
    for log in logs:
        append(log)
        world.flusher.request(world.handle(log), 1)
    await until(lambda: world.failures, "the disk fails")
    await until(lambda: not world.syncs.in_flight, "both have ended")
    assert "Input/output error" in str(world.failures[0])
    assert (len(world.flushed), world.flusher.failed) == (2, True)
    calls = len(world.syncs.calls)
    for log in logs:
        assert log.flushed_offset == 1
        with pytest.raises(StorageError):
            append(log)
        world.flusher.request(world.handle(log), 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(world.syncs.calls), world.threads.ran) == (calls, 2)
    world.flusher.stop()


EIO_TOLD = "flush of a log that was closed meanwhile failed: [Errno 5] Input/output error"


@pytest.mark.parametrize(("error", "told"), [(errno.EIO, [EIO_TOLD]), (errno.EBADF, [])])
async def test_a_failed_sync_of_a_log_that_was_closed_fails_the_disk_and_acknowledges_nothing(
    tmp_path: Path, error: int, told: list[str]
) -> None:
    """The log may have been opened again. That files of a deleted log are gone is no failure."""
    world = World()
    logs = _logs(OsFiles(tmp_path), 2)
    await world.flush(logs)
    world.syncs.error = error
    for log in logs:
        handle = world.handle(log)
        append(log)
        world.flusher.request(handle, 1)
        # After the flush has begun, which is asked for first.
        asyncio.get_running_loop().call_soon(setattr, handle, "is_dropped", True)
    await until(lambda: 2 in world.syncs.calls, "both have begun")
    await until(lambda: not world.syncs.in_flight, "both have ended")
    assert [str(failure) for failure in world.failures] == told
    assert (len(world.flushed), world.flusher.failed) == (2, bool(told))
    world.flusher.stop()


async def test_a_callback_that_raises_costs_no_other_log_its_flush(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    await world.flush(logs)

    def broken() -> None:
        raise ZeroDivisionError

    append(logs[0])
    world.flusher.request(world.handle(logs[0], broken), 1)
    await world.flush(logs[1:])
    await until(lambda: world.defects, "the error is reported")
    assert [type(error) for error in world.defects] == [ZeroDivisionError]
    assert [log.flushed_offset for log in logs] == [2, 2, 2]
    world.flusher.stop()


async def test_the_stop_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    world = World()
    logs = _logs(OsFiles(tmp_path))
    await world.flush(logs)
    for log in logs:
        append(log)
        world.flusher.request(world.handle(log), 1)
    await asyncio.sleep(0)
    world.flusher.stop()
    assert world.syncs.in_flight == 0
    await until(lambda: len(world.flushed) == 6, "those that were begun count")

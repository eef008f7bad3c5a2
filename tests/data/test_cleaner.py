"""The broker's cleaner: the dirtiest log first, and no failure ends more than one try."""

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_log import MemoryLog
from msgspec.structs import replace

from moldau.data.cleaner import Cleaner, CleanerConfig
from moldau.data.cleaner_process import CleanerProcess, WorkerLostError
from moldau.data.partitions import Partitions
from moldau.log.compaction.worker import (
    CompactCommand,
    RemovalDone,
    WorkerCommand,
    WorkerReply,
    WorkFailed,
    run_command,
)
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import (
    Epoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.flush_threads import FlushThreads
from moldau.replica.flusher import Flusher
from moldau.replica.producers import ProducerTable
from moldau.replica.replica import Replica
from moldau.testing.logs import flush, headers_of
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.system

CONFIG = LogConfig(segment_bytes_max=2000, compact=True, dirty_ratio_min=0.3)


def fill(log: PartitionLog, batches: int) -> None:
    for number in range(batches):
        record = Record(Offset(0), TimestampMs(5), b"key-%d" % (number % 3), bytes(300), [])
        base = log.end_offset
        data = build_batch([record], base_offset=base, leader_epoch=Epoch(1))
        log.append(data, headers_of(data))
    flush(log)


def count(log: PartitionLog) -> int:
    return sum(len(read_records(batch)) for batch in log.batches(log.start_offset))


class World:
    """Partitions with real logs, a cleaner, and a worker that the test may replace."""

    def __init__(self, root: Path) -> None:
        self.files = OsFiles(root)
        self.clock = ManualClock(wall_ms=1000)
        self.hosted: list[Any] = []
        self.asked: list[WorkerCommand] = []
        self.room = 1 << 30
        self.held = Offset(0)
        """What all replicas hold."""
        loop = asyncio.get_running_loop()
        self.failures: list[Exception] = []
        self.flusher = Flusher(
            loop=loop, clock=self.clock, workers=FlushThreads(1), on_failure=self.failures.append
        )
        self.cleaner = Cleaner(
            config=CleanerConfig(check_seconds=0.01, retry_seconds=10),
            partitions=cast(Partitions, self.hosted),
            flusher=self.flusher,
            clock=self.clock,
            run_command=self.run,
            replicated_offsets=self.replicated_offsets,
            free_bytes=lambda: self.room,
        )

    async def replicated_offsets(self, replicas: Iterable[Replica]) -> dict[TopicPartition, Offset]:
        return {replica.partition: self.held for replica in replicas}

    async def run(self, message: WorkerCommand) -> WorkerReply:
        self.asked.append(message)
        return run_command(self.files, message)

    def add(self, *, batches: int, log: PartitionLog | None = None, compact: bool = True) -> Any:
        number = len(self.hosted)
        log = log or open_disk_log(self.files, f"log{number}", CONFIG)
        fill(log, batches)
        hosted = SimpleNamespace(
            is_compacted=compact,
            replica=SimpleNamespace(
                partition=TopicPartition("t", PartitionIndex(number)),
                log=log,
                is_open=True,
                high_watermark=log.end_offset,
                producers=ProducerTable(),
            ),
        )
        self.hosted.append(hosted)
        return hosted

    @property
    def cleaned(self) -> list[str]:
        return [m.job.directory for m in self.asked if isinstance(m, CompactCommand)]

    def close(self) -> None:
        self.flusher.stop()


async def test_the_dirtiest_log_is_cleaned_first_and_each_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second = world.add(batches=40), world.add(batches=40)
    world.add(batches=40, compact=False)
    world.add(batches=2)
    metrics = world.cleaner.metrics
    assert metrics.due() == 2
    assert await world.cleaner.clean_next()
    assert metrics.due() == 1
    before = count(first.replica.log)
    fill(first.replica.log, 20)
    first.replica.high_watermark = first.replica.log.end_offset
    while await world.cleaner.clean_next():
        pass
    assert metrics.due() == 0
    assert world.cleaned == ["log0", "log1", "log0"]
    assert before < 12
    assert count(second.replica.log) < 12
    assert (metrics.cleanings, metrics.failures) == (3, 0)
    assert metrics.records_dropped > 70
    assert metrics.bytes_read > metrics.bytes_written > 0
    # Nothing of the old is left on the disk.
    names = {name for name in world.files.listdir("log1") if name.endswith(".log")}
    assert len(names) == len(second.replica.log.segments)
    world.close()


async def test_a_log_in_memory_is_cleaned_on_the_spot(tmp_path: Path) -> None:
    world = World(tmp_path)
    hosted = world.add(batches=20, log=MemoryLog(CONFIG))
    assert await world.cleaner.clean_next()
    assert count(hosted.replica.log) == 3
    assert world.asked == []
    world.close()


async def test_a_failure_waits_for_its_retry_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.add(batches=40)
    world.add(batches=40)
    is_broken = True

    async def ask(message: WorkerCommand) -> WorkerReply:
        world.asked.append(message)
        if is_broken and isinstance(message, CompactCommand) and message.job.directory == "log0":
            if len(world.asked) % 2:
                raise WorkerLostError("gone")
            return WorkFailed("no room")
        return run_command(world.files, message)

    world.cleaner._run_command = ask
    while await world.cleaner.clean_next():
        pass
    assert world.cleaned == ["log0", "log1"]
    assert "retrying in 10 s: gone" in caplog.text
    world.clock.steady += 10
    assert await world.cleaner.clean_next()
    assert not await world.cleaner.clean_next()
    # The second failure waits twice as long.
    world.clock.steady += 19
    assert not await world.cleaner.clean_next()
    is_broken = False
    world.clock.steady += 1
    assert await world.cleaner.clean_next()
    assert world.cleaner.metrics.failures == 2
    assert not world.failures
    world.close()


async def test_a_cleaning_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    world = World(tmp_path)
    hosted = world.add(batches=40)
    world.room = 5000
    assert await world.cleaner.clean_next()
    assert world.cleaner.metrics.failures == 1
    assert (world.asked, count(hosted.replica.log)) == ([], 40)
    world.room = 1 << 30
    world.clock.steady += 10
    assert await world.cleaner.clean_next()
    assert count(hosted.replica.log) < 12
    world.close()


async def test_a_partition_that_goes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    hosted = world.add(batches=40)

    async def ask(message: WorkerCommand) -> WorkerReply:
        world.asked.append(message)
        answer = run_command(world.files, message)
        hosted.replica.is_open = False
        hosted.replica.log.discard()
        world.files.remove_tree("log0")
        return answer

    world.cleaner._run_command = ask
    await world.cleaner.clean_next()
    assert not await world.cleaner.clean_next()
    assert len(world.asked) == 1
    assert (world.cleaner.metrics.failures, world.failures) == (0, [])
    world.close()


async def test_an_answer_that_makes_no_sense_is_a_failure(tmp_path: Path) -> None:
    world = World(tmp_path)
    hosted = world.add(batches=40)

    async def ask(message: WorkerCommand) -> WorkerReply:
        return RemovalDone()

    world.cleaner._run_command = ask
    await world.cleaner.clean_next()
    assert world.cleaner.metrics.failures == 1
    assert count(hosted.replica.log) == 40
    world.close()


# ---- with the real process


async def test_the_process_starts_on_demand_and_ends_when_idle(tmp_path: Path) -> None:
    world = World(tmp_path)
    process = CleanerProcess(str(tmp_path), idle_seconds=0.05)
    world.cleaner._run_command = process.run
    hosted = world.add(batches=40)
    assert process._process is None
    assert await world.cleaner.clean_next()
    assert count(hosted.replica.log) < 12
    await until(lambda: process._process is None, "the process has ended")
    fill(hosted.replica.log, 40)
    hosted.replica.high_watermark = hosted.replica.log.end_offset
    assert await world.cleaner.clean_next()
    await process.close()
    assert process._process is None
    assert world.cleaner.metrics.cleanings == 2
    world.close()


async def test_a_process_that_dies_at_work_costs_one_try(tmp_path: Path) -> None:
    world = World(tmp_path)
    process = CleanerProcess(str(tmp_path))
    world.cleaner._run_command = process.run
    hosted = world.add(batches=400)
    cleaning = asyncio.create_task(world.cleaner.clean_next())
    started = await until(lambda: process._process, "the process runs")
    os.kill(started.pid, signal.SIGKILL)
    assert await asyncio.wait_for(cleaning, wait_seconds_max())
    assert world.cleaner.metrics.failures == 1
    assert count(hosted.replica.log) == 400
    world.clock.steady += 10
    assert await world.cleaner.clean_next()
    assert count(hosted.replica.log) < 12
    await process.close()
    world.close()


async def test_a_cancelled_request_ends_the_process(tmp_path: Path) -> None:
    world = World(tmp_path)
    process = CleanerProcess(str(tmp_path))
    world.cleaner._run_command = process.run
    world.add(batches=40)
    running = asyncio.create_task(world.cleaner.run())
    await until(lambda: process._process, "the process runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert process._process is None
    await process.close()
    world.close()


async def test_tombstones_stay_until_all_replicas_hold_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    config = replace(CONFIG, delete_retention_ms=0)
    hosted = world.add(batches=0, log=open_disk_log(world.files, "deleted", config))
    log = hosted.replica.log
    for value in (b"value", None):
        record = Record(Offset(0), TimestampMs(5), b"gone", value, [])
        data = build_batch([record], base_offset=log.end_offset, leader_epoch=Epoch(1))
        log.append(data, headers_of(data))
    fill(log, 40)
    hosted.replica.high_watermark = log.end_offset

    async def clean() -> list[bytes | None]:
        await world.cleaner.refresh_replicated_offsets()
        while await world.cleaner.clean_next():
            pass
        records = [r for batch in log.batches(Offset(0)) for r in read_records(batch)]
        return [record.value for record in records if record.key == b"gone"]

    # The first cleaning begins the tombstone's time, which is over at once.
    assert await clean() == [None]
    # One of the replicas has only the value.
    world.held = Offset(1)
    assert await clean() == [None]
    fill(log, 40)
    hosted.replica.high_watermark = log.end_offset
    assert await clean() == [None]
    world.held = log.end_offset
    assert await clean() == []
    world.close()


async def test_what_was_aborted_is_forgotten_with_the_last_of_its_records(tmp_path: Path) -> None:
    world = World(tmp_path)
    hosted = world.add(batches=40)
    aborted = hosted.replica.producers.aborted
    for first in (2, 38):
        aborted.append(ProducerId(first), Offset(first), Offset(first + 1), Offset(first + 2))
    assert await world.cleaner.clean_next()
    # The last segment is not cleaned.
    assert [span.first for span in aborted.all()] == [38]
    world.close()

"""The process that cleans: it does what it is told over its pipes, and ends with them."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.log.compaction.job import CompactionRequest
from moldau.log.compaction.swap import DiskCompaction
from moldau.log.compaction.worker import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    CompactCommand,
    CompactionDone,
    RemovalDone,
    RemoveFilesCommand,
    WorkerCommand,
    WorkerReply,
    WorkFailed,
    decode_reply,
    frame,
    frame_bytes,
    run_command,
)
from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.logs import flush, headers_of
from moldau.testing.waiting import wait_seconds_max
from sim.simdisk import SimDisk

pytestmark = pytest.mark.system

CONFIG = LogConfig(segment_bytes_max=2000, compact=True, dirty_ratio_min=0.0)


def filled(log: DiskLog) -> DiskCompaction:
    """A log of few keys, and the task to clean it."""
    for number in range(40):
        record = Record(Offset(0), TimestampMs(5), b"key-%d" % (number % 3), bytes(300), [])
        base = log.end_offset
        data = build_batch([record], base_offset=base, leader_epoch=Epoch(1))
        log.append(data, headers_of(data))
    flush(log)
    task = log.begin_compaction(
        CompactionRequest(
            now=TimestampMs(1000), end_offset=log.end_offset, replicated_offset=log.end_offset
        )
    )
    assert task is not None
    return task


def count(log: DiskLog) -> int:
    return sum(len(read_records(batch)) for batch in log.batches(Offset(0)))


@pytest.fixture
def process(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "moldau.log.compaction.worker", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:
        yield started
        started.kill()


def ask(process: "subprocess.Popen[bytes]", message: WorkerCommand) -> WorkerReply:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(frame(message))
    process.stdin.flush()
    return decode_reply(process.stdout.read(frame_bytes(process.stdout.read(HEAD_BYTES))))


def test_a_log_is_cleaned_by_another_process(
    tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", CONFIG)
    task = filled(log)
    answer = ask(process, CompactCommand(task.job))
    assert isinstance(answer, CompactionDone)
    assert count(log) == 40
    assert log.end_compaction(task, answer.result)
    assert count(log) < 12
    assert answer.result.counts.records_dropped == 40 - count(log)
    stale = log.take_stale_files()
    assert stale
    assert ask(process, RemoveFilesCommand(stale)) == RemovalDone()
    assert not any((tmp_path / path).exists() for path in stale)
    # Twice does no harm.
    assert ask(process, RemoveFilesCommand(stale)) == RemovalDone()


def test_the_process_has_a_low_priority_and_ends_with_its_input(
    tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    assert ask(process, RemoveFilesCommand([])) == RemovalDone()
    assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=wait_seconds_max()) == 0


def test_a_damaged_log_is_reported_and_left_as_it_is() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", CONFIG)
    task = filled(log)
    names = disk.listdir("log")
    disk.flip_bit(log.segments[2].path, 5000, 3)
    answer = run_command(disk, CompactCommand(task.job))
    assert isinstance(answer, WorkFailed)
    assert f"{log.segments[2].path}: corrupt at byte" in answer.reason
    assert disk.listdir("log") == names


@pytest.mark.parametrize("room", [0, 3000, 5000])
def test_a_full_disk_is_reported_and_nothing_remains(room: int) -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", CONFIG)
    task = filled(log)
    names = disk.listdir("log")
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes() + room
    answer = run_command(disk, CompactCommand(task.job))
    assert isinstance(answer, WorkFailed)
    assert f"[Errno {errno.ENOSPC}]" in answer.reason
    assert disk.listdir("log") == names
    assert count(log) == 40


def test_a_deleted_log_is_reported(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    log = open_disk_log(files, "log", CONFIG)
    task = filled(log)
    files.remove_tree("log")
    answer = run_command(files, CompactCommand(task.job))
    assert isinstance(answer, WorkFailed)
    assert f"[Errno {errno.ENOENT}]" in answer.reason


def test_frames_are_bounded() -> None:
    with pytest.raises(ValueError, match="frame of"):
        frame_bytes((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))

"""What a failed flush leaves in the page cache is written anew before it counts."""

import random

import pytest

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.flush_failure import FENCE_PATH, read_fence, rewrite_unflushed, write_fence
from moldau.log.interface import ControlKind, LogConfig
from moldau.log.vote_journal import VoteJournal
from moldau.model.errors import StorageError
from moldau.model.ids import BrokerId, Epoch, Offset
from moldau.testing.logs import append, flush
from sim.simdisk import SimDisk

SMALL = LogConfig(segment_bytes_max=300)


def open_log(disk: SimDisk) -> DiskLog:
    return open_disk_log(disk, "log", SMALL)


def batches(log: DiskLog) -> list[bytes]:
    return list(log.batches(Offset(0)))


def fail_flush(log: DiskLog, disk: SimDisk) -> None:
    task = log.begin_flush()
    assert task is not None
    disk.fail_next_flush()
    with pytest.raises(OSError, match="Input/output"):
        task.run()


def restart(disk: SimDisk, *, is_mended: bool) -> DiskLog:
    """Start in the same directory, with what the page cache shows."""
    if is_mended:
        write_fence(disk, "flush failed")
        rewrite_unflushed(disk, ["log"], ["votes"])
    return open_log(disk)


def survivors(disk: SimDisk) -> list[bytes]:
    """What every outcome of a power cut leaves."""
    return min((batches(open_log(disk.crash(random.Random(n)))) for n in range(20)), key=len)


def test_a_disk_that_flushes_nothing_more_still_shows_the_fence_to_a_restart() -> None:
    disk = SimDisk()
    disk.fail_next_flush()
    write_fence(disk, "flush failed: EIO")
    assert read_fence(disk) == "flush failed: EIO"


@pytest.mark.parametrize("count", [1, 5, 40])
def test_what_a_restart_counts_as_flushed_survives_a_power_cut(count: int) -> None:
    disk = SimDisk()
    log = open_log(disk)
    before = [append(log) for _ in range(count)]
    flush(log)
    lost = [append(log) for _ in range(count)]
    fail_flush(log, disk)
    again = restart(disk, is_mended=True)
    assert again.flushed_offset == 2 * count
    assert survivors(disk) == before + lost


def test_without_it_a_restart_promises_what_is_on_no_disk() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    flush(log)
    append(log)
    fail_flush(log, disk)
    again = restart(disk, is_mended=False)
    assert again.flushed_offset == 2
    assert len(survivors(disk)) == 1


def test_control_entries_are_written_again_too() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    fail_flush(log, disk)
    assert restart(disk, is_mended=True).flushed_index == 1
    after = disk.crash(random.Random(1))
    assert [entry.epoch for entry in open_log(after).controls()] == [1]


def test_votes_are_written_again_too() -> None:
    disk = SimDisk()
    votes = VoteJournal.open(disk, "votes")
    disk.fail_next_flush("votes")
    with pytest.raises(StorageError, match="Input/output"):
        votes.record({"g": (Epoch(4), BrokerId(2))})
    write_fence(disk, "flush failed")
    rewrite_unflushed(disk, [], ["votes"])
    found = VoteJournal.open(disk.crash(random.Random(1)), "votes")
    assert found.get("g") == (4, 2)


def test_what_was_flushed_before_is_not_written_again() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(20):
        append(log)
    flush(log)
    append(log)
    fail_flush(log, disk)
    write_fence(disk, "flush failed")
    written: list[str] = []
    disk.on_step = written.append
    rewrite_unflushed(disk, ["log"], [])
    segments = {step.split()[1] for step in written if step.startswith("write log/0")}
    assert len(segments) == 1 < len([name for name in disk.listdir("log") if ".log" in name])


def test_the_fence_stays_until_all_is_written() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    fail_flush(log, disk)
    write_fence(disk, "flush failed")
    disk.fail_next_flush()
    with pytest.raises(OSError, match="Input/output"):
        rewrite_unflushed(disk, ["log"], [])
    assert read_fence(disk) == "flush failed"
    rewrite_unflushed(disk, ["log"], [])
    assert read_fence(disk) is None
    assert not disk.exists(FENCE_PATH)


def test_what_is_not_there_needs_no_mending() -> None:
    disk = SimDisk()
    write_fence(disk, "flush failed")
    rewrite_unflushed(disk, ["metadata", "log"], ["votes"])
    assert read_fence(disk) is None

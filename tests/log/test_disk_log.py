"""The log on disk beside what every log promises: rolling, zeros ahead, memory."""

import errno
from pathlib import Path
from typing import Any

import pytest

from moldau.log.disk_log import DiskLog, open_disk_log, read_slice
from moldau.log.flush import ZeroFill
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import ControlKind, FlushPolicy, LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.log.reader import CLOSED_LOADED_MAX
from moldau.log.segment import Segment
from moldau.log.writer import FILL_BYTES_MAX, FILL_FIRST_BYTES
from moldau.model.errors import DiskFullError, StorageError
from moldau.model.ids import Epoch, Offset, RaftIndex, TimestampMs
from moldau.testing.logs import append, flush, headers_of, make_batch, read_bytes
from sim.simdisk import SimDisk

FIRST = "log/00000000000000000000.log"


def names(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.listdir("log") if name.endswith(suffix)]


def test_a_segment_rolls_by_size() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(segment_bytes_max=1000))
    for _ in range(10):
        append(log, value=b"x" * 300)
    flush(log)
    assert len(names(disk, ".log")) == 5
    for name in names(disk, ".log")[:-1]:
        assert len(disk.read(f"log/{name}")) <= HEADER_BYTES + 1000


def test_without_a_descriptor_for_the_next_segment_an_append_is_refused_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)
    log = open_disk_log(files, "log", LogConfig(segment_bytes_max=1000))
    opened = files.open

    def none_left(*arguments: object, **named: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    for number in range(1, 6):
        monkeypatch.setattr(files, "open", none_left)
        with pytest.raises(DiskFullError):
            append(log, value=b"x" * 900)
        assert log.end_offset == number - 1
        monkeypatch.setattr(files, "open", opened)
        append(log, value=b"x" * 900)
        flush(log)
        assert log.end_offset == number
    log.close()
    assert open_disk_log(files, "log", LogConfig()).end_offset == 5


def test_a_segment_rolls_by_time() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(segment_ms_max=100))
    for time in (1000, 1050, 1100, 1101, 1150, 1250):
        append(log, time=time)
    assert names(disk, ".log") == [
        "00000000000000000000.log",
        "00000000000000000003.log",
        "00000000000000000005.log",
    ]
    log.close()
    log = open_disk_log(disk, "log", LogConfig(segment_ms_max=100))
    append(log, time=1350)
    assert len(names(disk, ".log")) == 3
    append(log, time=1351)
    assert len(names(disk, ".log")) == 4


def test_a_batch_larger_than_a_segment_is_taken() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(segment_bytes_max=100))
    batches = [append(log, value=b"x" * 500) for _ in range(3)]
    flush(log)
    assert list(log.batches(Offset(0))) == batches


def test_zeros_are_written_ahead_in_growing_steps_with_flush_always_only() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig())
    append(log)
    flush(log)
    assert len(disk.read(FIRST)) == HEADER_BYTES + FILL_FIRST_BYTES
    sizes = set()
    for _ in range(400):
        append(log, value=b"x" * 10_000)
        flush(log)
        assert len(disk.read(FIRST)) > log.active.position
        sizes.add(len(disk.read(FIRST)))
    assert max(sizes) - log.active.position <= 2 * FILL_BYTES_MAX
    assert len(sizes) < 40
    log.close()
    assert len(disk.read(FIRST)) == log.active.position

    log = open_disk_log(disk, "other", LogConfig(flush=FlushPolicy.NEVER))
    append(log)
    assert len(disk.read("other/00000000000000000000.log")) == log.active.position


def test_large_flushes_write_no_zeros_of_their_own() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig())
    for _ in range(5):
        append(log, value=b"x" * 500_000)
        flush(log)
    assert len(disk.read(FIRST)) == log.active.position


def test_filling_stops_when_it_is_cancelled_and_when_the_disk_is_full() -> None:
    disk = SimDisk(capacity_bytes=1000)
    fill = ZeroFill(disk.open("file", create=True), 0, 5000)
    fill.run()
    assert not fill.is_done
    assert disk.read("file") == bytes(1000)
    disk = SimDisk()
    fill = ZeroFill(disk.open("file", create=True), 0, 5000)
    fill.cancel()
    fill.run()
    assert disk.read("file") == b""


def test_an_append_into_the_area_being_filled_is_not_overwritten() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig())
    fill: ZeroFill | None = None
    batches = []
    while fill is None:
        batches.append(append(log, value=b"x" * 5000))
        task = log.begin_flush()
        assert task is not None
        assert task.data is not None
        fill = task.data.fill
        if fill is None:
            task.run()
            log.end_flush(task)
    # The thread is slow: meanwhile the owner writes past the place where the zeros begin.
    for _ in range(30):
        batches.append(append(log, value=b"y" * 5000))
    assert log.active.position > fill.start
    assert task is not None
    task.run()
    log.end_flush(task)
    flush(log)
    assert list(log.batches(Offset(0))) == batches


def test_with_flush_never_only_closed_segments_are_flushed() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(flush=FlushPolicy.NEVER, segment_bytes_max=200))
    append(log)
    assert log.begin_flush() is None
    for _ in range(5):
        append(log)
    flush(log)
    assert log.pending == []
    assert log.begin_flush() is None


def is_loaded(segment: Segment) -> bool:
    return segment._file is not None or len(segment.index.offsets) > 0


def test_reading_many_closed_segments_keeps_few_of_them_open() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(segment_bytes_max=100))
    batches = [append(log) for _ in range(30)]
    flush(log)
    for offset, batch in enumerate(batches):
        assert read_bytes(log, offset, 1) == batch
    loaded = [segment for segment in log.segments[:-1] if is_loaded(segment)]
    assert len(loaded) <= CLOSED_LOADED_MAX


def test_many_readers_side_by_side_keep_few_closed_segments_open() -> None:
    """Also those that go on where they were, in a segment that was released meanwhile."""
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig(segment_bytes_max=200))
    batches = [append(log) for _ in range(80)]
    flush(log)
    for step in range(30):
        for reader in range(CLOSED_LOADED_MAX + 3):
            offset = reader * 4 + step
            log.begin_prefetch(Offset(offset), 1)
            assert read_bytes(log, offset, 1) == batches[offset]
            loaded = [segment for segment in log.segments[:-1] if is_loaded(segment)]
            assert len(loaded) <= CLOSED_LOADED_MAX


def test_an_idle_log_holds_no_descriptor(tmp_path: Path) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig())
    append(log)
    log.close()
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig())
    assert not is_loaded(log.active)
    assert log.end_offset == 1


def test_a_closed_log_takes_nothing_more() -> None:
    log = open_disk_log(SimDisk(), "log", LogConfig())
    append(log)
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        append(log)
    assert log.begin_flush() is None


def test_reads_in_sequence_look_into_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_disk_log(SimDisk(), "log", LogConfig(index_interval_bytes=500))
    for _ in range(500):
        append(log, value=b"x" * 50)
    flush(log)
    monkeypatch.setattr("moldau.log.segment.walk_headers", None)
    offset = 0
    while offset < 500:
        read = log.read(Offset(offset), 3000, log.flushed_offset)
        assert 0 < read.size <= 3000
        offset = headers_of(read_slice(read.data))[-1].next_offset


def test_the_journal_is_rewritten_when_most_of_it_lies_below_the_start() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "log", LogConfig())
    for i in range(200):
        log.append_control(Epoch(i + 1), ControlKind.MEMBERSHIP, b"%d" % i * 20)
        append(log, epoch=i + 1)
    flush(log)
    size = len(disk.read("log/control.journal"))
    log.delete_before(Offset(190))
    assert len(disk.read("log/control.journal")) < size // 4
    log.append_control(Epoch(300), ControlKind.NOOP, b"")
    again = open_disk_log(disk, "log", LogConfig())
    assert again.start == log.start
    assert again.start.voters == b"189" * 20
    assert list(again.controls()) == list(log.controls())
    assert again.end_index == log.end_index == 401


def test_the_largest_timestamp_is_found_after_the_batch_that_had_it_was_cut() -> None:
    log = open_disk_log(SimDisk(), "log", LogConfig(segment_bytes_max=300))
    for time in (10, 70, 30, 90, 20, 70, 99):
        append(log, time=time)
    assert log.find_max_timestamp(log.end_offset) == (6, 99, 1)
    log.truncate(RaftIndex(6))
    assert log.find_max_timestamp(log.end_offset) == (3, 90, 1)
    log.truncate(RaftIndex(3))
    assert log.find_max_timestamp(log.end_offset) == (1, 70, 1)
    log.delete_before(Offset(2))
    assert log.find_max_timestamp(log.end_offset) == (2, 30, 1)


def test_a_failed_write_behind_a_flush_fences_the_log_but_the_flush_counts() -> None:
    log = open_disk_log(SimDisk(), "log", LogConfig())
    append(log)
    task = log.begin_flush()
    assert task is not None
    task.run()
    broken: Any = BrokenFile()
    log.active._file = broken
    log.end_flush(task)
    assert log.flushed_offset == 1
    with pytest.raises(StorageError):
        append(log)


class BrokenFile:
    """A file of which every write fails."""

    def pwrite(self, data: bytes, position: int) -> int:
        raise OSError(errno.EIO, "broken")


def test_an_expired_active_segment_is_closed_and_let_go() -> None:
    disk = SimDisk()
    log: DiskLog = open_disk_log(disk, "log", LogConfig(retention_ms=100))
    append(log, time=1000)
    flush(log)
    assert not log.retain(TimestampMs(1050), log.end_offset)
    assert log.retain(TimestampMs(2000), log.end_offset)
    assert (log.start_offset, log.end_offset) == (1, 1)
    assert names(disk, ".log") == ["00000000000000000001.log"]
    assert open_disk_log(disk, "log", LogConfig()).end_offset == 1


def test_records_of_one_batch_are_not_split_by_a_read_bound(tmp_path: Path) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig())
    data = make_batch(0, count=10)
    log.append(data, headers_of(data))
    assert read_bytes(log, 7) == data


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageError)]
)
def test_a_log_that_finds_no_room_to_begin_is_distinguished_from_a_disk_that_failed(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageError]
) -> None:
    disk = SimDisk()

    def fail(path: str) -> None:
        raise OSError(code, "")

    monkeypatch.setattr(disk, "makedirs", fail)
    with pytest.raises(StorageError) as raised:
        open_disk_log(disk, "log", LogConfig())
    assert type(raised.value) is error

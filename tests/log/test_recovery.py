"""What a log makes of damaged, torn and foreign bytes when it is opened, read and written to."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import ControlKind, FlushPolicy, LogConfig, LogStart
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import CorruptionError, DiskFullError, StorageError
from moldau.model.ids import FIRST_LOG, Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.testing.logs import append, flush, headers_of, make_batch, read_bytes
from sim.simdisk import SimCrash, SimDisk

CONFIG = LogConfig()
FIRST = "log/00000000000000000000.log"


def open_log(disk: SimDisk, config: LogConfig = CONFIG) -> DiskLog:
    return open_disk_log(disk, "log", config)


def killed(disk: SimDisk) -> SimDisk:
    """The disk as a killed process leaves it: nothing is lost, nothing was closed."""
    return disk


def set_bytes(disk: SimDisk, path: str, position: int, data: bytes) -> None:
    """Write behind the log's back."""
    disk.open(path).pwrite(data, position)


def test_a_torn_last_batch_is_cut_at_every_byte() -> None:
    batch = make_batch(0, value=b"first")
    torn = make_batch(1, value=b"second, to be torn")
    # The last byte is a zero, as the area ahead is: without it the batch is still whole.
    for size in range(len(torn.rstrip(b"\0"))):
        disk = SimDisk()
        log = open_log(disk)
        log.append(batch, headers_of(batch))
        flush(log)
        set_bytes(disk, FIRST, HEADER_BYTES + len(batch), torn[:size])
        log = open_log(killed(disk))
        assert log.end_offset == 1
        assert list(log.batches(Offset(0))) == [batch]
        # What was torn is gone for good, though zeros had been filled in ahead of it.
        assert len(disk.read(FIRST)) in (HEADER_BYTES + len(batch), 64 * 1024 + HEADER_BYTES)
        assert not disk.read(FIRST)[HEADER_BYTES + len(batch) :].strip(b"\0")


def test_unflushed_batches_torn_in_any_order_are_cut_from_the_first_bad_one() -> None:
    disk = SimDisk()
    log = open_log(disk)
    flushed = append(log, value=b"flushed")
    flush(log)
    bad = append(log, value=b"bad")
    append(log, value=b"good, but it follows a bad one")
    position = HEADER_BYTES + len(flushed) + len(bad) - 1
    disk.flip_bit(FIRST, position, 0)
    log = open_log(killed(disk))
    assert list(log.batches(Offset(0))) == [flushed]


def test_damage_that_was_seen_stays_damage_after_a_power_cut() -> None:
    disk = SimDisk()
    log = open_log(disk)
    first = append(log, value=b"first")
    flush(log)
    append(log, value=b"second")
    flush(log)
    # How far the log was flushed is written then, and on the disk with the next flush.
    assert disk.durable_bytes(FIRST) != disk.read(FIRST)
    disk.flip_bit(FIRST, HEADER_BYTES + len(first) + 70, 3)
    disk = disk.survive()
    for _ in range(2):
        with pytest.raises(CorruptionError):
            open_log(disk)
        disk = disk.lose()


def test_an_old_batch_beyond_the_cut_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_after(first_crash: bool) -> int:
        disk = SimDisk()
        log = open_log(disk)
        append(log, value=b"flushed")
        flush(log)
        append(log, value=b"torn")
        append(log, value=b"next")
        position = log.active.position
        disk.flip_bit(FIRST, position - len(make_batch(2, value=b"next")) - 1, 0)
        log = open_log(disk)
        assert log.end_offset == 1
        append(log, value=b"same")
        return open_log(disk).end_offset

    assert ends_after(True) == 2
    # The rule broken: without the physical cut, the old third batch continues the new second one.
    monkeypatch.setattr("moldau.log.recovery.is_zero", lambda file, position, end: True)
    assert ends_after(True) == 3


@pytest.mark.parametrize("policy", list(FlushPolicy))
@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES - 1, HEADER_BYTES])
def test_a_file_that_a_power_cut_left_without_a_batch_is_an_empty_log(
    policy: FlushPolicy, size: int
) -> None:
    config = LogConfig(flush=policy)
    disk = SimDisk()
    disk.makedirs("log")
    disk.open(FIRST, create=True).pwrite(bytes(size), 0)
    log = open_log(disk, config)
    assert log.end_offset == 0
    batch = append(log, value=b"new")
    flush(log)
    assert list(open_log(killed(disk), config).batches(Offset(0))) == [batch]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_flipped_bit_in_flushed_data_stops_the_log_after_a_kill(place: str) -> None:
    disk = SimDisk()
    log = open_log(disk)
    sizes = [len(append(log, value=b"x" * 50)) for _ in range(5)]
    flush(log)
    number = {"first": 0, "middle": 2, "last": 4}[place]
    position = HEADER_BYTES + sum(sizes[:number]) + 70
    disk.flip_bit(FIRST, position, 3)
    before = disk.read(FIRST)
    with pytest.raises(CorruptionError) as caught:
        open_log(killed(disk))
    assert FIRST in str(caught.value)
    assert str(HEADER_BYTES + sum(sizes[:number])) in str(caught.value)
    assert "Restore" in str(caught.value)
    assert disk.read(FIRST) == before


def check(log: DiskLog, offset: Offset) -> None:
    task = log.begin_check(offset, 1 << 20)
    assert task is not None
    task.run()
    log.end_check(task)


def test_a_flipped_bit_after_a_clean_close_is_found_by_the_first_read() -> None:
    disk = SimDisk()
    log = open_log(disk)
    good = append(log, value=b"x" * 50)
    append(log, value=b"y" * 50)
    log.close()
    disk.flip_bit(FIRST, HEADER_BYTES + len(good) + 70, 3)
    log = open_log(disk)
    assert read_bytes(log, 0, 1) == good
    with pytest.raises(CorruptionError, match="checksum"):
        read_bytes(log, 1)
    with pytest.raises(CorruptionError, match="checksum"):
        check(log, Offset(0))
    with pytest.raises(CorruptionError, match="checksum"):
        list(log.batches(Offset(0)))


@pytest.mark.parametrize("field", [7, 15])
def test_a_changed_offset_or_epoch_of_flushed_data_is_corruption(field: int) -> None:
    # Neither is covered by the batch's checksum.
    disk = SimDisk()
    log = open_log(disk)
    log.append_control(Epoch(4), ControlKind.NOOP, b"")
    sizes = [len(append(log, epoch=4)) for _ in range(3)]
    flush(log)
    disk.flip_bit(FIRST, HEADER_BYTES + sizes[0] + field, 1)
    with pytest.raises(CorruptionError):
        open_log(killed(disk))


def test_flushed_data_that_is_missing_is_corruption() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    size = log.active.position
    append(log)
    flush(log)
    disk.open(FIRST).truncate(size)
    with pytest.raises(CorruptionError):
        open_log(killed(disk))


@pytest.mark.parametrize("policy", [FlushPolicy.NEVER, FlushPolicy.INTERVAL])
def test_without_flush_always_a_bad_batch_before_a_good_one_is_corruption(
    policy: FlushPolicy,
) -> None:
    config = LogConfig(flush=policy)
    disk = SimDisk()
    log = open_log(disk, config)
    first = append(log, value=b"x" * 50)
    second = append(log, value=b"y" * 50)
    disk.flip_bit(FIRST, HEADER_BYTES + 70, 3)
    with pytest.raises(CorruptionError, match="followed by a valid one"):
        open_log(killed(disk), config)
    disk.flip_bit(FIRST, HEADER_BYTES + 70, 3)
    disk.flip_bit(FIRST, HEADER_BYTES + len(first) + 70, 3)
    log = open_log(killed(disk), config)
    assert log.end_offset == 1
    assert second not in disk.read(FIRST)


def test_a_clean_close_is_opened_without_reading_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig(segment_bytes_max=300))
    batches = [append(log, epoch=1 + i // 4) for i in range(12)]
    log.append_control(Epoch(9), ControlKind.NOOP, b"")
    log.close()
    monkeypatch.setattr("moldau.log.recovery.check_run", None)
    monkeypatch.setattr("moldau.log.recovery.walk_headers", None)
    log = open_log(disk)
    assert (log.end_offset, log.end_index, log.last_epoch) == (12, 13, 9)
    assert list(log.batches(Offset(0))) == batches
    assert log.epoch_end(Epoch(2)) == (2, 8)
    # Closed without a write, it stays clean.
    log.close()
    assert open_log(disk).end_offset == 12


def test_the_clean_mark_is_taken_back_by_the_first_write() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    log.close()
    log = open_log(disk)
    append(log)
    assert open_log(killed(disk)).end_offset == 2


def test_a_truncated_file_is_not_taken_for_a_clean_one() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    log.close()
    disk.open(FIRST).truncate(len(disk.read(FIRST)) - 1)
    with pytest.raises(CorruptionError):
        open_log(disk)


@pytest.mark.parametrize("damage", ["removed", "cut", "flipped", "of another segment", "garbage"])
def test_an_index_file_is_only_a_cache(damage: str) -> None:
    disk = SimDisk()
    config = LogConfig(segment_bytes_max=2000, index_interval_bytes=100)
    log = open_log(disk, config)
    batches = [append(log, value=b"%d" % i * 9, time=1000 + i) for i in range(60)]
    log.close()
    indexes = [name for name in disk.listdir("log") if name.endswith(".index")]
    assert len(indexes) > 2
    for name in indexes:
        path = f"log/{name}"
        if damage == "removed":
            disk.remove(path)
        elif damage == "cut":
            disk.open(path).truncate(len(disk.read(path)) // 2)
        elif damage == "flipped":
            disk.flip_bit(path, len(disk.read(path)) - 5, 1)
        elif damage == "garbage":
            disk.replace(path, random.Random(1).randbytes(500))
        else:
            disk.replace(path, disk.read(f"log/{indexes[0]}"))
    log = open_log(disk, config)
    for offset, batch in enumerate(batches):
        assert read_bytes(log, offset, 1) == batch
        found = log.find_time(TimestampMs(1000 + offset), log.end_offset)
        assert found is not None
        assert found.offset == offset


def test_an_index_is_read_from_its_file_and_not_from_the_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    config = LogConfig(segment_bytes_max=2000, index_interval_bytes=1)
    log = open_log(disk, config)
    batches = [append(log) for _ in range(60)]
    log.close()
    log = open_log(disk, config)
    monkeypatch.setattr("moldau.log.segment.walk_headers", None)
    for offset, batch in enumerate(batches):
        assert read_bytes(log, offset).startswith(batch)


def test_lost_epochs_are_read_from_the_batches_again() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for i in range(6):
        append(log, epoch=i // 2 + 1)
    log.close()
    disk.remove("log/epochs")
    log = open_log(disk)
    assert [log.epoch_at(Offset(i)) for i in range(6)] == [1, 1, 2, 2, 3, 3]
    disk.flip_bit("log/epochs", 12, 1)
    log = open_log(disk)
    assert [log.epoch_at(Offset(i)) for i in range(6)] == [1, 1, 2, 2, 3, 3]


def test_a_torn_control_entry_is_dropped_at_every_byte() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    append(log)
    flush(log)
    one = disk.read("log/control.journal")
    log.append_control(Epoch(2), ControlKind.MEMBERSHIP, b"payload")
    two = disk.read("log/control.journal").rstrip(b"\0")
    length = len(one.rstrip(b"\0"))
    for size in range(length, len(two)):
        disk.replace("log/control.journal", two[:size].ljust(4096, b"\0"))
        log = open_log(disk)
        assert (log.end_index, log.last_epoch) == (2, 1)
        log.append_control(Epoch(3), ControlKind.NOOP, b"")
        assert open_log(disk).last_epoch == 3
        disk.replace("log/control.journal", one)


def test_a_damaged_control_entry_that_was_flushed_is_corruption() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    append(log)
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    flush(log)
    good = disk.read("log/control.journal")
    end = len(good.rstrip(b"\0"))
    for byte in range(end):
        disk.flip_bit("log/control.journal", byte, 2)
        with pytest.raises(CorruptionError, match=r"control\.journal"):
            open_log(killed(disk))
        disk.replace("log/control.journal", good)
    disk.remove("log/control.journal")
    with pytest.raises(CorruptionError, match=r"control\.journal"):
        open_log(killed(disk))


def test_a_bad_control_entry_before_a_good_one_is_corruption_even_without_data() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append_control(Epoch(1), ControlKind.MEMBERSHIP, b"payload")
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    disk.flip_bit("log/control.journal", 30, 0)
    with pytest.raises(CorruptionError, match="followed by a good one"):
        open_log(disk)


def test_a_damaged_start_file_is_corruption() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(5):
        append(log)
    flush(log)
    log.delete_before(Offset(3))
    log.close()
    disk.flip_bit("log/start", 20, 1)
    with pytest.raises(CorruptionError, match="log/start"):
        open_log(disk)


def test_a_missing_segment_is_corruption_and_nothing_is_deleted() -> None:
    disk = SimDisk()
    config = LogConfig(segment_bytes_max=200)
    log = open_log(disk, config)
    for _ in range(12):
        append(log)
    flush(log)
    disk.remove(FIRST)
    names = disk.listdir("log")
    with pytest.raises(CorruptionError, match="Restore"):
        open_log(killed(disk), config)
    assert disk.listdir("log") == names


def test_a_damaged_snapshot_is_passed_over_for_the_one_before() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    log.save_snapshot(Offset(1), b"one")
    append(log)
    log.save_snapshot(Offset(2), b"two")
    disk.flip_bit("log/00000000000000000002.snapshot", 17, 0)
    assert log.load_snapshot() == (1, b"one")


def test_a_full_disk_refuses_the_append_and_heals_when_there_is_room() -> None:
    disk = SimDisk(capacity_bytes=90_000)
    log = open_log(disk, LogConfig(flush=FlushPolicy.NEVER))
    batches: list[bytes] = []
    with suppress(DiskFullError):
        while len(batches) < 100:
            batches.append(append(log, value=b"x" * 5000))
    assert 10 < len(batches) == log.end_offset < 20
    assert list(log.batches(Offset(0))) == batches
    with pytest.raises(DiskFullError):
        append(log, value=b"x" * 5000)
    disk.capacity_bytes = 200_000
    batches.append(append(log, value=b"x" * 5000))
    assert list(log.batches(Offset(0))) == batches
    assert list(open_log(killed(disk)).batches(Offset(0))) == batches


def test_a_full_disk_at_every_capacity_leaves_a_log_that_can_be_used_and_opened() -> None:
    for capacity in range(0, 80_000, 1777):
        disk = SimDisk(capacity_bytes=capacity)
        config = LogConfig(segment_bytes_max=3000)
        log = open_log(disk, config)
        kept: list[bytes] = []
        for i in range(12):
            data = make_batch(log.end_offset, epoch=1 + i // 3, value=b"x" * 900)
            try:
                log.append(data, headers_of(data))
                kept.append(data)
                flush(log)
                log.append_control(Epoch(1 + i // 3), ControlKind.NOOP, b"")
            except DiskFullError:
                continue
        assert list(log.batches(Offset(0))) == kept
        disk.capacity_bytes = 1 << 30
        kept.append(append(log, epoch=9))
        log.append_control(Epoch(9), ControlKind.NOOP, b"")
        flush(log)
        assert log.flushed_index == log.end_index
        again = open_log(killed(disk), config)
        assert list(again.batches(Offset(0))) == kept
        assert again.end_index == log.end_index


def test_after_a_failed_flush_the_log_refuses_everything_but_reads() -> None:
    disk = SimDisk()
    log = open_log(disk)
    good = append(log)
    flush(log)
    append(log)
    task = log.begin_flush()
    assert task is not None
    disk.fail_next_flush(FIRST)
    with pytest.raises(OSError):
        task.run()
    log.end_flush(task)
    assert log.flushed_offset == 1
    with pytest.raises(StorageError):
        append(log)
    with pytest.raises(StorageError):
        log.begin_flush()
    with pytest.raises(StorageError):
        log.append_control(Epoch(2), ControlKind.NOOP, b"")
    with pytest.raises(StorageError):
        log.truncate(RaftIndex(0))
    assert read_bytes(log, 0, 1) == good
    log.close()


def test_a_reset_survives_a_crash_at_every_step() -> None:
    start = LogStart(Offset(50), 3, Epoch(7), b"voters")
    step = 0
    while True:
        disk = SimDisk()
        log = open_log(disk, LogConfig(segment_bytes_max=200))
        log.append_control(Epoch(1), ControlKind.NOOP, b"")
        old = [append(log) for _ in range(8)]
        flush(log)
        done = disk.steps
        disk.crash_at(step)
        with suppress(SimCrash):
            log.reset(start)
            assert disk.steps > done
            break
        log = open_log(disk.crash(random.Random(step)))
        if log.start_offset == 50:
            assert (log.start, log.end_offset, log.end_index) == (start, 50, 53)
            assert log.last_epoch == 7
        else:
            assert list(log.batches(Offset(0))) == old
        append(log, epoch=8)
        step += 1
    assert step > 5
    assert open_log(disk).start == start


@pytest.mark.parametrize("offset", [3, 50])
def test_a_reset_log_is_never_without_its_snapshot_whenever_a_crash_comes(offset: int) -> None:
    start = LogStart(Offset(offset), 3, Epoch(7), b"voters")
    step = 0
    while True:
        disk = SimDisk()
        log = open_log(disk, LogConfig(segment_bytes_max=200))
        for _ in range(8):
            append(log)
        flush(log)
        log.save_snapshot(Offset(2), b"old 2")
        log.delete_before(Offset(2))
        log.save_snapshot(Offset(8), b"old 8")
        disk.crash_at(step)
        with suppress(SimCrash):
            log.reset(start, b"new")
            break
        log = open_log(disk.crash(random.Random(step)))
        if log.start.epoch == 7:
            assert log.load_snapshot() == (offset, b"new")
            for _ in range(8):
                append(log, epoch=8)
            assert log.load_snapshot() == (offset, b"new")
        else:
            assert (log.end_offset, log.load_snapshot()) == (8, (8, b"old 8"))
        step += 1
    assert step > 5
    log = open_log(disk)
    assert (log.start, log.load_snapshot()) == (start, (offset, b"new"))


def test_a_slice_stays_readable_when_its_segment_is_deleted(tmp_path: Path) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig(segment_bytes_max=200))
    batches = [append(log) for _ in range(12)]
    flush(log)
    read = log.read(Offset(0), 1, log.end_offset)
    log.delete_before(Offset(12))
    assert not isinstance(read.data, bytes)
    assert read.data.file.pread(read.size, read.data.position) == batches[0]


@pytest.mark.safety
@pytest.mark.parametrize("new_id", [FIRST_LOG, LogId(77)])
def test_a_log_whose_making_was_killed_keeps_what_is_flushed_later(new_id: LogId) -> None:
    is_killed, step = True, 0
    while is_killed:
        disk = SimDisk()
        disk.crash_at(step)
        try:
            open_disk_log(disk, "topics/t/0", LogConfig(), new_id)
            is_killed = False
        except SimCrash:
            step += 1
        disk = disk.survive()
        log = open_disk_log(disk, "topics/t/0", LogConfig(), new_id)
        log.append_control(Epoch(1), ControlKind.NOOP, b"")
        flush(log)
        assert log.flushed_index == 1
        found = open_disk_log(disk.lose(), "topics/t/0", LogConfig(), LogId(5))
        assert (found.end_index, found.log_id) == (1, new_id), f"killed at step {step}"
    assert step > 5

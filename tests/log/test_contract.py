"""What every log promises: run against memory, files of the system and files of the simulation."""

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_log import MemoryLog

from moldau.log.disk_log import open_disk_log
from moldau.log.interface import ControlKind, FlushPolicy, LogConfig, LogStart, PartitionLog
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, Epoch, Offset, RaftIndex, TimestampMs
from moldau.testing.logs import append, flush, headers_of, make_batch, read_bytes
from sim.simdisk import SimDisk

SMALL = LogConfig(segment_bytes_max=400, index_interval_bytes=100)
Make = Callable[..., PartitionLog]


@pytest.fixture(params=["memory", "disk", "simulated disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make_log(config: LogConfig = SMALL) -> PartitionLog:
        if request.param == "memory":
            return MemoryLog(config)
        files = OsFiles(tmp_path) if request.param == "disk" else SimDisk()
        return open_disk_log(files, "log", config)

    return make_log


def test_a_new_log_is_empty(make: Make) -> None:
    log = make()
    assert (log.start_offset, log.end_offset, log.flushed_offset) == (0, 0, 0)
    assert (log.end_index, log.flushed_index) == (0, 0)
    assert log.last_epoch == NO_EPOCH
    assert log.size_bytes == 0
    assert read_bytes(log, 0) == b""
    assert log.begin_flush() is None
    assert log.find_time(TimestampMs(0), Offset(0)) is None
    assert log.find_max_timestamp(Offset(0)) is None
    assert log.epoch_end(Epoch(5)) == (NO_EPOCH, -1)
    assert log.load_snapshot() is None
    assert log.controls() == []


def test_batches_are_read_back_byte_for_byte(make: Make) -> None:
    log = make()
    written = [append(log, count=i % 3 + 1, value=bytes([i]) * 40) for i in range(30)]
    assert log.end_offset == sum(i % 3 + 1 for i in range(30))
    assert list(log.batches(Offset(0))) == written
    assert [h.base_offset for h in log.headers(Offset(0))] == [
        headers_of(batch)[0].base_offset for batch in written
    ]
    assert log.size_bytes == sum(map(len, written))
    got = b""
    offset = 0
    while offset < log.end_offset:
        data = read_bytes(log, offset, bytes_max=250)
        got += data
        offset = headers_of(data)[-1].next_offset
    assert got == b"".join(written)


def test_several_batches_go_in_one_append(make: Make) -> None:
    log = make(LogConfig(index_interval_bytes=100))
    data = b"".join(make_batch(i * 2, count=2) for i in range(20))
    log.append(data, headers_of(data))
    assert log.end_offset == 40
    assert read_bytes(log, 0) == data
    for offset in range(40):
        assert headers_of(read_bytes(log, offset, 1))[0].base_offset == offset // 2 * 2


def test_a_read_starts_with_the_batch_that_holds_the_offset(make: Make) -> None:
    log = make()
    for _ in range(10):
        append(log, count=5)
    for offset in range(50):
        assert headers_of(read_bytes(log, offset, 1))[0].base_offset == offset // 5 * 5


def test_the_first_batch_is_whole_even_above_the_limit_and_later_ones_are_not_cut(
    make: Make,
) -> None:
    log = make(LogConfig())
    first, second = append(log, value=b"a" * 300), append(log, value=b"b" * 300)
    assert read_bytes(log, 0, 1) == first
    assert read_bytes(log, 0, len(first) + len(second) - 1) == first
    assert read_bytes(log, 0, len(first) + len(second)) == first + second


def test_nothing_at_or_beyond_the_end_offset_given_is_read(make: Make) -> None:
    log = make(LogConfig())
    first = append(log, count=3)
    append(log, count=3)
    assert read_bytes(log, 0, end=3) == first
    assert read_bytes(log, 3, end=3) == b""
    assert read_bytes(log, 0, end=0) == b""


def test_a_reader_in_sequence_sees_what_is_appended_behind_its_back(make: Make) -> None:
    log = make()
    offset = 0
    for i in range(40):
        batch = append(log, value=b"%d" % i)
        assert read_bytes(log, offset) == batch
        offset = log.end_offset
        assert read_bytes(log, offset) == b""


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_an_offset_outside_of_the_log_is_refused(make: Make, offset: int) -> None:
    log = make()
    append(log, count=2)
    with pytest.raises(RefusedError) as caught:
        log.read(Offset(offset), 100, log.end_offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_flushed_offsets_advance_only_when_a_flush_has_ended(make: Make) -> None:
    log = make()
    append(log, count=2)
    task = log.begin_flush()
    assert task is not None
    append(log)
    assert log.flushed_offset == 0
    task.run()
    assert log.flushed_offset == 0
    log.end_flush(task)
    assert (log.flushed_offset, log.flushed_index) == (2, 2)
    flush(log)
    assert log.flushed_offset == 3
    assert log.begin_flush() is None


def test_a_flush_that_ends_after_the_log_was_discarded_counts_for_nothing(make: Make) -> None:
    log = make()
    append(log)
    task = log.begin_flush()
    assert task is not None
    log.discard()
    task.run()
    log.end_flush(task)
    assert log.flushed_offset == 0


def test_a_flush_that_ends_after_a_truncation_counts_for_nothing(make: Make) -> None:
    log = make()
    append(log)
    flush(log)
    append(log, count=5)
    task = log.begin_flush()
    assert task is not None
    log.truncate(RaftIndex(1))
    append(log, count=9, epoch=2)
    task.run()
    log.end_flush(task)
    assert log.flushed_offset == 1


@pytest.mark.parametrize("policy", [FlushPolicy.INTERVAL, FlushPolicy.NEVER])
def test_without_flush_always_appended_counts_as_flushed(make: Make, policy: FlushPolicy) -> None:
    log = make(LogConfig(flush=policy))
    append(log, count=2)
    assert log.flushed_offset == 2
    log.reconfigure(LogConfig(flush=FlushPolicy.ALWAYS))
    append(log)
    assert log.flushed_offset == 2
    flush(log)
    assert log.flushed_offset == 3


def test_a_laxer_policy_counts_at_once_what_was_appended(make: Make) -> None:
    log = make()
    append(log)
    assert log.flushed_offset == 0
    log.reconfigure(LogConfig(flush=FlushPolicy.NEVER))
    assert log.flushed_offset == 1
    log.reconfigure(LogConfig(flush=FlushPolicy.ALWAYS))
    append(log)
    assert log.flushed_offset == 1


def test_control_entries_take_up_indexes_but_no_offsets(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    append(log, count=3)
    log.append_control(Epoch(1), ControlKind.MEMBERSHIP, b"voters")
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    append(log, epoch=2)
    assert (log.end_offset, log.end_index) == (4, 7)
    assert [log.index_of(Offset(o)) for o in range(5)] == [1, 2, 3, 6, 7]
    assert [log.offset_of(RaftIndex(i)) for i in range(8)] == [0, 0, 1, 2, 3, 3, 3, 4]
    assert [log.epoch_of(RaftIndex(i)) for i in range(7)] == [1, 1, 1, 1, 1, 2, 2]
    assert [(c.epoch, c.kind, c.offset, c.payload) for c in log.controls()] == [
        (1, ControlKind.NOOP, 0, b""),
        (1, ControlKind.MEMBERSHIP, 3, b"voters"),
        (2, ControlKind.NOOP, 3, b""),
    ]


def test_a_control_entry_counts_as_flushed_only_once_the_data_before_it_is(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    assert (log.flushed_index, log.end_index) == (0, 1)
    flush(log)
    assert log.flushed_index == 1
    append(log)
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    assert (log.flushed_index, log.end_index) == (1, 3)
    flush(log)
    assert log.flushed_index == 3


@pytest.mark.parametrize("policy", FlushPolicy)
def test_a_control_entry_is_flushed_with_every_policy(make: Make, policy: FlushPolicy) -> None:
    log = make(LogConfig(flush=policy))
    append(log)
    flush(log)
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    append(log, epoch=2)
    assert log.flushed_index == 1
    flush(log)
    assert log.flushed_index == 3


def test_a_flush_that_began_before_a_control_entry_does_not_count_for_it(make: Make) -> None:
    log = make()
    append(log)
    task = log.begin_flush()
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    assert task is not None
    task.run()
    log.end_flush(task)
    assert (log.flushed_index, log.end_index) == (1, 2)
    flush(log)
    assert log.flushed_index == 2


def test_a_control_entry_below_a_new_start_waits_for_nothing(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    append(log)
    log.delete_before(Offset(1))
    flush(log)
    assert log.flushed_index == log.end_index == 2


def test_epochs_are_known_by_offset_even_those_with_nothing_but_a_no_op(make: Make) -> None:
    log = make()
    append(log, count=2, epoch=3)
    log.append_control(Epoch(5), ControlKind.NOOP, b"")
    log.append_control(Epoch(6), ControlKind.NOOP, b"")
    append(log, count=2, epoch=6)
    append(log, epoch=9)
    assert [log.epoch_at(Offset(o)) for o in range(6)] == [3, 3, 6, 6, 9, 9]
    assert log.epoch_end(NO_EPOCH) == (NO_EPOCH, -1)
    assert log.epoch_end(Epoch(2)) == (2, 0)
    assert log.epoch_end(Epoch(3)) == (3, 2)
    assert log.epoch_end(Epoch(4)) == (3, 2)
    assert log.epoch_end(Epoch(5)) == (5, 2)
    assert log.epoch_end(Epoch(8)) == (6, 4)
    assert log.epoch_end(Epoch(9)) == (9, 5)
    assert log.last_epoch == 9


def test_truncation_cuts_both_kinds_of_entries(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    kept = [append(log) for _ in range(12)]
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    for _ in range(12):
        append(log, epoch=2)
    log.truncate(RaftIndex(20))
    assert (log.end_offset, log.end_index) == (18, 20)
    log.truncate(RaftIndex(13))
    assert (log.end_offset, log.end_index, log.last_epoch) == (12, 13, 1)
    assert list(log.batches(Offset(0))) == kept
    again = append(log, epoch=3)
    assert read_bytes(log, 12) == again
    assert log.epoch_end(Epoch(2)) == (1, 12)


def test_truncation_inside_a_batch_cuts_the_whole_batch(make: Make) -> None:
    log = make()
    append(log, count=3)
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    append(log, count=3)
    log.truncate(RaftIndex(6))
    assert (log.end_offset, log.end_index) == (3, 4)
    log.truncate(RaftIndex(1))
    assert (log.end_offset, log.end_index) == (0, 0)


def test_epochs_are_known_after_a_log_was_cut_to_its_very_start(make: Make) -> None:
    log = make()
    log.reset(LogStart(Offset(10), 2, Epoch(4), b""))
    append(log, epoch=5)
    flush(log)
    log.truncate(RaftIndex(12))
    assert log.last_epoch == 4
    append(log, epoch=4)
    assert [log.epoch_of(RaftIndex(index)) for index in (11, 12)] == [4, 4]
    assert log.epoch_at(Offset(10)) == 4


def test_truncation_at_the_end_changes_nothing(make: Make) -> None:
    log = make()
    append(log)
    task = log.begin_flush()
    assert task is not None
    log.truncate(log.end_index)
    task.run()
    log.end_flush(task)
    assert log.flushed_offset == 1


def test_records_are_found_by_time(make: Make) -> None:
    log = make()
    for i in range(20):
        append(log, count=3, time=1000 + i * 10)
    found = log.find_time(TimestampMs(0), log.end_offset)
    assert found == (0, 1000, 1)
    for time in range(1000, 1193):
        found = log.find_time(TimestampMs(time), log.end_offset)
        step, rest = divmod(time - 1000, 10)
        expected = step * 3 + rest if rest < 3 else step * 3 + 3
        assert found is not None
        assert found.offset == expected, time
    assert log.find_time(TimestampMs(1193), log.end_offset) is None
    assert log.find_time(TimestampMs(1100), Offset(30)) is None
    assert log.find_time(TimestampMs(1100), Offset(31)) == (30, 1100, 1)


def test_records_out_of_order_in_time_are_found(make: Make) -> None:
    log = make()
    for time in (50, 10, 90, 20, 30, 90, 40):
        append(log, time=time)
    for time, offset in ((5, 0), (50, 0), (51, 2), (90, 2)):
        found = log.find_time(TimestampMs(time), log.end_offset)
        assert found is not None
        assert found.offset == offset
    assert log.find_max_timestamp(log.end_offset) == (2, 90, 1)
    assert log.find_max_timestamp(Offset(2)) == (0, 50, 1)


def test_deleting_before_an_offset_moves_the_start_even_into_a_batch(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.MEMBERSHIP, b"abc")
    for i in range(20):
        append(log, count=4, epoch=1 + i // 10, time=1000 + i)
    log.delete_before(Offset(43))
    assert log.start_offset == 43
    assert log.start == LogStart(Offset(43), 1, Epoch(2), b"abc")
    assert log.end_index == 81
    assert log.controls() == []
    with pytest.raises(RefusedError):
        read_bytes(log, 42)
    assert headers_of(read_bytes(log, 43))[0].base_offset == 40
    found = log.find_time(TimestampMs(0), log.end_offset)
    assert found is not None
    assert found.offset == 43
    assert log.epoch_of(RaftIndex(43)) == 2
    with pytest.raises(RefusedError):
        log.delete_before(Offset(81))
    log.delete_before(Offset(80))
    assert (log.start_offset, log.end_offset, log.last_epoch) == (80, 80, 2)
    append(log, epoch=2)
    assert log.end_offset == 81


def test_old_records_are_let_go_by_time(make: Make) -> None:
    log = make(LogConfig(segment_bytes_max=200, retention_ms=100))
    for i in range(20):
        append(log, time=1000 + i * 10)
    flush(log)
    assert not log.retain(TimestampMs(1050), log.end_offset)
    assert log.retain(TimestampMs(1150), Offset(20))
    assert 0 < log.start_offset <= 5
    kept = log.start_offset
    assert log.retain(TimestampMs(5000), Offset(10))
    assert kept < log.start_offset <= 10
    log.retain(TimestampMs(5000), log.end_offset)
    assert log.start_offset == log.end_offset == 20
    append(log, time=6000)
    assert log.end_offset == 21


def test_old_records_are_let_go_by_size(make: Make) -> None:
    log = make(LogConfig(segment_bytes_max=200, retention_ms=-1, retention_bytes=500))
    for _ in range(20):
        append(log)
    flush(log)
    assert log.retain(TimestampMs(0), log.end_offset)
    assert 500 <= log.size_bytes < 1000
    assert log.start_offset > 0


def test_records_without_a_time_are_not_let_go_by_time(make: Make) -> None:
    log = make(LogConfig(segment_bytes_max=200, retention_ms=1))
    for _ in range(6):
        append(log, time=-1)
    flush(log)
    assert not log.retain(TimestampMs(10**12), log.end_offset)
    assert log.start_offset == 0


def test_without_the_delete_policy_nothing_is_let_go(make: Make) -> None:
    log = make(LogConfig(segment_bytes_max=200, retention_ms=1, delete_expired=False))
    for _ in range(10):
        append(log)
    assert not log.retain(TimestampMs(10**10), log.end_offset)
    assert log.start_offset == 0


def test_a_reset_log_starts_empty_at_the_given_offset(make: Make) -> None:
    log = make()
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    for _ in range(5):
        append(log)
    log.save_snapshot(Offset(3), b"old")
    log.reset(LogStart(Offset(100), 7, Epoch(4), b"v"))
    assert (log.start_offset, log.end_offset, log.end_index) == (100, 100, 107)
    assert (log.last_epoch, log.epoch_of(RaftIndex(106))) == (4, 4)
    assert log.load_snapshot() is None
    batch = append(log, epoch=4)
    assert read_bytes(log, 100) == batch


@pytest.mark.parametrize("offset", [2, 4, 100])
def test_a_reset_log_has_the_snapshot_that_came_along_and_no_other(make: Make, offset: int) -> None:
    log = make()
    for _ in range(5):
        append(log)
    log.save_snapshot(Offset(3), b"old")
    log.save_snapshot(Offset(5), b"old")
    log.reset(LogStart(Offset(offset), 7, Epoch(4), b"v"), b"new")
    assert log.load_snapshot() == (offset, b"new")
    for _ in range(5):
        append(log, epoch=4)
    assert log.load_snapshot() == (offset, b"new")


def test_the_newest_snapshot_within_the_log_is_loaded(make: Make) -> None:
    log = make()
    for i in range(5):
        append(log)
        log.save_snapshot(log.end_offset, b"state %d" % i)
    assert log.load_snapshot() == (5, b"state 4")
    log.truncate(RaftIndex(4))
    assert log.load_snapshot() == (4, b"state 3")
    log.truncate(RaftIndex(2))
    assert log.load_snapshot() is None


def test_stored_checksums_can_be_verified_step_by_step(make: Make) -> None:
    log = make()
    for _ in range(30):
        append(log)
    flush(log)
    append(log)
    offset, steps, size = log.start_offset, 0, 0
    while (task := log.begin_check(offset, 200)) is not None:
        task.run()
        offset = log.end_check(task)
        steps += 1
        size += task.size
    # What is not flushed may still be being written.
    assert (offset, size) == (30, sum(len(batch) for batch in list(log.batches(Offset(0)))[:30]))
    assert 5 < steps < 30


def test_a_reader_that_goes_backwards_finds_where_to_begin(make: Make) -> None:
    log = make()
    for number in range(40):
        append(log, count=number % 4 + 1, value=b"v" * (number * 7 % 150))
    bases = [header.base_offset for header in log.headers(Offset(0))]
    for offset in range(1, log.end_offset + 1):
        for bytes_max in (1, 300, 1 << 20):
            first, size = log.chunk_before(Offset(offset), bytes_max)
            assert first in bases
            assert first < offset
            # Reads from there come to the batch of the record before it.
            at: int = first
            got = 0
            while at < offset:
                data = read_bytes(log, at, 200)
                got += len(data)
                at = headers_of(data)[-1].next_offset
            assert size <= got
            holder = max(base for base in bases if base < offset)
            if bytes_max == 1:
                assert holder - first <= 12
    # All of it is found in steps, across segments.
    offset, steps = int(log.end_offset), 0
    while offset > 0:
        offset = log.chunk_before(Offset(offset), 300)[0]
        steps += 1
    assert 1 < steps <= 40


def test_there_is_nothing_before_the_start_and_after_the_end(make: Make) -> None:
    log = make()
    for _ in range(10):
        append(log, count=5)
    flush(log)
    log.delete_before(Offset(12))
    assert log.chunk_before(Offset(13), 1 << 20)[0] == 12
    for offset in (0, 12, log.end_offset + 1):
        with pytest.raises(RefusedError) as refused:
            log.chunk_before(Offset(offset), 100)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

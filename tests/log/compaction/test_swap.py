"""When a log on disk is compacted, and how the outcome takes its place."""

from compacting import CONFIG, NOW, check_dense, clean, keys_at, records_of, write
from msgspec.structs import replace

from moldau.log.compaction.job import CompactionRequest
from moldau.log.compaction.run import remove_files
from moldau.log.disk_log import DiskLog, open_disk_log, read_slice
from moldau.log.interface import LogConfig
from moldau.model.ids import (
    NO_TIMESTAMP,
    Epoch,
    Offset,
    RaftIndex,
    TimestampMs,
)
from moldau.testing.logs import flush
from sim.simdisk import SimDisk


def on_disk(config: LogConfig = CONFIG) -> tuple[SimDisk, DiskLog]:
    disk = SimDisk()
    return disk, open_disk_log(disk, "log", config)


def test_the_dirty_share_decides_when() -> None:
    _, log = on_disk(LogConfig(segment_bytes_max=200, compact=True, dirty_ratio_min=0.5))
    for number in range(8):
        write(log, (f"key-{number}", "x" * 150))
    flush(log)
    assert clean(log) is not None
    write(log, ("key-8", "x" * 150))
    write(log, ("key-9", "x" * 150))
    flush(log)
    asked = CompactionRequest(now=NOW, end_offset=log.end_offset, replicated_offset=log.end_offset)
    assert log.compaction_urgency(asked) == 0
    assert log.begin_compaction(asked) is None
    log.reconfigure(replace(log.config, dirty_ratio_min=0.1))
    assert clean(log) is not None


def test_a_log_knows_up_to_where_it_was_compacted_also_when_it_no_longer_is() -> None:
    disk, log = on_disk()
    for number in range(8):
        write(log, ("key", f"value-{number}" * 50))
    flush(log)
    assert log.compacted_end == 0
    assert clean(log) is not None
    end = log.compacted_end
    assert 0 < end < log.end_offset
    log.close()
    log = open_disk_log(disk, "log", replace(CONFIG, compact=False))
    assert log.compacted_end == end


def test_records_wait_no_longer_than_the_largest_lag() -> None:
    config = LogConfig(
        segment_bytes_max=200, compact=True, dirty_ratio_min=1.0, compaction_lag_ms_max=5000
    )
    _, log = on_disk(config)
    for number in range(8):
        write(log, (f"key-{number}", "x" * 150), time=1000 if number < 7 else 2000)
    flush(log)
    clean(log)
    write(log, ("key-8", "x" * 150), time=2000)
    write(log, ("key-9", "x" * 150), time=2000)
    flush(log)
    assert clean(log, now=7000) is None
    assert clean(log, now=7001) is not None
    # A segment that is written to no more is closed for it.
    assert log.end_offset - log.active.base_offset == 1
    log.retain(TimestampMs(7001), log.end_offset)
    assert log.active.base_offset == log.end_offset


def test_small_segments_become_one_and_unchanged_ones_are_not_written_again() -> None:
    disk, log = on_disk()
    for number in range(12):
        write(log, ("a", f"{number}" * 300))
    for number in range(4):
        write(log, (f"key-{number}", "x" * 600))
    flush(log)
    names = {name for name in disk.listdir("log") if name.endswith(".log")}
    left = clean(log)
    assert left is not None
    remove_files(disk, left)
    now = {name for name in disk.listdir("log") if name.endswith(".log")}
    assert len(now) < len(names)
    assert len(now & names) >= 3


def test_what_is_being_sent_stays_readable_after_the_swap() -> None:
    disk, log = on_disk()
    for number in range(6):
        write(log, ("a", f"{number}" * 300))
    flush(log)
    read = log.read(Offset(0), 1 << 20, log.end_offset)
    replay = log.headers(Offset(0))
    first = next(replay)
    before = read_slice(read.data)
    left = clean(log)
    assert left
    remove_files(disk, left)
    assert read_slice(read.data) == before
    assert first.base_offset == 0
    assert [header.last_offset for header in replay][-1] == log.end_offset - 1
    assert log.read(Offset(0), 1 << 20, log.end_offset).next_offset == 5


def test_a_cleaning_counts_for_nothing_once_the_log_changed_under_it() -> None:
    disk, log = on_disk()
    for number in range(6):
        write(log, ("a", f"{number}" * 300))
    flush(log)
    asked = CompactionRequest(now=NOW, end_offset=log.end_offset, replicated_offset=log.end_offset)
    first = log.begin_compaction(asked)
    assert first is not None
    result = first.run()
    log.delete_before(Offset(3))
    assert not log.end_compaction(first, result)
    left = log.take_stale_files()
    assert left
    remove_files(disk, left)
    assert [record.offset for record in records_of(log, 3)] == [3, 4, 5]
    old, new = log.begin_compaction(asked), log.begin_compaction(asked)
    assert old is not None
    assert new is not None
    assert not log.end_compaction(old, old.run())
    assert log.end_compaction(new, new.run())
    # The last one lies in the segment that is written to, and does not count yet.
    assert [record.offset for record in records_of(log, 3)] == [4, 5]


def test_a_cut_into_what_was_cleaned_leaves_one_log() -> None:
    disk, log = on_disk()
    for number in range(9):
        write(log, ("a", f"{number}" * 300))
    flush(log)
    assert clean(log)  # what is left over is not removed
    log.truncate(RaftIndex(3))
    end = log.end_offset
    assert end <= 3
    for number in range(6):
        write(log, ("b", f"{number}" * 300), epoch=2)
    flush(log)
    check_dense(log)
    batches = list(log.batches(Offset(0)))
    log.close()
    again = open_disk_log(disk, "log", CONFIG)
    assert list(again.batches(Offset(0))) == batches
    assert clean(again) is not None
    assert [key for _, key in keys_at(again)][-1] == b"b"


def test_a_reset_forgets_that_the_log_was_cleaned() -> None:
    disk, log = on_disk()
    for number in range(9):
        write(log, ("a", f"{number}" * 300))
    flush(log)
    assert clean(log)
    log.reset(log.start._replace(offset=Offset(100), epoch=Epoch(1)))
    for number in range(9):
        write(log, ("a", f"{number}" * 300))
    flush(log)
    log.close()
    again = open_disk_log(disk, "log", CONFIG)
    assert len(records_of(again, 100)) == 9
    assert clean(again)
    assert len(records_of(again, 100)) < 9


def test_an_emptied_segment_can_still_expire() -> None:
    _, log = on_disk(
        LogConfig(segment_bytes_max=300, compact=True, dirty_ratio_min=0, retention_ms=1000)
    )
    write(log, ("a", "1" * 250), time=1000)
    write(log, ("a", "2" * 250), time=6000)
    write(log, ("a", "3" * 250), time=6000)
    write(log, ("a", "4" * 250), time=6000)
    flush(log)
    clean(log, now=6000)
    assert log.segments[0].max_timestamp != NO_TIMESTAMP
    assert log.retain(TimestampMs(7500), log.end_offset)

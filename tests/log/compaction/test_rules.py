"""What compaction keeps and what it lets go, one rule each, on all kinds of logs."""

from pathlib import Path

import pytest
from compacting import (
    CONFIG,
    NOW,
    Make,
    check_dense,
    clean,
    keys_at,
    open_log,
    producers_of,
    roll,
    write,
)

from moldau.log.compaction.job import (
    HORIZONS_MAX,
    AbortedRange,
    CompactionCounts,
    CompactionJob,
    CompactionRequest,
    CompactionResult,
    CompactionState,
    SegmentInfo,
)
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.model.ids import (
    Epoch,
    Offset,
    ProducerId,
    TimestampMs,
)
from moldau.records.batch import build_raw_batch, read_header
from moldau.records.compact import is_filler
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.logs import flush, headers_of

JOB = CompactionJob(
    directory="",
    generation=0,
    round=0,
    sources=[],
    start_offset=Offset(0),
    first_dirty=Offset(0),
    horizon=Offset(0),
    barriers=[],
    segment_bytes_max=0,
    segment_ms_max=0,
    index_interval_bytes=0,
    map_bytes_max=0,
    merges=True,
    is_strict=False,
    producers=None,
    aborted=[],
)


@pytest.fixture(params=["memory", "disk", "simulated disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make_log(config: LogConfig = CONFIG) -> PartitionLog:
        return open_log(request.param, tmp_path, config)

    return make_log


# ---- one rule each


def test_only_the_newest_record_of_a_key_stays(make: Make) -> None:
    log = make()
    write(log, ("a", "1"), ("b", "1"))
    write(log, ("a", "2"))
    write(log, ("c", "1"))
    roll(log)
    assert clean(log) is not None
    assert keys_at(log) == [(1, b"b"), (2, b"a"), (3, b"c")]


def test_a_tombstone_stays_for_its_time_after_it_was_first_cleaned(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", None))
    roll(log)
    clean(log, now=NOW)
    assert keys_at(log) == [(1, b"a")]
    assert clean(log, now=NOW + 99) is None
    assert clean(log, now=NOW + 100) is not None
    assert keys_at(log) == []
    assert clean(log, now=NOW + 500) is None


def test_a_tombstone_stays_while_another_replica_lacks_it(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", None))
    roll(log)
    clean(log, now=NOW, held=1)
    assert keys_at(log) == [(1, b"a")]
    assert clean(log, now=NOW + 500, held=1) is None
    assert keys_at(log) == [(1, b"a")]
    assert clean(log, now=NOW + 500) is not None
    assert keys_at(log) == []


def test_a_tombstone_that_comes_later_waits_longer(make: Make) -> None:
    log = make()
    write(log, ("a", None))
    roll(log)
    clean(log, now=NOW)
    write(log, ("b", None))
    roll(log)
    clean(log, now=NOW + 60)
    write(log, ("c", "1"))
    roll(log)
    clean(log, now=NOW + 110)
    assert [key for _, key in keys_at(log)] == [b"b", b"c"]


def test_records_without_a_key_go(make: Make) -> None:
    log = make()
    write(log, (None, "1"), ("a", "1"))
    roll(log)
    clean(log)
    assert keys_at(log) == [(1, b"a")]


def test_nothing_at_or_above_the_high_watermark_is_touched(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", "2"))
    roll(log)
    before = list(log.batches(Offset(0)))
    clean(log, end=1)
    assert list(log.batches(Offset(0))) == before


def test_nothing_of_an_open_transaction_is_touched(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", "2"))
    roll(log)
    before = list(log.batches(Offset(0)))
    clean(log, first_unstable=Offset(1))
    assert list(log.batches(Offset(0))) == before


def test_young_records_wait(make: Make) -> None:
    log = make(
        LogConfig(segment_bytes_max=100, compact=True, dirty_ratio_min=0, compaction_lag_ms_min=500)
    )
    write(log, ("a", "1" * 90), time=1000)
    write(log, ("a", "2" * 90), time=2000)
    write(log, ("a", "3" * 90), time=3000)
    write(log, ("a", "4" * 90), time=9000)
    flush(log)
    clean(log, now=2500)
    assert keys_at(log) == [(1, b"a"), (2, b"a"), (3, b"a")]


def test_aborted_records_go_and_their_marker_only_after_its_time(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", "2"), producer=(7, 0, 0), transactional=True)
    write(log, ("marker", "abort"), producer=(7, 0, -1), transactional=True, control=True)
    write(log, ("b", "1"), producer=(8, 0, 0), transactional=True)
    write(log, ("marker", "commit"), producer=(8, 0, -1), transactional=True, control=True)
    roll(log)
    aborted = [AbortedRange(ProducerId(7), Offset(1), Offset(2))]
    clean(log, aborted=aborted, producers=())
    assert keys_at(log) == [(0, b"a"), (3, b"b")]
    markers = [h.base_offset for h in log.headers(Offset(0)) if h.is_control and h.record_count]
    assert markers == [2, 4]
    clean(log, now=NOW + 100, aborted=aborted, producers=())
    markers = [h.base_offset for h in log.headers(Offset(0)) if h.is_control and h.record_count]
    assert markers == [4]
    # Its records are superseded: from then on the marker waits for its time as well.
    write(log, ("b", "2"))
    roll(log)
    clean(log, now=NOW + 200, producers=())
    assert not [h for h in log.headers(Offset(0)) if h.is_control and h.record_count]
    assert [key for _, key in keys_at(log)] == [b"a", b"b"]


def test_a_producer_known_only_by_its_marker_stays_known(make: Make) -> None:
    log = make()
    write(log, ("a", "1"), producer=(7, 0, 0), transactional=True)
    write(log, ("marker", "abort"), producer=(7, 1, -1), transactional=True, control=True)
    roll(log)
    aborted = [AbortedRange(ProducerId(7), Offset(0), Offset(1))]
    clean(log, aborted=aborted)
    clean(log, now=NOW + 1000, aborted=aborted)
    assert producers_of(log)[7] == (1, [])


def test_forgotten_producers_leave_no_headers(make: Make) -> None:
    log = make()
    for number in range(8):
        write(log, ("a", str(number)), producer=(7, 0, number))
    roll(log)
    clean(log, producers=[ProducerId(7)])
    assert len(producers_of(log)[7][1]) == 5
    write(log, ("a", "last"))
    roll(log)
    clean(log, producers=[])
    assert producers_of(log) == {}
    headers = check_dense(log)
    assert is_filler(headers[0])
    assert headers[0].last_offset == 7


def test_emptied_batches_keep_their_extent_unless_they_may_be_merged(make: Make) -> None:
    log = make()
    for number in range(4):
        write(log, ("a", str(number)), ("b", str(number)))
    roll(log)
    clean(log, merges=False)
    assert [h.base_offset for h in check_dense(log)][:4] == [0, 2, 4, 6]
    write(log, ("c", "1"))
    roll(log)
    clean(log)
    assert [h.base_offset for h in check_dense(log)][:2] == [0, 6]


def test_no_batch_reaches_over_a_change_of_epoch_or_a_control_entry(make: Make) -> None:
    log = make()
    write(log, ("a", "1"))
    write(log, ("a", "2"))
    log.append_control(Epoch(1), ControlKind.MEMBERSHIP, b"m")
    write(log, ("a", "3"))
    write(log, ("a", "4"))
    log.append_control(Epoch(2), ControlKind.NOOP, b"")
    write(log, ("a", "5"), epoch=2)
    write(log, ("a", "6"), epoch=2)
    base = log.end_offset
    write(log, ("filler " + "x" * 700, None), epoch=2)
    write(log, ("filler " + "x" * 700, None), epoch=2)
    flush(log)
    clean(log)
    assert [h.base_offset for h in check_dense(log) if h.base_offset < base] == [0, 2, 4, 5]


def test_an_unreadable_batch_is_left_alone(make: Make) -> None:
    log = make()
    batch = bytearray(build_batch([Record(Offset(0), NOW, b"k", b"v", [])], leader_epoch=Epoch(1)))
    body = batch[61:]
    header = read_header(bytes(batch)).replaced(attributes=3)  # claims to be lz4
    odd = build_raw_batch(header, bytes(body))
    log.append(odd, headers_of(odd))
    write(log, ("a", "1"))
    write(log, ("a", "2"))
    roll(log)
    clean(log)
    assert next(log.batches(Offset(0))) == odd
    assert [key for _, key in keys_at_readable(log)] == [b"a"]


def keys_at_readable(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found = []
    for batch in log.batches(Offset(1)):
        found += [(record.offset, record.key) for record in read_records(batch)]
    return [pair for pair in found if not (pair[1] or b"").startswith(b"filler")]


def test_times_are_found_in_a_cleaned_log(make: Make) -> None:
    log = make()
    write(log, ("a", "1"), time=9000)
    write(log, ("b", "1"), time=2000)
    write(log, ("a", "2"), time=3000)
    roll(log)
    clean(log)
    end = log.end_offset
    found = log.find_max_timestamp(end)
    assert found is not None
    assert (found.offset, found.timestamp) == (2, 3000)
    found = log.find_time(TimestampMs(2500), end)
    assert found is not None
    assert found.offset == 2
    assert log.find_time(TimestampMs(3001), end) is None


def test_a_log_that_is_not_compacted_is_not_cleaned(make: Make) -> None:
    log = make(LogConfig(segment_bytes_max=100))
    for number in range(5):
        write(log, ("a", str(number) * 90))
    flush(log)
    assert clean(log) is None


def test_tombstones_grow_old_however_often_a_log_is_cleaned() -> None:
    minute, retention = 60_000, 24 * 60 * 60_000
    state = CompactionState()
    for number in range(3 * 24 * 60):
        now, end = TimestampMs(number * minute), Offset(number)
        request = CompactionRequest(now=now, end_offset=end, replicated_offset=end)
        job = JOB._replace(horizon=state.horizon(request, retention), round=number)
        segment = SegmentInfo(Offset(0), number, 0, end, now, now)
        result = CompactionResult([segment], end, 1, CompactionCounts())
        state = state.advanced(job, result, now)
    assert len(state.horizons) <= HORIZONS_MAX
    # Everything passed a day ago is known to be that old, but for a few steps of the marks.
    passed = number - retention // minute
    assert passed - retention // minute // 8 < job.horizon <= passed

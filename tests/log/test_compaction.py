"""Compaction: random histories against a model, on all kinds of logs, and each rule by itself."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moldau.log.clean import AbortedRange, CleanRequest
from moldau.log.clean_run import remove_files
from moldau.log.disk import DiskLog, open_disk_log, read_slice
from moldau.log.files import OsFiles
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.log.memory import MemoryLog
from moldau.model.ids import (
    NO_TIMESTAMP,
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
)
from moldau.records.batch import BatchHeader, read_header
from moldau.records.compact import _build, is_filler
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.logs import flush, headers_of, read_bytes
from moldau.testing.simdisk import SimDisk

CONFIG = LogConfig(
    segment_bytes_max=700,
    index_interval_bytes=100,
    compact=True,
    delete_expired=False,
    dirty_ratio_min=0.0,
    delete_retention_ms=100,
)
NOW = TimestampMs(10_000)
Make = Callable[..., PartitionLog]


@pytest.fixture(params=["memory", "disk", "simulated disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make_log(config: LogConfig = CONFIG) -> PartitionLog:
        if request.param == "memory":
            return MemoryLog(config)
        files = OsFiles(tmp_path) if request.param == "disk" else SimDisk()
        return open_disk_log(files, "log", config)

    return make_log


def write(
    log: PartitionLog,
    *pairs: tuple[str | None, str | None],
    epoch: int = 1,
    time: int = 1000,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    control: bool = False,
) -> list[Record]:
    """Append one batch of keys and values; returns its records."""
    base = log.end_offset
    records = [
        Record(
            Offset(base + place),
            TimestampMs(time + place),
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            [("h", b"x")] if place % 2 else [],
        )
        for place, (key, value) in enumerate(pairs)
    ]
    data = build_batch(
        records,
        codec=codec,
        base_offset=base,
        leader_epoch=Epoch(epoch),
        producer_id=ProducerId(producer[0]),
        producer_epoch=ProducerEpoch(producer[1]),
        base_sequence=producer[2],
        transactional=transactional,
        control=control,
    )
    log.append(data, headers_of(data))
    return records


def roll(log: PartitionLog) -> None:
    """Make sure that all so far lies in closed segments."""
    base = log.end_offset
    write(log, (f"filler {base} " + "x" * 700, None))
    write(log, (f"filler {base} " + "y" * 700, None))
    flush(log)
    assert log.end_offset == base + 2


def clean(
    log: PartitionLog, *, now: int = NOW, end: int | None = None, **asked: object
) -> list[str] | None:
    """Clean in one go; returns the files that are left over, None if there was nothing to do."""
    request = CleanRequest(
        now=TimestampMs(now),
        end_offset=log.end_offset if end is None else Offset(end),
        **asked,  # type: ignore[arg-type]
    )
    task = log.begin_clean(request)
    if task is None:
        return None
    assert log.end_clean(task, task.run())
    return log.take_stale_files()


def records_of(log: PartitionLog, start: int = 0) -> list[Record]:
    """All data records from `start` on, as a consumer sees them."""
    found = []
    for batch in log.batches(Offset(start)):
        if not read_header(batch).is_control:
            found += [record for record in read_records(batch) if record.offset >= start]
    return found


def producers_of(log: PartitionLog) -> dict[int, tuple[int, list[tuple[int, int, int, int]]]]:
    """What a table of producers built from the headers knows: epoch, and the last five batches."""
    table: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {}
    for header in log.headers(log.start_offset):
        if header.producer_id < 0:
            continue
        known = table.get(header.producer_id)
        if known is None or header.producer_epoch > known[0]:
            known = table[header.producer_id] = (header.producer_epoch, [])
        if not header.is_control:
            known[1].append(
                (
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                )
            )
            del known[1][:-5]
    return table


def check_dense(log: PartitionLog) -> list[BatchHeader]:
    """Batches follow each other without gaps, epochs agree, none reaches over a control entry."""
    headers = list(log.headers(log.start_offset))
    barriers = {entry.offset for entry in log.controls()}
    for before, header in itertools.pairwise(headers):
        assert header.base_offset == before.next_offset
    for header in headers:
        assert log.epoch_at(max(header.base_offset, log.start_offset)) == header.leader_epoch
        assert log.epoch_at(header.last_offset) == header.leader_epoch
        inside = range(header.base_offset + 1, header.last_offset + 1)
        assert not barriers.intersection(inside)
    if headers:
        assert headers[-1].next_offset == log.end_offset
    return headers


# ---- random histories


@dataclass
class History:
    """What was ever written."""

    records: list[Record] = field(default_factory=list)
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    epoch: int = 1
    time: int = 1000

    def last_values(self) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        for record in self.records:
            assert record.key is not None
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
        return values


def write_some(log: PartitionLog, history: History, rng: random.Random, keys: int) -> None:
    if rng.random() < 0.1:
        history.epoch += 1
        log.append_control(Epoch(history.epoch), ControlKind.NOOP, b"")
    elif rng.random() < 0.1:
        log.append_control(Epoch(history.epoch), ControlKind.MEMBERSHIP, b"m")
    pairs = [
        (
            f"key-{rng.randrange(keys)}",
            None if rng.random() < 0.2 else "v" * rng.choice((1, 5, 90, 200)),
        )
        for _ in range(rng.choice((1, 1, 2, 5)))
    ]
    producer = (-1, -1, -1)
    if rng.random() < 0.5:
        name = rng.randrange(3)
        epoch, sequence = history.sequences.get(name, (0, 0))
        if rng.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        producer = (name, epoch, sequence)
        history.sequences[name] = (epoch, sequence + len(pairs))
    history.time += rng.randrange(5)
    codec = rng.choice(list(Codec)) if rng.random() < 0.4 else Codec.NONE
    history.records += write(
        log, *pairs, epoch=history.epoch, time=history.time, codec=codec, producer=producer
    )


def check(log: PartitionLog, history: History, dropped_before: set[int]) -> set[int]:
    """The log against its history; returns the offsets that are gone."""
    check_dense(log)
    found = records_of(log)
    written = {record.offset: record for record in history.records}
    # Offsets and contents never change, and the order stays.
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    for record in found:
        assert record == written[record.offset]
    gone = set(written) - {record.offset for record in found}
    assert gone >= dropped_before
    # Every key's last value is there.
    values: dict[bytes, bytes | None] = {}
    for record in found:
        assert record.key is not None
        values[record.key] = record.value
    assert {key: value for key, value in values.items() if value is not None} == (
        history.last_values()
    )
    return gone


def check_reads(log: PartitionLog, rng: random.Random) -> None:
    """From every offset a consumer gets what filtering the whole log gives."""
    everything = records_of(log)
    for start in range(log.start_offset, log.end_offset, rng.choice((1, 3, 7))):
        expected = [record for record in everything if record.offset >= start]
        got: list[Record] = []
        offset = start
        while offset < log.end_offset:
            data = read_bytes(log, offset, bytes_max=rng.choice((1, 150, 2000)))
            position = 0
            while position < len(data):
                header = read_header(data, position)
                got += read_records(data[position : position + header.size])
                position += header.size
                assert header.next_offset > offset
                offset = header.next_offset
        assert [record for record in got if record.offset >= start] == expected


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("merges", [True, False])
def test_random_histories_keep_the_last_value_of_every_key(
    make: Make, seed: int, merges: bool
) -> None:
    rng = random.Random(seed)
    log = make()
    history = History()
    gone: set[int] = set()
    now = NOW
    for _ in range(rng.choice((20, 70))):
        if rng.random() < 0.15:
            now = TimestampMs(now + rng.choice((1, 60, 200)))
            flush(log)
            before = producers_of(log)
            epochs = [log.epoch_at(Offset(offset)) for offset in range(log.end_offset)]
            indexes = [log.index_of(Offset(offset)) for offset in range(log.end_offset)]
            left = clean(
                log,
                now=now,
                end=rng.randint(0, log.end_offset),
                merges=merges,
                map_bytes_max=rng.choice((1, 1 << 20)),
            )
            gone = check(log, history, gone)
            assert producers_of(log) == before
            assert epochs == [log.epoch_at(Offset(offset)) for offset in range(log.end_offset)]
            assert indexes == [log.index_of(Offset(offset)) for offset in range(log.end_offset)]
            if left and isinstance(log, DiskLog):
                remove_files(log._files, left)
        write_some(log, history, rng, keys=rng.choice((3, 30)))
    check(log, history, gone)
    check_reads(log, rng)
    if isinstance(log, DiskLog):
        log.close()
        again = open_disk_log(log._files, "log", CONFIG)
        assert list(again.batches(Offset(0))) == list(log.batches(Offset(0)))


# ---- one rule each


def keys_at(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.key)
        for record in records_of(log)
        if record.key is None or not record.key.startswith(b"filler")
    ]


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


def test_a_batch_that_nobody_can_read_is_left_alone(make: Make) -> None:
    log = make()
    batch = bytearray(build_batch([Record(Offset(0), NOW, b"k", b"v", [])], leader_epoch=Epoch(1)))
    body = batch[61:]
    odd = _build(read_header(bytes(batch)), 3, bytes(body))  # claims to be lz4
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
    assert clean(log, is_forced=True) is None


# ---- on disk only


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
    asked = CleanRequest(now=NOW, end_offset=log.end_offset)
    assert log.clean_due(asked) == 0
    assert log.begin_clean(asked) is None
    assert clean(log, is_forced=True) is not None


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
    assert log.end_offset - log._active.base_offset == 1
    log.retain(TimestampMs(7001), log.end_offset)
    assert log._active.base_offset == log.end_offset


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
    asked = CleanRequest(now=NOW, end_offset=log.end_offset)
    first = log.begin_clean(asked)
    assert first is not None
    result = first.run()
    log.delete_before(Offset(3))
    assert not log.end_clean(first, result)
    left = log.take_stale_files()
    assert left
    remove_files(disk, left)
    assert [record.offset for record in records_of(log, 3)] == [3, 4, 5]
    old, new = log.begin_clean(asked), log.begin_clean(asked)
    assert old is not None
    assert new is not None
    assert not log.end_clean(old, old.run())
    assert log.end_clean(new, new.run())
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
    assert log._segments[0].max_timestamp != NO_TIMESTAMP
    assert log.retain(TimestampMs(7500), log.end_offset)

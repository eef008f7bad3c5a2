"""Compaction with the power cut before every change of the disk: the old log or the new, whole.

A log is written and cleaned, again and again. Before every single change that a cleaning makes
(and the removal of old files after it) the power is cut, what was not flushed is torn, and the log
is opened again: its records must be those before the cleaning or those after it, never a mixture,
never fewer. Opening is crashed as well. Then the log goes on being used and cleaned.
"""

import random
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from effort import seeds

from moldau.log.checksummed_file import seal
from moldau.log.compaction import segment_writer
from moldau.log.compaction.checkpoint import CompactionCheckpoint
from moldau.log.compaction.job import CompactionRequest, CompactionResult, CompactionTask
from moldau.log.compaction.run import remove_files
from moldau.log.compaction.segment_writer import CompactionWriter
from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import ControlKind, LogConfig
from moldau.log.segment import Segment
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.logs import flush, headers_of
from sim.simdisk import SimCrash, SimDisk

PATH = "log"
SEEDS = seeds(4)
CONFIG = LogConfig(
    segment_bytes_max=400,
    index_interval_bytes=100,
    compact=True,
    delete_expired=False,
    dirty_ratio_min=0.0,
    delete_retention_ms=5,
)


def write(log: DiskLog, rng: random.Random, *, count: int) -> None:
    for _ in range(count):
        if rng.random() < 0.1:
            log.append_control(Epoch(log.last_epoch + 1), ControlKind.NOOP, b"")
        base = log.end_offset
        records = [
            Record(
                Offset(base + place),
                TimestampMs(1000),
                b"key-%d" % rng.randrange(6),
                None if rng.random() < 0.2 else rng.randbytes(rng.choice((3, 40, 150))),
                [],
            )
            for place in range(rng.choice((1, 1, 3)))
        ]
        data = build_batch(records, base_offset=base, leader_epoch=Epoch(max(1, log.last_epoch)))
        log.append(data, headers_of(data))


def contents(log: DiskLog) -> list[Record]:
    """All records; the batches around them are dense."""
    found = []
    offset = log.start_offset
    for batch in log.batches(offset):
        header = read_header(batch)
        assert header.base_offset <= offset < header.next_offset
        offset = header.next_offset
        found += read_records(batch)
    assert offset == log.end_offset
    return found


def begin(log: DiskLog, now: int) -> CompactionTask | None:
    return log.begin_compaction(
        CompactionRequest(
            now=TimestampMs(now),
            end_offset=log.flushed_offset,
            replicated_offset=log.flushed_offset,
        )
    )


def clean(disk: SimDisk, log: DiskLog, now: int) -> None:
    task = begin(log, now)
    if task is not None:
        log.end_compaction(task, task.run())
        remove_files(disk, log.take_stale_files())


class Trial:
    """One cleaning, done over and over from the same disk and crashed one step later each time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk()
        log = open_disk_log(self.disk, PATH, CONFIG)
        self.now = 1000
        for _ in range(self.rng.randint(1, 3)):
            write(log, self.rng, count=self.rng.randint(5, 15))
            flush(log)
            self.now += 3
            clean(self.disk, log, self.now)
        write(log, self.rng, count=self.rng.randint(5, 15))
        flush(log)
        if self.rng.random() < 0.5:
            log.close()
        self.now += 3
        self.before = contents(log)
        self.disk = self.disk.crash(self.rng)

    def run(self, crash_step: int) -> bool:
        """True if the cleaning was through before the power was cut."""
        rng = random.Random(f"{self.rng.random()}")
        disk = self.disk.crash(rng)
        log = open_disk_log(disk, PATH, CONFIG)
        assert contents(log) == self.before
        after: list[Record] | None = None
        is_through = False
        try:
            task = begin(log, self.now)
            if task is None:
                return True
            disk.crash_at(crash_step)
            result = task.run()
            if rng.random() < 0.5:
                # The log goes on while it is cleaned.
                write(log, rng, count=3)
            log.end_compaction(task, result)
            after = contents(log)
            remove_files(disk, log.take_stale_files())
            is_through = True
        except SimCrash:
            pass
        end = log.end_offset
        for _ in range(3):
            found = disk.crash(rng)
            reopened = self.reopen(found, rng)
            kept = contents(reopened)
            below = [record for record in kept if record.offset < len_of(self.before)]
            allowed = [self.before]
            if after is not None:
                allowed = [[r for r in after if r.offset < len_of(self.before)]]
            elif below != self.before:
                allowed = [self.cleaned_contents()]
            assert below in allowed
            assert len_of(self.before) <= reopened.end_offset <= end
            self.use(reopened, rng)
        return is_through

    def cleaned_contents(self) -> list[Record]:
        disk = self.disk.crash(random.Random(0))
        log = open_disk_log(disk, PATH, CONFIG)
        clean(disk, log, self.now)
        return contents(log)

    def reopen(self, disk: SimDisk, rng: random.Random) -> DiskLog:
        """Open, with power cuts during that too."""
        for _ in range(rng.choice((0, 0, 1, 2))):
            disk.crash_at(rng.randint(0, 12))
            with suppress(SimCrash):
                open_disk_log(disk, PATH, CONFIG)
            disk = disk.crash(rng)
        return open_disk_log(disk, PATH, CONFIG)

    def use(self, log: DiskLog, rng: random.Random) -> None:
        """It is a log like any other: written to, cleaned, opened again."""
        disk = log.files
        assert isinstance(disk, SimDisk)
        write(log, rng, count=6)
        flush(log)
        values = last_values(contents(log))
        clean(disk, log, self.now + 20)
        kept = contents(log)
        assert last_values(kept) == values
        assert contents(open_disk_log(disk.crash(rng), PATH, CONFIG)) == kept


def len_of(records: list[Record]) -> int:
    return records[-1].offset + 1 if records else 0


def last_values(records: list[Record]) -> dict[bytes | None, bytes]:
    values: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
    return values


def crash_everywhere(seed: int) -> int:
    trial = Trial(seed)
    step = 0
    while not trial.run(step):
        step += 1
    return step


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_leaves_the_old_log_or_the_new_one(seed: int) -> None:
    assert crash_everywhere(seed) > 5


# ---- the test itself, tested: one rule broken at a time


class Hasty(Segment):
    def flush(self) -> None:
        self.mark_flushed()


def skip_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """New segments are named before they are on the disk."""
    monkeypatch.setattr(segment_writer, "Segment", Hasty)


def skip_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file `cleaned` speaks of files whose names may be lost."""
    finish = CompactionWriter.finish

    def hasty(self: CompactionWriter) -> object:
        sync = self._files.sync_dir
        self._files.sync_dir = lambda path: None  # type: ignore[method-assign]
        try:
            return finish(self)
        finally:
            self._files.sync_dir = sync  # type: ignore[method-assign]

    monkeypatch.setattr(CompactionWriter, "finish", hasty)


def remove_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old segments go before the new ones are the log."""
    end = DiskLog.end_compaction

    def hasty(self: DiskLog, task: CompactionTask, result: CompactionResult) -> bool:
        for segment in self.segments[: len(task.job.sources)]:  # type: ignore[attr-defined]
            if (segment.base_offset, segment.compaction_round) not in {
                (fact.base_offset, fact.round) for fact in result.segments
            }:
                segment.remove()
        self.files.sync_dir(PATH)
        return end(self, task, result)

    monkeypatch.setattr(DiskLog, "end_compaction", hasty)


def write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file `cleaned` is overwritten instead of replaced."""

    def save(self: CompactionCheckpoint, state: object) -> None:
        file = self._files.open(self.path, create=True)
        file.truncate(0)
        file.pwrite(seal(b"MoCl", msgspec.msgpack.encode(state)), 0)
        self.state = state  # type: ignore[assignment]

    monkeypatch.setattr(CompactionCheckpoint, "save", save)


def crash_all_seeds() -> None:
    for seed in SEEDS:
        crash_everywhere(seed)


@pytest.mark.parametrize("mutate", [skip_flush, skip_names, remove_first, write_in_place])
def test_a_broken_order_is_noticed(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, CorruptionError, OSError)):
        crash_all_seeds()

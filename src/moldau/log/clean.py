"""Owns the data of compaction: what is asked for, what is to be done, what was done.

A cleaning goes like a flush: `begin_clean` makes a task, which runs elsewhere and changes nothing
that exists, and `end_clean` makes its outcome the log. A DiskClean's job is plain data, so that it
can run in another process; clean_run.py does it.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.log.keymap import MAP_BYTES_MAX
from moldau.model.ids import Offset, ProducerId, TimestampMs

HORIZONS_MAX = 32
"""Past cleanings that are remembered for the sake of tombstones."""


class AbortedRange(NamedTuple):
    """The records of a producer from `first` on, up to the marker at `last`, were aborted."""

    producer_id: ProducerId
    first: Offset
    last: Offset


class CleanRequest(Struct, frozen=True, kw_only=True):
    """What the owner of a log knows and the log does not."""

    now: TimestampMs
    end_offset: Offset
    """The high watermark: what may still be cut is not cleaned."""
    replicated_offset: Offset
    """Below it, every other replica holds all records too. A tombstone that one of them has not
    seen must stay: nothing else would tell it that the older value is gone."""
    first_unstable: Offset | None = None
    """First offset of an open transaction: nothing from there on is decided yet."""
    aborted: Sequence[AbortedRange] = ()
    producers: Collection[ProducerId] | None = None
    """Those that are still remembered, whose last batches must stay known; None: all."""
    merges: bool = True
    """Whether emptied batches that lie beside each other may become one."""
    is_forced: bool = False
    """Clean now, however little there is to win."""
    map_bytes_max: int = MAP_BYTES_MAX


class SegmentInfo(NamedTuple):
    """One segment file, by name and extent. `round` is 0 for one that was never cleaned."""

    base_offset: Offset
    round: int
    position: int
    """Where its batches end in the file."""
    end_offset: Offset
    first_timestamp: TimestampMs
    max_timestamp: TimestampMs


class CleanJob(NamedTuple):
    """All that a worker must know. Plain data: it travels to another process."""

    directory: str
    generation: int
    round: int
    """Goes into the names of the new files; no two attempts have the same."""
    sources: list[SegmentInfo]
    start_offset: Offset
    first_dirty: Offset
    horizon: Offset
    """Tombstones and markers below it have been there long enough, and everywhere."""
    barriers: list[Offset]
    """Control entries stand before these offsets: no batch may reach across."""
    segment_bytes_max: int
    segment_ms_max: int
    """Longest time that one segment may span; -1: any."""
    index_interval_bytes: int
    map_bytes_max: int
    merges: bool
    is_strict: bool
    producers: list[ProducerId] | None
    aborted: list[AbortedRange]


class CleanCounts(NamedTuple):
    """What a cleaning cost and brought."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_dropped: int = 0
    seconds: float = 0.0


class CleanResult(NamedTuple):
    """The segments that take the place of the job's sources. Those with its round are new."""

    segments: list[SegmentInfo]
    first_dirty: Offset
    delayed: int
    """Tombstones and markers that stay only for their time."""
    counts: CleanCounts


class CleanTask(Protocol):
    """One cleaning: made by begin_clean, run anywhere, handed back to end_clean."""

    def run(self) -> CleanResult:
        """Do the work. Raises CorruptionError, OSError; the log is as it was."""
        ...


class Horizon(NamedTuple):
    """All below `offset` was cleaned at `time` or before: tombstones there have been seen since."""

    offset: Offset
    time: TimestampMs


class Cleaned(NamedTuple):
    """What is known about earlier cleanings of a log."""

    end: Offset = Offset(0)
    """Below it the segments are those of `segments` and no others."""
    first_dirty: Offset = Offset(0)
    round: int = 0
    delayed: int = 0
    horizons: tuple[Horizon, ...] = ()
    segments: tuple[tuple[Offset, int], ...] = ()
    """Base offset and round of each."""

    def holds(self, base: Offset, number: int) -> bool:
        """Whether a segment file is part of the log, by its base offset and round."""
        if (base, number) in self.segments:
            return True
        # One that was cut down to nothing stays where the next one would begin.
        return number == 0 and base >= self.end and base not in dict(self.segments)

    def clipped(self, end: Offset) -> "Cleaned":
        """After the log was cut at `end`."""
        if end >= self.end:
            return self
        return self._replace(
            end=end,
            first_dirty=min(self.first_dirty, end),
            horizons=tuple(
                dict.fromkeys(Horizon(min(mark.offset, end), mark.time) for mark in self.horizons)
            ),
            segments=tuple(known for known in self.segments if known[0] <= end),
        )

    def horizon(self, request: CleanRequest, retention_ms: int) -> Offset:
        """Tombstones below it were first passed by a cleaning at least retention_ms ago, and no
        replica lacks them."""
        passed = max(
            (mark.offset for mark in self.horizons if mark.time + retention_ms <= request.now),
            default=Offset(0),
        )
        return min(passed, request.replicated_offset)

    def advanced(self, job: CleanJob, result: CleanResult, now: TimestampMs) -> "Cleaned":
        """After a cleaning."""
        # Below the job's horizon all is long past: one mark is enough for it.
        horizons = [mark for mark in self.horizons if mark.offset >= job.horizon]
        if not horizons or horizons[-1].offset < result.first_dirty:
            horizons.append(Horizon(result.first_dirty, now))
        while len(horizons) > HORIZONS_MAX:
            # Its tombstones wait for the next one's time: longer, never shorter. Where they lie
            # closest: to drop always the oldest would leave none that ever grows old enough.
            closest = min(
                range(1, len(horizons) - 1),
                key=lambda at: horizons[at + 1].time - horizons[at - 1].time,
            )
            del horizons[closest]
        return Cleaned(
            end=result.segments[-1].end_offset,
            first_dirty=result.first_dirty,
            round=job.round,
            delayed=result.delayed,
            horizons=tuple(horizons),
            segments=tuple((fact.base_offset, fact.round) for fact in result.segments),
        )

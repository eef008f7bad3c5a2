"""The data types of compaction: request, job, result, and the state between compactions.

A compaction works like a flush: `begin_compaction` makes a task, which changes no existing file and
may run in another thread or process, and `end_compaction` makes its result part of the log. A job
is plain data; run.py executes it.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.log.compaction.key_map import MAP_BYTES_MAX
from moldau.model.ids import Offset, ProducerId, TimestampMs

HORIZONS_MAX = 32
"""Past compactions that are remembered, for tombstones."""


class AbortedRange(NamedTuple):
    """The records of a producer from `first` on, up to the marker at `last`, were aborted."""

    producer_id: ProducerId
    first: Offset
    last: Offset


class CompactionRequest(Struct, frozen=True, kw_only=True):
    """What the caller knows and the log does not."""

    now: TimestampMs
    end_offset: Offset
    """The high watermark: what may still be truncated is not compacted."""
    replicated_offset: Offset
    """Below it, every other replica has all records. A tombstone that a replica lacks must stay:
    otherwise that replica would keep the older value."""
    first_unstable: Offset | None = None
    """First offset of an open transaction: records from there on are undecided."""
    aborted: Sequence[AbortedRange] = ()
    producers: Collection[ProducerId] | None = None
    """Active producers, whose last batches must be kept; None: all."""
    merges: bool = True
    """Whether adjacent emptied batches may be merged."""
    map_bytes_max: int = MAP_BYTES_MAX


class SegmentInfo(NamedTuple):
    """One segment file, by name and extent. `round` is 0 for one that was never compacted."""

    base_offset: Offset
    round: int
    position: int
    """Where its batches end in the file."""
    end_offset: Offset
    first_timestamp: TimestampMs
    max_timestamp: TimestampMs


class CompactionJob(NamedTuple):
    """The input of a worker. Plain data: it is sent to another process."""

    directory: str
    generation: int
    round: int
    """Part of the names of the new files; unique per attempt."""
    sources: list[SegmentInfo]
    start_offset: Offset
    first_dirty: Offset
    horizon: Offset
    """Tombstones and markers below it may be removed: old enough, and on all replicas."""
    barriers: list[Offset]
    """Control entries precede these offsets: no batch may span one of them."""
    segment_bytes_max: int
    segment_ms_max: int
    """Longest time that one segment may span; -1: unlimited."""
    index_interval_bytes: int
    map_bytes_max: int
    merges: bool
    is_strict: bool
    producers: list[ProducerId] | None
    aborted: list[AbortedRange]


class CompactionCounts(NamedTuple):
    """Statistics of a compaction."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_dropped: int = 0
    seconds: float = 0.0


class CompactionResult(NamedTuple):
    """The segments that replace the job's sources. Those with its round are new."""

    segments: list[SegmentInfo]
    first_dirty: Offset
    delayed: int
    """Tombstones and markers that stay until delete.retention.ms has passed."""
    counts: CompactionCounts


class CompactionTask(Protocol):
    """One compaction: made by begin_compaction, run in any thread, passed to end_compaction."""

    def run(self) -> CompactionResult:
        """Raises CorruptionError, OSError; the log is unchanged."""
        ...


class Horizon(NamedTuple):
    """Everything below `offset` was compacted at `time` or before."""

    offset: Offset
    time: TimestampMs


class CompactionState(NamedTuple):
    """What earlier compactions of a log left; stored in its checkpoint."""

    end: Offset = Offset(0)
    """Below it, the log consists of `segments`."""
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
        # A segment that was truncated to nothing stays where the next one would begin.
        return number == 0 and base >= self.end and base not in dict(self.segments)

    def clipped(self, end: Offset) -> "CompactionState":
        """After the log was truncated to `end`."""
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

    def horizon(self, request: CompactionRequest, retention_ms: int) -> Offset:
        """Tombstones below it were first compacted at least retention_ms ago, and are on
        all replicas."""
        passed = max(
            (mark.offset for mark in self.horizons if mark.time + retention_ms <= request.now),
            default=Offset(0),
        )
        return min(passed, request.replicated_offset)

    def advanced(
        self, job: CompactionJob, result: CompactionResult, now: TimestampMs
    ) -> "CompactionState":
        """After a compaction."""
        # Below the job's horizon everything is old enough: one mark suffices.
        horizons = [mark for mark in self.horizons if mark.offset >= job.horizon]
        if not horizons or horizons[-1].offset < result.first_dirty:
            horizons.append(Horizon(result.first_dirty, now))
        while len(horizons) > HORIZONS_MAX:
            # Its tombstones then wait for the next mark: longer, never shorter. Drop where marks
            # are closest: always dropping the oldest would leave none that gets old enough.
            closest = min(
                range(1, len(horizons) - 1),
                key=lambda at: horizons[at + 1].time - horizons[at - 1].time,
            )
            del horizons[closest]
        return CompactionState(
            end=result.segments[-1].end_offset,
            first_dirty=result.first_dirty,
            round=job.round,
            delayed=result.delayed,
            horizons=tuple(horizons),
            segments=tuple((fact.base_offset, fact.round) for fact in result.segments),
        )

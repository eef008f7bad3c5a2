"""Compaction of a log on disk: selects the segments, and swaps in the result.

Only closed and flushed segments below the high watermark are compacted: they cannot be truncated
any more. Between begin_compaction and end_compaction the log is used as usual. The swap is one
atomic replacement of the file `cleaned`; before it the new files are leftovers, after it the old
ones.
"""

from msgspec import Struct

from moldau.log.compaction.job import (
    CompactionJob,
    CompactionRequest,
    CompactionResult,
    CompactionTask,
)
from moldau.log.compaction.run import run_compaction
from moldau.log.compaction.segment_writer import job_segment, segment_info
from moldau.log.disk_log_state import DiskLogState
from moldau.log.filesystem import Files
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.reader import LogReader
from moldau.log.segment import Segment
from moldau.model.ids import TimestampMs

_OVERDUE = 1.0
"""Added to the dirty ratio: overdue logs come before all others."""


class DiskCompaction(Struct, frozen=True):
    """One compaction. `job` may be executed by another process instead of `run`."""

    files: Files
    job: CompactionJob
    now: TimestampMs

    def run(self) -> CompactionResult:
        return run_compaction(self.files, self.job)


class LogCompaction:
    """The compactions of one log."""

    __slots__ = ("_reader", "_round", "_stale_files", "_state")

    def __init__(self, state: DiskLogState, reader: LogReader) -> None:
        self._state = state
        self._reader = reader
        self._stale_files: list[str] = []
        self._round = 0
        """Of the newest attempt; file names must not repeat."""

    def _compactable(self, request: CompactionRequest) -> list[Segment]:
        """The segments that may be compacted now, oldest first."""
        state, compacted = self._state, self._state.checkpoint.state
        limit = min(request.end_offset, state.synced_offset)
        if request.first_unstable is not None:
            limit = min(limit, request.first_unstable)
        # What was compacted was committed, even if the commit is not known yet after a restart.
        limit = max(limit, compacted.end)
        newest = request.now - state.config.compaction_lag_ms_min
        found = []
        for segment in state.segments[:-1]:
            if segment.end_offset > limit or segment in state.pending:
                break
            is_dirty = segment.end_offset > compacted.first_dirty
            if is_dirty and segment.max_timestamp > newest:
                break
            found.append(segment)
        return found

    def urgency(self, request: CompactionRequest) -> float:
        state, config, compacted = self._state, self._state.config, self._state.checkpoint.state
        if not config.compact or state.failures or state.is_closed:
            return 0.0
        segments = self._compactable(request)
        dirty = [segment for segment in segments if segment.end_offset > compacted.first_dirty]
        if not dirty:
            horizon = compacted.horizon(request, config.delete_retention_ms)
            # Nothing new, but tombstones that have expired.
            is_due = segments and compacted.delayed and horizon >= compacted.first_dirty
            return _OVERDUE if is_due else 0.0
        total_bytes = sum(segment.data_bytes for segment in segments)
        ratio = sum(segment.data_bytes for segment in dirty) / max(1, total_bytes)
        first = dirty[0].first_timestamp
        is_late = first >= 0 and request.now - first > config.compaction_lag_ms_max
        if is_late:
            return _OVERDUE + ratio
        return ratio if ratio >= config.dirty_ratio_min else 0.0

    def begin(self, request: CompactionRequest) -> DiskCompaction | None:
        if not self.urgency(request):
            return None
        state, config, compacted = self._state, self._state.config, self._state.checkpoint.state
        segments = self._compactable(request)
        # By the time: a worker of a killed process may still be running.
        self._round = max(compacted.round + 1, self._round + 1, request.now)
        end_offset = segments[-1].end_offset
        entries = state.control_entries.entries
        job = CompactionJob(
            directory=state.directory,
            generation=state.generation,
            round=self._round,
            sources=[segment_info(segment) for segment in segments],
            start_offset=state.start_offset,
            first_dirty=compacted.first_dirty,
            horizon=compacted.horizon(request, config.delete_retention_ms),
            barriers=[entry.offset for entry in entries if entry.offset < end_offset],
            segment_bytes_max=config.segment_bytes_max,
            segment_ms_max=config.segment_ms_max if config.delete_expired else -1,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes_max=request.map_bytes_max,
            merges=request.merges,
            is_strict=state.is_always,
            producers=None if request.producers is None else sorted(request.producers),
            aborted=[span for span in request.aborted if span.first < end_offset],
        )
        return DiskCompaction(state.files, job, request.now)

    def end(self, task: CompactionTask, result: CompactionResult) -> bool:
        if not isinstance(task, DiskCompaction):
            raise TypeError(f"{task!r} was not begun by this log")
        state = self._state
        state.check_usable()
        job = task.job
        old = state.segments[: len(job.sources)]
        new = self._new_segments(job, result, old)
        if (
            job.round != self._round
            or job.generation != state.generation
            or [segment_info(segment) for segment in old] != job.sources
            or len(old) == len(state.segments)
        ):
            self._discard([segment for segment in new if segment not in old])
            return False
        try:
            state.checkpoint.save(state.checkpoint.state.advanced(job, result, task.now))
        except OSError as error:
            # It is unknown which version is on the disk: files of both are kept.
            raise state.failed(error) from error
        state.segments[: len(old)] = new
        self._reader.forget()
        self._discard([segment for segment in old if segment not in new])
        return True

    def _new_segments(
        self, job: CompactionJob, result: CompactionResult, old: list[Segment]
    ) -> list[Segment]:
        """The replacement of `old`: new segments, and those of them that stay."""
        known = {(segment.base_offset, segment.compaction_round): segment for segment in old}
        segments = []
        for info in result.segments:
            segment = known.get((info.base_offset, info.round))
            if segment is None:
                segment = job_segment(self._state.files, job, info.base_offset, info.round)
                segment.opened(
                    info.position, info.end_offset, info.first_timestamp, info.max_timestamp
                )
                # Written since this start, from batches that were checked.
                segment.old_end = HEADER_BYTES
            segments.append(segment)
        return segments

    def _discard(self, segments: list[Segment]) -> None:
        """Their files are unused. Slices that are being sent keep them open."""
        for segment in segments:
            self._stale_files.extend(segment.paths)

    def take_stale_files(self) -> list[str]:
        stale, self._stale_files = self._stale_files, []
        return stale

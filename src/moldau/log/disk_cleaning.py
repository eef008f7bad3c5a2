"""Owns what a log on disk does for compaction: choosing what may be cleaned, and the swap.

Only closed segments below the high watermark, which are flushed, are cleaned: nothing of them can
be cut any more. Between begin_clean and end_clean the log goes on as always. The swap is one
atomic replacement of the file `cleaned`; before it the new files are nothing, after it the old.
"""

from msgspec import Struct

from moldau.log.clean import CleanJob, CleanRequest, CleanResult, CleanTask, SegmentInfo
from moldau.log.clean_run import run_clean
from moldau.log.filesystem import Files
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.segment import Segment
from moldau.log.truncation import CuttingLog
from moldau.model.ids import TimestampMs

_OVERDUE = 1.0
"""Added to the dirty share: overdue logs come before all others."""


class DiskClean(Struct, frozen=True):
    """One cleaning of a log on disk. `job` may be done by another process instead of `run`."""

    files: Files
    job: CleanJob
    now: TimestampMs

    def run(self) -> CleanResult:
        return run_clean(self.files, self.job)


def _fact(segment: Segment) -> SegmentInfo:
    return SegmentInfo(
        segment.base_offset,
        segment.clean_round,
        segment.position,
        segment.end_offset,
        segment.first_timestamp,
        segment.max_timestamp,
    )


class CleaningLog(CuttingLog):
    """A log that can be compacted."""

    _stale_files: list[str] | None = None
    _clean_round = 0
    """Of the newest attempt; names of files must not come back."""

    def _cleanable(self, request: CleanRequest) -> list[Segment]:
        """The segments that may be cleaned now, oldest first."""
        limit = min(request.end_offset, self._synced_offset)
        if request.first_unstable is not None:
            limit = min(limit, request.first_unstable)
        # What was cleaned was committed, also where that is not known again yet after a restart.
        limit = max(limit, self._cleaned.state.end)
        newest = request.now - self._config.compaction_lag_ms_min
        found = []
        for segment in self._segments[:-1]:
            if segment.end_offset > limit or segment in self._pending:
                break
            is_dirty = segment.end_offset > self._cleaned.state.first_dirty
            if is_dirty and segment.max_timestamp > newest:
                break
            found.append(segment)
        return found

    def clean_urgency(self, request: CleanRequest) -> float:
        if not self._config.compact or self._failures or self._is_closed:
            return 0.0
        state = self._cleaned.state
        segments = self._cleanable(request)
        dirty = [segment for segment in segments if segment.end_offset > state.first_dirty]
        if not dirty:
            horizon = state.horizon(request, self._config.delete_retention_ms)
            # Nothing new, but tombstones whose time is over.
            return _OVERDUE if segments and state.delayed and horizon >= state.first_dirty else 0.0
        total_bytes = sum(segment.data_bytes for segment in segments)
        share = sum(segment.data_bytes for segment in dirty) / max(1, total_bytes)
        first = dirty[0].first_timestamp
        lag_max = self._config.compaction_lag_ms_max
        if request.is_forced or (first >= 0 and request.now - first > lag_max):
            return _OVERDUE + share
        return share if share >= self._config.dirty_ratio_min else 0.0

    def begin_clean(self, request: CleanRequest) -> DiskClean | None:
        if not self.clean_urgency(request):
            return None
        config, state = self._config, self._cleaned.state
        segments = self._cleanable(request)
        # By the time: a worker of a process that was killed may still be at it.
        self._clean_round = max(state.round + 1, self._clean_round + 1, request.now)
        end_offset = segments[-1].end_offset
        job = CleanJob(
            directory=self._directory,
            generation=self._generation,
            round=self._clean_round,
            sources=[_fact(segment) for segment in segments],
            start_offset=self.start_offset,
            first_dirty=state.first_dirty,
            horizon=state.horizon(request, config.delete_retention_ms),
            barriers=[
                entry.offset for entry in self._controls.entries if entry.offset < end_offset
            ],
            segment_bytes_max=config.segment_bytes_max,
            segment_ms_max=config.segment_ms_max if config.delete_expired else -1,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes_max=request.map_bytes_max,
            merges=request.merges,
            is_strict=self._is_always,
            producers=None if request.producers is None else sorted(request.producers),
            aborted=[span for span in request.aborted if span.first < end_offset],
        )
        return DiskClean(self._files, job, request.now)

    def end_clean(self, task: CleanTask, result: CleanResult) -> bool:
        if not isinstance(task, DiskClean):
            raise TypeError(f"{task!r} was not begun by this log")
        self._check_usable()
        job = task.job
        old = self._segments[: len(job.sources)]
        new = self._new_segments(job, result, old)
        if (
            job.round != self._clean_round
            or job.generation != self._generation
            or [_fact(segment) for segment in old] != job.sources
            or len(old) == len(self._segments)
        ):
            self._discard([segment for segment in new if segment not in old])
            return False
        try:
            self._cleaned.save(self._cleaned.state.advanced(job, result, task.now))
        except OSError as error:
            # Which of the two the disk holds is unknown: no file of either is removed.
            raise self._failed(error) from error
        self._segments[: len(old)] = new
        self._forget_places()
        self._discard([segment for segment in old if segment not in new])
        return True

    def _new_segments(
        self, job: CleanJob, result: CleanResult, old: list[Segment]
    ) -> list[Segment]:
        """What takes the place of `old`: new segments, and those of them that stay."""
        known = {(segment.base_offset, segment.clean_round): segment for segment in old}
        segments = []
        for fact in result.segments:
            segment = known.get((fact.base_offset, fact.round))
            if segment is None:
                segment = Segment(
                    self._files,
                    self._directory,
                    fact.base_offset,
                    generation=job.generation,
                    index_interval=job.index_interval_bytes,
                    clean_round=fact.round,
                )
                segment.opened(
                    fact.position, fact.end_offset, fact.first_timestamp, fact.max_timestamp
                )
                # Written since this start, and checked on the way, as what is appended.
                segment.old_end = HEADER_BYTES
            segments.append(segment)
        return segments

    def _discard(self, segments: list[Segment]) -> None:
        """Their files are nobody's any more. Slices that are being sent hold them open."""
        stale = self._stale_files = self._stale_files or []
        for segment in segments:
            stale.extend(segment.paths)

    def take_stale_files(self) -> list[str]:
        stale, self._stale_files = self._stale_files or [], None
        return stale

"""Reads a log on disk: sequential reads, replay, checksum checks, lookups by time.

A sequential read is one lookup in a small table of positions where earlier reads ended; it scans
nothing and touches no file. The result is a slice of the segment's file for sendfile.
"""

from collections.abc import Iterator

from moldau.log.disk_log_state import DiskLogState
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import CheckTask, LogRead, TimestampedOffset
from moldau.log.prefetch import Prefetch, is_warm
from moldau.log.scan import walk_batches, walk_headers
from moldau.log.scrub import SegmentCheck
from moldau.log.segment import Segment
from moldau.log.timestamp_lookup import find_in_batch
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.model.slices import FileSlice
from moldau.records.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from moldau.records.batch import BatchHeader, read_header

POSITIONS_MAX = 64
"""Sequential readers that are remembered per log."""
CLOSED_LOADED_MAX = 8
"""Closed segments that keep a descriptor and an index in memory."""
_HEADER_CHUNK_BYTES = 16 * 1024
_RECENT_BYTES_MAX = 64 * 1024
"""A reader that is so close to the end, where it was before, reads what was just written."""
_NOTHING = LogRead(b"", 0)


class LogReader:
    """The reads of one log, and positions remembered for them."""

    __slots__ = ("_bound", "_loaded", "_positions", "_state")

    def __init__(self, state: DiskLogState) -> None:
        self._state = state
        self._positions: dict[Offset, tuple[Segment, int]] | None = None
        """Where reads ended, by the next offset."""
        self._bound: tuple[Offset, Segment, tuple[Offset, int]] | None = None
        self._loaded: list[Segment] = []

    def forget(self) -> None:
        """Segments were removed, relocated or truncated."""
        self._positions = None
        self._bound = None
        while self._loaded:
            self._release(self._loaded.pop())

    # ---- reading

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        state = self._state
        known = self._positions.get(offset) if self._positions else None
        if (
            known is None
            or offset > end_offset
            or (known[1] >= known[0].position and known[0] is not state.active)
        ):
            if not state.start_offset <= offset <= end_offset or end_offset > state.end_offset:
                raise RefusedError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is not within {state.start_offset} to {end_offset}",
                )
            segment = self._segment_of(offset)
            first_offset, position = segment.position_of(offset)
        else:
            segment, position = known
            first_offset = offset
            if segment is not state.active:
                self._keep_loaded(segment)
        if end_offset >= segment.end_offset:
            next_offset, limit = segment.end_offset, segment.position
        else:
            next_offset, limit = self._bound_position(segment, end_offset)
        if position >= limit:
            return _NOTHING
        if limit - position > bytes_max:
            next_offset, limit = segment.boundary_before(position, position + bytes_max)
        if position < segment.old_end:
            segment.check(position, limit)
        positions = self._positions
        if positions is None:
            positions = self._positions = {}
        elif len(positions) >= POSITIONS_MAX:
            del positions[next(iter(positions))]
        positions[next_offset] = (segment, limit)
        size = limit - position
        return LogRead(FileSlice(segment.file(), position, size), size, next_offset, first_offset)

    def _bound_position(self, segment: Segment, end_offset: Offset) -> tuple[Offset, int]:
        """The last batch boundary that may be read, and its position: end_offset, unless a merged
        batch of compaction spans it. All readers share it, so it is remembered."""
        state = self._state
        bound = self._bound
        if bound is not None and bound[0] == end_offset and bound[1] is segment:
            return bound[2]
        if end_offset == state.synced_offset and segment is state.active and state.synced_position:
            return end_offset, state.synced_position
        boundary = segment.position_of(end_offset)
        self._bound = (end_offset, segment, boundary)
        return boundary

    def _segment_of(self, offset: Offset) -> Segment:
        """The segment that contains `offset`; the active one at the end."""
        state = self._state
        segments = state.segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].end_offset > offset:
                high = middle
            else:
                low = middle + 1
        segment = segments[low] if low < len(segments) else state.active
        if segment is not state.active:
            self._keep_loaded(segment)
        return segment

    def _keep_loaded(self, segment: Segment) -> None:
        """A closed segment is read: release the one that was loaded first."""
        loaded = self._loaded
        if segment in loaded:
            return
        loaded.append(segment)
        if len(loaded) > CLOSED_LOADED_MAX:
            self._release(loaded.pop(0))

    def _release(self, segment: Segment) -> None:
        state = self._state
        # One that is not flushed yet is needed as it is.
        if segment is not state.active and segment not in state.pending:
            segment.release()

    def batches(self, offset: Offset) -> Iterator[bytes]:
        for segment, position, end in self._runs(offset):
            for located, batch in walk_batches(segment.file(), position, end):
                yield bytes(batch)
                position = located.position + located.header.size
            if position < end:
                raise segment.damaged(position, "checksum mismatch")

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        for segment, position, end in self._runs(offset):
            for at, header in walk_headers(
                segment.file(), position, end, chunk_bytes=_HEADER_CHUNK_BYTES
            ):
                yield header
                position = at + header.size
            if position < end:
                raise segment.damaged(position, "no batch header where one was written")

    def _runs(self, offset: Offset) -> Iterator[tuple[Segment, int, int]]:
        """Segment, first position and end for everything from the batch that contains `offset`.

        Each segment is looked up only when it is read: it may have been compacted in the meantime.
        """
        state = self._state
        end_offset = state.end_offset
        while offset < end_offset:
            first = max(offset, state.start_offset)
            segment = self._segment_of(first)
            position = segment.position_of(first)[1]
            offset = segment.end_offset
            yield segment, position, segment.position

    def begin_check(self, offset: Offset, bytes_max: int) -> SegmentCheck | None:
        state = self._state
        if state.is_closed or not state.start_offset <= offset < state.synced_offset:
            return None
        segment = self._segment_of(offset)
        if segment is state.active:
            limit = state.synced_position
        else:
            limit = segment.position
            self._keep_loaded(segment)
        position = segment.position_of(offset)[1]
        return SegmentCheck(segment, position, limit, bytes_max, state.truncations)

    def end_check(self, task: CheckTask) -> Offset:
        state = self._state
        if not isinstance(task, (SegmentCheck, Prefetch)):
            raise TypeError(f"{task!r} was not begun by this log")
        segment = task.segment
        if task.truncations != state.truncations or segment not in state.segments:
            # The bytes may have changed during the check: ignore its result.
            return max(task.next_offset, state.start_offset)
        if isinstance(task, Prefetch):
            self._end_prefetch(task)
            return task.next_offset
        if task.damage:
            raise segment.damaged(task.reached, task.damage)
        segment.note_checked(task.start, task.reached)
        is_whole = task.reached == task.limit and segment is not state.active
        return segment.end_offset if is_whole else task.next_offset

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> Prefetch | None:
        state = self._state
        position: int | None
        known = self._positions.get(offset) if self._positions else None
        if known is None or (known[1] >= known[0].position and known[0] is not state.active):
            if state.is_closed or not state.start_offset <= offset < state.end_offset:
                return None
            segment = self._segment_of(offset)
            position = segment.position_near(offset)
            # The batch with the offset begins a little later.
            bytes_max += segment.index.interval
        else:
            segment, position = known
            if segment is not state.active:
                self._keep_loaded(segment)
        limit = segment.position
        if (
            known is not None
            and segment is state.active
            and limit - known[1] <= _RECENT_BYTES_MAX
            and known[1] >= segment.old_end
        ):
            # A reader that keeps up: this process wrote the rest a moment ago.
            return None
        if position is not None and is_warm(segment, position, limit, bytes_max):
            return None
        return Prefetch(segment, offset, position, limit, bytes_max, state.truncations)

    def _end_prefetch(self, task: Prefetch) -> None:
        segment = task.segment
        if task.index is not None:
            segment.index.adopt(task.index, task.index_end)
        if task.file is not None:
            segment.adopt_file(task.file)
        if task.damage:
            raise segment.damaged(task.reached, task.damage)
        if task.reached > task.start:
            segment.note_checked(task.start, task.reached)

    # ---- lookups

    def chunk_before(self, offset: Offset, bytes_max: int) -> tuple[Offset, int]:
        state = self._state
        if not state.start_offset < offset <= state.end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"no record before offset {offset}, of {state.start_offset} to {state.end_offset}",
            )
        last = Offset(offset - 1)
        segment = self._segment_of(last)
        base, position = segment.position_of(last)
        end = position + read_header(segment.file().pread(BATCH_HEADER_BYTES, position)).size
        target = max(HEADER_BYTES, end - bytes_max)
        if target < position:
            index = segment.index
            entry = index.floor_position(target)
            if entry is None and index.loaded_from > HEADER_BYTES:
                entry = segment.loaded_index().floor_position(target)
            base, position = entry or (segment.base_offset, HEADER_BYTES)
        return max(base, state.start_offset), end - position

    def find_time(self, timestamp: TimestampMs, end_offset: Offset) -> TimestampedOffset | None:
        state = self._state
        for segment in state.segments:
            if segment.max_timestamp < timestamp or segment.end_offset <= state.start_offset:
                continue
            if segment is not state.active:
                self._keep_loaded(segment)
            entry = segment.loaded_index().floor_time(timestamp)
            position = entry[1] if entry else HEADER_BYTES
            for at, header in walk_headers(segment.file(), position, segment.position):
                if header.base_offset >= end_offset:
                    return None
                if header.max_timestamp < timestamp or header.next_offset <= state.start_offset:
                    continue
                batch = segment.file().pread(header.size, at)
                found = find_in_batch(batch, timestamp, state.start_offset, end_offset)
                if found is not None:
                    return found
        return None

    def find_max_timestamp(self, end_offset: Offset) -> TimestampedOffset | None:
        state = self._state
        best: tuple[TimestampMs, Segment, int, int] | None = None
        for segment in sorted(state.segments, key=lambda segment: -segment.max_timestamp):
            if best is not None and segment.max_timestamp < best[0]:
                break
            found = self._largest_in(segment, end_offset)
            if found is not None and (
                best is None
                or found[0] > best[0]
                or (found[0] == best[0] and segment.base_offset < best[1].base_offset)
            ):
                best = (found[0], segment, found[1], found[2])
        if best is None:
            return None
        time, segment, at, size = best
        batch = segment.file().pread(size, at)
        return find_in_batch(batch, time, state.start_offset, end_offset)

    def _largest_in(
        self, segment: Segment, end_offset: Offset
    ) -> tuple[TimestampMs, int, int] | None:
        """Timestamp, position and size of the first batch with the largest timestamp."""
        state = self._state
        if segment is not state.active:
            self._keep_loaded(segment)
        # The batch with the segment's maximum follows the last index entry before it. The maximum
        # may be of a batch that was truncated or may not be read: then all batches are inspected.
        entry = segment.loaded_index().floor_time(segment.max_timestamp)
        for position in (entry[1] if entry else HEADER_BYTES, HEADER_BYTES):
            found: tuple[TimestampMs, int, int] | None = None
            for at, header in walk_headers(segment.file(), position, segment.position):
                if header.next_offset > end_offset:
                    break
                if not header.record_count:
                    # Compaction kept its timestamp, for retention, but no record.
                    continue
                if header.next_offset > state.start_offset and (
                    found is None or header.max_timestamp > found[0]
                ):
                    found = (header.max_timestamp, at, header.size)
                    if found[0] >= segment.max_timestamp:
                        return found
        return found

"""Owns the reading half of a log on disk, and the log as a whole: DiskLog, open_disk_log.

A read in sequence is one look into a small table of places where earlier reads ended; it scans
nothing and touches no file. What it returns is a slice of the segment's file for sendfile; where
bytes are needed (tests, replication from memory), read_slice reads it. docs/internals/log.md is
the way into this package.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from moldau.log.disk_cleaning import CleaningLog
from moldau.log.filesystem import Files
from moldau.log.flush import DISK_FULL
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import CheckTask, ControlEntry, LogConfig, LogRead, TimestampedOffset
from moldau.log.recovery import recover
from moldau.log.scan import walk_batches, walk_headers
from moldau.log.scrub import SegmentCheck
from moldau.log.segment import SEGMENT_SUFFIX, Segment
from moldau.log.snapshots import load_snapshot, save_snapshot
from moldau.log.timestamp_lookup import find_in_batch
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    RefusedError,
    StorageError,
)
from moldau.model.ids import FIRST_LOG, Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.model.slices import FileSlice
from moldau.records.batch import BatchHeader

PLACES_MAX = 64
"""Readers in sequence that are remembered per log."""
CLOSED_LOADED_MAX = 3
"""Closed segments that keep a descriptor and an index in memory."""
_HEADER_CHUNK_BYTES = 16 * 1024
_NOTHING = LogRead(b"", 0)


def open_disk_log(
    files: Files, path: str, config: LogConfig, new_id: LogId = FIRST_LOG
) -> "DiskLog":
    """Open the log in the directory `path`, or begin a new one there, with `new_id`.

    Raises CorruptionError, with nothing changed, if flushed data is damaged; StorageError if the
    disk fails.
    """
    try:
        if not files.exists(path):
            files.makedirs(path)
        return DiskLog(files, path, config, recover(files, path, config, new_id))
    except CorruptionError:
        _keep_as_it_is(files, path)
        raise
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError(f"{path}: {error}") from error
        raise StorageError(f"{path}: {error}") from error


def _keep_as_it_is(files: Files, path: str) -> None:
    """Flush what is there. How much was flushed before is said in memory first: a power cut that
    takes that back would make damage look like a torn end, which is cut."""
    for name in files.listdir(path):
        if name.endswith(SEGMENT_SUFFIX):
            with suppress(OSError):
                files.open(f"{path}/{name}").flush()


def read_slice(data: FileSlice | bytes) -> bytes:
    """The bytes of a read, for those who cannot send a file."""
    if isinstance(data, bytes):
        return data
    return data.file.pread(data.size, data.position)


class DiskLog(CleaningLog):
    """The log of one partition in files. Not thread-safe: one owner, one thread."""

    _places: dict[Offset, tuple[Segment, int]] | None = None
    _bound: tuple[Offset, Segment, tuple[Offset, int]] | None = None
    _loaded: list[Segment] | None = None

    # ---- reading

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        place = self._places.get(offset) if self._places else None
        if (
            place is None
            or offset > end_offset
            or (place[1] >= place[0].position and place[0] is not self._active)
        ):
            if not self.start_offset <= offset <= end_offset or end_offset > self.end_offset:
                raise RefusedError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is not within {self.start_offset} to {end_offset}",
                )
            segment = self._segment_of(offset)
            first_offset, position = segment.position_of(offset)
        else:
            segment, position = place
            first_offset = offset
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
        places = self._places
        if places is None:
            places = self._places = {}
        elif len(places) >= PLACES_MAX:
            del places[next(iter(places))]
        places[next_offset] = (segment, limit)
        size = limit - position
        return LogRead(FileSlice(segment.file(), position, size), size, next_offset, first_offset)

    def _bound_position(self, segment: Segment, end_offset: Offset) -> tuple[Offset, int]:
        """The last batch boundary that may be read, and its position: end_offset, unless a batch
        that compaction left reaches over it. All readers share it, so it is remembered."""
        bound = self._bound
        if bound is not None and bound[0] == end_offset and bound[1] is segment:
            return bound[2]
        if end_offset == self._synced_offset and segment is self._active and self._synced_position:
            return end_offset, self._synced_position
        place = segment.position_of(end_offset)
        self._bound = (end_offset, segment, place)
        return place

    def _segment_of(self, offset: Offset) -> Segment:
        """The segment that holds `offset`; the active one at the end."""
        segments = self._segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].end_offset > offset:
                high = middle
            else:
                low = middle + 1
        segment = segments[low] if low < len(segments) else self._active
        if segment is not self._active:
            self._keep_loaded(segment)
        return segment

    def _keep_loaded(self, segment: Segment) -> None:
        """A closed segment is read: let go of the one that was read longest ago."""
        loaded = self._loaded = self._loaded or []
        if segment in loaded:
            return
        loaded.append(segment)
        if len(loaded) > CLOSED_LOADED_MAX:
            old = loaded.pop(0)
            if old is not self._active and old not in self._pending:
                old.release()

    def _locate(self, offset: Offset) -> tuple[Segment, int]:
        segment = self._segment_of(offset)
        return segment, segment.position_of(offset)[1]

    def _forget_places(self) -> None:
        self._places = None
        self._bound = None
        self._loaded = None

    def batches(self, offset: Offset) -> Iterator[bytes]:
        for segment, position, end in self._runs(offset):
            for placed, batch in walk_batches(segment.file(), position, end):
                yield bytes(batch)
                position = placed.position + placed.header.size
            if position < end:
                raise segment.damaged(position, "the batch there fails its checksum")

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        for segment, position, end in self._runs(offset):
            for at, header in walk_headers(
                segment.file(), position, end, chunk_bytes=_HEADER_CHUNK_BYTES
            ):
                yield header
                position = at + header.size
            if position < end:
                raise segment.damaged(position, "no batch begins where one was written")

    def _runs(self, offset: Offset) -> Iterator[tuple[Segment, int, int]]:
        """Segment, first position and end for everything from the batch that holds `offset`.

        Each segment is looked up when its turn comes: it may have been cleaned meanwhile.
        """
        end_offset = self.end_offset
        while offset < end_offset:
            segment, position = self._locate(max(offset, self.start_offset))
            offset = segment.end_offset
            yield segment, position, segment.position

    def begin_check(self, offset: Offset, bytes_max: int) -> SegmentCheck | None:
        if self._is_closed or not self.start_offset <= offset < self._synced_offset:
            return None
        segment = self._segment_of(offset)
        if segment is self._active:
            limit = self._synced_position
        else:
            limit = segment.position
            self._keep_loaded(segment)
        position = segment.position_of(offset)[1]
        return SegmentCheck(segment, position, limit, bytes_max, self._truncations)

    def end_check(self, task: CheckTask) -> Offset:
        if not isinstance(task, SegmentCheck):
            raise TypeError(f"{task!r} was not begun by this log")
        segment = task.segment
        if task.truncations != self._truncations or segment not in self._segments:
            # What it looked at may have been other bytes by then: on with the next.
            return max(task.next_offset, self.start_offset)
        if task.damage:
            raise segment.damaged(task.reached, task.damage)
        segment.note_checked(task.start, task.reached)
        is_whole = task.reached == task.limit and segment is not self._active
        return segment.end_offset if is_whole else task.next_offset

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> SegmentCheck | None:
        place = self._places.get(offset) if self._places else None
        if place is None or (place[1] >= place[0].position and place[0] is not self._active):
            if self._is_closed or not self.start_offset <= offset < self._synced_offset:
                return None
            segment = self._segment_of(offset)
            position = segment.position_of(offset)[1]
        else:
            segment, position = place
        if segment is self._active and position >= segment.old_end:
            # Written by this process, just now: all that most readers ask for.
            return None
        limit = self._synced_position if segment is self._active else segment.position
        size = min(bytes_max, limit - position)
        if size <= 0 or (
            segment.is_checked(position, position + size)
            and segment.file().is_cached(size, position)
        ):
            return None
        return SegmentCheck(segment, position, limit, size, self._truncations)

    # ---- lookups

    def find_time(self, timestamp: TimestampMs, end_offset: Offset) -> TimestampedOffset | None:
        for segment in self._segments:
            if segment.max_timestamp < timestamp or segment.end_offset <= self.start_offset:
                continue
            if segment is not self._active:
                self._keep_loaded(segment)
            entry = segment.loaded_index().floor_time(timestamp)
            position = entry[1] if entry else HEADER_BYTES
            for at, header in walk_headers(segment.file(), position, segment.position):
                if header.base_offset >= end_offset:
                    return None
                if header.max_timestamp < timestamp or header.next_offset <= self.start_offset:
                    continue
                batch = segment.file().pread(header.size, at)
                found = find_in_batch(batch, timestamp, self.start_offset, end_offset)
                if found is not None:
                    return found
        return None

    def find_max_timestamp(self, end_offset: Offset) -> TimestampedOffset | None:
        best: tuple[TimestampMs, Segment, int, int] | None = None
        for segment in sorted(self._segments, key=lambda segment: -segment.max_timestamp):
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
        return find_in_batch(batch, time, self.start_offset, end_offset)

    def _largest_in(
        self, segment: Segment, end_offset: Offset
    ) -> tuple[TimestampMs, int, int] | None:
        """Time, position and size of the first batch with the largest time of a segment."""
        if segment is not self._active:
            self._keep_loaded(segment)
        # The batch that reached the segment's maximum lies behind the last entry before it. The
        # maximum may count a batch that was cut or may not be read: then all of them are looked at.
        entry = segment.loaded_index().floor_time(segment.max_timestamp)
        for position in (entry[1] if entry else HEADER_BYTES, HEADER_BYTES):
            found: tuple[TimestampMs, int, int] | None = None
            for at, header in walk_headers(segment.file(), position, segment.position):
                if header.next_offset > end_offset:
                    break
                if not header.record_count:
                    # Compaction left its time, for retention, but no record.
                    continue
                if header.next_offset > self.start_offset and (
                    found is None or header.max_timestamp > found[0]
                ):
                    found = (header.max_timestamp, at, header.size)
                    if found[0] >= segment.max_timestamp:
                        return found
        return found

    def epoch_at(self, offset: Offset) -> Epoch:
        return self._epochs.at_offset(offset)

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        return self._epochs.end_of(epoch, self.end_offset)

    def index_of(self, offset: Offset) -> RaftIndex:
        return self._controls.index_of(offset)

    def offset_of(self, index: RaftIndex) -> Offset:
        return self._controls.locate(index)[0]

    def controls(self) -> Sequence[ControlEntry]:
        return self._controls.entries

    # ---- snapshots

    def save_snapshot(self, offset: Offset, payload: bytes) -> None:
        self._check_usable()
        try:
            save_snapshot(self._files, self._directory, offset, payload)
        except OSError as error:
            raise self._failed(error) from error

    def load_snapshot(self) -> tuple[Offset, bytes] | None:
        return load_snapshot(self._files, self._directory, self.end_offset)

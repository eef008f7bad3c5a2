"""Owns the writing half of a log on disk: append, control entries, roll, flush, marks.

An append is one write of the caller's buffer. Whatever is rare (a new segment, a new epoch, the
first write after opening, zeros being filled in where the batch would go) is pushed behind one
comparison with `_limit`, and sorted out in `_prepare`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from moldau.log.filesystem import Buffer, Files
from moldau.log.flush import DISK_FULL, NO_DESCRIPTOR, DataFlush, DiskFlush, ZeroFill
from moldau.log.flush_mark import FLAG_CLEAN, FLAG_STRICT, HEADER_BYTES, FlushMark
from moldau.log.index import INDEX_SAVE_BYTES
from moldau.log.interface import (
    ControlEntry,
    ControlKind,
    FlushPolicy,
    FlushTask,
    LogConfig,
    LogStart,
)
from moldau.log.recovery import RecoveredLog
from moldau.log.segment import Segment
from moldau.model.errors import DiskFullError, StorageError
from moldau.model.ids import Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.records.batch import BatchHeader

POSITION_MAX = (1 << 32) - 1
"""Positions are kept in 32 bits; a segment rolls before."""
FILL_FIRST_BYTES = 64 * 1024
FILL_BYTES_MAX = 1024 * 1024
FILL_ROOM_MIN = 16 * 1024
"""With less room than this before the zeros, the owner would run into the filling thread."""
FILL_GROUP_BYTES_MAX = 256 * 1024
"""Flushes larger than this are as quick without zeros, which would double what is written."""


def _no_file(data: Buffer, position: int) -> int:
    """Stands for the active file's pwrite until _prepare has opened it."""
    raise StorageError("written to before it was prepared")


class WritingLog:
    """State of one log, and what adds to it."""

    def __init__(
        self, files: Files, directory: str, config: LogConfig, found: RecoveredLog
    ) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self.log_id: LogId = found.log_id
        self._generation = found.generation
        self._start = found.start
        self.start_offset: Offset = found.start.offset
        self.end_offset: Offset = found.end_offset
        self.flushed_offset: Offset = found.end_offset
        self._segments = found.segments
        """Those with a file, oldest first."""
        self._active = found.segments[-1] if found.segments else self._new_segment()
        """Where the next batch goes; not in _segments as long as it has no file."""
        self._controls = found.controls
        self._epochs = found.epochs
        self._batch_epochs = found.batch_epochs
        self._journal = found.journal
        self._is_journal_first = False
        """Its last entry is flushed before the next batch is written."""
        self._cleaned = found.cleaned
        self._sequence = found.sequence
        self._truncations = 0
        self._pending: list[Segment] = []
        """Closed segments that are not flushed yet."""
        self._synced_offset: Offset = found.end_offset
        """All below is on the disk, whatever the flush policy calls flushed."""
        self._synced_position = self._active.position
        """Where _synced_offset lies in the active segment; 0: in an earlier one."""
        self._is_fresh = bool(found.segments)
        """Nothing was written to the active file since the log was opened."""
        self._was_clean = found.was_clean
        self._is_closed = False
        self._names_made = 0 if found.was_clean else 1
        """Changes of names in the directory; _names_synced of them are known to be durable."""
        self._names_synced = 0
        self._are_epochs_stale = False
        self._fill: ZeroFill | None = None
        self._allocated = self._active.position
        """Zeros are known to be written ahead up to here."""
        self._failures: list[OSError] = []
        self._is_always = config.flush is FlushPolicy.ALWAYS
        self._limit = -1
        """An append that would end beyond it goes through _prepare; -1: the next one does."""
        self._roll_after = TimestampMs(0)
        self._write: Callable[[Buffer, int], int] = _no_file

    # ---- state

    @property
    def start(self) -> LogStart:
        return self._start

    @property
    def end_index(self) -> RaftIndex:
        return RaftIndex(self.end_offset + self._controls.count)

    @property
    def flushed_index(self) -> RaftIndex:
        # A control entry counts only once all data before it is flushed, and the entry itself.
        index = self._controls.index_of(self.flushed_offset)
        waiting = self._journal.unflushed
        if waiting is None:
            return index
        return min(index, RaftIndex(self._controls.last_offset + waiting.ordinal))

    @property
    def last_epoch(self) -> Epoch:
        return self._epochs.last

    @property
    def size_bytes(self) -> int:
        return sum(segment.data_bytes for segment in self._segments)

    @property
    def config(self) -> LogConfig:
        return self._config

    def reconfigure(self, config: LogConfig) -> None:
        self._config = config
        was_always, self._is_always = self._is_always, config.flush is FlushPolicy.ALWAYS
        self._limit = -1
        if not self._is_always:
            if was_always and self._segments and not self._failures:
                # From now on bytes are promised that are not flushed: a mark must not deny it.
                if self._is_fresh:
                    self._begin_writing()
                else:
                    self._write_mark(self._active, self._synced_offset)
            self.flushed_offset = self.end_offset

    # ---- failure

    def _check_usable(self) -> None:
        if self._failures:
            raise StorageError(
                f"{self._directory}: an earlier write or flush failed ({self._failures[0]})"
            )
        if self._is_closed:
            raise StorageError(f"{self._directory}: the log is closed")

    def _failed(self, error: OSError) -> StorageError:
        """The error for a failed write. A full disk is no failure of the log; all else is."""
        if error.errno in DISK_FULL:
            return DiskFullError(f"{self._directory}: no space left on the disk")
        if error.errno in NO_DESCRIPTOR:
            # A file is opened before it is written to, so nothing has changed here either.
            return DiskFullError(f"{self._directory}: too many files are open")
        self._failures.append(error)
        return StorageError(f"{self._directory}: {error}")

    # ---- append

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        last = headers[-1]
        segment = self._active
        position = segment.position
        end = position + len(data)
        time = last.max_timestamp
        if (
            end > self._limit
            or time > self._roll_after
            or last.leader_epoch != self._epochs.last
            or self._failures
        ):
            segment = self._prepare(headers, len(data))
            position = segment.position
            end = position + len(data)
        try:
            if self._write(data, position) + position != end:
                raise OSError(DISK_FULL[0], "short write")
        except OSError as error:
            raise self._undo_append(segment, error) from error
        if len(headers) > 1:
            self._note_batches(segment, position, headers)
        else:
            index = segment.index
            if position >= index.next_position:
                index.add(last.base_offset, position, segment.max_timestamp)
            if time > segment.max_timestamp:
                segment.max_timestamp = time
        if last.leader_epoch != self._epochs.last:
            self._note_epochs(headers)
        segment.position = end
        # Written out instead of last.next_offset: a property is a call.
        next_offset = Offset(last.base_offset + last.last_offset_delta + 1)
        segment.end_offset = self.end_offset = next_offset
        if not self._is_always:
            self.flushed_offset = next_offset

    def _note_batches(
        self, segment: Segment, position: int, headers: Sequence[BatchHeader]
    ) -> None:
        """Index several batches written at once."""
        index = segment.index
        time = segment.max_timestamp
        for header in headers:
            if position >= index.next_position:
                index.add(header.base_offset, position, time)
            if header.max_timestamp > time:
                time = header.max_timestamp
            position += header.size
        segment.max_timestamp = time

    def _note_epochs(self, headers: Sequence[BatchHeader]) -> None:
        for header in headers:
            index = RaftIndex(header.base_offset + self._controls.count)
            self._epochs.begin(header.leader_epoch, index, header.base_offset)

    def _undo_append(self, segment: Segment, error: OSError) -> StorageError:
        """Make the log what it was before a write that failed or was short."""
        failure = self._failed(error)
        if self._failures:
            return failure
        self._cancel_fill()
        try:
            segment.file().truncate(segment.position)
        except OSError as second:
            self._failures.append(second)
            return StorageError(f"{self._directory}: {second}")
        self._allocated = segment.position
        self._drop_stale_epochs()
        return failure

    def _drop_stale_epochs(self) -> None:
        """Forget epochs whose first batch was not written after all."""
        try:
            if self._are_epochs_stale:
                self._batch_epochs.save()
            self._batch_epochs.keep(Offset(0), self.end_offset)
            self._are_epochs_stale = False
        except OSError:
            # The disk is full. The file is put right before anything else is written.
            self._are_epochs_stale = True
            self._limit = -1

    def _prepare(self, headers: Sequence[BatchHeader], size: int) -> Segment:
        """Whatever has to happen before a batch can be written; returns where it goes."""
        self._check_usable()
        try:
            if self._are_epochs_stale:
                self._batch_epochs.save()
                self._are_epochs_stale = False
            active = self._active
            end = active.position + size
            if self._is_journal_first:
                self._flush_journal()
            if self._is_fresh:
                self._begin_writing()
            if (
                not self._segments
                or active is not self._segments[-1]
                or (active.data_bytes and self._is_roll_due(end, headers[-1].max_timestamp))
            ):
                active = self._roll()
                end = active.position + size
            if self._fill is not None and end > self._fill.start:
                self._cancel_fill()
            for header in headers:
                last = self._batch_epochs.starts[-1][0] if self._batch_epochs.starts else -1
                if header.leader_epoch > max(self._epochs.last, last):
                    self._flush_journal()
                    self._batch_epochs.add(header.leader_epoch, header.base_offset)
        except OSError as error:
            raise self._failed(error) from error
        if not active.data_bytes:
            active.first_timestamp = headers[0].max_timestamp
        self._update_limit()
        return active

    def _is_roll_due(self, end: int, timestamp: TimestampMs) -> bool:
        return end > self._roll_position or timestamp > self._roll_time

    @property
    def _roll_position(self) -> int:
        return min(HEADER_BYTES + self._config.segment_bytes_max, POSITION_MAX)

    @property
    def _roll_time(self) -> TimestampMs:
        return TimestampMs(self._active.first_timestamp + self._config.segment_ms_max)

    def _update_limit(self) -> None:
        self._write = self._active.file().pwrite
        self._limit = self._roll_position
        if self._fill is not None:
            self._limit = min(self._limit, self._fill.start)
        self._roll_after = self._roll_time

    def _forget_file(self) -> None:
        """Nothing is written any more until _prepare has opened the active file again."""
        self._write = _no_file
        self._limit = -1

    # ---- segments

    def _new_segment(self) -> Segment:
        return Segment(
            self._files,
            self._directory,
            self.end_offset,
            generation=self._generation,
            index_interval=self._config.index_interval_bytes,
        )

    def _begin_writing(self) -> None:
        """First write to a file that was there when the log was opened.

        A killed process may have left marks in the page cache that are not on the disk: flush, so
        that it is known which slot is durable, then take back the clean mark, if it was one. Not
        flushed by itself: without a later flush, nothing more than the clean mark says is promised.
        """
        try:
            self._active.flush()
        except OSError as error:
            # Of a flush even ENOSPC is a failure: what could not be written is gone.
            self._failures.append(error)
            raise StorageError(f"{self._directory}: {error}") from error
        self._write_mark(self._active, self._synced_offset)
        self._is_fresh = False

    def _roll(self) -> Segment:
        """Close the active segment and begin the next. A full disk leaves all as it was."""
        self._cancel_fill()
        old = self._active
        new = self._new_segment()
        ahead = FILL_FIRST_BYTES if self._is_always else 0
        try:
            file = new.create()
            page = bytes(HEADER_BYTES + ahead)
            if file.pwrite(page, 0) < len(page):
                raise OSError(DISK_FULL[0], "short write")
        except OSError:
            new.remove()
            raise
        if self._segments and self._segments[-1] is old:
            # The zeros filled ahead go; a cut of unflushed zeros needs no flush of its own.
            old.file().truncate(old.position)
            self._pending.append(old)
        self._segments.append(new)
        self._active = new
        self._allocated = HEADER_BYTES + ahead
        self._synced_position = HEADER_BYTES if self._synced_offset == new.base_offset else 0
        self._names_made += 1
        self._is_fresh = False
        self._write_mark(new, self._synced_offset)
        return new

    def _write_mark(self, segment: Segment, covered: Offset, *, clean: bool = False) -> None:
        """Write the mark that the next flush of the segment's file makes durable."""
        flags = FLAG_CLEAN if clean else 0
        # Strict only if nothing beyond was promised, as under a laxer policy before.
        if self._is_always and covered >= self.flushed_offset:
            flags |= FLAG_STRICT
        flushed = self._synced_offset
        position = 0
        if flushed >= segment.base_offset:
            if segment is self._active:
                position = self._synced_position
            else:
                flushed = min(flushed, segment.end_offset)
                position = segment.position_of(flushed)[1]
        self._sequence += 1
        try:
            # By position: this runs with every flush.
            mark = FlushMark(
                flags,
                self._sequence,
                segment.base_offset,
                flushed,
                position,
                covered,
                segment.position,
                self._controls.count - (self._journal.unflushed is not None),
                segment.first_timestamp,
                segment.max_timestamp,
                self._batch_epochs.crc,
            )
            segment.write_mark(mark)
        except OSError as error:
            raise self._failed(error) from error

    # ---- control entries

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        self._check_usable()
        if epoch < self._epochs.last:
            raise ValueError(f"control entry of epoch {epoch} after {self._epochs.last}")
        entry = ControlEntry(epoch, kind, self.end_offset, payload)
        try:
            if self._are_epochs_stale:
                self._batch_epochs.save()
                self._are_epochs_stale = False
            self._flush_journal()
            self._journal.append(self._controls.count, entry)
        except OSError as error:
            raise self._failed(error) from error
        if epoch == self._epochs.last:
            # Lost with what follows it left, it would shift every index, and nothing would show it.
            self._is_journal_first = True
            self._limit = -1
        self._epochs.begin(epoch, self.end_index, self.end_offset)
        self._controls.append(entry)

    def _flush_journal(self) -> None:
        """At once: something is to be written that must not outlive its last entry."""
        try:
            self._journal.flush()
        except OSError as error:
            self._failures.append(error)
            raise StorageError(f"{self._directory}: {error}") from error
        self._is_journal_first = False

    # ---- flush

    def begin_flush(self) -> DiskFlush | None:
        if self._is_closed:
            return None
        self._check_usable()
        journal = self._journal.unflushed
        if not self._needs_flush:
            if journal is None:
                return None
            return DiskFlush(
                journal=journal, truncations=self._truncations, failures=self._failures
            )
        active = self._active
        if self._is_fresh:
            self._begin_writing()
        for segment in self._pending:
            self._write_mark(segment, segment.end_offset)
        self._write_mark(active, self.end_offset)
        return DiskFlush(
            journal=journal,
            data=DataFlush(
                files=self._files,
                directory=self._directory if self._names_synced < self._names_made else None,
                names=self._names_made,
                closed=self._pending,
                segment=active,
                fill=self._plan_fill(),
            ),
            truncations=self._truncations,
            failures=self._failures,
        )

    @property
    def _needs_flush(self) -> bool:
        """Whether there is data to be flushed now."""
        if not self._segments or self._pending:
            return bool(self._segments)
        is_due = self._config.flush is not FlushPolicy.NEVER
        return is_due and self._synced_offset != self.end_offset

    def _plan_fill(self) -> ZeroFill | None:
        """Zeros for the flush thread to write ahead, if the room for appends gets short."""
        active = self._active
        position = active.position
        if self._allocated - position > FILL_BYTES_MAX // 2 or not self._is_always:
            return None
        group = position - (self._synced_position or HEADER_BYTES)
        if self._fill is not None or group > FILL_GROUP_BYTES_MAX:
            return None
        size = min(FILL_BYTES_MAX, max(FILL_FIRST_BYTES, active.data_bytes))
        if self._allocated - position > size // 2:
            return None
        start = max(self._allocated, active.position)
        end = min(start + size, self._roll_position)
        if end <= start:
            return None
        fill = ZeroFill(active.file(), start, end)
        if start - active.position < FILL_ROOM_MIN:
            # No room to append while a thread fills: a small piece at once, and more next time.
            fill.end = min(start + FILL_FIRST_BYTES, end)
            try:
                fill.run()
            except OSError as error:
                raise self._failed(error) from error
            if fill.is_done:
                self._allocated = fill.end
            return None
        self._fill = fill
        self._update_limit()
        return fill

    def _cancel_fill(self) -> None:
        if self._fill is not None:
            self._fill.cancel()
            self._fill = None
            self._limit = -1

    def end_flush(self, task: FlushTask) -> None:
        if not isinstance(task, DiskFlush):
            raise TypeError(f"{task!r} was not begun by this log")
        data = task.data
        if data is not None and data.fill is not None and data.fill is self._fill:
            if data.fill.is_done:
                self._allocated = data.fill.end
            self._fill = None
            self._limit = -1
        if task.truncations != self._truncations or self._failures or self._is_closed:
            # Late: what it covered was cut and may be other bytes by now.
            return
        if task.journal is not None and task.journal is self._journal.unflushed:
            self._journal.unflushed = None
            self._is_journal_first = False
        if data is not None:
            self._end_data_flush(data)

    def _end_data_flush(self, task: DataFlush) -> None:
        task.segment.mark_flushed()
        self._names_synced = task.names
        self._synced_offset = task.offset
        if task.segment is self._active:
            self._synced_position = task.position
        else:
            is_base = task.offset == self._active.base_offset
            self._synced_position = HEADER_BYTES if is_base else 0
        if task.offset > self.flushed_offset:
            self.flushed_offset = task.offset
        # The flush counts, whatever becomes of this: a failure here fences the log by itself.
        with suppress(StorageError):
            self._settle(task)

    def _settle(self, task: DataFlush) -> None:
        """What a flush that has ended makes possible: saved indexes, and a mark without doubt."""
        if task.closed:
            self._settle_closed(task.closed)
        if task.segment is self._active:
            if task.position - self._active.index.saved_to >= INDEX_SAVE_BYTES:
                self._save_index(self._active, task.position)
            if self._is_always and self.end_offset == task.offset:
                # Nothing waits: say so, so that after a killed process nothing is in doubt.
                self._write_mark(self._active, task.offset)

    def _settle_closed(self, closed: list[Segment]) -> None:
        """Closed segments are on the disk: their index is saved, their memory given back."""
        for segment in closed:
            # Retention may have removed one while the flush ran.
            if segment in self._pending:
                self._pending.remove(segment)
                segment.mark_flushed()
                self._save_index(segment, segment.position)
                segment.release()

    def _save_index(self, segment: Segment, position: int) -> None:
        try:
            segment.save_index(position)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise self._failed(error) from error

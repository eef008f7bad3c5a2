"""Writes a log on disk: append, control entries, roll, flush.

An append is one write of the caller's buffer. Everything rare (a new segment, a new epoch, the
first write after opening, a zero-fill where the batch would go) is behind one comparison with
`_limit`, and handled in `_prepare`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from moldau.log.disk_log_state import DiskLogState
from moldau.log.filesystem import Buffer
from moldau.log.flush import DISK_FULL, DataFlush, DiskFlush, ZeroFill
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.index import INDEX_SAVE_BYTES
from moldau.log.interface import ControlEntry, ControlKind, FlushPolicy, FlushTask, LogConfig
from moldau.log.segment import Segment
from moldau.model.errors import StorageError
from moldau.model.ids import Epoch, Offset, RaftIndex, TimestampMs
from moldau.records.batch import BatchHeader

POSITION_MAX: Final = (1 << 32) - 1
"""Positions are stored in 32 bits; a segment rolls before."""
FILL_FIRST_BYTES = 64 * 1024
FILL_BYTES_MAX = 1024 * 1024
FILL_ROOM_MIN = 16 * 1024
"""With less room before the zeros, appends would have to wait for the filling thread."""
FILL_GROUP_BYTES_MAX: Final = 256 * 1024
"""Larger flushes are as fast without zeros, which would double the bytes written."""


def _no_file(data: Buffer, position: int) -> int:
    """In place of the active file's pwrite until _prepare has opened it."""
    raise StorageError("internal error: append without an open segment")


class LogWriter:
    """Appends to the active segment, and flushes."""

    __slots__ = (
        "_are_epochs_stale",
        "_fill",
        "_is_journal_first",
        "_limit",
        "_roll_after",
        "_state",
        "_write",
        "allocated",
    )

    def __init__(self, state: DiskLogState) -> None:
        self._state = state
        self._is_journal_first = False
        """The last control entry must be flushed before the next batch is written."""
        self._are_epochs_stale = False
        self._fill: ZeroFill | None = None
        self.allocated = state.active.position
        """Zeros are known to be written ahead up to here."""
        self._limit = -1
        """An append that would end beyond it goes through _prepare; -1: the next one does."""
        self._roll_after = TimestampMs(0)
        self._write: Callable[[Buffer, int], int] = _no_file

    def reconfigure(self, config: LogConfig) -> None:
        state = self._state
        state.config = config
        was_always, state.is_always = state.is_always, config.flush is FlushPolicy.ALWAYS
        self._limit = -1
        if not state.is_always:
            if was_always and state.segments and not state.failures:
                # From now on unflushed bytes are acknowledged: the mark must not be strict.
                if state.is_fresh:
                    self.begin_writing()
                else:
                    state.write_mark(state.active, state.synced_offset)
            state.flushed_offset = state.end_offset

    # ---- append

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        state = self._state
        last = headers[-1]
        segment = state.active
        position = segment.position
        end = position + len(data)
        time = last.max_timestamp
        if (
            end > self._limit
            or time > self._roll_after
            or last.leader_epoch != state.epochs.last
            or state.failures
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
            self._index_batches(segment, position, headers)
        else:
            index = segment.index
            if position >= index.next_position:
                index.add(last.base_offset, position, segment.max_timestamp)
            if time > segment.max_timestamp:
                segment.max_timestamp = time
        if last.leader_epoch != state.epochs.last:
            for header in headers:
                raft_index = RaftIndex(header.base_offset + state.control_entries.count)
                state.epochs.begin(header.leader_epoch, raft_index, header.base_offset)
        segment.position = end
        # Written out instead of last.next_offset: a property is a call.
        next_offset = Offset(last.base_offset + last.last_offset_delta + 1)
        segment.end_offset = state.end_offset = next_offset
        if not state.is_always:
            state.flushed_offset = next_offset

    def _index_batches(
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

    def _undo_append(self, segment: Segment, error: OSError) -> StorageError:
        """Restore the log after a write that failed or was short."""
        state = self._state
        failure = state.failed(error)
        if state.failures:
            return failure
        self.cancel_fill()
        try:
            segment.file().truncate(segment.position)
        except OSError as second:
            return state.fatal(second)
        self.allocated = segment.position
        self._drop_stale_epochs()
        return failure

    def _drop_stale_epochs(self) -> None:
        """Forget epochs whose first batch was not written after all."""
        epochs = self._state.batch_epochs
        try:
            if self._are_epochs_stale:
                epochs.save()
            epochs.truncate(self._state.end_offset)
            self._are_epochs_stale = False
        except OSError:
            # The disk is full. The file is corrected before anything else is written.
            self._are_epochs_stale = True
            self._limit = -1

    def _save_stale_epochs(self) -> None:
        if self._are_epochs_stale:
            self._state.batch_epochs.save()
            self._are_epochs_stale = False

    def _prepare(self, headers: Sequence[BatchHeader], size: int) -> Segment:
        """Everything that has to happen before a batch can be written; returns its segment."""
        state = self._state
        state.check_usable()
        try:
            self._save_stale_epochs()
            active = state.active
            end = active.position + size
            if self._is_journal_first:
                self.flush_journal()
            if state.is_fresh:
                self.begin_writing()
            if (
                not state.segments
                or active is not state.segments[-1]
                or (active.data_bytes and self._is_roll_due(end, headers[-1].max_timestamp))
            ):
                active = self._roll()
                end = active.position + size
            if self._fill is not None and end > self._fill.start:
                self.cancel_fill()
            starts = state.batch_epochs.starts
            for header in headers:
                last = starts[-1][0] if starts else -1
                if header.leader_epoch > max(state.epochs.last, last):
                    self.flush_journal()
                    state.batch_epochs.add(header.leader_epoch, header.base_offset)
        except OSError as error:
            raise state.failed(error) from error
        if not active.data_bytes:
            active.first_timestamp = headers[0].max_timestamp
        self._update_limit()
        return active

    def _is_roll_due(self, end: int, timestamp: TimestampMs) -> bool:
        return end > self._roll_position or timestamp > self._roll_time

    @property
    def _roll_position(self) -> int:
        return min(HEADER_BYTES + self._state.config.segment_bytes_max, POSITION_MAX)

    @property
    def _roll_time(self) -> TimestampMs:
        state = self._state
        return TimestampMs(state.active.first_timestamp + state.config.segment_ms_max)

    def _update_limit(self) -> None:
        self._write = self._state.active.file().pwrite
        self._limit = self._roll_position
        if self._fill is not None:
            self._limit = min(self._limit, self._fill.start)
        self._roll_after = self._roll_time

    # ---- segments

    def begin_writing(self) -> None:
        """First write to a file that existed when the log was opened.

        A killed process may have left marks in the page cache that are not on the disk: flush, so
        that the durable slot is known, then replace the clean mark, if it was one. The new mark is
        not flushed: without a later flush, nothing beyond the clean mark is acknowledged.
        """
        state = self._state
        try:
            state.active.flush()
        except OSError as error:
            # After a failed flush even ENOSPC is fatal: the unwritten data is lost.
            raise state.fatal(error) from error
        state.write_mark(state.active, state.synced_offset)
        state.is_fresh = False

    def roll(self) -> None:
        """Close the active segment and create the next."""
        state = self._state
        if state.is_fresh:
            self.begin_writing()
        try:
            self._roll()
        except OSError as error:
            raise state.failed(error) from error
        self._limit = -1

    def _roll(self) -> Segment:
        """A full disk leaves everything unchanged."""
        self.cancel_fill()
        state = self._state
        old = state.active
        new = state.new_segment()
        ahead = FILL_FIRST_BYTES if state.is_always else 0
        try:
            file = new.create()
            page = bytes(HEADER_BYTES + ahead)
            if file.pwrite(page, 0) < len(page):
                raise OSError(DISK_FULL[0], "short write")
        except OSError:
            new.remove()
            raise
        if state.segments and state.segments[-1] is old:
            # Remove the zeros ahead; truncating unflushed zeros needs no flush of its own.
            old.file().truncate(old.position)
            state.pending.append(old)
        state.segments.append(new)
        state.active = new
        self.allocated = HEADER_BYTES + ahead
        state.synced_position = HEADER_BYTES if state.synced_offset == new.base_offset else 0
        state.names_made += 1
        state.is_fresh = False
        state.write_mark(new, state.synced_offset)
        return new

    # ---- control entries

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        state = self._state
        state.check_usable()
        if epoch < state.epochs.last:
            raise ValueError(f"control entry of epoch {epoch} after {state.epochs.last}")
        entry = ControlEntry(epoch, kind, state.end_offset, payload)
        try:
            self._save_stale_epochs()
            self.flush_journal()
            state.journal.append(state.control_entries.count, entry)
        except OSError as error:
            raise state.failed(error) from error
        if epoch == state.epochs.last:
            # If it were lost without what follows it, every index would shift unnoticed.
            self._is_journal_first = True
            self._limit = -1
        state.epochs.begin(epoch, state.end_index, state.end_offset)
        state.control_entries.append(entry)

    def flush_journal(self) -> None:
        """Flush the last control entry now, before something is written that depends on it."""
        try:
            self._state.journal.flush()
        except OSError as error:
            raise self._state.fatal(error) from error
        self._is_journal_first = False

    # ---- flush

    def begin_flush(self) -> DiskFlush | None:
        state = self._state
        if state.is_closed:
            return None
        state.check_usable()
        journal = state.journal.unflushed
        data = None
        if self._needs_flush:
            if state.is_fresh:
                self.begin_writing()
            for segment in state.pending:
                state.write_mark(segment, segment.end_offset)
            state.write_mark(state.active, state.end_offset)
            data = DataFlush(
                files=state.files,
                directory=state.directory if state.names_synced < state.names_made else None,
                names=state.names_made,
                closed=state.pending,
                segment=state.active,
                fill=self._plan_fill(),
            )
        elif journal is None:
            return None
        return DiskFlush(
            journal=journal, data=data, truncations=state.truncations, failures=state.failures
        )

    @property
    def _needs_flush(self) -> bool:
        """Whether there is data to be flushed now."""
        state = self._state
        if not state.segments or state.pending:
            return bool(state.segments)
        is_due = state.config.flush is not FlushPolicy.NEVER
        return is_due and state.synced_offset != state.end_offset

    def _plan_fill(self) -> ZeroFill | None:
        """Zeros for the flush thread to write ahead, if the room for appends gets short."""
        state = self._state
        active = state.active
        position = active.position
        if self.allocated - position > FILL_BYTES_MAX // 2 or not state.is_always:
            return None
        group = position - (state.synced_position or HEADER_BYTES)
        if self._fill is not None or group > FILL_GROUP_BYTES_MAX:
            return None
        size = min(FILL_BYTES_MAX, max(FILL_FIRST_BYTES, active.data_bytes))
        if self.allocated - position > size // 2:
            return None
        start = max(self.allocated, position)
        end = min(start + size, self._roll_position)
        if end <= start:
            return None
        fill = ZeroFill(active.file(), start, end)
        if start - position < FILL_ROOM_MIN:
            # No room to append while a thread fills: a small piece now, more next time.
            fill.end = min(start + FILL_FIRST_BYTES, end)
            try:
                fill.run()
            except OSError as error:
                raise state.failed(error) from error
            if fill.is_done:
                self.allocated = fill.end
            return None
        self._fill = fill
        self._update_limit()
        return fill

    def cancel_fill(self) -> None:
        if self._fill is not None:
            self._fill.cancel()
            self._fill = None
            self._limit = -1

    @property
    def is_filling(self) -> bool:
        return self._fill is not None

    def end_flush(self, task: FlushTask) -> None:
        if not isinstance(task, DiskFlush):
            raise TypeError(f"{task!r} was not begun by this log")
        state = self._state
        data = task.data
        if data is not None and data.fill is not None and data.fill is self._fill:
            if data.fill.is_done:
                self.allocated = data.fill.end
            self._fill = None
            self._limit = -1
        if task.truncations != state.truncations or state.failures or state.is_closed:
            # Late: what it covered was truncated and may have been replaced.
            return
        if task.journal is not None and task.journal is state.journal.unflushed:
            state.journal.unflushed = None
            self._is_journal_first = False
        if data is not None:
            self._end_data_flush(data)

    def _end_data_flush(self, task: DataFlush) -> None:
        state = self._state
        task.segment.mark_flushed()
        state.names_synced = task.names
        state.synced_offset = task.offset
        if task.segment is state.active:
            state.synced_position = task.position
        else:
            is_base = task.offset == state.active.base_offset
            state.synced_position = HEADER_BYTES if is_base else 0
        if task.offset > state.flushed_offset:
            state.flushed_offset = task.offset
        # The flush counts even if this fails: a failure here makes the log unusable by itself.
        with suppress(StorageError):
            self._after_flush(task)

    def _after_flush(self, task: DataFlush) -> None:
        """Save indexes of flushed data, and write a mark if everything is flushed."""
        state = self._state
        for segment in task.closed:
            # Retention may have removed one while the flush ran.
            if segment in state.pending:
                state.pending.remove(segment)
                segment.mark_flushed()
                state.save_index(segment, segment.position)
                segment.release()
        if task.segment is state.active:
            if task.position - state.active.index.saved_to >= INDEX_SAVE_BYTES:
                state.save_index(state.active, task.position)
            if state.is_always and state.end_offset == task.offset:
                # After a killed process nothing is in doubt then.
                state.write_mark(state.active, task.offset)

    # ---- truncation and close

    def on_truncated(self) -> None:
        """The active file was truncated to its last batch, or replaced."""
        self.allocated = self._state.active.position
        self._limit = -1

    def on_reset(self) -> None:
        self._is_journal_first = False
        self._limit = -1

    def close_files(self) -> None:
        """Flush and truncate the zeros of everything, and only then write the clean mark."""
        state = self._state
        for segment in state.pending:
            segment.flush()
            state.write_mark(segment, segment.end_offset)
            segment.flush()
            state.save_index(segment, segment.position)
        state.pending = []
        active = state.active
        active.file().truncate(active.position)
        if state.is_fresh or state.synced_offset != state.end_offset:
            active.flush()
        if state.names_synced < state.names_made:
            state.files.sync_dir(state.directory)
        state.synced_offset = state.end_offset
        state.synced_position = active.position
        state.save_index(active, active.position)
        state.write_mark(active, state.end_offset, clean=True)
        active.flush()

    def release(self) -> None:
        """Nothing is written any more."""
        self._write = _no_file
        self._limit = -1

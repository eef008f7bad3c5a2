"""Moves the ends of a log on disk: truncation, reset, deletion of old records, retention.

Each is a sequence of durable steps in an order that leaves a valid log, old or new, after a crash:
data is truncated before the journal, newest segments are removed before older ones at the end, and
the start file is replaced before anything below the start is removed.
"""

from moldau.log.compaction.checkpoint import CompactionCheckpoint
from moldau.log.control_entries import ControlEntries
from moldau.log.control_journal import REWRITE_DEAD_MIN, ControlJournal
from moldau.log.disk_log_state import DiskLogState
from moldau.log.epochs import EpochCache
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import LogStart
from moldau.log.reader import LogReader
from moldau.log.retention import expired_count, is_roll_due
from moldau.log.segment import Segment, find_segments
from moldau.log.snapshots import drop_snapshots, write_snapshot
from moldau.log.start_file import BatchEpochs, Head, save_head
from moldau.log.writer import LogWriter
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, RaftIndex, TimestampMs


class LogTruncation:
    """Removes entries from either end of a log."""

    __slots__ = ("_reader", "_state", "_writer")

    def __init__(self, state: DiskLogState, writer: LogWriter, reader: LogReader) -> None:
        self._state = state
        self._writer = writer
        self._reader = reader

    # ---- the end

    def truncate(self, index: RaftIndex) -> None:
        state = self._state
        state.check_usable()
        offset, count = state.control_entries.locate(index)
        place, base, position = self._locate(offset)
        if base < offset:
            offset, count = base, state.control_entries.before(base)
        if offset >= state.end_offset and count >= state.control_entries.count:
            return
        if offset < state.start.offset or count < state.start.control_count:
            raise ValueError(f"cannot truncate to {index}, below the start of the log")
        self._writer.flush_journal()
        self._invalidate()
        try:
            self._truncate_data(place, position, offset, count)
            self._clip_compacted(offset)
            drop_snapshots(state.files, state.directory, offset)
            state.journal.truncate(count)
            state.epochs.truncate(RaftIndex(offset + count), state.start.epoch)
            state.batch_epochs.truncate(offset)
        except OSError as error:
            # Half truncated: recovery can repair that, but not this process.
            state.failures.append(error)
            raise state.failed(error) from error

    def _invalidate(self) -> None:
        """From now on a flush or check in progress is ignored."""
        self._state.truncations += 1
        self._writer.cancel_fill()
        self._reader.forget()

    def _locate(self, offset: Offset) -> tuple[int, Offset, int]:
        """Segment number, batch boundary and position at which to truncate for `offset`."""
        segments = self._state.segments
        place = len(segments) - 1
        while place > 0 and segments[place].base_offset > offset:
            place -= 1
        if place < 0 or offset >= self._state.end_offset:
            return place, self._state.end_offset, self._state.active.position
        base, position = segments[place].position_of(offset)
        return place, base, position

    def _truncate_data(self, place: int, position: int, offset: Offset, count: int) -> None:
        """Durably truncate the segments. Marks are lowered first."""
        state = self._state
        state.control_entries.truncate(count)
        if place < 0:
            state.end_offset = state.flushed_offset = state.synced_offset = offset
            return
        target = state.segments[place]
        target.flush()
        if state.synced_offset > offset:
            state.synced_offset = offset
        state.active = target
        if state.synced_offset < target.base_offset:
            state.synced_position = 0
        else:
            state.synced_position = target.position_of(state.synced_offset)[1]
        for segment in state.pending:
            if segment.base_offset < target.base_offset:
                segment.flush()
        state.pending = []
        state.flushed_offset = min(state.flushed_offset, offset)
        state.end_offset = min(state.end_offset, offset)
        state.is_fresh = False
        target.remove_index()
        # Names too: the rest of the log counts as flushed below.
        state.files.sync_dir(state.directory)
        self._write_lowered_mark(target, position, offset)
        # Newest first, each durably: a gap in the middle would look like corruption.
        for segment in reversed(state.segments[place + 1 :]):
            segment.remove()
            state.files.sync_dir(state.directory)
        del state.segments[place + 1 :]
        # Zeros may be written ahead of the end.
        if target.position > position or self._writer.allocated > position:
            target.file().truncate(position)
        target.forget_beyond(position, offset)
        target.flush()
        state.synced_offset = state.flushed_offset = state.end_offset
        state.synced_position = position
        state.names_synced = state.names_made
        self._writer.on_truncated()

    def _clip_compacted(self, offset: Offset) -> None:
        """Truncation into compacted segments, which consensus never requests: leftovers of
        compactions are removed first, or they would become part of the log once the checkpoint is
        lowered."""
        state = self._state
        clipped = state.checkpoint.state.clipped(offset)
        if clipped is state.checkpoint.state:
            return
        for segment in find_segments(state.files, state.directory, index_interval=1):
            if segment.generation == state.generation and not state.checkpoint.state.holds(
                segment.base_offset, segment.compaction_round
            ):
                segment.remove()
        state.files.sync_dir(state.directory)
        state.checkpoint.save(clipped)

    def _write_lowered_mark(self, target: Segment, position: int, offset: Offset) -> None:
        """Durably mark that nothing at or beyond `offset` is acknowledged any more."""
        end, end_offset = target.position, target.end_offset
        target.position, target.end_offset = position, offset
        self._state.write_mark(target, offset)
        target.position, target.end_offset = end, end_offset
        target.flush()

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        state = self._state
        state.check_usable()
        if snapshot:
            # The new start is useless without the snapshot, so it is written first.
            try:
                write_snapshot(state.files, state.directory, start.offset, snapshot)
            except OSError as error:
                raise state.failed(error) from error
        self._invalidate()
        try:
            if not snapshot:
                # Snapshots of the old log must not be found with the new start.
                drop_snapshots(state.files, state.directory, Offset(-1))
            state.generation += 1
            self._save_start(start)
            drop_snapshots(state.files, state.directory, Offset(-1), but=start.offset)
            # The old files are leftovers from here on, also after a crash.
            old_segments = state.segments
            old_paths = (state.journal.path, state.batch_epochs.path, state.checkpoint.path)
            self._begin_generation(start)
            for segment in old_segments:
                segment.remove()
            for path in old_paths:
                if state.files.exists(path):
                    state.files.remove(path)
        except OSError as error:
            state.failures.append(error)
            raise state.failed(error) from error

    def _save_start(self, start: LogStart) -> None:
        state = self._state
        save_head(state.files, state.directory, Head(state.log_id, state.generation, start))

    def _begin_generation(self, start: LogStart) -> None:
        state = self._state
        state.start = start
        state.start_offset = state.end_offset = start.offset
        state.flushed_offset = state.synced_offset = start.offset
        state.segments = []
        state.pending = []
        state.active = state.new_segment()
        state.synced_position = HEADER_BYTES
        state.control_entries = ControlEntries(start.control_count)
        state.epochs = EpochCache()
        index = RaftIndex(start.offset + start.control_count)
        state.epochs.begin(start.epoch, index, start.offset)
        state.journal = ControlJournal(state.files, state.directory, state.generation)
        state.batch_epochs = BatchEpochs(state.files, state.directory, state.generation)
        state.checkpoint = CompactionCheckpoint(state.files, state.directory, state.generation)
        state.is_fresh = False
        self._writer.on_reset()

    # ---- the start

    def delete_before(self, offset: Offset) -> None:
        state = self._state
        state.check_usable()
        if offset <= state.start.offset:
            return
        if offset > state.end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete records before {offset}: the log ends at {state.end_offset}",
            )
        count = state.control_entries.below(offset)
        index = RaftIndex(offset + count)
        start = LogStart(
            offset,
            count,
            state.epoch_of(RaftIndex(index - 1)),
            state.control_entries.voters_before(count, state.start.voters),
        )
        try:
            self._save_start(start)
            state.start = start
            state.start_offset = offset
            state.journal.forget_below(count)
            state.control_entries.drop_below(count)
            state.epochs.drop_below(index, offset)
            self._reader.forget()
            self._remove_below(offset)
            entries = state.control_entries.entries
            dead = state.journal.entry_count - len(entries)
            if dead >= max(REWRITE_DEAD_MIN, len(entries)):
                state.journal.rewrite(count, entries)
        except OSError as error:
            raise state.failed(error) from error

    def _remove_below(self, offset: Offset) -> None:
        """Delete segments that are entirely below the start; the active one stays."""
        state = self._state
        while len(state.segments) > 1 and state.segments[1].base_offset <= offset:
            segment = state.segments.pop(0)
            if segment in state.pending:
                state.pending.remove(segment)
            segment.remove()

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        state = self._state
        state.check_usable()
        if not state.segments:
            return False
        if (
            state.end_offset <= end_offset
            and not self._writer.is_filling
            and is_roll_due(state.active, state.config, now)
        ):
            self._writer.roll()
        closed = state.segments[:-1]
        count = expired_count(closed, state.active.data_bytes, state.config, now, end_offset)
        if not count:
            return False
        self.delete_before(max(closed[count - 1].end_offset, state.start.offset))
        return True

"""Owns what takes away from a log on disk: truncation, reset, deletion, retention, close.

Each is a sequence of durable steps in an order that leaves a log, old or new, at every crash:
data is cut before the journal, newest segments go before older ones when the end is cut, and the
start file is replaced before anything below the start is removed.
"""

from moldau.log.cleaned_file import CleanedFile
from moldau.log.control_entries import ControlEntries
from moldau.log.control_journal import REWRITE_DEAD_MIN, ControlJournal
from moldau.log.epochs import EpochCache
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.head import BatchEpochs, Head, save_head
from moldau.log.interface import LogStart
from moldau.log.retention import expired_count, is_roll_due
from moldau.log.segment import Segment, list_segments
from moldau.log.snapshots import drop_snapshots, write_snapshot
from moldau.log.writing import WritingLog
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, RaftIndex, TimestampMs


class CuttingLog(WritingLog):
    """A log whose ends can be moved."""

    def epoch_of(self, index: RaftIndex) -> Epoch:
        if index == self._start.offset + self._start.control_count - 1:
            return self._start.epoch
        return self._epochs.at_index(index)

    def _forget_places(self) -> None:
        """Positions remembered for readers are no longer right; disk.py keeps them."""

    # ---- the end

    def truncate(self, index: RaftIndex) -> None:
        self._check_usable()
        offset, count = self._controls.locate(index)
        place, base, position = self._cut_point(offset)
        if base < offset:
            offset, count = base, self._controls.before(base)
        if offset >= self.end_offset and count >= self._controls.count:
            return
        if offset < self._start.offset or count < self._start.control_count:
            raise ValueError(f"cannot truncate to {index}, below the start of the log")
        self._flush_journal()
        # From here on a flush that is under way counts for nothing.
        self._truncations += 1
        self._cancel_fill()
        self._forget_places()
        try:
            self._cut_data(place, position, offset, count)
            self._clip_cleaned(offset)
            drop_snapshots(self._files, self._directory, offset)
            self._journal.truncate(count)
            self._epochs.truncate(RaftIndex(offset + count), self._start.epoch)
            self._batch_epochs.keep(Offset(0), offset)
        except OSError as error:
            # Half cut: recovery can put that right, but not this process.
            self._failures.append(error)
            raise self._failed(error) from error

    def _cut_point(self, offset: Offset) -> tuple[int, Offset, int]:
        """Segment, batch boundary and position at which the data is cut for `offset`."""
        place = len(self._segments) - 1
        while place > 0 and self._segments[place].base_offset > offset:
            place -= 1
        if place < 0 or offset >= self.end_offset:
            return place, self.end_offset, self._active.position
        base, position = self._segments[place].position_of(offset)
        return place, base, position

    def _cut_data(self, place: int, position: int, offset: Offset, count: int) -> None:
        """Cut the segments, physically and durably. Marks are lowered first."""
        self._controls.truncate(count)
        if place < 0:
            self.end_offset = self.flushed_offset = self._synced_offset = offset
            return
        target = self._segments[place]
        target.flush()
        if self._synced_offset > offset:
            self._synced_offset = offset
        self._active = target
        if self._synced_offset < target.base_offset:
            self._synced_position = 0
        else:
            self._synced_position = target.position_of(self._synced_offset)[1]
        for segment in self._pending:
            if segment.base_offset < target.base_offset:
                segment.flush()
        self._pending = []
        self.flushed_offset = min(self.flushed_offset, offset)
        self.end_offset = min(self.end_offset, offset)
        self._is_fresh = False
        target.remove_index()
        # Names too: what is left of the log counts as flushed below.
        self._files.sync_dir(self._directory)
        self._write_cut_mark(target, position, offset)
        # Newest first, each for good: a hole in the middle would look like corruption.
        for segment in reversed(self._segments[place + 1 :]):
            segment.remove()
            self._files.sync_dir(self._directory)
        del self._segments[place + 1 :]
        if target.position > position or self._allocated > position:
            target.file().truncate(position)
        target.forget_beyond(position, offset)
        target.flush()
        self._synced_offset = self.flushed_offset = self.end_offset
        self._synced_position = position
        self._allocated = position
        self._names_synced = self._names_made
        self._limit = -1

    def _clip_cleaned(self, offset: Offset) -> None:
        """Into what was cleaned, which consensus never asks for: what it left over goes first, or
        it would be taken for the log's when its offsets are no longer spoken for."""
        state = self._cleaned.state.clipped(offset)
        if state is self._cleaned.state:
            return
        for generation, base, clean_round in list_segments(self._files.listdir(self._directory)):
            if generation == self._generation and not self._cleaned.state.holds(base, clean_round):
                Segment(
                    self._files,
                    self._directory,
                    base,
                    generation=generation,
                    index_interval=self._config.index_interval_bytes,
                    clean_round=clean_round,
                ).remove()
        self._files.sync_dir(self._directory)
        self._cleaned.save(state)

    def _write_cut_mark(self, target: Segment, position: int, offset: Offset) -> None:
        """Say durably that nothing at or beyond `offset` is promised any more."""
        end, end_offset = target.position, target.end_offset
        target.position, target.end_offset = position, offset
        self._write_mark(target, offset)
        target.position, target.end_offset = end, end_offset
        target.flush()

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        self._check_usable()
        if snapshot:
            # Without it the new beginning would be worth nothing, so it is there before.
            try:
                write_snapshot(self._files, self._directory, start.offset, snapshot)
            except OSError as error:
                raise self._failed(error) from error
        self._truncations += 1
        self._cancel_fill()
        self._forget_places()
        try:
            if not snapshot:
                # Shortcuts into the old log: gone before the new one begins.
                drop_snapshots(self._files, self._directory, Offset(-1))
            self._generation += 1
            self._save_start(start)
            drop_snapshots(self._files, self._directory, Offset(-1), but=start.offset)
            # The old files are leftovers now, of whatever is left after a crash.
            old_segments = self._segments
            old_paths = (self._journal.path, self._batch_epochs.path, self._cleaned.path)
            self._begin_anew(start)
            for segment in old_segments:
                segment.remove()
            for path in old_paths:
                if self._files.exists(path):
                    self._files.remove(path)
        except OSError as error:
            self._failures.append(error)
            raise self._failed(error) from error

    def _save_start(self, start: LogStart) -> None:
        save_head(self._files, self._directory, Head(self.log_id, self._generation, start))

    def _begin_anew(self, start: LogStart) -> None:
        self._start = start
        self.start_offset = self.end_offset = start.offset
        self.flushed_offset = self._synced_offset = start.offset
        self._segments = []
        self._pending = []
        self._active = self._new_segment()
        self._synced_position = HEADER_BYTES
        self._controls = ControlEntries(start.control_count)
        self._epochs = EpochCache()
        index = RaftIndex(start.offset + start.control_count)
        self._epochs.begin(start.epoch, index, start.offset)
        self._journal = ControlJournal(self._files, self._directory, self._generation)
        self._batch_epochs = BatchEpochs(self._files, self._directory, self._generation)
        self._cleaned = CleanedFile(self._files, self._directory, self._generation)
        self._is_fresh = False
        self._is_journal_first = False
        self._limit = -1

    # ---- the start

    def delete_before(self, offset: Offset) -> None:
        self._check_usable()
        if offset <= self._start.offset:
            return
        if offset > self.end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete to {offset}, beyond {self.end_offset}",
            )
        count = self._controls.below(offset)
        index = RaftIndex(offset + count)
        start = LogStart(
            offset,
            count,
            self.epoch_of(RaftIndex(index - 1)),
            self._controls.voters_before(count, self._start.voters),
        )
        try:
            self._save_start(start)
            self._start = start
            self.start_offset = offset
            self._journal.forget_below(count)
            self._controls.cut_front(count)
            self._epochs.cut_front(index, offset)
            self._forget_places()
            self._remove_below(offset)
            dead = self._journal.entry_count - len(self._controls.entries)
            if dead >= max(REWRITE_DEAD_MIN, len(self._controls.entries)):
                self._journal.rewrite(count, self._controls.entries)
        except OSError as error:
            raise self._failed(error) from error

    def _remove_below(self, offset: Offset) -> None:
        """Unlink segments that lie wholly below the start; the active one stays."""
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            segment = self._segments.pop(0)
            if segment in self._pending:
                self._pending.remove(segment)
            segment.remove()

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        self._check_usable()
        if not self._segments:
            return False
        if (
            self.end_offset <= end_offset
            and self._fill is None
            and is_roll_due(self._active, self._config, now)
        ):
            if self._is_fresh:
                self._begin_writing()
            try:
                self._roll()
            except OSError as error:
                raise self._failed(error) from error
            self._limit = -1
        closed = self._segments[:-1]
        count = expired_count(closed, self._active.data_bytes, self._config, now, end_offset)
        if not count:
            return False
        self.delete_before(max(closed[count - 1].end_offset, self._start.offset))
        return True

    # ---- close

    def close(self) -> None:
        if self._is_closed:
            return
        self._cancel_fill()
        self._forget_places()
        if not self._failures:
            self._flush_journal()
        if not self._failures and self._segments and not (self._is_fresh and self._was_clean):
            try:
                self._close_files()
            except OSError as error:
                raise self._failed(error) from error
        self.flushed_offset = self.end_offset
        self._let_go()

    def discard(self) -> None:
        self._cancel_fill()
        self._forget_places()
        self._let_go()

    def _let_go(self) -> None:
        self._is_closed = True
        self._forget_file()
        for segment in self._segments:
            segment.release()

    def _close_files(self) -> None:
        """Flush and trim everything, and only then say that it was done."""
        for segment in self._pending:
            segment.flush()
            self._write_mark(segment, segment.end_offset)
            segment.flush()
            self._save_index(segment, segment.position)
        self._pending = []
        active = self._active
        active.file().truncate(active.position)
        if self._is_fresh or self._synced_offset != self.end_offset:
            active.flush()
        if self._names_synced < self._names_made:
            self._files.sync_dir(self._directory)
        self._synced_offset = self.end_offset
        self._synced_position = active.position
        self._save_index(active, active.position)
        self._write_mark(active, self.end_offset, clean=True)
        active.flush()

"""The state of a log on disk that its parts share: segments, offsets, control entries, epochs.

DiskLog is this state plus the interface. LogWriter, LogReader, LogTruncation and LogCompaction work
on it; state that only one of them needs is theirs.
"""

from moldau.log.filesystem import Files
from moldau.log.flush import DISK_FULL
from moldau.log.flush_mark import FLAG_CLEAN, FLAG_STRICT, FlushMark
from moldau.log.interface import FlushPolicy, LogConfig
from moldau.log.read_failure import NO_DESCRIPTOR
from moldau.log.recovery import RecoveredLog
from moldau.log.segment import Segment
from moldau.model.errors import DiskFullError, StorageError
from moldau.model.ids import Epoch, LogId, Offset, RaftIndex


class DiskLogState:
    """Fields, failures, flush marks."""

    def __init__(
        self, files: Files, directory: str, config: LogConfig, found: RecoveredLog
    ) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.log_id: LogId = found.log_id
        self.generation = found.generation
        self.start = found.start
        self.start_offset: Offset = found.start.offset
        self.end_offset: Offset = found.end_offset
        self.flushed_offset: Offset = found.end_offset
        self.segments = found.segments
        """Those with a file, oldest first."""
        self.active = found.segments[-1] if found.segments else self.new_segment()
        """Where the next batch goes; not in `segments` as long as it has no file."""
        self.control_entries = found.controls
        self.epochs = found.epochs
        self.batch_epochs = found.batch_epochs
        self.journal = found.journal
        self.checkpoint = found.checkpoint
        self.truncations = 0
        """Truncations and resets; a flush or check that began before one is ignored."""
        self.pending: list[Segment] = []
        """Closed segments that are not flushed yet."""
        self.synced_offset: Offset = found.end_offset
        """Everything below is on the disk, independent of the flush policy."""
        self.synced_position = self.active.position
        """Position of synced_offset in the active segment; 0: it is in an earlier one."""
        self.is_fresh = bool(found.segments)
        """The active file was not written to since the log was opened."""
        self.was_clean = found.was_clean
        self.is_closed = False
        self.names_made = 0 if found.was_clean else 1
        """Changes of names in the directory; names_synced of them are known to be durable."""
        self.names_synced = 0
        self.failures: list[OSError] = []
        self.is_always = config.flush is FlushPolicy.ALWAYS
        self._sequence = found.sequence

    def new_segment(self) -> Segment:
        return Segment(
            self.files,
            self.directory,
            self.end_offset,
            generation=self.generation,
            index_interval=self.config.index_interval_bytes,
        )

    @property
    def end_index(self) -> RaftIndex:
        return RaftIndex(self.end_offset + self.control_entries.count)

    @property
    def flushed_index(self) -> RaftIndex:
        # A control entry counts only once all data before it is flushed, and the entry itself.
        index = self.control_entries.index_of(self.flushed_offset)
        waiting = self.journal.unflushed
        if waiting is None:
            return index
        return min(index, RaftIndex(self.control_entries.last_offset + waiting.ordinal))

    def epoch_of(self, index: RaftIndex) -> Epoch:
        if index == self.start.offset + self.start.control_count - 1:
            return self.start.epoch
        return self.epochs.at_index(index)

    # ---- failures

    def check_usable(self) -> None:
        if self.failures:
            raise StorageError(
                f"{self.directory}: an earlier write or flush failed ({self.failures[0]})"
            )
        if self.is_closed:
            raise StorageError(f"{self.directory}: the log is closed")

    def failed(self, error: OSError) -> StorageError:
        """The error for a failed write. After all but a full disk, the log is unusable."""
        if error.errno in DISK_FULL:
            return DiskFullError(f"{self.directory}: no space left on the disk")
        if error.errno in NO_DESCRIPTOR:
            # A file is opened before it is written to, so nothing has changed here either.
            return DiskFullError(f"{self.directory}: too many open files")
        return self.fatal(error)

    def fatal(self, error: OSError) -> StorageError:
        """The error for a failure that makes the log unusable, whatever its cause."""
        self.failures.append(error)
        return StorageError(f"{self.directory}: {error}")

    # ---- flush marks and indexes

    def write_mark(self, segment: Segment, covered: Offset, *, clean: bool = False) -> None:
        """Write the mark that the next flush of the segment's file makes durable."""
        flags = FLAG_CLEAN if clean else 0
        # Strict only if nothing beyond was acknowledged, as under a weaker policy before.
        if self.is_always and covered >= self.flushed_offset:
            flags |= FLAG_STRICT
        flushed = self.synced_offset
        position = 0
        if flushed >= segment.base_offset:
            if segment is self.active:
                position = self.synced_position
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
                self.control_entries.count - (self.journal.unflushed is not None),
                segment.first_timestamp,
                segment.max_timestamp,
                self.batch_epochs.crc,
            )
            segment.write_mark(mark)
        except OSError as error:
            raise self.failed(error) from error

    def save_index(self, segment: Segment, position: int) -> None:
        try:
            segment.save_index(position)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise self.failed(error) from error

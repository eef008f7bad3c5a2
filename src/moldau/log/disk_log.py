"""The log of one partition in files: DiskLog, open_disk_log.

docs/internals/log.md is the introduction to this package.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from moldau.log.compaction.job import CompactionRequest, CompactionResult, CompactionTask
from moldau.log.compaction.swap import DiskCompaction, LogCompaction
from moldau.log.disk_log_state import DiskLogState
from moldau.log.filesystem import Buffer, Files
from moldau.log.flush import DISK_FULL, DiskFlush
from moldau.log.interface import (
    CheckTask,
    ControlEntry,
    ControlKind,
    FlushTask,
    LogConfig,
    LogRead,
    LogStart,
    TimestampedOffset,
)
from moldau.log.prefetch import Prefetch
from moldau.log.reader import LogReader
from moldau.log.recovery import RecoveredLog, recover
from moldau.log.scrub import SegmentCheck
from moldau.log.segment import SEGMENT_SUFFIX
from moldau.log.snapshots import load_snapshot, save_snapshot
from moldau.log.truncation import LogTruncation
from moldau.log.writer import LogWriter
from moldau.model.errors import CorruptionError, DiskFullError, StorageError
from moldau.model.ids import FIRST_LOG, Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.model.slices import FileSlice
from moldau.records.batch import BatchHeader


def open_disk_log(
    files: Files, path: str, config: LogConfig, new_id: LogId = FIRST_LOG
) -> "DiskLog":
    """Open the log in the directory `path`, or create a new one there, with `new_id`.

    Raises CorruptionError, with nothing changed, if flushed data is corrupt; StorageError if the
    disk fails.
    """
    try:
        if not files.listdir(path):
            # Also if the directory is there, and empty: its name may not be durable yet, because a
            # process was killed while it was made.
            files.makedirs(path)
        return DiskLog(files, path, config, recover(files, path, config, new_id))
    except CorruptionError:
        _flush_segments(files, path)
        raise
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError(f"{path}: {error}") from error
        raise StorageError(f"{path}: {error}") from error


def _flush_segments(files: Files, path: str) -> None:
    """Flush what is there. Flush marks may be in the page cache only: after a power failure, an
    older mark would make corruption look like a torn end, which is truncated."""
    for name in files.listdir(path):
        if name.endswith(SEGMENT_SUFFIX):
            with suppress(OSError):
                files.open(f"{path}/{name}").flush()


def read_slice(data: FileSlice | bytes) -> bytes:
    """The bytes of a read, for callers that cannot send a file."""
    if isinstance(data, bytes):
        return data
    return data.file.pread(data.size, data.position)


class DiskLog(DiskLogState):
    """Implements PartitionLog. Not thread-safe: used from one thread."""

    def __init__(
        self, files: Files, directory: str, config: LogConfig, found: RecoveredLog
    ) -> None:
        super().__init__(files, directory, config, found)
        self._reader = LogReader(self)
        self._writer = LogWriter(self)
        self._truncation = LogTruncation(self, self._writer, self._reader)
        self._compaction = LogCompaction(self, self._reader)

    @property
    def last_epoch(self) -> Epoch:
        return self.epochs.last

    @property
    def size_bytes(self) -> int:
        return sum(segment.data_bytes for segment in self.segments)

    def reconfigure(self, config: LogConfig) -> None:
        self._writer.reconfigure(config)

    # ---- writing

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        self._writer.append(data, headers)

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        self._writer.append_control(epoch, kind, payload)

    def begin_flush(self) -> DiskFlush | None:
        return self._writer.begin_flush()

    def end_flush(self, task: FlushTask) -> None:
        self._writer.end_flush(task)

    def truncate(self, index: RaftIndex) -> None:
        self._truncation.truncate(index)

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        self._truncation.reset(start, snapshot)

    def delete_before(self, offset: Offset) -> None:
        self._truncation.delete_before(offset)

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        return self._truncation.retain(now, end_offset)

    # ---- reading

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        return self._reader.read(offset, bytes_max, end_offset)

    def batches(self, offset: Offset) -> Iterator[bytes]:
        return self._reader.batches(offset)

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        return self._reader.headers(offset)

    def begin_check(self, offset: Offset, bytes_max: int) -> SegmentCheck | None:
        return self._reader.begin_check(offset, bytes_max)

    def end_check(self, task: CheckTask) -> Offset:
        return self._reader.end_check(task)

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> Prefetch | None:
        return self._reader.begin_prefetch(offset, bytes_max)

    def chunk_before(self, offset: Offset, bytes_max: int) -> tuple[Offset, int]:
        return self._reader.chunk_before(offset, bytes_max)

    def find_time(self, timestamp: TimestampMs, end_offset: Offset) -> TimestampedOffset | None:
        return self._reader.find_time(timestamp, end_offset)

    def find_max_timestamp(self, end_offset: Offset) -> TimestampedOffset | None:
        return self._reader.find_max_timestamp(end_offset)

    def epoch_at(self, offset: Offset) -> Epoch:
        return self.epochs.at_offset(offset)

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        return self.epochs.end_of(epoch, self.end_offset)

    def index_of(self, offset: Offset) -> RaftIndex:
        return self.control_entries.index_of(offset)

    def offset_of(self, index: RaftIndex) -> Offset:
        return self.control_entries.locate(index)[0]

    def controls(self) -> Sequence[ControlEntry]:
        return self.control_entries.entries

    # ---- compaction

    def compaction_urgency(self, request: CompactionRequest) -> float:
        return self._compaction.urgency(request)

    @property
    def compacted_end(self) -> Offset:
        return self.checkpoint.state.end

    def begin_compaction(self, request: CompactionRequest) -> DiskCompaction | None:
        return self._compaction.begin(request)

    def end_compaction(self, task: CompactionTask, result: CompactionResult) -> bool:
        return self._compaction.end(task, result)

    def take_stale_files(self) -> list[str]:
        return self._compaction.take_stale_files()

    # ---- snapshots

    def save_snapshot(self, offset: Offset, payload: bytes) -> None:
        self.check_usable()
        try:
            save_snapshot(self.files, self.directory, offset, payload)
        except OSError as error:
            raise self.failed(error) from error

    def load_snapshot(self) -> tuple[Offset, bytes] | None:
        return load_snapshot(self.files, self.directory, self.end_offset)

    # ---- close

    def close(self) -> None:
        if self.is_closed:
            return
        self._writer.cancel_fill()
        self._reader.forget()
        if not self.failures:
            self._writer.flush_journal()
        if not self.failures and self.segments and not (self.is_fresh and self.was_clean):
            try:
                self._writer.close_files()
            except OSError as error:
                raise self.failed(error) from error
        self.flushed_offset = self.end_offset
        self._release()

    def discard(self) -> None:
        self._writer.cancel_fill()
        self._reader.forget()
        self._release()

    def _release(self) -> None:
        self.is_closed = True
        self._writer.release()
        for segment in self.segments:
            segment.release()

"""The interface of a partition's log, implemented by DiskLog (disk_log.py).

A log is one sequence of two kinds of entries: record batches, which take up Kafka offsets, and
control entries (election no-ops, membership), which do not. The Raft index counts both: the index
of a record is its offset plus the number of control entries before it.

Nothing here waits, locks or starts a thread. A log is used from one thread; only the run methods
of tasks may run in another.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.log.compaction.job import CompactionRequest, CompactionResult, CompactionTask
from moldau.model.flush import FlushPolicy as FlushPolicy
from moldau.model.ids import Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.model.slices import FileSlice
from moldau.records.batch import BatchHeader


class ControlKind(IntEnum):
    """The kinds of control entries. The numbers are stored."""

    NOOP = 0
    MEMBERSHIP = 1
    TRIM = 2
    """Records below an offset were deleted on request; the payload is that offset."""


class LogConfig(Struct, frozen=True, kw_only=True):
    """The settings of one log. Replaced as a whole when a topic's configuration changes."""

    segment_bytes_max: int = 1024 * 1024 * 1024
    segment_ms_max: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    """-1: no limit."""
    retention_bytes: int = -1
    """-1: no limit."""
    delete_expired: bool = True
    """False where cleanup.policy does not contain `delete`."""
    compact: bool = False
    """cleanup.policy contains `compact`."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long tombstones stay in a compacted log."""
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = (1 << 63) - 1
    dirty_ratio_min: float = 0.5
    flush: FlushPolicy = FlushPolicy.ALWAYS


class ControlEntry(NamedTuple):
    """One entry of the control journal; its position is just before the record at `offset`."""

    epoch: Epoch
    kind: ControlKind
    offset: Offset
    payload: bytes


class LogStart(NamedTuple):
    """What a log must know about the entries below its start."""

    offset: Offset
    control_count: int
    """Control entries below the start; start index = offset + control_count."""
    epoch: Epoch
    """Epoch of the last entry below the start."""
    voters: bytes
    """Payload of the last membership entry below the start; empty if there was none."""


class LogRead(NamedTuple):
    """Whole batches; the first contains the requested offset, or is the next after it."""

    data: FileSlice | bytes
    size: int
    next_offset: Offset = Offset(-1)
    """Where the next read continues; -1 if there was nothing."""
    first_offset: Offset = Offset(-1)
    """Where the first batch begins: at the requested offset, or before it."""


class TimestampedOffset(NamedTuple):
    """A record found by time."""

    offset: Offset
    timestamp: TimestampMs
    epoch: Epoch


class FlushTask(Protocol):
    """One pending flush: made by begin_flush, run in any thread, passed to end_flush."""

    @property
    def is_heavy(self) -> bool:
        """It also writes zeros ahead, up to a megabyte: must not run on the event loop."""
        ...

    @property
    def descriptor(self) -> int | None:
        """Of the file, if `run` would do nothing else than sync this one; None otherwise.

        Who syncs it in another way calls `failed` in place of the exception.
        """
        ...

    def run(self) -> None:
        """Flush the covered bytes to disk. Raises OSError, which must not be retried."""
        ...

    def failed(self, error: OSError) -> None:
        """The sync of `descriptor` failed: the log accepts nothing any more."""
        ...


class CheckTask(Protocol):
    """A checksum check of stored batches: made by begin_check, run in any thread, passed to
    end_check."""

    @property
    def size(self) -> int:
        """Bytes whose checksums matched."""
        ...

    def run(self) -> None: ...


class PrefetchTask(CheckTask, Protocol):
    """Prepares a read: made by begin_prefetch, run in any thread, passed to end_check."""

    @property
    def bytes_max(self) -> int:
        """The read has no more data than this, except for its first batch."""
        ...


class PartitionLog(Protocol):
    """The log of one partition."""

    @property
    def log_id(self) -> LogId:
        """Identifies this log; a log that was lost and created again has another id."""
        ...

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        ...

    @property
    def start(self) -> LogStart:
        """start_offset and what came before it."""
        ...

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record will get."""
        ...

    @property
    def flushed_offset(self) -> Offset:
        """All records below it are on the disk (with flush `always`; otherwise see FlushPolicy)."""
        ...

    @property
    def end_index(self) -> RaftIndex:
        """Raft index that the next entry will get."""
        ...

    @property
    def flushed_index(self) -> RaftIndex:
        """All entries below it, control entries too, are on the disk."""
        ...

    @property
    def last_epoch(self) -> Epoch:
        """Epoch of the last entry of either kind; NO_EPOCH if the log never had one."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def config(self) -> LogConfig: ...

    def reconfigure(self, config: LogConfig) -> None: ...

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        """Write stamped batches at the end, in one write; roll the segment first if that is due.

        The caller has checked them; `headers` describe `data` batch by batch, offsets continue at
        end_offset. Raises StorageError if the write fails; a full disk leaves the log unchanged
        and raises its subclass DiskFullError.
        """
        ...

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        """Add a control entry at the end of the log. It is durable once flushed_index is beyond it,
        with every flush policy; entries that depend on it are not written before that."""
        ...

    def begin_flush(self) -> FlushTask | None:
        """What has to be flushed now, or None. Tasks of one log are run one after another.

        With the policy `interval`, call it every interval; with `never`, from time to time: it
        then returns a task only after a segment was closed, so that the next start after a crash
        does not scan everything.
        """
        ...

    def end_flush(self, task: FlushTask) -> None:
        """Advances flushed_*; ignored for bytes that were truncated in the meantime."""
        ...

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        """Whole batches from the one that contains `offset`, all below `end_offset`.

        At least one batch even if larger than bytes_max, otherwise up to it. Empty at end_offset.
        Raises RefusedError(OFFSET_OUT_OF_RANGE) outside start_offset…end_offset.
        """
        ...

    def batches(self, offset: Offset) -> Iterator[bytes]:
        """Every batch from the one that contains `offset` to the end, for replay."""
        ...

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        """Like `batches`, but only the headers are read."""
        ...

    def chunk_before(self, offset: Offset, bytes_max: int) -> tuple[Offset, int]:
        """For readers that go backwards: a batch boundary about bytes_max before `offset`, and the
        bytes from there to the end of the batch that contains the record before `offset`. At least
        that batch; never beyond the segment that it is in.

        Raises RefusedError(OFFSET_OUT_OF_RANGE) unless start_offset < offset <= end_offset.
        """
        ...

    def find_time(self, timestamp: TimestampMs, end_offset: Offset) -> TimestampedOffset | None:
        """First record below end_offset with at least that timestamp."""
        ...

    def find_max_timestamp(self, end_offset: Offset) -> TimestampedOffset | None:
        """The record with the largest timestamp below end_offset (the first of equals)."""
        ...

    def epoch_at(self, offset: Offset) -> Epoch:
        """Epoch of the record at `offset`; of the last entry, at end_offset."""
        ...

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The largest epoch not above `epoch` and where it ends; the epoch itself and the log start
        if it is older than the log; (NO_EPOCH, -1) if there is no epoch."""
        ...

    def epoch_of(self, index: RaftIndex) -> Epoch:
        """Epoch of the entry at `index`, from just below the start (LogStart.epoch) on."""
        ...

    def index_of(self, offset: Offset) -> RaftIndex:
        """Raft index of the record at `offset`; at end_offset this is end_index."""
        ...

    def offset_of(self, index: RaftIndex) -> Offset:
        """Offset of the record at `index`; for a control entry, of the record after it."""
        ...

    def controls(self) -> Sequence[ControlEntry]:
        """The control entries above the start, oldest first. Their ordinals begin at
        start.control_count; the Raft index of one is its offset plus its ordinal."""
        ...

    def truncate(self, index: RaftIndex) -> None:
        """Durably remove every entry at or above `index`.

        An index inside a batch removes the whole batch: batches are not split.
        """
        ...

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        """Durably drop every entry and restart at `start`, to install a leader's snapshot.

        `snapshot`, if any, is stored as by save_snapshot: after a crash there is either the
        snapshot or the old log.
        """
        ...

    def begin_check(self, offset: Offset, bytes_max: int) -> CheckTask | None:
        """A check of about bytes_max from the batch that contains `offset`; None if no data
        there is flushed."""
        ...

    def end_check(self, task: CheckTask) -> Offset:
        """The offset at which to continue. Raises CorruptionError if a batch is corrupt."""
        ...

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> PrefetchTask | None:
        """A task for a thread, after which a read at `offset` is fast: of batches that were not
        checked since the start, or are not in the page cache. None if there is nothing to do."""
        ...

    def delete_before(self, offset: Offset) -> None:
        """Durably raise start_offset and delete segments that are entirely below it."""
        ...

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        """Delete closed segments below end_offset that retention allows to delete; True if any."""
        ...

    def compaction_urgency(self, request: CompactionRequest) -> float:
        """The dirty ratio of the log, more than 1 if compaction is overdue; 0: nothing to do."""
        ...

    @property
    def compacted_end(self) -> Offset:
        """Below it, this log may lack records that were compacted away here; 0: it lacks none. A
        log that was copied from a compacted one does not know."""
        ...

    def begin_compaction(self, request: CompactionRequest) -> CompactionTask | None:
        """A compaction of all that may be compacted now, or None if it is not due.

        One at a time: an earlier task that was not ended becomes void.
        """
        ...

    def end_compaction(self, task: CompactionTask, result: CompactionResult) -> bool:
        """Atomically and durably replace the compacted segments.

        False, with nothing changed, if the log has changed since. Offsets, epochs and Raft indexes
        stay the same; reads in progress continue in the old files until those are removed
        (take_stale_files).
        """
        ...

    def take_stale_files(self) -> list[str]:
        """Unused files, to be removed by the caller in this order, off the event loop.

        The next open of the log removes any that remain."""
        ...

    def save_snapshot(self, offset: Offset, payload: bytes) -> None:
        """Store state derived from the records below `offset`; the newest two are kept."""
        ...

    def load_snapshot(self) -> tuple[Offset, bytes] | None:
        """The newest intact snapshot not beyond end_offset."""
        ...

    def close(self) -> None:
        """Flush and mark the log clean, so that the next open scans nothing."""
        ...

    def discard(self) -> None:
        """Close the files without flushing: the log is about to be deleted.

        A flush in progress may end later, and is ignored."""
        ...

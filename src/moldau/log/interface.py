"""Owns the interface of a partition's log. Two implementations: disk.py and memory.py.

A log is one sequence made of two kinds of entries: record batches, which take up Kafka offsets,
and control entries (election no-ops, membership), which do not. The Raft index counts both: the
index of a record is its offset plus the number of control entries before it.

Nothing here waits, locks or starts a thread. A caller owns the log from one thread; only
FlushTask.run may run elsewhere.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.log.clean import CleanRequest, CleanResult, CleanTask
from moldau.model.flush import FlushPolicy as FlushPolicy
from moldau.model.ids import Epoch, LogId, Offset, RaftIndex, TimestampMs
from moldau.model.slices import FileSlice
from moldau.records.batch import BatchHeader


class ControlKind(IntEnum):
    """What a control entry says."""

    NOOP = 0
    MEMBERSHIP = 1
    TRIM = 2
    """Records below an offset were deleted on request; the payload says below which."""


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
    """How long a cleaned log still shows that a key is gone."""
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = (1 << 63) - 1
    dirty_ratio_min: float = 0.5
    flush: FlushPolicy = FlushPolicy.ALWAYS


class ControlEntry(NamedTuple):
    """One entry of the control journal; it stands just before the record at `offset`."""

    epoch: Epoch
    kind: ControlKind
    offset: Offset
    payload: bytes


class LogStart(NamedTuple):
    """What a log must still know about the entries below its start."""

    offset: Offset
    control_count: int
    """Control entries below the start; start index = offset + control_count."""
    epoch: Epoch
    """Epoch of the last entry below the start."""
    voters: bytes
    """Payload of the last membership entry below the start; empty if there was none."""


class LogRead(NamedTuple):
    """Whole batches, the first of which contains the offset asked for (or is the next after it)."""

    data: FileSlice | bytes
    size: int
    next_offset: Offset = Offset(-1)
    """Where to read on; -1 if there was nothing."""
    first_offset: Offset = Offset(-1)
    """Where the first batch begins: at the offset asked for, or before it."""


class TimestampedOffset(NamedTuple):
    """A record found by time."""

    offset: Offset
    timestamp: TimestampMs
    epoch: Epoch


class FlushTask(Protocol):
    """One pending flush: made by begin_flush, run in any thread, handed back to end_flush."""

    @property
    def is_heavy(self) -> bool:
        """It also writes ahead, up to a megabyte: better not run on the event loop."""
        ...

    def run(self) -> None:
        """Force the covered bytes to the disk. Raises OSError; the caller never retries."""
        ...


class CheckTask(Protocol):
    """A look at stored batches: made by begin_check, run in any thread, handed to end_check."""

    @property
    def size(self) -> int:
        """Bytes that were found good."""
        ...

    def run(self) -> None: ...


class PartitionLog(Protocol):
    """The log of one partition."""

    @property
    def log_id(self) -> LogId:
        """Which log this is: another one if it was lost and begun anew."""
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
        """All records below it are on the disk (with flush `always`; else see FlushPolicy)."""
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
        """Write stamped batches at the end, in one write; roll the segment first if it is due.

        The caller has checked them; `headers` describe `data` batch by batch, offsets continue at
        end_offset. The bytes are not kept. Raises StorageError if the write fails or is short
        (ENOSPC leaves the log as it was: DiskFullError, a subclass).
        """
        ...

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        """Add a control entry at the end of the log; flushed_index says when it is durable, with
        every flush policy. What would be wrong without it is not written before."""
        ...

    def begin_flush(self) -> FlushTask | None:
        """What has to be flushed now, or None. Tasks of one log are run one after another.

        With the policy `interval` this is to be called every interval, with `never` now and then:
        it then returns a task only after a segment was closed, so that the next start after a
        crash need not scan everything.
        """
        ...

    def end_flush(self, task: FlushTask) -> None:
        """Count the task as done: advances flushed_*; ignored for bytes truncated meanwhile."""
        ...

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        """Whole batches from the one that holds `offset`, all below `end_offset`.

        At least one batch even above bytes_max, otherwise no more than it. Empty at end_offset.
        Raises RefusedError(OFFSET_OUT_OF_RANGE) outside start_offset…end_offset.
        """
        ...

    def batches(self, offset: Offset) -> Iterator[bytes]:
        """Every whole batch from the one that holds `offset` to the end, for replay."""
        ...

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        """As `batches`, but only the headers are read."""
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
        """The largest epoch not above `epoch` and where it ends; the epoch itself and the start, if
        it is older than what is left; (NO_EPOCH, -1) if there are none."""
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
        """Cut every entry at or above `index`, physically and durably (data first, then journal).

        An index inside a batch cuts the whole batch: batches are not split.
        """
        ...

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        """Durably drop every entry and begin anew at `start` (a snapshot of a leader was taken).

        `snapshot`, if any, is kept as by save_snapshot: a crash finds it, or the old log.
        """
        ...

    def begin_check(self, offset: Offset, bytes_max: int) -> CheckTask | None:
        """A look at the stored checksums from the batch that holds `offset` on, about bytes_max;
        None where nothing more is flushed."""
        ...

    def end_check(self, task: CheckTask) -> Offset:
        """Where to go on. Raises CorruptionError if what was looked at is damaged."""
        ...

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> CheckTask | None:
        """A look that makes a read at `offset` a quick one, for a thread: batches that were never
        checked since the start, or that wait on the disk. None where there is nothing to do."""
        ...

    def delete_before(self, offset: Offset) -> None:
        """Raise start_offset durably; unlink segments that lie wholly below it."""
        ...

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        """Delete closed segments below end_offset that the retention settings let go."""
        ...

    def clean_urgency(self, request: CleanRequest) -> float:
        """How urgent a cleaning is: the dirty share of the log, more if it is overdue; 0: not."""
        ...

    def begin_clean(self, request: CleanRequest) -> CleanTask | None:
        """A cleaning of all that may be cleaned now, or None if it is not due.

        One at a time: the task of an earlier call that was not ended counts for nothing.
        """
        ...

    def end_clean(self, task: CleanTask, result: CleanResult) -> bool:
        """Make the outcome of a task the log, atomically and durably.

        False, and all is as it was, if the log changed under it. Offsets, epochs and Raft indexes
        stay; reads under way go on in the old files, until they are removed (take_stale_files).
        """
        ...

    def take_stale_files(self) -> list[str]:
        """Files that are of no more use, to be removed by the caller, in that order, off the loop.

        What is not removed goes when the log is opened next."""
        ...

    def save_snapshot(self, offset: Offset, payload: bytes) -> None:
        """Keep state derived from the records below `offset`; the newest two are kept."""
        ...

    def load_snapshot(self) -> tuple[Offset, bytes] | None:
        """The newest intact snapshot not beyond end_offset."""
        ...

    def close(self) -> None:
        """Flush, trim and mark the log clean, so that the next open scans nothing."""
        ...

    def discard(self) -> None:
        """Let go of the files, flushing and vouching for nothing: the log is about to be deleted.

        A flush that is under way may end later; it counts for nothing."""
        ...

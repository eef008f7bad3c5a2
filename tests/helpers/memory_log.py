"""An in-memory PartitionLog for tests.

It follows the rules of the log on disk (a flush counts only when it is ended, a late one for
truncated bytes is ignored) without segments: retention by time and size drops single batches.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from moldau.log.compaction.job import (
    CompactionCounts,
    CompactionRequest,
    CompactionResult,
    CompactionState,
    CompactionTask,
    Horizon,
)
from moldau.log.compaction.key_map import KeyMap, bytes_for
from moldau.log.compaction.rules import Compactor, FilterOutcome
from moldau.log.control_entries import ControlEntries
from moldau.log.epochs import EpochCache
from moldau.log.interface import (
    CheckTask,
    ControlEntry,
    ControlKind,
    FlushPolicy,
    FlushTask,
    LogConfig,
    LogRead,
    LogStart,
    PrefetchTask,
    TimestampedOffset,
)
from moldau.log.timestamp_lookup import find_in_batch
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import (
    FIRST_LOG,
    NO_EPOCH,
    Epoch,
    LogId,
    Offset,
    RaftIndex,
    TimestampMs,
)
from moldau.records.batch import BatchHeader, crc_matches, read_header
from moldau.records.compact import empty_batch, is_filler

_SNAPSHOTS_KEPT = 2


class MemoryFlush:
    """Nothing to do: memory is as durable as it gets."""

    __slots__ = ("controls", "offset", "truncations")

    def __init__(self, offset: Offset, controls: int, truncations: int) -> None:
        self.offset = offset
        self.controls = controls
        self.truncations = truncations

    @property
    def is_heavy(self) -> bool:
        return False

    @property
    def descriptor(self) -> int | None:
        return None

    def run(self) -> None:
        pass

    def failed(self, error: OSError) -> None:
        raise AssertionError("there is no file to be synced")


class MemoryCheck:
    """A look at some batches."""

    def __init__(self, batches: Sequence[bytes], next_offset: Offset) -> None:
        self._batches = batches
        self.next_offset = next_offset
        self.size = 0
        self.is_damaged = False

    def run(self) -> None:
        for batch in self._batches:
            header = read_header(batch)
            if not crc_matches(batch, 0, header.size, header.crc):
                self.is_damaged = True
                return
            self.size += len(batch)


class MemoryClean:
    """One cleaning: `cleaned` takes the place of `batches`."""

    def __init__(
        self,
        request: CompactionRequest,
        batches: list[tuple[BatchHeader, bytes]],
        start_offset: Offset,
        horizon: Offset,
        barriers: frozenset[Offset],
    ) -> None:
        self.request = request
        self.batches = batches
        self.horizon = horizon
        self.cleaned: list[bytes] = []
        self._start_offset = start_offset
        self._barriers = barriers

    def run(self) -> CompactionResult:
        compactor = Compactor(
            keys=KeyMap(bytes_for(sum(header.record_count for header, _ in self.batches))),
            start_offset=self._start_offset,
            horizon=self.horizon,
            producers=self.request.producers,
            aborted=self.request.aborted,
        )
        for header, batch in self.batches:
            compactor.note_batch(header, batch)
        self.cleaned = []
        for header, batch in self.batches:
            outcome = compactor.filter(header, batch)
            if outcome is FilterOutcome.KEPT:
                self.cleaned.append(batch)
            elif isinstance(outcome, bytes):
                self.cleaned.append(outcome)
            else:
                self._drop(header)
        counts = CompactionCounts(
            bytes_read=sum(len(batch) for _, batch in self.batches),
            bytes_written=sum(map(len, self.cleaned)),
            records_read=compactor.records_read,
            records_dropped=compactor.records_dropped,
        )
        return CompactionResult([], compactor.end_offset, compactor.delayed, counts)

    def _drop(self, header: BatchHeader) -> None:
        """Only the offsets stay; with those before them, if nothing stands between."""
        base, time = header.base_offset, header.max_timestamp
        last = read_header(self.cleaned[-1]) if self.cleaned else None
        if (
            self.request.merges
            and last is not None
            and is_filler(last)
            and last.leader_epoch == header.leader_epoch
            and last.base_offset >= self._start_offset
            and base not in self._barriers
        ):
            base, time = last.base_offset, max(time, last.max_timestamp)
            self.cleaned.pop()
        self.cleaned.append(empty_batch(base, header.next_offset, header.leader_epoch, time))


class MemoryLog:
    """A log in two lists: batches and their headers."""

    def __init__(self, config: LogConfig | None = None, log_id: LogId = FIRST_LOG) -> None:
        self.log_id = log_id
        self._config = config or LogConfig()
        self._headers: list[BatchHeader] = []
        self._bases: list[Offset] = []
        self._batches: list[bytes] = []
        self._start = LogStart(Offset(0), 0, NO_EPOCH, b"")
        self._end = Offset(0)
        self._flushed = Offset(0)
        self._controls = ControlEntries()
        self._controls_flushed = 0
        self._epochs = EpochCache()
        self._truncations = 0
        self._size = 0
        self._snapshots: list[tuple[Offset, bytes]] = []
        self._cleaned = CompactionState()

    # ---- state

    @property
    def start(self) -> LogStart:
        return self._start

    @property
    def start_offset(self) -> Offset:
        return self._start.offset

    @property
    def end_offset(self) -> Offset:
        return self._end

    @property
    def flushed_offset(self) -> Offset:
        return self._flushed

    @property
    def end_index(self) -> RaftIndex:
        return RaftIndex(self._end + self._controls.count)

    @property
    def flushed_index(self) -> RaftIndex:
        index = self._controls.index_of(self._flushed)
        if self._controls_flushed >= self._controls.count:
            return index
        return min(index, RaftIndex(self._controls.last_offset + self._controls_flushed))

    @property
    def last_epoch(self) -> Epoch:
        return self._epochs.last

    @property
    def size_bytes(self) -> int:
        return self._size

    @property
    def config(self) -> LogConfig:
        return self._config

    def reconfigure(self, config: LogConfig) -> None:
        self._config = config
        self._count_unflushed()

    # ---- writing

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        position = 0
        for header in headers:
            batch = bytes(data[position : position + header.size])
            position += header.size
            self._epochs.begin(header.leader_epoch, self.end_index, header.base_offset)
            self._headers.append(header)
            self._bases.append(header.base_offset)
            self._batches.append(batch)
            self._end = header.next_offset
        self._size += position
        self._count_unflushed()

    def append_control(self, epoch: Epoch, kind: ControlKind, payload: bytes) -> None:
        # As on the disk: only the last one may be waiting for its flush.
        self._controls_flushed = self._controls.count
        self._epochs.begin(epoch, self.end_index, self._end)
        self._controls.append(ControlEntry(epoch, kind, self._end, payload))

    def _count_unflushed(self) -> None:
        if self._config.flush is not FlushPolicy.ALWAYS:
            self._flushed = self._end

    def begin_flush(self) -> FlushTask | None:
        if self._flushed == self._end and self._controls_flushed >= self._controls.count:
            return None
        return MemoryFlush(self._end, self._controls.count, self._truncations)

    def end_flush(self, task: FlushTask) -> None:
        if not isinstance(task, MemoryFlush):
            raise TypeError(f"{task!r} was not begun by this log")
        if task.truncations == self._truncations:
            self._flushed = max(self._flushed, task.offset)
            self._controls_flushed = max(self._controls_flushed, task.controls)

    # ---- reading

    def _place(self, offset: Offset) -> int:
        """Number of the batch that holds `offset`, or of the next one."""
        place = bisect_right(self._bases, offset) - 1
        if place < 0 or self._headers[place].next_offset <= offset:
            place += 1
        return place

    def _check_range(self, offset: Offset, end_offset: Offset) -> None:
        if not self._start.offset <= offset <= end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self._start.offset} to {end_offset}",
            )

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        self._check_range(offset, end_offset)
        first = place = self._place(offset)
        taken: list[bytes] = []
        size = 0
        while place < len(self._batches) and self._headers[place].next_offset <= end_offset:
            batch = self._batches[place]
            if taken and size + len(batch) > bytes_max:
                break
            taken.append(batch)
            size += len(batch)
            place += 1
        if not taken:
            return LogRead(b"", 0)
        next_offset = self._headers[place - 1].next_offset
        return LogRead(b"".join(taken), size, next_offset, self._bases[first])

    def batches(self, offset: Offset) -> Iterator[bytes]:
        yield from self._batches[self._place(offset) :]

    def headers(self, offset: Offset) -> Iterator[BatchHeader]:
        yield from self._headers[self._place(offset) :]

    def begin_check(self, offset: Offset, bytes_max: int) -> MemoryCheck | None:
        if not self.start_offset <= offset < self._flushed:
            return None
        first = last = self._place(offset)
        size = 0
        while last < len(self._batches) and size < bytes_max:
            size += len(self._batches[last])
            last += 1
        return MemoryCheck(self._batches[first:last], self._headers[last - 1].next_offset)

    def end_check(self, task: CheckTask) -> Offset:
        if not isinstance(task, MemoryCheck):
            raise TypeError(f"{task!r} was not begun by this log")
        if task.is_damaged:
            raise CorruptionError("a batch fails its checksum")
        return task.next_offset

    def begin_prefetch(self, offset: Offset, bytes_max: int) -> PrefetchTask | None:
        return None

    def chunk_before(self, offset: Offset, bytes_max: int) -> tuple[Offset, int]:
        if not self.start_offset < offset <= self.end_offset:
            raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
        place = self._place(Offset(offset - 1))
        size = len(self._batches[place])
        while (
            place > 0
            and size < bytes_max
            and self._headers[place - 1].next_offset > (self.start_offset)
        ):
            place -= 1
            size += len(self._batches[place])
        return max(self._bases[place], self.start_offset), size

    def find_time(self, timestamp: TimestampMs, end_offset: Offset) -> TimestampedOffset | None:
        for place in range(self._place(self._start.offset), len(self._batches)):
            header = self._headers[place]
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp >= timestamp:
                found = find_in_batch(
                    self._batches[place], timestamp, self._start.offset, end_offset
                )
                if found is not None:
                    return found
        return None

    def find_max_timestamp(self, end_offset: Offset) -> TimestampedOffset | None:
        best: tuple[TimestampMs, int] | None = None
        for place in range(self._place(self._start.offset), len(self._batches)):
            header = self._headers[place]
            if header.next_offset > end_offset:
                break
            if header.record_count and (best is None or header.max_timestamp > best[0]):
                best = (header.max_timestamp, place)
        if best is None:
            return None
        return find_in_batch(self._batches[best[1]], best[0], Offset(0), end_offset)

    def epoch_at(self, offset: Offset) -> Epoch:
        return self._epochs.at_offset(offset)

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        return self._epochs.end_of(epoch, self._end)

    def epoch_of(self, index: RaftIndex) -> Epoch:
        if index == self._start.offset + self._start.control_count - 1:
            return self._start.epoch
        return self._epochs.at_index(index)

    def index_of(self, offset: Offset) -> RaftIndex:
        return self._controls.index_of(offset)

    def offset_of(self, index: RaftIndex) -> Offset:
        return self._controls.locate(index)[0]

    def controls(self) -> Sequence[ControlEntry]:
        return self._controls.entries

    # ---- truncation

    def truncate(self, index: RaftIndex) -> None:
        offset, count = self._controls.locate(index)
        place = self._place(offset)
        if place < len(self._bases) and self._bases[place] < offset:
            offset = self._bases[place]
            count = self._controls.before(offset)
        if offset >= self._end and count >= self._controls.count:
            return
        if offset < self._start.offset or count < self._start.control_count:
            raise ValueError(f"cannot truncate to {index}, below the start of the log")
        self._truncations += 1
        self._size -= sum(len(batch) for batch in self._batches[place:])
        del self._batches[place:], self._headers[place:], self._bases[place:]
        self._end = min(self._end, offset)
        self._flushed = min(self._flushed, self._end)
        self._controls.truncate(count)
        self._controls_flushed = count
        self._epochs.truncate(RaftIndex(offset + count), self._start.epoch)
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot[0] <= self._end]
        self._cleaned = self._cleaned.clipped(self._end)

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        self._truncations += 1
        self._headers, self._bases, self._batches = [], [], []
        self._start = start
        self._end = self._flushed = start.offset
        self._controls = ControlEntries(start.control_count)
        self._controls_flushed = start.control_count
        self._epochs = EpochCache()
        index = RaftIndex(start.offset + start.control_count)
        self._epochs.begin(start.epoch, index, start.offset)
        self._size = 0
        self._snapshots = [(start.offset, snapshot)] if snapshot else []

    def delete_before(self, offset: Offset) -> None:
        if offset <= self._start.offset:
            return
        if offset > self._end:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"cannot delete to {offset}, beyond {self._end}"
            )
        count = self._controls.below(offset)
        index = RaftIndex(offset + count)
        self._start = LogStart(
            offset,
            count,
            self.epoch_of(RaftIndex(index - 1)),
            self._controls.voters_before(count, self._start.voters),
        )
        self._controls.drop_below(count)
        self._controls_flushed = max(self._controls_flushed, count)
        self._epochs.drop_below(index, offset)
        place = self._place(offset)
        self._size -= sum(len(batch) for batch in self._batches[:place])
        del self._batches[:place], self._headers[:place], self._bases[:place]

    def retain(self, now: TimestampMs, end_offset: Offset) -> bool:
        if not self._config.delete_expired:
            return False
        keep_from = self._start.offset
        size = self._size
        for header in self._headers:
            too_old = (
                0 <= self._config.retention_ms < now - header.max_timestamp
                and header.max_timestamp >= 0
            )
            too_large = (
                self._config.retention_bytes >= 0
                and size - header.size >= self._config.retention_bytes
            )
            if header.next_offset > end_offset or not (too_old or too_large):
                break
            keep_from = header.next_offset
            size -= header.size
        changed = keep_from > self._start.offset
        self.delete_before(keep_from)
        return changed

    # ---- compaction

    def compaction_urgency(self, request: CompactionRequest) -> float:
        return 1.0 if self._config.compact and self._compactable(request) else 0.0

    @property
    def compacted_end(self) -> Offset:
        return self._cleaned.end

    def _compactable(self, request: CompactionRequest) -> int:
        """How many batches may be cleaned now; 0 if none of them is dirty."""
        limit = min(request.end_offset, self._flushed)
        if request.first_unstable is not None:
            limit = min(limit, request.first_unstable)
        limit = max(limit, self._cleaned.end)
        newest = request.now - self._config.compaction_lag_ms_min
        count = 0
        for header in self._headers:
            is_dirty = header.next_offset > self._cleaned.first_dirty
            if header.next_offset > limit or (is_dirty and header.max_timestamp > newest):
                break
            count += 1
        horizon = self._cleaned.horizon(request, self._config.delete_retention_ms)
        dirty = count and self._headers[count - 1].next_offset > self._cleaned.first_dirty
        delayed = self._cleaned.delayed and horizon >= self._cleaned.first_dirty
        return count if dirty or delayed else 0

    def begin_compaction(self, request: CompactionRequest) -> MemoryClean | None:
        count = self._compactable(request) if self._config.compact else 0
        if not count:
            return None
        horizon = self._cleaned.horizon(request, self._config.delete_retention_ms)
        batches = list(zip(self._headers[:count], self._batches[:count], strict=True))
        barriers = frozenset(entry.offset for entry in self._controls.entries)
        return MemoryClean(request, batches, self._start.offset, horizon, barriers)

    def end_compaction(self, task: CompactionTask, result: CompactionResult) -> bool:
        if not isinstance(task, MemoryClean):
            raise TypeError(f"{task!r} was not begun by this log")
        count = len(task.batches)
        if self._batches[:count] != [batch for _, batch in task.batches]:
            return False
        batches = task.cleaned
        headers = [read_header(batch) for batch in batches]
        self._size += sum(map(len, batches)) - sum(map(len, self._batches[:count]))
        self._batches[:count] = batches
        self._headers[:count] = headers
        self._bases[:count] = [header.base_offset for header in headers]
        marks = [mark for mark in self._cleaned.horizons if mark.offset >= task.horizon]
        if not marks or marks[-1].offset < result.first_dirty:
            marks.append(Horizon(result.first_dirty, task.request.now))
        self._cleaned = CompactionState(
            end=result.first_dirty,
            first_dirty=result.first_dirty,
            delayed=result.delayed,
            horizons=tuple(marks),
        )
        return True

    def take_stale_files(self) -> list[str]:
        return []

    # ---- snapshots

    def save_snapshot(self, offset: Offset, payload: bytes) -> None:
        kept = [snapshot for snapshot in self._snapshots if snapshot[0] != offset]
        self._snapshots = sorted([*kept, (offset, payload)])[-_SNAPSHOTS_KEPT:]

    def load_snapshot(self) -> tuple[Offset, bytes] | None:
        return self._snapshots[-1] if self._snapshots else None

    def close(self) -> None:
        self._flushed = self._end

    def discard(self) -> None:
        # A flush that ends later counts for nothing.
        self._truncations += 1

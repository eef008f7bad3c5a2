"""A partition's log as its Raft group uses it: the core's view, and entries in and out.

A Raft index counts record offsets and control entries alike. Entries are sent from the files
without being decoded, and received as the parts of an Append.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.log.disk_log import read_slice
from moldau.log.interface import ControlEntry, ControlKind, LogStart, PartitionLog, PrefetchTask
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset, RaftIndex
from moldau.model.slices import Chunk, FileSlice
from moldau.net.socket_writer import SENDFILE_BYTES_MIN
from moldau.raft.membership import Members, decode_members
from moldau.records.batch import BatchHeader
from moldau.records.compact import is_filler
from moldau.replica.filler_batches import trim_front
from moldau.replica.peer_codec import (
    BatchRun,
    Part,
    encode_batches_head,
    encode_control,
)

_OWN_KINDS: Final = (ControlKind.NOOP, ControlKind.MEMBERSHIP)


_KEPT_BYTES_MAX: Final = SENDFILE_BYTES_MIN
"""Largest last read that is kept: reads up to this size are in memory, and hold no file open."""


class EncodedEntries(NamedTuple):
    """Encoded entries, ready to be sent."""

    chunks: list[Chunk]
    size: int
    end: RaftIndex
    has_files: bool
    """Whether slices of files are among the chunks."""


class GroupLog:
    """LogView over a PartitionLog; reads entries to send, and stores received ones."""

    def __init__(self, log: PartitionLog, initial: Members) -> None:
        """`initial`: the members while the log contains no membership entry."""
        self.log = log
        self._initial = initial
        self._start: LogStart | None = None
        self._start_index = RaftIndex(0)
        self._last_read: tuple[RaftIndex, int, RaftIndex, EncodedEntries] | None = None

    # ---- for the core

    @property
    def start_index(self) -> RaftIndex:
        start = self.log.start
        if start is not self._start:
            self._start = start
            first = next(self.log.headers(start.offset), None)
            offset = start.offset if first is None else min(start.offset, first.base_offset)
            self._start_index = RaftIndex(offset + start.control_count)
        return self._start_index

    @property
    def end_index(self) -> RaftIndex:
        return self.log.end_index

    @property
    def flushed_index(self) -> RaftIndex:
        return self.log.flushed_index

    @property
    def last_epoch(self) -> Epoch:
        return self.log.last_epoch

    def epoch_of(self, index: RaftIndex) -> Epoch:
        start = self.log.start
        if index < start.offset + start.control_count:
            return start.epoch
        return self.log.epoch_of(index)

    def boundary(self, index: RaftIndex) -> RaftIndex:
        if index >= self.log.end_index or self._control_at(index) is not None:
            return index
        offset = self.log.offset_of(index)
        header = next(self.log.headers(offset))
        if is_filler(header):
            # A filler can be split at any index.
            return index
        return RaftIndex(index - (offset - header.base_offset))

    def members(self, before: RaftIndex) -> tuple[RaftIndex, Members]:
        start = self.log.start
        controls = self.log.controls()
        for ordinal in range(len(controls) - 1, -1, -1):
            control = controls[ordinal]
            index = RaftIndex(control.offset + start.control_count + ordinal)
            if control.kind is ControlKind.MEMBERSHIP and index < before:
                return index, decode_members(control.payload)
        if start.voters:
            return RaftIndex(-1), decode_members(start.voters)
        return RaftIndex(-1), self._initial

    def snapshot_start(self) -> LogStart:
        """Where a follower that needs a snapshot begins: at a batch boundary, as start_index."""
        start = self.log.start
        return start._replace(offset=Offset(self.start_index - start.control_count))

    # ---- control entries

    def _index_of_control(self, place: int) -> RaftIndex:
        start = self.log.start
        return RaftIndex(self.log.controls()[place].offset + start.control_count + place)

    def _first_control(self, index: RaftIndex) -> int:
        """Position of the first control entry at or above `index`."""
        count = len(self.log.controls())
        # Usually the last entries are read, with no control entry among them.
        if not count or index > self._index_of_control(count - 1):
            return count
        return bisect_left(range(count), index, key=self._index_of_control)

    def _control_at(self, index: RaftIndex) -> ControlEntry | None:
        place = self._first_control(index)
        controls = self.log.controls()
        if place < len(controls) and self._index_of_control(place) == index:
            return controls[place]
        return None

    def owner_controls(
        self, start: RaftIndex, end: RaftIndex
    ) -> list[tuple[RaftIndex, ControlEntry]]:
        """Control entries in that range, without those of Raft itself."""
        found = []
        controls = self.log.controls()
        for place in range(self._first_control(start), len(controls)):
            index = self._index_of_control(place)
            if index >= end:
                break
            if controls[place].kind not in _OWN_KINDS:
                found.append((index, controls[place]))
        return found

    # ---- entries out

    def read(self, start: RaftIndex, bytes_max: int) -> EncodedEntries:
        """Entries from `start` on: about bytes_max, but at least one if there is one."""
        last = self._last_read
        end = self.log.end_index
        if last is not None and last[0] == start and last[1] == bytes_max and last[2] == end:
            return last[3]
        reading = self._read(start, bytes_max)
        # All followers that keep up are sent the same entries.
        is_small = reading.size <= _KEPT_BYTES_MAX
        self._last_read = (start, bytes_max, end, reading) if is_small else None
        return reading

    def begin_prefetch(self, start: RaftIndex, bytes_max: int) -> PrefetchTask | None:
        """A look, for a thread, that makes a read from `start` on a quick one; mostly None."""
        last = self._last_read
        if last is not None and last[0] == start:
            return None
        return self.log.begin_prefetch(self.log.offset_of(start), bytes_max)

    def forget_read(self) -> None:
        """Read from disk again, even what was just read."""
        self._last_read = None

    def _read(self, start: RaftIndex, bytes_max: int) -> EncodedEntries:
        log = self.log
        chunks: list[Chunk] = []
        size = 0
        index = start
        has_files = False
        end_index = log.end_index
        controls = log.controls()
        place = self._first_control(start)
        while index < end_index and (size < bytes_max or not chunks):
            if place < len(controls) and self._index_of_control(place) == index:
                control = controls[place]
                data = encode_control(control.kind, control.epoch, control.payload)
                chunks.append(data)
                size += len(data)
                index = RaftIndex(index + 1)
                place += 1
                continue
            offset = max(log.offset_of(index), log.start_offset)
            if chunks and log.begin_prefetch(offset, bytes_max - size) is not None:
                # The next Append, for which a thread reads it first.
                break
            limit = controls[place].offset if place < len(controls) else log.end_offset
            read = log.read(offset, max(1, bytes_max - size), limit)
            if not read.size:
                raise CorruptionError(f"no batch at offset {offset} of a log that ends at {limit}")
            pieces: list[Chunk] = [read.data]
            read_bytes = read.size
            if index == start and read.first_offset < log.offset_of(index):
                pieces, read_bytes = trim_front(read, log.offset_of(index))
            head = encode_batches_head(read_bytes)
            chunks.append(head)
            # Small pieces are read now: the log may be truncated before the socket sends them.
            is_small = read_bytes < SENDFILE_BYTES_MIN
            has_files = has_files or not is_small
            chunks += [
                read_slice(piece) if is_small and isinstance(piece, FileSlice) else piece
                for piece in pieces
            ]
            size += len(head) + read_bytes
            index = RaftIndex(read.next_offset + log.start.control_count + place)
        return EncodedEntries(chunks, size, index, has_files)

    # ---- entries in

    def truncate(self, end: RaftIndex) -> None:
        self._last_read = None
        self.log.truncate(end)

    def reset(self, start: LogStart, snapshot: bytes = b"") -> None:
        """Drop every entry and begin at `start`, with the leader's snapshot for it."""
        self._last_read = None
        self.log.reset(start, snapshot)

    def store(self, parts: Sequence[Part], start: RaftIndex) -> tuple[int, list[BatchHeader]]:
        """Append the entries from `start` on; returns bytes and headers of the batches.

        Raises CorruptionError if they do not continue this log, StorageError.
        """
        size = 0
        stored: list[BatchHeader] = []
        for part in parts:
            if isinstance(part, BatchRun):
                headers, data = _from(part, start)
                if not headers:
                    continue
                if headers[0].base_offset != self.log.end_offset:
                    raise CorruptionError(
                        f"entry {start} has offset {headers[0].base_offset} on the leader, "
                        f"but {self.log.end_offset} here"
                    )
                self.log.append(data, headers)
                size += len(data)
                stored += headers
            elif part.start >= start:
                self.log.append_control(part.epoch, part.kind, part.payload)
        return size, stored


def _from(run: BatchRun, start: RaftIndex) -> tuple[list[BatchHeader], memoryview]:
    """The batches of a run that begin at or above `start`."""
    if run.start >= start:
        return run.headers, run.data
    index, position = run.start, 0
    for place, header in enumerate(run.headers):
        if index >= start:
            return run.headers[place:], run.data[position:]
        index = RaftIndex(index + header.last_offset_delta + 1)
        position += header.size
    return [], run.data[:0]

"""Owns entries as they travel from one simulated log to another, with what identifies them."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.log.disk import read_slice
from moldau.log.interface import ControlEntry, ControlKind, PartitionLog
from moldau.model.errors import CorruptionError
from moldau.model.ids import RaftIndex
from moldau.model.slices import Chunk, FileSlice
from moldau.raft.membership import decode_members
from moldau.raft.messages import Entry
from moldau.records.batch import BatchHeader
from moldau.replica.fillers import trim_front
from moldau.testing.logs import headers_of

CONTROL_BYTES = 32
"""What a control entry counts in a message, beside its payload."""


class Item(NamedTuple):
    """One entry with its bytes."""

    entry: Entry
    kind: ControlKind | None
    """None: a record batch."""
    data: bytes
    """The batch, or the control entry's payload."""
    header: BatchHeader | None

    @property
    def identity(self) -> tuple[int, ...] | bytes:
        """Equal for equal content."""
        if self.header is None:
            return self.data
        return (self.header.producer_id, self.header.crc, self.header.size)


def _index_of_control(log: PartitionLog, ordinal: int) -> RaftIndex:
    return RaftIndex(log.controls()[ordinal].offset + log.start.control_count + ordinal)


def control_at(log: PartitionLog, index: RaftIndex) -> ControlEntry | None:
    """The control entry at `index`; None if a record is there."""
    controls = log.controls()
    place = _first_control(log, index)
    if place < len(controls) and _index_of_control(log, place) == index:
        return controls[place]
    return None


def _first_control(log: PartitionLog, index: RaftIndex) -> int:
    """Number of the first control entry at or above `index`."""
    controls = log.controls()
    if not controls or index > _index_of_control(log, len(controls) - 1):
        return len(controls)
    low, high = 0, len(controls)
    while low < high:
        middle = (low + high) // 2
        if _index_of_control(log, middle) < index:
            low = middle + 1
        else:
            high = middle
    return low


def read_items(log: PartitionLog, start: RaftIndex, bytes_max: int) -> list[Item]:
    """Entries from `start` on, about bytes_max of them, but at least one if there is one."""
    items: list[Item] = []
    size = 0
    index = start
    end_index = log.end_index
    controls = log.controls()
    place = _first_control(log, start)
    while index < end_index and (size < bytes_max or not items):
        if place < len(controls) and _index_of_control(log, place) == index:
            items.append(control_item(index, controls[place]))
            size += CONTROL_BYTES + len(controls[place].payload)
            index = RaftIndex(index + 1)
            place += 1
            continue
        offset = max(log.offset_of(index), log.start_offset)
        limit = controls[place].offset if place < len(controls) else log.end_offset
        read = log.read(offset, max(1, bytes_max - size), limit)
        if not read.size:
            raise CorruptionError(f"nothing at offset {offset} of a log up to {limit}")
        pieces: list[Chunk] = [read.data]
        if index == start and read.first_offset < log.offset_of(index):
            pieces, _ = trim_front(read, log.offset_of(index))
        data = b"".join(
            read_slice(piece) if isinstance(piece, FileSlice) else piece for piece in pieces
        )
        for item in batch_items(index, data):
            items.append(item)
            index = item.entry.end
        size += read.size
    return items


def control_item(index: RaftIndex, control: ControlEntry) -> Item:
    is_membership = control.kind is ControlKind.MEMBERSHIP
    members = decode_members(control.payload) if is_membership else None
    entry = Entry(index, RaftIndex(index + 1), control.epoch, members)
    return Item(entry, control.kind, control.payload, None)


def batch_items(index: RaftIndex, data: bytes) -> list[Item]:
    """Batches that follow each other in the log, the first of them at `index`."""
    items = []
    position = 0
    for header in headers_of(data):
        end = RaftIndex(index + header.last_offset_delta + 1)
        batch = data[position : position + header.size]
        items.append(Item(Entry(index, end, header.leader_epoch), None, batch, header))
        position += header.size
        index = end
    return items


def write_items(log: PartitionLog, items: Sequence[Item]) -> None:
    """Append entries of another log, batches that follow each other in one write."""
    run: list[Item] = []
    for item in items:
        if item.kind is None:
            run.append(item)
            continue
        _write_batches(log, run)
        run = []
        log.append_control(item.entry.epoch, item.kind, item.data)
    _write_batches(log, run)


def _write_batches(log: PartitionLog, run: Sequence[Item]) -> None:
    if run:
        headers = [item.header for item in run if item.header is not None]
        log.append(b"".join(item.data for item in run), headers)

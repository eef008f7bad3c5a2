"""Splits fillers, the empty batches that compaction leaves in place of several removed ones.

Every replica compacts its log independently, so a batch boundary of one log may lie inside a filler
of another. All of it is committed, so the logs do not contradict each other. A filler holds only
offsets and an epoch and can be split anywhere: when it is sent, where the reader's log ends inside
it, and when it is received, where this log ends or has another epoch.
"""

from typing import Final

from moldau.log.disk_log import read_slice
from moldau.log.interface import LogRead, PartitionLog
from moldau.model.ids import Offset, RaftIndex
from moldau.model.slices import Chunk, FileSlice
from moldau.raft.messages import AppendRequest, EntryInfo
from moldau.records.batch import HEADER_BYTES, BatchHeader, read_header
from moldau.records.compact import is_filler, split_empty
from moldau.replica.peer_codec import BatchRun, Part, RaftEnvelope

_RIGHT: Final = 1


def trim_front(read: LogRead, offset: Offset) -> tuple[list[Chunk], int]:
    """Chunks and size of a read that must begin at `offset`, inside its first batch.

    A batch that is not a filler is left whole: the reader will reject it.
    """
    data = read.data
    head = read_slice(
        FileSlice(data.file, data.position, HEADER_BYTES)
        if isinstance(data, FileSlice)
        else data[:HEADER_BYTES]
    )
    header = read_header(head)
    if not is_filler(header) or not header.base_offset < offset < header.next_offset:
        return [data], read.size
    part = split_empty(header, offset)[_RIGHT]
    rest = read.size - header.size
    chunks: list[Chunk] = [part]
    if rest:
        chunks.append(
            FileSlice(data.file, data.position + header.size, rest)
            if isinstance(data, FileSlice)
            else data[header.size :]
        )
    return chunks, len(part) + rest


def split_fillers(envelope: RaftEnvelope, log: PartitionLog) -> RaftEnvelope:
    """Split the filler that is only partly new to `log`, if there is one.

    All batches after it are new, so one split is enough.
    """
    message = envelope.message
    if (
        not isinstance(message, AppendRequest)
        or message.start >= log.end_index
        or not message.entries
    ):
        return envelope
    parts: list[Part] = []
    split_at: RaftIndex | None = None
    for part in envelope.parts:
        if split_at is None and isinstance(part, BatchRun):
            part, split_at = _split_run(part, log)
        parts.append(part)
    if split_at is None:
        return envelope
    entries: list[EntryInfo] = []
    for entry in message.entries:
        if entry.start < split_at < entry.end:
            entries += (entry._replace(end=split_at), entry._replace(start=split_at))
        else:
            entries.append(entry)
    return envelope._replace(message=message._replace(entries=tuple(entries)), parts=tuple(parts))


def _split_run(run: BatchRun, log: PartitionLog) -> tuple[BatchRun, RaftIndex | None]:
    """The run, and the index at which one of its batches was split, if one was."""
    index, position = run.start, 0
    for place, header in enumerate(run.headers):
        if index >= log.end_index:
            break
        end = RaftIndex(index + header.last_offset_delta + 1)
        split_at = split_index(header, index, end, log) if is_filler(header) else None
        if split_at is not None:
            halves = split_empty(header, Offset(header.base_offset + split_at - index))
            data = b"".join((run.data[:position], *halves, run.data[position + header.size :]))
            headers = [*run.headers[:place], *map(read_header, halves), *run.headers[place + 1 :]]
            return BatchRun(run.start, headers, memoryview(data)), split_at
        index = end
        position += header.size
    return run, None


def split_index(
    header: BatchHeader, index: RaftIndex, end: RaftIndex, log: PartitionLog
) -> RaftIndex | None:
    """First index inside a filler at which this log ends or has another epoch."""
    start = log.start
    low = max(index, RaftIndex(start.offset + start.control_count))
    high = min(end, log.end_index)
    if low >= high or log.epoch_of(low) != header.leader_epoch:
        return None
    # Epochs never decrease along a log, so a binary search finds the first other one.
    while high - low > 1:
        middle = RaftIndex((low + high) // 2)
        if log.epoch_of(middle) == header.leader_epoch:
            low = middle
        else:
            high = middle
    return high if index < high < end else None

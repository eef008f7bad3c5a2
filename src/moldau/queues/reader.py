"""Owns what a queue has read of its partition: what is next, and what is out and may come back.

Each batch is taken apart once. What was read ahead waits for the next polls; what was delivered is
kept for a while, within bounds, and read again by its offset if it comes back later. Only what is
committed is read: nothing above the last stable offset, no markers, nothing that was aborted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from moldau.data.stored_batches import bytes_in, bytes_of, open_batch, stored_batches
from moldau.groups.queue.commands import LogMessage, LogSlice
from moldau.groups.queue.delay_buckets import DelayBucket
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_AT_HEADER, ONLY_GROUP_HEADER
from moldau.model.slices import FileSlice
from moldau.queues.limits import QueueLimits
from moldau.records.batch import BatchFormatError, BatchHeader, crc_matches
from moldau.records.compression import Codec
from moldau.records.record import Headers, Record
from moldau.replica.aborted_transactions import AbortedTransaction
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_RECORD_BYTES: Final = 64
"""What a record takes beside its bytes, about."""
_OBJECT_BYTES: Final = 320
"""What the objects of an entry take beside that, which only counts where there are many queues."""
_TIME_DIGITS_MAX: Final = 19
_TIME_MAX: Final = 2**63 - 1
_INLINE_BYTES_MAX: Final = 256 * 1024
"""A batch that is larger, or compressed, is taken apart in a thread."""


# What a NamedTuple's own constructor does, without its call.
_new = tuple.__new__


class LoadedMessage(NamedTuple):
    """A message that was read."""

    message: LogMessage
    record: Record
    size: int


class PollOffer(NamedTuple):
    """What is offered to one poll: a stretch of what was read ahead."""

    read: LogSlice
    ready_count: int
    """Messages in it that are to be had now."""
    is_cut: bool
    """One more would be to be had, but is too large."""


def size_of(record: Record) -> int:
    return _RECORD_BYTES + bytes_in(record)


def deliver_at(headers: Headers) -> TimestampMs:
    """What the message says; a value that is no time counts as none."""
    found = NO_TIMESTAMP
    for name, value in headers:
        if name == DELIVER_AT_HEADER:
            found = NO_TIMESTAMP
            if value is not None and value.isdigit() and len(value) <= _TIME_DIGITS_MAX:
                found = TimestampMs(min(int(value), _TIME_MAX))
    return found


def is_for(group: bytes, headers: Headers) -> bool:
    """Whether it is for all queue groups, or for this one."""
    return all(name != ONLY_GROUP_HEADER or value == group for name, value in headers)


class QueueReader:
    """Of one queue, as long as this broker leads the partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica,
        limits: QueueLimits,
        group: str = "",
    ) -> None:
        self._group = group.encode()
        self._loop = loop
        self._replica = replica
        self._limits = limits
        self._ahead: deque[LoadedMessage] = deque()
        self._first = self._end = Offset(0)
        self._ahead_bytes = 0
        self._out: dict[Offset, LoadedMessage] = {}
        self._out_bytes = 0
        self.is_to_forget = False
        """Set by others, who need the room."""

    @property
    def held_bytes(self) -> int:
        """What it takes up, about."""
        count = len(self._ahead) + len(self._out)
        return self._ahead_bytes + self._out_bytes + count * _OBJECT_BYTES

    def forget_if_told(self) -> None:
        """Only between two rounds: in one, what was read must join what was read before."""
        if self.is_to_forget:
            self.is_to_forget = False
            self._ahead.clear()
            self._out.clear()
            self._ahead_bytes = self._out_bytes = 0
            self._end = self._first

    # ---- what is next

    @property
    def ahead_count(self) -> int:
        return len(self._ahead)

    def align(self, position: Offset) -> None:
        """The queue is at `position` now: what lies before was delivered, or is none of its."""
        if not self._first <= position <= self._end:
            self._ahead.clear()
            self._ahead_bytes = 0
            self._first = self._end = position
            return
        ahead = self._ahead
        while ahead and ahead[0].message.offset < position:
            self._ahead_bytes -= ahead.popleft().size
        self._first = position

    async def read_on(self, count: int) -> None:
        """Have `count` messages ahead, if there are so many and they are not too large or too far.

        Raises RefusedError, CorruptionError.
        """
        for reads in range(self._limits.reads_per_round_max):
            if len(self._ahead) >= count or self._ahead_bytes >= self._limits.ahead_bytes_max:
                return
            if reads:
                # There may be gigabytes without a message.
                await asyncio.sleep(0)
            position = self._end
            entries, end = await self._read(position, self._limits.read_bytes)
            if end == position:
                return
            # Read meanwhile by nobody else: one at a time is at work for a queue.
            self._ahead.extend(entries)
            self._ahead_bytes += sum(entry.size for entry in entries)
            self._end = end

    def offer(
        self, count_max: int, bytes_max: int, now: TimestampMs, *, is_first: bool
    ) -> PollOffer:
        """Up to `count_max` messages that are to be had now, and all between that are not.

        One may exceed the bytes if it is the first.
        """
        messages: list[LogMessage] = []
        ready_count = 0
        is_cut = False
        end = self._end
        for message, _, size in islice(self._ahead, self._limits.round_count_max):
            if message.deliver_at <= now:
                bytes_max -= size
                is_cut = bytes_max < 0 and not is_first
                if ready_count == count_max or is_cut:
                    end = message.offset
                    break
                is_first = False
                ready_count += 1
            messages.append(message)
        else:
            if len(messages) < len(self._ahead):
                end = Offset(messages[-1].offset + 1)
        read = LogSlice(first=self._first, end=end, messages=tuple(messages))
        return PollOffer(read, ready_count, is_cut)

    def take(self, position: Offset) -> dict[Offset, LoadedMessage]:
        """The queue has moved on to `position`: what it passed, by offset."""
        taken = {}
        ahead = self._ahead
        while ahead and ahead[0].message.offset < position:
            entry = ahead.popleft()
            self._ahead_bytes -= entry.size
            taken[entry.message.offset] = entry
        self._first = position
        return taken

    # ---- what is out

    def keep(self, entry: LoadedMessage) -> None:
        """It was delivered, and may come back."""
        offset = entry.message.offset
        if offset not in self._out:
            self._out[offset] = entry
            self._out_bytes += entry.size

    def shrink(self) -> None:
        """Keep no more than is allowed; the oldest goes first."""
        while self._out_bytes > self._limits.cache_bytes_max:
            self.drop(next(iter(self._out)))

    def drop(self, offset: Offset) -> None:
        """It is settled."""
        entry = self._out.pop(offset, None)
        if entry is not None:
            self._out_bytes -= entry.size

    def get(self, offset: Offset) -> LoadedMessage | None:
        return self._out.get(offset)

    async def load(
        self, offsets: Iterable[Offset], is_wanted: Callable[[Offset], bool]
    ) -> dict[Offset, LoadedMessage | None]:
        """Messages by their offset, None for what is gone: the first of them, and as many more as
        have room. Beside them, what else of their batches `is_wanted` is kept.

        Raises RefusedError, CorruptionError.
        """
        found: dict[Offset, LoadedMessage | None] = {}
        asked = dict.fromkeys(offsets)
        beside: dict[Offset, LoadedMessage] = {}
        bytes_left = self._limits.ahead_bytes_max
        for offset in asked:
            if bytes_left <= 0:
                break
            entry = self._out.get(offset) or beside.pop(offset, None)
            if entry is None:
                if found:
                    await asyncio.sleep(0)
                if offset >= self._replica.last_stable_offset:
                    # Not gone for sure: who takes it for gone settles it.
                    raise RefusedError(ErrorCode.OFFSET_NOT_AVAILABLE)
                # One byte: the batch that holds it, and no more.
                entries, _ = await self._read(offset, 1)
                for other in entries:
                    at = other.message.offset
                    if at == offset:
                        entry = other
                    elif at in asked:
                        # Its batch need not be taken apart once more.
                        beside[at] = other
                    if is_wanted(at):
                        self.keep(other)
            found[offset] = entry
            bytes_left -= 0 if entry is None else entry.size
        return found

    async def scan(self, shelf: DelayBucket) -> LogSlice:
        """What is on the shelf, as far as one round goes. Raises RefusedError, CorruptionError."""
        messages: list[LogMessage] = []
        position = shelf.first
        for reads in range(self._limits.reads_per_round_max):
            if position >= shelf.end or len(messages) >= self._limits.round_count_max:
                break
            if reads:
                await asyncio.sleep(0)
            entries, end = await self._read(position, self._limits.read_bytes)
            if end == position:
                break
            messages += (message for message, _, _ in entries if shelf.covers(message.deliver_at))
            position = end
        return LogSlice(first=shelf.first, end=position, messages=tuple(messages))

    async def browse(self, position: Offset, count: int, bytes_max: int) -> list[LoadedMessage]:
        """As read_on, for somebody who only looks."""
        found: list[LoadedMessage] = []
        for reads in range(self._limits.reads_per_round_max):
            if len(found) >= count or bytes_max <= 0:
                break
            if reads:
                await asyncio.sleep(0)
            entries, end = await self._read(position, self._limits.read_bytes)
            if end == position:
                break
            found += entries
            bytes_max -= sum(entry.size for entry in entries)
            position = end
        return found[:count]

    # ---- the log

    async def _read(self, position: Offset, bytes_max: int) -> tuple[list[LoadedMessage], Offset]:
        """Messages from `position` on, and where to read on: at `position` if nothing is there."""
        replica = self._replica
        stable = replica.last_stable_offset
        start = replica.log.start_offset
        if position < start:
            return [], start
        if position >= stable:
            return [], position
        read = replica.log.read(position, bytes_max, stable)
        if not read.size:
            # What compaction took reaches up to the end.
            return [], stable
        aborted = replica.producers.aborted.between(position, read.next_offset)
        if read.size <= _INLINE_BYTES_MAX:
            stored = bytes_of(read.data)
            if not _is_compressed(stored):
                entries = decode_entries(stored, aborted, position, self._group)
                return entries, max(position, read.next_offset)
        entries = await self._loop.run_in_executor(
            None, decode_entries, read.data, aborted, position, self._group
        )
        return entries, max(position, read.next_offset)


def _unreadable(header: BatchHeader, position: Offset, error: BatchFormatError) -> LoadedMessage:
    """Stands for a batch that was sent like that, unreadable or too much to be held: to wait for it
    would hold up all that is behind, and to pass it would be to lose it without a trace."""
    first = max(header.base_offset, position)
    fault = f"offsets {first} to {header.last_offset} cannot be read: {error}"
    log.warning("a queue passes messages: %s", fault)
    record = Record(first, header.max_timestamp, None, None, [])
    return LoadedMessage(LogMessage(first, NO_TIMESTAMP, fault), record, _RECORD_BYTES)


def _is_compressed(stored: bytes) -> bool:
    try:
        return any(header.codec != Codec.NONE for header, _ in stored_batches(stored, ()))
    except BatchFormatError as error:
        raise CorruptionError(str(error)) from None


def decode_entries(
    data: FileSlice | bytes,
    aborted: Sequence[AbortedTransaction],
    position: Offset,
    group: bytes = b"",
) -> list[LoadedMessage]:
    """The messages at and after `position` that are for the group.

    Raises RefusedError, CorruptionError.
    """
    entries: list[LoadedMessage] = []
    try:
        for header, batch in stored_batches(bytes_of(data), aborted):
            if batch is None:
                continue
            try:
                records = open_batch(header, batch)
            except BatchFormatError as error:
                if not crc_matches(batch, 0, header.size, header.crc):
                    raise
                if header.last_offset >= position:
                    entries.append(_unreadable(header, position, error))
                continue
            for record in records:
                offset, _, _, _, headers = record
                if offset >= position:
                    if headers and not is_for(group, headers):
                        continue
                    time = deliver_at(headers) if headers else NO_TIMESTAMP
                    message = _new(LogMessage, (offset, time, ""))
                    size = _RECORD_BYTES + bytes_in(record)
                    entries.append(_new(LoadedMessage, (message, record, size)))
    except BatchFormatError as error:
        raise CorruptionError(f"a stored batch at or after {position}: {error}") from None
    return entries

"""Reads the messages of a queue: read-ahead for the next polls, and a cache of leased messages.

Each batch is decoded once. Delivered messages are cached, within bounds, and read again by offset
if they are redelivered later. Only committed messages are read: nothing above the last stable
offset, no markers, no aborted records.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from moldau.data.stored_batches import bytes_in, bytes_of, open_batch, stored_batches
from moldau.leases.commands import LogMessage, LogSlice
from moldau.leases.delay_buckets import DelayBucket
from moldau.log.read_failure import disk_reads
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_AT_HEADER, ONLY_GROUP_HEADER
from moldau.model.slices import FileSlice
from moldau.queues.limits import QueueLimits
from moldau.records.batch import BatchFormatError, BatchHeader, crc_matches
from moldau.records.compression import Codec
from moldau.records.record import Headers, Record
from moldau.replica.aborted_transactions import AbortedTransaction
from moldau.replica.cold_reads import read_cold
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_RECORD_BYTES: Final = 64
"""Approximate size of a record beside its content."""
_OBJECT_BYTES: Final = 320
"""Approximate memory of the objects of an entry, for the limit over all queues."""
_TIME_DIGITS_MAX: Final = 19
_TIME_MAX: Final = 2**63 - 1
_INLINE_BYTES_MAX: Final = 256 * 1024
"""Larger or compressed batches are decoded in a thread."""


# Creates a NamedTuple without its slower constructor.
_new = tuple.__new__


class LoadedMessage(NamedTuple):
    message: LogMessage
    record: Record
    size: int


class PollOffer(NamedTuple):
    """A slice of the read-ahead for one poll."""

    read: LogSlice
    ready_count: int
    """Messages in it that are due now."""
    is_size_limited: bool
    """The next message is due, but exceeds the bytes."""


def size_of(record: Record) -> int:
    return _RECORD_BYTES + bytes_in(record)


def deliver_at(headers: Headers) -> TimestampMs:
    """The deliver-at header; an invalid value is ignored."""
    found = NO_TIMESTAMP
    for name, value in headers:
        if name == DELIVER_AT_HEADER:
            found = NO_TIMESTAMP
            if value is not None and value.isdigit() and len(value) <= _TIME_DIGITS_MAX:
                found = TimestampMs(min(int(value), _TIME_MAX))
    return found


def is_for(group: bytes, headers: Headers) -> bool:
    """Whether the message is for all queue groups, or for this one."""
    return all(name != ONLY_GROUP_HEADER or value == group for name, value in headers)


class QueueReader:
    """The reader of one queue, while this broker leads the partition."""

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
        self._leased: dict[Offset, LoadedMessage] = {}
        self._leased_bytes = 0
        self.is_drop_requested = False
        """Set if other queues need the memory."""

    @property
    def held_bytes(self) -> int:
        """Approximate memory of its messages."""
        count = len(self._ahead) + len(self._leased)
        return self._ahead_bytes + self._leased_bytes + count * _OBJECT_BYTES

    def drop_if_requested(self) -> None:
        """Call between two rounds only: within one, reads must be contiguous."""
        if self.is_drop_requested:
            self.is_drop_requested = False
            self._ahead.clear()
            self._leased.clear()
            self._ahead_bytes = self._leased_bytes = 0
            self._end = self._first

    # ---- read-ahead

    def align(self, position: Offset) -> None:
        """Move the read-ahead to `position`, the next offset of the queue."""
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
        """Read ahead until there are `count` messages, within the limits of bytes and reads.

        Raises RefusedError, CorruptionError.
        """
        for reads in range(self._limits.reads_per_round_max):
            if len(self._ahead) >= count or self._ahead_bytes >= self._limits.ahead_bytes_max:
                return
            if reads:
                # There may be gigabytes without messages.
                await asyncio.sleep(0)
            position = self._end
            entries, end = await self._read(position, self._limits.read_bytes)
            if end == position:
                return
            # No concurrent reads: a queue has one task.
            self._ahead.extend(entries)
            self._ahead_bytes += sum(entry.size for entry in entries)
            self._end = end

    def offer(
        self, count_max: int, bytes_max: int, now: TimestampMs, *, is_first: bool
    ) -> PollOffer:
        """Up to `count_max` messages that are due now, with all delayed ones in between.

        The first may exceed the bytes if `is_first`.
        """
        messages: list[LogMessage] = []
        ready_count = 0
        is_size_limited = False
        end = self._end
        for message, _, size in islice(self._ahead, self._limits.round_count_max):
            offset, due_at, _ = message
            if due_at <= now:
                bytes_max -= size
                is_size_limited = bytes_max < 0 and not is_first
                if ready_count == count_max or is_size_limited:
                    end = offset
                    break
                is_first = False
                ready_count += 1
            messages.append(message)
        else:
            if len(messages) < len(self._ahead):
                end = Offset(messages[-1].offset + 1)
        read = LogSlice(first=self._first, end=end, messages=tuple(messages))
        return PollOffer(read, ready_count, is_size_limited)

    def take(self, position: Offset) -> dict[Offset, LoadedMessage]:
        """The queue moved to `position`: returns the messages before it, by offset."""
        taken = {}
        ahead = self._ahead
        while ahead and (offset := ahead[0][0][0]) < position:
            entry = taken[offset] = ahead.popleft()
            self._ahead_bytes -= entry[2]
        self._first = position
        return taken

    # ---- leased messages

    def keep_all(self, entries: Iterable[LoadedMessage]) -> None:
        """Cache delivered messages for a redelivery."""
        leased = self._leased
        for entry in entries:
            (offset, _, _), _, size = entry
            if offset not in leased:
                leased[offset] = entry
                self._leased_bytes += size

    def shrink(self) -> None:
        """Drop the oldest messages above the limit."""
        while self._leased_bytes > self._limits.cache_bytes_max:
            self.drop(next(iter(self._leased)))

    def drop(self, offset: Offset) -> None:
        """The message is settled."""
        self.drop_all((offset,))

    def drop_all(self, offsets: Iterable[Offset]) -> None:
        """The messages are settled."""
        pop = self._leased.pop
        for offset in offsets:
            entry = pop(offset, None)
            if entry is not None:
                self._leased_bytes -= entry[2]

    def get(self, offset: Offset) -> LoadedMessage | None:
        return self._leased.get(offset)

    async def load(
        self, offsets: Iterable[Offset], is_wanted: Callable[[Offset], bool]
    ) -> dict[Offset, LoadedMessage | None]:
        """Messages by offset, None if deleted: the first one, and as many more as fit. Other
        messages of their batches are cached if `is_wanted`.

        Raises RefusedError, CorruptionError.
        """
        found: dict[Offset, LoadedMessage | None] = {}
        wanted = dict.fromkeys(offsets)
        beside: dict[Offset, LoadedMessage] = {}
        bytes_left = self._limits.ahead_bytes_max
        for offset in wanted:
            if bytes_left <= 0:
                break
            entry = self._leased.get(offset) or beside.pop(offset, None)
            if entry is None:
                if found:
                    await asyncio.sleep(0)
                if offset >= self._replica.last_stable_offset:
                    # It may still exist, and a missing message would be settled.
                    raise RefusedError(ErrorCode.OFFSET_NOT_AVAILABLE)
                # One byte: only the batch that contains it.
                entries, _ = await self._read(offset, 1)
                for other in entries:
                    at = other.message.offset
                    if at == offset:
                        entry = other
                    elif at in wanted:
                        # So that its batch is not decoded again.
                        beside[at] = other
                    if is_wanted(at):
                        self.keep_all((other,))
            found[offset] = entry
            bytes_left -= 0 if entry is None else entry.size
        return found

    async def scan(self, bucket: DelayBucket) -> LogSlice:
        """Messages of the bucket, bounded for one round. Raises RefusedError, CorruptionError."""
        messages: list[LogMessage] = []
        position = bucket.first
        for reads in range(self._limits.reads_per_round_max):
            if position >= bucket.end or len(messages) >= self._limits.round_count_max:
                break
            if reads:
                await asyncio.sleep(0)
            entries, end = await self._read(position, self._limits.read_bytes)
            if end == position:
                break
            messages += (message for message, _, _ in entries if bucket.covers(message.deliver_at))
            position = end
        return LogSlice(first=bucket.first, end=position, messages=tuple(messages))

    async def browse(self, position: Offset, count: int, bytes_max: int) -> list[LoadedMessage]:
        """Read messages for inspection, without changing the read-ahead."""
        found, _ = await self.browse_on(position, count, bytes_max)
        return found

    async def browse_on(
        self, position: Offset, count: int, bytes_max: int
    ) -> tuple[list[LoadedMessage], Offset]:
        """The same, and where to go on; `position` if there is nothing at or after it."""
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
        if len(found) > count:
            return found[:count], found[count].message.offset
        return found, position

    # ---- the log

    async def _read(self, position: Offset, bytes_max: int) -> tuple[list[LoadedMessage], Offset]:
        """Messages from `position` on, and the next position; `position` if there is nothing.

        Raises RefusedError, CorruptionError.
        """
        with disk_reads():
            return await self._read_log(position, bytes_max)

    async def _read_log(
        self, position: Offset, bytes_max: int
    ) -> tuple[list[LoadedMessage], Offset]:
        replica = self._replica
        stable = replica.last_stable_offset
        start = replica.log.start_offset
        if position < start:
            return [], start
        if position >= stable:
            return [], position
        task = replica.log.begin_prefetch(position, bytes_max)
        if task is not None:
            await read_cold(self._loop, (task,))
            if not replica.is_leader:
                raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            replica.log.end_check(task)
            start = replica.log.start_offset
            if position < start:
                return [], start
        read = replica.log.read(position, bytes_max, stable)
        if not read.size:
            # Compaction removed everything up to the end.
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
    """Stands for a batch that was produced unreadable or too large: waiting for it would block the
    queue, and skipping it would lose it silently. It becomes a dead letter."""
    first = max(header.base_offset, position)
    fault = f"offsets {first} to {header.last_offset} cannot be read: {error}"
    log.warning("queue reader skips messages: %s", fault, extra=events.MESSAGES_UNREADABLE())
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
                offset, _, key, value, headers = record
                if offset < position:
                    continue
                if headers:
                    if not is_for(group, headers):
                        continue
                    time, size = deliver_at(headers), size_of(record)
                else:
                    # Without a call: most messages have none, and there are thousands.
                    time = NO_TIMESTAMP
                    size = _RECORD_BYTES + len(key or b"") + len(value or b"")
                message = _new(LogMessage, (offset, time, ""))
                entries.append(_new(LoadedMessage, (message, record, size)))
    except BatchFormatError as error:
        raise CorruptionError(
            f"cannot decode a stored batch at or after offset {position}: {error}"
        ) from None
    return entries

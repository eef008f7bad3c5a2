"""Owns one partition on this broker: drives its Raft group over its log.

`propose` appends, the flusher makes it durable, the group says what is committed, and whoever
waits for that offset is called back. Everything runs on the event loop, by callbacks and without
awaiting, because this is the path of every record.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from moldau.log.interface import ControlKind, FlushPolicy, LogConfig, LogRead, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    RefusedError,
    StorageError,
)
from moldau.model.ids import (
    NO_TIMESTAMP,
    Epoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.group import AppendNoop, Effect, NoopAppended, PersistVote, RaftGroup
from moldau.records.batch import BatchHeader, stamp, stamp_append_time
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.replica.producers import ProducerTable

_new_header = tuple.__new__
_SNAPSHOT_BYTES = 64 * 1024 * 1024
"""A producer snapshot is taken after this much new data, so that a restart replays little."""


class Proposal(NamedTuple):
    """Where a batch went."""

    base_offset: Offset
    end_offset: Offset
    """Committed means: the high watermark has reached this."""
    append_time: TimestampMs
    """The broker's timestamp with LogAppendTime, else -1."""


def _stamp_all(
    data: bytearray | memoryview,
    headers: list[BatchHeader],
    offset: Offset,
    epoch: Epoch,
    append_time: TimestampMs,
) -> tuple[list[BatchHeader], int, Offset]:
    """Stamp batches one after another; returns their headers, size and the next offset."""
    position = 0
    stamped = []
    for header in headers:
        stamp(data, position, offset, epoch)
        header = header._replace(base_offset=offset, leader_epoch=epoch)
        if append_time != NO_TIMESTAMP:
            stamp_append_time(data, position, header.size, append_time)
            header = header._replace(max_timestamp=append_time)
        stamped.append(header)
        position += header.size
        offset = header.next_offset
    return stamped, position, offset


class Watcher(Protocol):
    """Somebody who waits for the high watermark to move."""

    def on_progress(self, replica: "Replica") -> None: ...

    def on_gone(self, replica: "Replica") -> None: ...


class Replica:
    """One partition's replica."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        group: RaftGroup,
        flusher: Flusher,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.group = group
        self._clock = clock
        self._flusher = flusher
        self._flush_handle = FlushHandle(log, self._on_flushed)
        self._flush_always = log.config.flush is FlushPolicy.ALWAYS
        self.high_watermark = log.start_offset
        self._waiters: deque[tuple[Offset, Callable[[ErrorCode], None]]] = deque()
        self.watchers: dict[Watcher, None] = {}
        self.is_open = True
        self._bytes_since_snapshot = 0
        self.producers = self._load_producers()

    def _load_producers(self) -> ProducerTable:
        snapshot = self.log.load_snapshot()
        table, offset = ProducerTable(), self.log.start_offset
        if snapshot is not None:
            try:
                table, offset = ProducerTable.decode(snapshot[1]), snapshot[0]
            except CorruptionError:
                # A snapshot is only a shortcut: the log's headers say the same, more slowly.
                table, offset = ProducerTable(), self.log.start_offset
        headers = self.log.headers(max(offset, self.log.start_offset))
        table.replay(headers, self._clock.wall_ms())
        return table

    # ---- leadership

    @property
    def epoch(self) -> Epoch:
        return self.group.epoch

    @property
    def is_ready(self) -> bool:
        """Leads, and its own epoch's no-op is committed: offsets that it tells are true."""
        return self.group.has_committed_in_epoch

    def run(self, effects: list[Effect], persist_vote: Callable[[PersistVote], None]) -> None:
        """Carry out what the group asks for."""
        for effect in effects:
            if isinstance(effect, AppendNoop):
                index = self.log.end_index
                with self._flusher.fencing():
                    self.log.append_control(effect.epoch, ControlKind.NOOP, b"")
                self.run(self.group.step(NoopAppended(index)), persist_vote)
            else:
                persist_vote(effect)
        self._advance()

    # ---- writing

    def propose(
        self, data: bytearray | memoryview, headers: list[BatchHeader], *, append_time: bool = False
    ) -> Proposal:
        """Append checked batches. `data` is stamped in place and not kept.

        Raises RefusedError (sequence, epoch) and StorageError; nothing is appended then.
        """
        log = self.log
        epoch = self.group.epoch
        offset = log.end_offset
        first = headers[0]
        if first.producer_id >= 0:
            original = self._check_sequence(headers, append_time)
            if original is not None:
                return original
        if len(headers) == 1 and not append_time:
            # The usual case, without the loop. _replace would cost more than the append.
            stamp(data, 0, offset, epoch)
            time = NO_TIMESTAMP
            size = first.size
            stamped = [_new_header(BatchHeader, (offset, size, epoch, *first[3:]))]
            end = Offset(offset + first.last_offset_delta + 1)
        else:
            time = self._clock.wall_ms() if append_time else NO_TIMESTAMP
            stamped, size, end = _stamp_all(data, headers, offset, epoch, time)
        try:
            log.append(data, stamped)
        except DiskFullError:
            raise
        except StorageError as error:
            self._flusher.report(error)
            raise
        if first.producer_id >= 0:
            self.producers.appended(stamped[0], self._clock.wall_ms())
        self._bytes_since_snapshot += size
        if self._flush_always:
            self._flusher.request(self._flush_handle, size)
        else:
            # Counted all the same: the flusher must know a large flush when it comes.
            self._flush_handle.unflushed_bytes += size
            self._advance()
        return _new_header(Proposal, (offset, end, time))

    def _check_sequence(self, headers: list[BatchHeader], append_time: bool) -> Proposal | None:
        if len(headers) > 1:
            raise RefusedError(
                ErrorCode.INVALID_RECORD, "an idempotent producer sends one batch per partition"
            )
        original = self.producers.check(headers[0])
        if original is None:
            return None
        time = original.timestamp if append_time else NO_TIMESTAMP
        return Proposal(original.base_offset, Offset(original.last_offset + 1), time)

    def when_committed(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything below `offset` is committed, or never will be."""
        if offset <= self.high_watermark:
            callback(ErrorCode.NONE)
            return
        waiters = self._waiters
        if waiters and waiters[-1][0] > offset:
            # A retry of an earlier batch that is not yet committed: keep the order by offset.
            index = len(waiters)
            while index and waiters[index - 1][0] > offset:
                index -= 1
            waiters.insert(index, (offset, callback))
        else:
            waiters.append((offset, callback))

    def _on_flushed(self) -> None:
        self._advance()

    def _advance(self) -> None:
        """Let the group commit what is flushed, and tell whoever waits."""
        log = self.log
        watermark = log.flushed_offset
        index = log.flushed_index
        # With one voter the commit index is the flushed index, so the offsets agree as well.
        if self.group.flushed(index) < index or watermark <= self.high_watermark:
            return
        self.high_watermark = watermark
        waiters = self._waiters
        while waiters and waiters[0][0] <= watermark:
            waiters.popleft()[1](ErrorCode.NONE)
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.on_progress(self)

    # ---- reading

    def read(self, offset: Offset, bytes_max: int) -> LogRead:
        """Whole committed batches from `offset` on."""
        return self.log.read(offset, bytes_max, self.high_watermark)

    # ---- upkeep

    def reconfigure(self, config: LogConfig) -> None:
        with self._flusher.fencing():
            self.log.reconfigure(config)
        self._flush_always = config.flush is FlushPolicy.ALWAYS
        # A laxer policy commits at once what waits for a flush; a stricter one flushes what was
        # appended without.
        self._advance()
        self._flusher.request(self._flush_handle, 0)

    def flush_soon(self) -> None:
        """For the flush policy `interval`."""
        self._flusher.request(self._flush_handle, 0)

    def delete_before(self, offset: Offset) -> None:
        with self._flusher.fencing():
            self.log.delete_before(offset)

    def retain(self, now: TimestampMs) -> bool:
        with self._flusher.fencing():
            return self.log.retain(now, self.high_watermark)

    def snapshot_if_due(self) -> None:
        """Renew the producer snapshot if much was appended since the last."""
        if self._bytes_since_snapshot >= _SNAPSHOT_BYTES:
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        self._bytes_since_snapshot = 0
        with self._flusher.fencing():
            self.log.save_snapshot(self.log.end_offset, self.producers.encode())

    def fail_waiters(self, code: ErrorCode) -> None:
        """The replica goes away: answer everybody who still waits."""
        self.is_open = False
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            callback(code)
        watchers, self.watchers = list(self.watchers), {}
        for watcher in watchers:
            watcher.on_gone(self)

    def close(self) -> None:
        """Flush, snapshot and close; the next start replays nothing."""
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Without room for the snapshot the next start reads some headers more.
        with suppress(DiskFullError):
            self._save_snapshot()
        with self._flusher.fencing():
            self.log.close()

    def drop(self) -> None:
        """The topic was deleted: answer everybody, and let go of a log that is about to go."""
        self.fail_waiters(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._flush_handle.is_dropped = True
        self.log.discard()

"""Owns one partition on this broker: its log, its Raft group, and who waits for either.

`propose` appends, the driver flushes and replicates, and when the group commits, whoever waits for
that offset is called back. Everything runs on the event loop, by callbacks and without awaiting,
because this is the path of every record.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
    StorageError,
)
from moldau.model.ids import (
    NO_TIMESTAMP,
    BrokerId,
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.records.batch import (
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    stamp,
)
from moldau.records.control import EndMarker, build_end_marker
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.insync_waiters import InsyncWaiters, Waiters, insert_waiter
from moldau.replica.peer_codec import GroupKey
from moldau.replica.producer_snapshot import (
    NO_SNAPSHOT,
    decode_producers,
    encode_producers,
    load_producers,
)
from moldau.replica.producers import TRANSACTIONS_V2, ProducerTable
from moldau.replica.raft_group import RaftGroup
from moldau.replica.sequence_gaps import SequenceGaps
from moldau.replica.stamping import check_anonymous, stamp_all
from moldau.replica.verification_guards import VerificationGuard, VerificationGuards

_new_header = tuple.__new__
_HEARD_MS_MAX = 10_000
_SNAPSHOT_BYTES = 64 * 1024 * 1024
"""A producer snapshot is taken after this much new data, so that a restart replays little."""

LAG_MS_MAX = 10_000
"""A follower that was behind for longer is not in sync."""


class Proposal(NamedTuple):
    """Where a batch went."""

    base_offset: Offset
    end_offset: Offset
    """Committed means: the high watermark has reached this."""
    append_time: TimestampMs
    """The broker's timestamp with LogAppendTime, else -1."""


class WatermarkWatcher(Protocol):
    """Somebody who waits for the high watermark to move."""

    def on_progress(self, replica: "Replica") -> None: ...

    def on_gone(self, replica: "Replica") -> None:
        """It leads no longer, or is closed."""
        ...


class ReplicaListener(Protocol):
    """Who keeps the replicas. All are called between steps of the group."""

    def on_leadership(self, replica: "Replica") -> None:
        """Somebody else leads now as far as is known here, or this replica became ready."""
        ...

    def on_voter_replaced(self, replica: "Replica") -> None:
        """This one leads, and a voter has another log than the group counts on."""
        ...

    def on_failed(self, replica: "Replica", error: MoldauError) -> None:
        """The group stopped here."""
        ...


class Replica:
    """One partition's replica."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        members: Members,
        driver: RaftDriver,
        flusher: Flusher,
        clock: Clock,
        listener: ReplicaListener,
    ) -> None:
        """`members` are those of the group's creation; what the log says is more recent."""
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self._clock = clock
        self._flusher = flusher
        self._driver = driver
        self._listener = listener
        self.high_watermark = log.start_offset
        self._waiters: Waiters = deque()
        self._trims: list[tuple[Offset, Callable[[ErrorCode], None]]] = []
        self._trim_to = Offset(0)
        self.watchers: dict[WatermarkWatcher, None] = {}
        self.is_open = False
        self._is_leading = False
        self._led_since = 0.0
        self.is_ready = False
        """Leads, and its own epoch's no-op is committed: offsets that it tells are true."""
        self.min_insync_replicas = 1
        """min.insync.replicas: on so many disks before acks=all is answered."""
        self._bytes_since_snapshot = 0
        self._snapshot_offset = NO_SNAPSHOT
        self.producers = ProducerTable()
        self._guards = VerificationGuards()
        self.refusals = SequenceGaps()
        self._load_state()
        self.group = driver.add_group(GroupKey(topic_id, partition.partition), log, members, self)
        self._copies = InsyncWaiters(driver, self.group, log, lambda: self.min_insync_replicas)
        self.is_open = True

    def _load_state(self, end: Offset | None = None) -> None:
        """What is derived from the records, those below `end`: the producers."""
        table, self._snapshot_offset = load_producers(self.log, self._clock.wall_ms(), end)
        table.settle(self.high_watermark)
        self.producers = table

    # ---- leadership

    @property
    def epoch(self) -> Epoch:
        return self.group.core.epoch

    @property
    def is_leader(self) -> bool:
        return self.is_open and self._is_leading

    @property
    def leader(self) -> BrokerId:
        """NO_BROKER while none is known."""
        return self.group.core.leader

    @property
    def members(self) -> Members:
        return self.group.core.members

    @property
    def is_active_member(self) -> bool:
        """Whether a leader that was heard lately counts this broker among its group."""
        is_member = self._driver.me in self.members.everyone
        return is_member and self._driver.has_recent_leader(self.group, _HEARD_MS_MAX)

    def in_sync(self, lag_ms_max: int) -> tuple[BrokerId, ...]:
        """Voters that held everything lately; empty unless this one leads."""
        return tuple(self._driver.in_sync(self.group, lag_ms_max))

    @property
    def replicated_offset(self) -> Offset:
        """Below it, every member of the group holds all records; 0 unless this one leads."""
        held = self.group.core.held
        start = self.log.start
        if held <= start.offset + start.control_count:
            return Offset(0)
        return self.log.offset_of(held)

    def check_leadership(self) -> None:
        """Raises RefusedError unless clients are served here."""
        if not self._is_leading:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.leader} leads {self.partition.topic}-{self.partition.partition}"
                if self.leader >= 0
                else f"{self.partition.topic}-{self.partition.partition} has no leader now",
            )

    def has_recent_majority(self) -> bool:
        """Whether this one surely leads, or did a moment ago."""
        return self._driver.has_recent_majority(self.group)

    async def confirm_leadership(self) -> None:
        """Ask a majority whether this one still leads: nobody has committed more elsewhere before
        this was called. Raises RefusedError. Without it, one that stood still may not know yet."""
        try:
            await self._driver.read_index(self.group)
        except RaftRejection as error:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from None

    # ---- what the driver tells

    def on_role(self, group: RaftGroup, role: Role, epoch: Epoch, leader: BrokerId) -> None:
        was_leading, self._is_leading = self._is_leading, role is Role.LEADER
        if self._is_leading:
            self._led_since = self._clock.monotonic()
        self.is_ready = self._is_leading and group.core.is_ready
        if was_leading:
            # Also if it was elected again: what it proposed before may be cut.
            self._guards.clear()
            self._answer_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # A group that stands for election tells so before it is opened; nobody listens yet.
        if self.is_open:
            self._listener.on_leadership(self)

    def on_commit(self, group: RaftGroup, offset: Offset) -> None:
        if offset > self.high_watermark:
            self._advance(offset)
        core = group.core
        if self._is_leading and not self.is_ready and core.is_ready:
            self.is_ready = True
            self._listener.on_leadership(self)

    def _advance(self, watermark: Offset) -> None:
        self.high_watermark = watermark
        if self.producers.ended:
            self.producers.settle(watermark)
        waiters = self._waiters
        while waiters and waiters[0][0] <= watermark:
            waiters.popleft()[1](ErrorCode.NONE)
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.on_progress(self)

    def on_stored(
        self, group: RaftGroup, headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        now = self._clock.wall_ms()
        for header in headers:
            self._bytes_since_snapshot += header.size
            if header.producer_id >= 0:
                marker = markers.get(header.base_offset) if markers else None
                self.producers.appended(header, now, marker)

    def on_truncated(self, group: RaftGroup, offset: Offset) -> None:
        self._guards.clear()
        if not self.producers.cut(offset):
            # What came in place of what was cut is in the log already, and on_stored tells of it.
            self._load_state(offset)

    def on_control(
        self, group: RaftGroup, kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        if kind is ControlKind.TRIM:
            offset = Offset(int.from_bytes(payload, "big"))
            self._trim_to = max(self._trim_to, min(offset, self.high_watermark))
            self._delete_trimmed()

    def _delete_trimmed(self) -> None:
        """Begin where the group has agreed to. On a full disk that waits for the next retention."""
        code = ErrorCode.NONE
        if self._trim_to > self.log.start_offset:
            try:
                with self._flusher.fencing():
                    self.log.delete_before(self._trim_to)
                self._start_moved()
            except StorageError:
                code = ErrorCode.KAFKA_STORAGE_ERROR
        done = [callback for until, callback in self._trims if until <= self._trim_to]
        self._trims = [trim for trim in self._trims if trim[0] > self._trim_to]
        for callback in done:
            callback(code)

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        return encode_producers(self.producers.below(offset))

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        try:
            self.producers = decode_producers(payload)
        except CorruptionError as error:
            # Without it, retries of old batches would be stored twice.
            self._listener.on_failed(self, error)
            return
        self.high_watermark = offset
        self._bytes_since_snapshot = 0
        self._snapshot_offset = offset

    def on_voter_replaced(self, group: RaftGroup, voter: BrokerId) -> None:
        self._listener.on_voter_replaced(self)

    def on_failed(self, group: RaftGroup, error: MoldauError) -> None:
        self._is_leading = self.is_ready = False
        self._answer_all(ErrorCode.KAFKA_STORAGE_ERROR)
        self._listener.on_failed(self, error)

    # ---- writing

    def propose(
        self,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        *,
        append_time: bool = False,
        guard: VerificationGuard | None = None,
    ) -> Proposal:
        """Append checked batches. `data` is stamped in place and not kept.

        A transactional batch needs an open transaction, or a `guard` to open one: see guard_for.
        Raises RefusedError (sequence, epoch, transaction) and StorageError; nothing is appended
        then.
        """
        log = self.log
        group = self.group
        self._driver.check_leadership(group)
        epoch = group.core.epoch
        offset = log.end_offset
        first = headers[0]
        if first.producer_id >= 0:
            if self.refusals.waiting:
                state = self.producers.get(first.producer_id)
                self.refusals.check(first, state, self._clock.monotonic())
            original = self._check_sequence(headers, append_time, guard)
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
            if len(headers) > 1:
                check_anonymous(headers)
            time = self._clock.wall_ms() if append_time else NO_TIMESTAMP
            stamped, size, end = stamp_all(data, headers, offset, epoch, time)
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
        self._driver.appended(group, size)
        return _new_header(Proposal, (offset, end, time))

    def _check_sequence(
        self, headers: list[BatchHeader], append_time: bool, guard: VerificationGuard | None
    ) -> Proposal | None:
        if len(headers) > 1:
            check_anonymous(headers)
        header = headers[0]
        try:
            original = self.producers.check(header)
        except RefusedError as error:
            state = self.producers.get(header.producer_id)
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and state is not None:
                self.refusals.miss(header, state, self._clock.monotonic(), self._led_since)
            raise
        if original is None:
            if header.attributes & TRANSACTIONAL_BIT:
                self._check_transaction(header, guard)
            return None
        time = original.timestamp if append_time else NO_TIMESTAMP
        return Proposal(original.base_offset, Offset(original.last_offset + 1), time)

    def _check_transaction(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        if not self.producers.is_open(header.producer_id, header.producer_epoch):
            self._guards.check(header, guard)

    def guard_for(self, header: BatchHeader) -> VerificationGuard | None:
        """To be taken before the coordinator is asked whether a batch may open a transaction here.

        None if nobody need be asked: it is open, or the batch is a retry, or refused anyway.
        Raises RefusedError if this one does not lead.
        """
        self.check_leadership()
        producer, epoch = header.producer_id, header.producer_epoch
        if not self.producers.may_open(header):
            return None
        return self._guards.take(producer, epoch, header.base_sequence, self._clock.wall_ms())

    def write_marker(
        self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        marker: EndMarker,
        callback: Callable[[ErrorCode], None],
        *,
        transaction_version: int = 0,
    ) -> None:
        """End the transaction of a producer here; called back when that is committed, or when
        nobody knows whether it will be. A marker that is there already is not written again.

        Raises RefusedError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or why nothing
        can be appended now.
        """
        self._driver.check_leadership(self.group)
        is_due = self.producers.check_marker(
            producer, epoch, marker.coordinator_epoch, transaction_version
        )
        # Whoever was told that the transaction is open was told so before. Where the epoch rises
        # with each end, the producer may have asked about its next transaction already.
        rises = transaction_version >= TRANSACTIONS_V2
        self._guards.drop(producer, epoch_min=epoch if rises else epoch + 1)
        if is_due:
            self._append_marker(producer, epoch, marker)
        self.when_committed(self.log.end_offset, callback)

    def _append_marker(self, producer: ProducerId, epoch: ProducerEpoch, marker: EndMarker) -> None:
        now = self._clock.wall_ms()
        data = bytearray(build_end_marker(producer, epoch, marker, now))
        headers, size, _ = stamp_all(
            data, [read_header(data)], self.log.end_offset, self.group.core.epoch, NO_TIMESTAMP
        )
        try:
            self.log.append(data, headers)
        except DiskFullError as error:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        except StorageError as error:
            self._flusher.report(error)
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        self.producers.appended(headers[0], now, marker)
        self._bytes_since_snapshot += size
        self._driver.appended(self.group, size)

    def when_committed(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything below `offset` is committed, or never will be."""
        if offset <= self.high_watermark:
            callback(ErrorCode.NONE)
            return
        if not self.group.is_leader or not self.is_open:
            # It fell while it was proposed to. Whatever comes to stand there may be another's.
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        insert_waiter(self._waiters, offset, callback)

    def is_acknowledged(self, offset: Offset) -> bool:
        """Whether acks=all may be answered for all below `offset`."""
        return offset <= self.high_watermark and (
            self.min_insync_replicas == 1 or self._copies.has(offset)
        )

    def when_acknowledged(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once acks=all may be answered, or never may be.

        A commit is a majority. Where min.insync.replicas is more than that, the others are looked
        after until so many have it: such topics are rare.
        """
        if self.min_insync_replicas <= 1:
            self.when_committed(offset, callback)
        else:
            self.when_committed(offset, partial(self._wait_for_copies, offset, callback))

    def _wait_for_copies(
        self, offset: Offset, callback: Callable[[ErrorCode], None], code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE or self._copies.has(offset):
            callback(code)
        elif not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._copies.wait(offset, callback)

    # ---- reading

    @property
    def last_stable_offset(self) -> Offset:
        """Below it, every transaction has ended, and that is committed."""
        first = self.producers.first_unstable
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log.start_offset)

    # ---- upkeep

    def reconfigure(self, config: LogConfig) -> None:
        with self._flusher.fencing():
            self.log.reconfigure(config)
        # A laxer policy commits at once what waits for a flush; a stricter one flushes what was
        # appended without.
        self._driver.look_at(self.group)
        self.flush_soon()

    def flush_soon(self) -> None:
        """For the flush policy `interval`."""
        self._flusher.request(self.group.flush_handle, 0)

    @property
    def trimmed_to(self) -> Offset:
        """Where the group has agreed to begin, and this replica does; retention is its own."""
        return min(self._trim_to, self.log.start_offset)

    def trim(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Let every replica begin at `offset`; called back when it is committed, or may not be.
        Raises RefusedError if this one does not lead."""
        self._driver.check_leadership(self.group)
        # Noted first: the turn may end within the call, and with it the commit be told.
        trim = (offset, callback)
        self._trims.append(trim)
        try:
            self._driver.append_control(self.group, ControlKind.TRIM, offset.to_bytes(8, "big"))
        except StorageError:
            self._trims.remove(trim)
            raise

    def retain(self, now: TimestampMs) -> bool:
        self._delete_trimmed()
        # What is not on this disk yet may be asked for by nobody else but this replica itself.
        end = min(self.high_watermark, self.log.flushed_offset)
        with self._flusher.fencing():
            has_deleted = self.log.retain(now, end)
        if has_deleted:
            self._start_moved()
        return has_deleted

    def expire_producers(self, before: TimestampMs) -> None:
        """Forget those that were silent since; never one with a transaction open."""
        self.producers.expire(before)
        self._guards.expire(before)

    def snapshot_if_due(self) -> bool:
        """Renew the producer snapshot if much was appended since the last; True if it did."""
        if self._bytes_since_snapshot < _SNAPSHOT_BYTES:
            return False
        self._save_snapshot()
        return True

    def _save_snapshot(self) -> None:
        self._bytes_since_snapshot = 0
        with self._flusher.fencing():
            self.log.save_snapshot(self.log.end_offset, encode_producers(self.producers))
        self._snapshot_offset = self.log.end_offset

    def _start_moved(self) -> None:
        """Records were deleted. What only they told goes into a snapshot, or is let go."""
        start = self.log.start_offset
        self.producers.aborted.forget_below(start)
        if self._snapshot_offset < start and len(self.producers):
            # Without room for it, a restart knows what the log still says.
            with suppress(DiskFullError):
                self._save_snapshot()

    def _answer_all(self, code: ErrorCode) -> None:
        """Answer everybody who still waits."""
        waiters, self._waiters = self._waiters, deque()
        uncopied = self._copies.take_all()
        trims, self._trims = self._trims, []
        for _, callback in (*waiters, *uncopied, *trims):
            callback(code)
        watchers, self.watchers = list(self.watchers), {}
        for watcher in watchers:
            watcher.on_gone(self)

    def end(self, code: ErrorCode, *, forget_vote: bool = False) -> None:
        """Serve no more, and leave the log as it is."""
        self.is_open = self._is_leading = self.is_ready = False
        self._driver.remove_group(self.group, forget_vote=forget_vote)
        self._answer_all(code)

    def close(self) -> None:
        """Flush, snapshot and close; the next start replays nothing."""
        self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Without room for the snapshot the next start reads some headers more.
        with suppress(DiskFullError):
            self._save_snapshot()
        with self._flusher.fencing():
            self.log.close()

    def drop(
        self,
        code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        *,
        forget_vote: bool = True,
    ) -> None:
        """Gone from here: answer everybody, and let go of a log that is deleted next.

        The vote of a group that goes on elsewhere is kept: this broker may come back to it, and
        must not help a leader then whom it once helped to depose.
        """
        self.end(code, forget_vote=forget_vote)
        self.log.discard()

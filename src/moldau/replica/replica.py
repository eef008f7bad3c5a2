"""One partition on this broker: its log, its Raft group, its producers and transactions.

`propose` appends, the driver flushes and replicates, and the group's commit calls back.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

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
    place,
    read_header,
)
from moldau.records.control import (
    TRANSACTIONS_V2,
    EndMarker,
    build_end_marker,
    end_markers,
)
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.insync_waiters import InsyncWaiters
from moldau.replica.producer_snapshot import (
    NO_SNAPSHOT,
    decode_producers,
    encode_producers,
    load_producers,
)
from moldau.replica.producers import ProducerTable
from moldau.replica.raft_group import RaftGroup
from moldau.replica.raft_replica import Proposal, RaftReplica
from moldau.replica.sequence_gaps import SequenceGaps
from moldau.replica.stamping import check_anonymous, stamp_all
from moldau.replica.verification_guards import VerificationGuard, VerificationGuards

_HEARD_MS_MAX: Final = 10_000
_SNAPSHOT_BYTES = 64 * 1024 * 1024
"""A producer snapshot is taken after this much new data, so that a restart replays little."""

LAG_MS_MAX: Final = 10_000
"""A follower that was behind for longer is not in sync."""


class WatermarkWatcher(Protocol):
    """Waits for the high watermark to advance, or the log start."""

    def on_progress(self, replica: "Replica") -> None: ...

    def on_unavailable(self, replica: "Replica") -> None:
        """The replica lost leadership, or was closed."""
        ...


class ReplicaListener(Protocol):
    """The host of replicas. Called between steps of the group."""

    def on_leadership(self, replica: "Replica") -> None:
        """The known leader changed, or this replica became ready to lead."""
        ...

    def on_voter_replaced(self, replica: "Replica") -> None:
        """On the leader: a voter lost its log and has a new one."""
        ...

    def on_failed(self, replica: "Replica", error: MoldauError) -> None:
        """The group stopped on this broker because of an error."""
        ...


class Replica(RaftReplica):
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
        self._clock = clock
        self._listener = listener
        self.watchers: dict[WatermarkWatcher, None] = {}
        self._trims: list[tuple[Offset, Callable[[ErrorCode], None]]] = []
        self._trim_to = Offset(0)
        self._leader_since = 0.0
        self.min_insync_replicas = 1
        """Replicas that must have flushed a batch before acks=all is acknowledged."""
        self._bytes_since_snapshot = 0
        self._snapshot_offset = NO_SNAPSHOT
        self.producers = ProducerTable()
        self._guards = VerificationGuards()
        self.sequence_gaps = SequenceGaps()
        super().__init__(
            partition=partition,
            topic_id=topic_id,
            log=log,
            members=members,
            driver=driver,
            flusher=flusher,
            on_leadership=lambda: listener.on_leadership(self),
            on_failed=lambda error: listener.on_failed(self, error),
        )
        self._insync_waiters = InsyncWaiters(
            driver, self.group, log, lambda: self.min_insync_replicas
        )

    def _load_state(self, end: Offset | None = None) -> None:
        """Rebuild the producer state from the log below `end`."""
        table, self._snapshot_offset = load_producers(self.log, self._clock.wall_ms(), end)
        table.settle(self.high_watermark)
        self.producers = table

    # ---- leadership

    @property
    def is_active_member(self) -> bool:
        """Whether a recently heard leader has this broker among its members."""
        is_member = self._driver.me in self.members.everyone
        return is_member and self._driver.has_recent_leader(self.group, _HEARD_MS_MAX)

    @property
    def replicated_offset(self) -> Offset:
        """Every member has all records below it; 0 unless this replica leads."""
        replicated = self.group.core.replicated
        start = self.log.start
        if replicated <= start.offset + start.control_count:
            return Offset(0)
        return self.log.offset_of(replicated)

    def check_leadership(self) -> None:
        """Raises RefusedError unless this replica leads."""
        if not self._is_leading:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"not leader for {self.partition.topic}-{self.partition.partition}: "
                + (f"broker {self.leader} leads it" if self.leader >= 0 else "it has no leader"),
            )

    def has_recent_majority(self) -> bool:
        """Whether a majority responded recently: no other broker leads, or only since then."""
        return self._driver.has_recent_majority(self.group)

    async def confirm_leadership(self) -> None:
        """Confirm leadership with a majority (Raft ReadIndex): no other leader committed anything
        before the call. A leader that stalled may not know that it was deposed. Raises
        RefusedError."""
        try:
            await self._driver.read_index(self.group)
        except RaftRejection as error:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from None

    # ---- callbacks of the driver

    def on_role(self, group: RaftGroup, role: Role, epoch: Epoch, leader: BrokerId) -> None:
        if role is Role.LEADER:
            self._leader_since = self._clock.monotonic()
        super().on_role(group, role, epoch, leader)

    def _advance(self, watermark: Offset) -> None:
        # Without super(), whose call would cost as much as the rest: every commit comes here.
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
        if not self.producers.truncate(offset):
            # The replacing batches are already in the log; on_stored reports them.
            self._load_state(offset)

    def on_control(
        self, group: RaftGroup, kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        if kind is ControlKind.TRIM:
            offset = Offset(int.from_bytes(payload, "big"))
            self._trim_to = max(self._trim_to, min(offset, self.high_watermark))
            self._delete_trimmed()

    def _delete_trimmed(self) -> None:
        """Delete records below the agreed start. On a full disk, retention retries it later."""
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
            # Without the producer state, retries of old batches would be stored twice.
            self._on_failed(error)
            return
        super().on_reset(group, offset, payload)
        self._bytes_since_snapshot = 0
        self._snapshot_offset = offset

    def on_voter_replaced(self, group: RaftGroup, voter: BrokerId) -> None:
        self._listener.on_voter_replaced(self)

    # ---- writing

    def propose(
        self,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        *,
        append_time: bool = False,
        guard: VerificationGuard | None = None,
    ) -> Proposal:
        """Append checked batches. `data` and `headers` are stamped in place; `data` is not kept.

        A transactional batch needs a verified transaction, or a verified `guard`: see guard_for.
        Raises RefusedError (sequence, epoch, transaction) or StorageError if nothing was appended.
        """
        log = self.log
        group = self.group
        self._driver.check_leadership(group)
        epoch = group.core.epoch
        offset = log.end_offset
        first = headers[0]
        if first.producer_id >= 0:
            if self.sequence_gaps.waiting:
                state = self.producers.get(first.producer_id)
                self.sequence_gaps.check(first, state, self._clock.monotonic())
            original = self._check_sequence(headers, append_time, guard)
            if original is not None:
                return original
        if len(headers) == 1 and not append_time:
            # The usual case, without a loop.
            place(data, 0, first, offset, epoch)
            time = NO_TIMESTAMP
            size = first.size
            stamped = headers
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
        return Proposal(offset, end, time, self)

    def append_as_is(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> Proposal:
        """Append markers, or batches of a backup: without the checks of sequences, which were made
        when the batches were first written. `data` is stamped in place.

        Raises RefusedError or StorageError if nothing was appended.
        """
        self._driver.check_leadership(self.group)
        stamped, size, end = stamp_all(data, headers, self.log.end_offset, self.epoch, NO_TIMESTAMP)
        self._append(data, stamped)
        self.on_stored(self.group, stamped, end_markers(data, stamped))
        self._driver.appended(self.group, size)
        return Proposal(stamped[0].base_offset, end, NO_TIMESTAMP, self)

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
                self.sequence_gaps.on_gap(
                    header, state, self._clock.monotonic(), self._leader_since
                )
            raise
        if original is None:
            if header.attributes & TRANSACTIONAL_BIT:
                is_open = self.producers.is_open(header.producer_id, header.producer_epoch)
                self._guards.check(header, guard, is_open=is_open)
            return None
        time = original.timestamp if append_time else NO_TIMESTAMP
        return Proposal(original.base_offset, Offset(original.last_offset + 1), time, self)

    def guard_for(self, header: BatchHeader, transactional_id: str) -> VerificationGuard | None:
        """Take a guard before asking the coordinator to verify a batch of a transaction.

        None if no verification is needed: the transaction is open and was verified for that id, or
        the batch is a retry or will be rejected. Raises RefusedError if this replica does not lead.
        """
        self.check_leadership()
        producer = header.producer_id
        is_open = self.producers.is_open(producer, header.producer_epoch)
        is_verified = is_open and self._guards.is_verified(producer, transactional_id)
        if is_verified or not self.producers.is_new(header):
            return None
        return self._guards.take(header, transactional_id, self._clock.wall_ms())

    def write_marker(
        self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        marker: EndMarker,
        callback: Callable[[ErrorCode], None],
        *,
        transaction_version: int = 0,
    ) -> None:
        """End a producer's transaction here; calls back when the marker is committed, or its fate
        is unknown. A marker that was already written is not repeated.

        Raises RefusedError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or why nothing
        can be appended now.
        """
        self._driver.check_leadership(self.group)
        is_due = self.producers.check_marker(
            producer, epoch, marker.coordinator_epoch, transaction_version
        )
        # Verifications of this transaction are void now. Where each end raises the epoch, a guard
        # may already belong to the producer's next transaction.
        rises = transaction_version >= TRANSACTIONS_V2
        self._guards.drop(producer, epoch_min=epoch if rises else epoch + 1)
        if is_due:
            data = bytearray(build_end_marker(producer, epoch, marker, self._clock.wall_ms()))
            try:
                self.append_as_is(data, [read_header(data)])
            except StorageError as error:
                raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        self.when_committed(self.log.end_offset, callback)

    def is_acknowledged(self, offset: Offset) -> bool:
        return offset <= self.high_watermark and (
            self.min_insync_replicas == 1 or self._insync_waiters.is_reached(offset)
        )

    def when_acknowledged(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        if self.min_insync_replicas <= 1:
            self.when_committed(offset, callback)
        else:
            self.when_committed(offset, partial(self._wait_for_insync, offset, callback))

    def _wait_for_insync(
        self, offset: Offset, callback: Callable[[ErrorCode], None], code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE or self._insync_waiters.is_reached(offset):
            callback(code)
        elif not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._insync_waiters.wait(offset, callback)

    # ---- reading

    @property
    def last_stable_offset(self) -> Offset:
        """Every transaction below it has ended, and its marker is committed."""
        first = self.producers.first_unstable
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log.start_offset)

    # ---- maintenance

    def reconfigure(self, config: LogConfig) -> None:
        with self._flusher.fencing():
            self.log.reconfigure(config)
        # A laxer policy commits at once what waits for a flush; a stricter one needs a flush.
        self._driver.recheck_flushed(self.group)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Request a flush, for the flush policy `interval`."""
        self._flusher.request(self.group.flush_handle, 0)

    @property
    def trimmed_to(self) -> Offset:
        """The log start that the group agreed on and this replica has applied; retention may
        delete more."""
        return min(self._trim_to, self.log.start_offset)

    def trim(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Delete records below `offset` on every replica; calls back when that is committed, or
        with the error. Raises RefusedError if this replica does not lead."""
        self._driver.check_leadership(self.group)
        # Added first: the commit may be reported within the call.
        trim = (offset, callback)
        self._trims.append(trim)
        try:
            self._driver.append_control(self.group, ControlKind.TRIM, offset.to_bytes(8, "big"))
        except StorageError:
            self._trims.remove(trim)
            raise

    def retain(self, now: TimestampMs) -> bool:
        self._delete_trimmed()
        # Unflushed records may be lost in a crash, so retention must not start beyond them.
        end = min(self.high_watermark, self.log.flushed_offset)
        with self._flusher.fencing():
            has_deleted = self.log.retain(now, end)
        if has_deleted:
            self._start_moved()
        return has_deleted

    def expire_producers(self, before: TimestampMs) -> None:
        """Forget producers that were idle since; never one with an open transaction."""
        self.producers.expire(before)
        self._guards.expire(before)

    def snapshot_if_due(self) -> bool:
        """Save a producer snapshot if enough was appended since the last; True if it did."""
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
        """Records were deleted: save the producer state that can no longer be replayed."""
        start = self.log.start_offset
        self.producers.aborted.forget_below(start)
        if self._snapshot_offset < start and len(self.producers):
            # Without space for it, a restart replays only what the log still has.
            with suppress(DiskFullError):
                self._save_snapshot()
        # Those who wait below it get an error, and fetch sessions say where the log starts.
        for watcher in list(self.watchers):
            watcher.on_progress(self)

    def _take_waiters(self) -> list[Callable[[ErrorCode], None]]:
        self._guards.clear()
        not_insync = self._insync_waiters.take_all()
        trims, self._trims = self._trims, []
        return [*super()._take_waiters(), *(callback for _, callback in (*not_insync, *trims))]

    def _fail_waiters(self, code: ErrorCode) -> None:
        super()._fail_waiters(code)
        watchers, self.watchers = list(self.watchers), {}
        for watcher in watchers:
            watcher.on_unavailable(self)

    def close(self) -> None:
        """Flush, snapshot and close; the next start replays nothing."""
        self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Without space for the snapshot the next start replays more headers.
        with suppress(DiskFullError):
            self._save_snapshot()
        with self._flusher.fencing():
            self.log.close()

    def drop(
        self, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *, forget_vote: bool = True
    ) -> None:
        """The replica moves away or its topic was deleted: fail all waiters, and discard the log.

        The vote is kept for a group that lives on: this broker may rejoin it, and must not vote
        twice in an epoch.
        """
        self.end(code, forget_vote=forget_vote)
        self.log.discard()

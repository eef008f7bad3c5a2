"""The replica of a replicated log: leadership, high watermark, and the callbacks for both.

The base of partition replicas (replica.py) and of the metadata replica, which add the state that
they derive from the records. Everything runs on the event loop, by callbacks and without awaiting,
because this is the hot path.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from moldau.log.interface import ControlKind, PartitionLog
from moldau.model.errors import ErrorCode, MoldauError
from moldau.model.ids import (
    NO_TIMESTAMP,
    BrokerId,
    Epoch,
    Offset,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.insync_waiters import Waiters, insert_waiter
from moldau.replica.peer_codec import GroupKey
from moldau.replica.raft_group import RaftGroup
from moldau.replica.stamping import stamp_all


async def wait_for_code(start: Callable[[Callable[[ErrorCode], None]], None]) -> ErrorCode:
    """Call `start` with a callback, and return the code that the callback gets.

    The callback may outlive the caller: it ignores a call after the wait was cancelled.
    """
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def settle(code: ErrorCode) -> None:
        if not future.done():
            future.set_result(code)

    start(settle)
    return await future


class Proposal:
    """A batch that was appended, and may not be committed yet."""

    __slots__ = ("append_time", "base_offset", "end_offset", "replica")

    def __init__(
        self,
        base_offset: Offset,
        end_offset: Offset,
        append_time: TimestampMs,
        replica: "RaftReplica",
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        """The batch is committed once the high watermark reaches this."""
        self.append_time = append_time
        """The broker's timestamp with LogAppendTime, else -1."""
        self.replica = replica

    def log_start_offset(self) -> Offset:
        return self.replica.log.start_offset

    def is_acknowledged(self) -> bool:
        """Whether acks=all is satisfied."""
        return self.replica.is_acknowledged(self.end_offset)

    def when_acknowledged(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once acks=all is satisfied, or with the error."""
        self.replica.when_acknowledged(self.end_offset, callback)

    def when_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once the batch is committed, or with the error."""
        self.replica.when_committed(self.end_offset, callback)


class RaftReplica:
    """One Raft group on this broker, over one log."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        members: Members,
        driver: RaftDriver,
        flusher: Flusher,
        on_leadership: Callable[[], None],
        on_failed: Callable[[MoldauError], None],
    ) -> None:
        """`members` are the initial ones; those in the log are more recent.

        `on_leadership`: the known leader changed, or this replica became ready to lead.
        """
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self._flusher = flusher
        self._driver = driver
        self._on_leadership = on_leadership
        self._on_failed = on_failed
        self.high_watermark = log.start_offset
        self._waiters: Waiters = deque()
        self.is_open = False
        self._is_leading = False
        self.is_ready = False
        """Leads, and the no-op of its epoch is committed: its offsets are up to date."""
        self._load_state()
        self.group = driver.add_group(GroupKey(topic_id, partition.partition), log, members, self)
        self.is_open = True

    def _load_state(self) -> None:
        """Override to restore what is derived from the records."""

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

    def in_sync(self, lag_ms_max: int) -> tuple[BrokerId, ...]:
        """Voters that were caught up within that time; empty unless this replica leads."""
        return tuple(self._driver.in_sync(self.group, lag_ms_max))

    def follower_seconds(self) -> dict[BrokerId, float]:
        """See RaftGroup.follower_seconds."""
        return self.group.follower_seconds(self._driver.now)

    # ---- callbacks of the driver

    def on_role(self, group: RaftGroup, role: Role, epoch: Epoch, leader: BrokerId) -> None:
        was_leading, self._is_leading = self._is_leading, role is Role.LEADER
        self.is_ready = self._is_leading and group.core.is_ready
        if was_leading:
            # Also if it was elected again: its earlier proposals may be truncated.
            self._fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # A group may campaign before it is open; its host does not know it yet.
        if self.is_open:
            self._on_leadership()

    def on_commit(self, group: RaftGroup, offset: Offset) -> None:
        if offset > self.high_watermark:
            self._advance(offset)
        if self._is_leading and not self.is_ready and group.core.is_ready:
            self.is_ready = True
            self._on_leadership()

    def _advance(self, watermark: Offset) -> None:
        self.high_watermark = watermark
        waiters = self._waiters
        while waiters and waiters[0][0] <= watermark:
            waiters.popleft()[1](ErrorCode.NONE)

    def on_stored(
        self, group: RaftGroup, headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        """Override to follow appended batches."""

    def on_truncated(self, group: RaftGroup, offset: Offset) -> None:
        """Override to follow appended batches."""

    def on_control(
        self, group: RaftGroup, kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        """Override to handle control entries."""

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        return b""

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        self.high_watermark = offset

    def on_voter_replaced(self, group: RaftGroup, voter: BrokerId) -> None:
        """Override to react when a voter lost its log."""

    def on_failed(self, group: RaftGroup, error: MoldauError) -> None:
        self._is_leading = self.is_ready = False
        self._fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
        self._on_failed(error)

    # ---- writing

    def propose(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> Proposal:
        """Append batches. `data` is stamped in place and not kept.

        Raises RefusedError or StorageError if nothing was appended.
        """
        self._driver.check_leadership(self.group)
        offset = self.log.end_offset
        stamped, size, end = stamp_all(data, headers, offset, self.epoch, NO_TIMESTAMP)
        self._append(data, stamped)
        self._driver.appended(self.group, size)
        return Proposal(offset, end, NO_TIMESTAMP, self)

    def _append(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> None:
        """Append to the log; the caller then calls `driver.appended`. Raises StorageError."""
        with self._flusher.fencing():
            self.log.append(data, headers)

    def when_committed(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything below `offset` is committed, or with the error."""
        if offset <= self.high_watermark:
            callback(ErrorCode.NONE)
            return
        if not self.group.is_leader or not self.is_open:
            # Leadership was lost during the append: another leader's batch may replace it.
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        insert_waiter(self._waiters, offset, callback)

    def is_acknowledged(self, offset: Offset) -> bool:
        """Whether acks=all is satisfied for everything below `offset`."""
        return offset <= self.high_watermark

    def when_acknowledged(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once acks=all is satisfied for everything below `offset`, or with the error."""
        self.when_committed(offset, callback)

    def _take_waiters(self) -> list[Callable[[ErrorCode], None]]:
        waiters, self._waiters = self._waiters, deque()
        return [callback for _, callback in waiters]

    def _fail_waiters(self, code: ErrorCode) -> None:
        for callback in self._take_waiters():
            callback(code)

    def end(self, code: ErrorCode, *, forget_vote: bool = False) -> None:
        """Stop serving, and leave the log unchanged."""
        self.is_open = self._is_leading = self.is_ready = False
        self._driver.remove_group(self.group, forget_vote=forget_vote)
        self._fail_waiters(code)

"""Owns one Raft group on this broker as the driver sees it, and what its owner is told."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from moldau.log.interface import ControlKind, FlushPolicy, PartitionLog
from moldau.model.errors import MoldauError
from moldau.model.ids import BrokerId, Epoch, Offset, RaftIndex
from moldau.raft.core import RaftCore
from moldau.raft.events import Event, Role
from moldau.raft.membership import Members
from moldau.raft.progress import FOREVER, Progress, ProgressState
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.flusher import FlushHandle
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import GroupKey, RaftEnvelope


class GroupOwner(Protocol):
    """Who is told what happens in a group, after each step and in order.

    It may call the driver from inside these.
    """

    def on_role(self, group: "RaftGroup", role: Role, epoch: Epoch, leader: BrokerId) -> None:
        """`leader` is NO_BROKER while none is known."""
        ...

    def on_commit(self, group: "RaftGroup", offset: Offset) -> None:
        """All records below `offset` are committed."""
        ...

    def on_control(
        self, group: "RaftGroup", kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        """A control entry of an owner is committed, and on this broker's disk.

        In the order of the log, each after the on_commit that covers it; after a start again for
        those that are still in the log.
        """
        ...

    def on_stored(
        self, group: "RaftGroup", headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        """Batches of the leader are in the log; what the control batches among them say."""
        ...

    def on_truncated(self, group: "RaftGroup", offset: Offset) -> None:
        """Records from `offset` on are gone from the log: they never were committed."""
        ...

    def snapshot(self, group: "RaftGroup", offset: Offset) -> bytes:
        """What a state machine that begins at `offset` must know; empty if nothing.

        Raises RefusedError if that cannot be told now; it is asked again in a moment.
        """
        ...

    def on_reset(self, group: "RaftGroup", offset: Offset, payload: bytes) -> None:
        """The log begins anew at `offset`, and keeps the leader's snapshot for there."""
        ...

    def on_voter_replaced(self, group: "RaftGroup", voter: BrokerId) -> None:
        """This broker leads, and the voter has another log than the group counts on."""
        ...

    def on_failed(self, group: "RaftGroup", error: MoldauError) -> None:
        """The group stopped on this broker; its files are kept as they are."""
        ...


def expire_transfer(transfer: asyncio.Future[bool]) -> None:
    """Nobody told in time how a transfer ended."""
    if not transfer.done():
        transfer.set_result(False)


class FollowerProgress(NamedTuple):
    """How far a member is, as its leader knows."""

    flushed: RaftIndex
    received: RaftIndex
    caught_up_at: int
    """Milliseconds of the driver's clock."""
    state: ProgressState


class RaftGroup:
    """One group. Others read `core` and `log`; only the driver steps and writes."""

    __slots__ = (
        "commit_notified",
        "controls_notified",
        "core",
        "current_envelope",
        "damage_checked_at",
        "failure",
        "flush_handle",
        "has_controls",
        "is_alone",
        "is_grown",
        "is_removed",
        "is_stepping",
        "key",
        "log",
        "name",
        "news",
        "owner",
        "proposed",
        "proposed_bytes",
        "queue",
        "reads",
        "timer_at",
        "tracked",
        "tracked_epoch",
        "transfer",
        "view",
        "wire",
    )

    def __init__(
        self,
        *,
        key: GroupKey,
        log: PartitionLog,
        view: GroupLog,
        core: RaftCore,
        owner: GroupOwner,
        flush_handle: FlushHandle,
    ) -> None:
        self.key = key
        self.name = key.name
        self.wire = key.wire
        self.log = log
        self.view = view
        self.core = core
        self.owner = owner
        self.flush_handle = flush_handle
        self.failure: MoldauError | None = None
        self.is_alone = False
        """This broker leads, there are no other members, and all that it did is done."""
        self.is_grown = False
        """The owner appended, and the core has not heard of it yet."""
        self.is_removed = False
        self.is_stepping = False
        self.queue: deque[Event] = deque()
        self.news: deque[Callable[[], None]] = deque()
        """For the owner, once the step is over."""
        self.current_envelope: RaftEnvelope | None = None
        """The message that the core is stepped with."""
        self.proposed: deque[tuple[RaftIndex, int]] = deque()
        """End and size of what was proposed here in this epoch and is not committed."""
        self.proposed_bytes = 0
        self.timer_at = FOREVER
        self.commit_notified = core.commit
        self.controls_notified = core.commit
        self.has_controls = bool(view.owner_controls(core.commit, core.end))
        """There may be control entries that the owner has not heard of."""
        self.tracked: dict[BrokerId, Progress] = core.progress
        """The members whose heartbeats are set up: the core makes a new one at each change."""
        self.tracked_epoch = core.epoch
        self.damage_checked_at = -FOREVER
        self.reads: dict[int, asyncio.Future[Offset]] = {}
        self.transfer: tuple[BrokerId, asyncio.Future[bool]] | None = None
        """Whom leadership is handed to, and who wants to know how that ends."""

    @property
    def is_running(self) -> bool:
        return self.failure is None and not self.is_removed

    @property
    def is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def epoch(self) -> Epoch:
        return self.core.epoch

    @property
    def leader(self) -> BrokerId:
        return self.core.leader

    @property
    def members(self) -> Members:
        return self.core.members

    @property
    def commit_offset(self) -> Offset:
        """The high watermark, as far as this broker knows."""
        return max(self.log.offset_of(self.core.commit), self.log.start_offset)

    @property
    def flushes_always(self) -> bool:
        return self.log.config.flush is FlushPolicy.ALWAYS

    def end_transfer(self, leader: BrokerId) -> None:
        """A transfer is over, well or not: that broker leads, or NO_BROKER: nobody knows."""
        if self.transfer is not None:
            target, future = self.transfer
            self.transfer = None
            if not future.done():
                future.set_result(leader == target)

    def __repr__(self) -> str:
        return f"Group({self.name})"

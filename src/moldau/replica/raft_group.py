"""One Raft group on this broker as the driver sees it, and the callbacks to its owner."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from moldau.log.interface import ControlKind, FlushPolicy, PartitionLog
from moldau.model.errors import MoldauError
from moldau.model.ids import BrokerId, Epoch, Offset, RaftIndex
from moldau.raft.core import RaftCore
from moldau.raft.events import Event, Role
from moldau.raft.progress import FOREVER, Progress
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.flusher import FlushHandle
from moldau.replica.group_events import GroupEvents
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import GroupKey, RaftEnvelope


class GroupOwner(Protocol):
    """The state machine of a group. Called in order, after each step; may call the driver."""

    def on_role(self, group: "RaftGroup", role: Role, epoch: Epoch, leader: BrokerId) -> None:
        """The role or the leader changed; NO_BROKER while no leader is known."""
        ...

    def on_commit(self, group: "RaftGroup", offset: Offset) -> None:
        """All records below `offset` are committed."""
        ...

    def on_control(
        self, group: "RaftGroup", kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        """A control entry of the owner is committed, and flushed on this broker.

        Called in log order, each after the on_commit that covers it; repeated after a restart for
        those that are still in the log.
        """
        ...

    def on_stored(
        self, group: "RaftGroup", headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        """Batches from the leader are in the log; `markers`: the control batches among them."""
        ...

    def on_truncated(self, group: "RaftGroup", offset: Offset) -> None:
        """The log was truncated to `offset`: the removed records were never committed."""
        ...

    def snapshot(self, group: "RaftGroup", offset: Offset) -> bytes:
        """The state at `offset`, for a follower that begins there; may be empty.

        Raises RefusedError if temporarily unavailable; the driver retries.
        """
        ...

    def on_reset(self, group: "RaftGroup", offset: Offset, payload: bytes) -> None:
        """The log was reset to begin at `offset`; `payload` is the leader's snapshot there."""
        ...

    def on_voter_replaced(self, group: "RaftGroup", voter: BrokerId) -> None:
        """On the leader: the voter lost its log and has a new one."""
        ...

    def on_failed(self, group: "RaftGroup", error: MoldauError) -> None:
        """The group stopped on this broker because of an error; its files are kept unchanged."""
        ...


def expire_transfer(transfer: asyncio.Future[bool]) -> None:
    """The transfer timed out without a known result."""
    if not transfer.done():
        transfer.set_result(False)


class RaftGroup:
    """One group. Others read `core` and `log`; only the driver steps and writes."""

    __slots__ = (
        "commit_notified",
        "controls_notified",
        "core",
        "corruption_checked_at",
        "counted_epoch",
        "current_envelope",
        "events",
        "failure",
        "flush_handle",
        "grown_at",
        "has_controls",
        "is_alone",
        "is_grown",
        "is_removed",
        "is_stepping",
        "key",
        "led_since",
        "log",
        "name",
        "notifications",
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
        """This broker leads, is the only member, and has no work pending: a fast path applies."""
        self.is_grown = False
        """The owner appended, and the core was not stepped with it yet."""
        self.led_since = 0
        """By the core's time, in milliseconds."""
        self.grown_at = 0.0
        """When it appended first, since the core was stepped."""
        self.events: GroupEvents = ()
        """What it did lately, for people."""
        self.is_removed = False
        self.is_stepping = False
        self.queue: deque[Event] = deque()
        self.notifications: deque[Callable[[], None]] = deque()
        """Calls to the owner, made once the step is over."""
        self.current_envelope: RaftEnvelope | None = None
        """The message that the core is being stepped with."""
        self.counted_epoch = core.epoch
        self.proposed: deque[tuple[RaftIndex, int, float]] = deque()
        """End and size of proposals of this epoch that are not committed, and when they were
        appended."""
        self.proposed_bytes = 0
        self.timer_at = FOREVER
        self.commit_notified = core.commit
        self.controls_notified = core.commit
        self.has_controls = bool(view.owner_controls(core.commit, core.end))
        """There may be control entries that were not reported to the owner yet."""
        self.tracked: dict[BrokerId, Progress] = core.progress
        """The followers that heartbeats track; the core replaces the dict at each change."""
        self.tracked_epoch = core.epoch
        self.corruption_checked_at = -FOREVER
        self.reads: dict[int, asyncio.Future[Offset]] = {}
        self.transfer: tuple[BrokerId, asyncio.Future[bool]] | None = None
        """The target of a running leadership transfer, and the future for its result."""

    @property
    def is_running(self) -> bool:
        return self.failure is None and not self.is_removed

    @property
    def is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def leads_alone(self) -> bool:
        """Whether no other broker could lead it: a read needs nobody's confirmation."""
        return self.is_running and self.core.leads_alone

    @property
    def flushes_always(self) -> bool:
        return self.log.config.flush is FlushPolicy.ALWAYS

    def follower_seconds(self, now: int) -> dict[BrokerId, float]:
        """How long ago each follower last had every entry, or since when this broker leads."""
        return {
            peer: max(0, now - max(progress.caught_up_at, self.led_since)) / 1000
            for peer, progress in self.core.progress.items()
        }

    def end_transfer(self, leader: BrokerId) -> None:
        """The transfer is over: `leader` leads now, or NO_BROKER if unknown."""
        if self.transfer is not None:
            target, future = self.transfer
            self.transfer = None
            if not future.done():
                future.set_result(leader == target)

    def __repr__(self) -> str:
        return f"Group({self.name})"

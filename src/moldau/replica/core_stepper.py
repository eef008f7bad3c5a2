"""Steps the Raft core of a group: one event after another, each with all its effects.

Effects on log and peers are executed before the next event; the owner is notified after the last
one. A group with an internal error or a corrupt log stops on this broker, alone.
"""

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from moldau.model import log_events as events
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
    StorageError,
)
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.events import Event, Role
from moldau.raft.membership import NO_BROKER
from moldau.replica.effect_executor import EffectExecutor
from moldau.replica.flusher import Flusher
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)

_FULL_LOG_MS: Final = 10_000
"""So often it is logged that the disk is full, for one group of all that are affected."""


class CoreStepper:
    """Steps the cores of all groups."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        now: Callable[[], int],
        effects: EffectExecutor,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
        on_touched: Callable[[], None],
    ) -> None:
        """`on_touched`: some group needs the work at the end of the loop turn."""
        self._loop = loop
        self._now = now
        self._effects = effects
        self._flusher = flusher
        self._peers = peers
        self._on_touched = on_touched
        self._full_log_at = 0
        self.touched: dict[RaftGroup, None] = {}
        """Groups that were stepped or changed in this loop turn."""

    def touch(self, group: RaftGroup) -> None:
        """Schedule the group for the end of the loop turn."""
        if group.failure is None and not group.is_removed:
            touched = self.touched
            if not touched:
                self._on_touched()
            touched[group] = None

    # ---- events

    def handle(self, group: RaftGroup, event: Event) -> None:
        """Step the core and execute its effects. Raises RaftRejection."""
        if group.failure is not None or group.is_removed:
            return
        group.is_alone = False
        queue = group.queue
        if group.is_grown:
            # The event applies to the log as it is now.
            group.is_grown = False
            queue.append(e.Appended(group.log.end_index))
        queue.append(event)
        if group.is_stepping:
            return
        group.is_stepping = True
        now = self._now()
        core, execute = group.core, self._effects.execute
        try:
            while queue:
                try:
                    for effect in core.step(now, queue.popleft()):
                        execute(group, effect)
                except DiskFullError as full:
                    self._log_full(group, now, full)
                    # The rest of the step was not executed, which the core must learn next.
                    queue.appendleft(e.AppendFailed())
        except (RaftError, CorruptionError) as error:
            self.fail(group, error)
        except StorageError as failure:
            self._flusher.report(failure)
            self.fail(group, failure)
        finally:
            queue.clear()
            group.is_stepping = False
        self.touch(group)
        if group.notifications:
            self.notify(group)

    def _log_full(self, group: RaftGroup, now: int, error: DiskFullError) -> None:
        """Followers try again many times a second, and the log may be on the same disk."""
        if now < self._full_log_at:
            return
        self._full_log_at = now + _FULL_LOG_MS
        log.warning(
            "group %s: disk full, will retry: %s",
            group.name,
            error,
            extra=events.DISK_FULL(group=group.name),
        )

    def handle_sent(self, group: RaftGroup, event: e.AppendSent) -> None:
        """An Append was sent: its only possible effect is the next Append."""
        if group.is_grown or group.is_stepping or not group.is_running:
            self.handle(group, event)
            return
        try:
            for effect in group.core.step(self._now(), event):
                self._effects.execute(group, effect)
        except (RaftError, CorruptionError) as error:
            self.fail(group, error)
            self.notify(group)

    def handle_all(self, work: deque[tuple[RaftGroup, Event]]) -> None:
        """Handle events of many groups. An error in one must not lose the events of others."""
        try:
            while work:
                self.handle(*work.popleft())
        finally:
            if work:
                self._loop.call_soon(self.handle_all, work)

    # ---- appends of the owner

    def handle_grown(self, group: RaftGroup) -> None:
        """Step the core with all appends of this loop turn."""
        group.is_grown = False
        self.handle(group, e.Appended(group.log.end_index))

    def settled(self, group: RaftGroup) -> None:
        """No work is pending: decide whether the single-voter fast path applies until the next
        event."""
        core = group.core
        group.is_alone = (
            core.role is Role.LEADER
            and not core.progress
            and core.is_voter
            and core.is_ready
            and not group.notifications
            and not group.has_controls
        )

    def advance_single_voter(self, group: RaftGroup) -> None:
        """As handle_grown plus the commit, if `is_alone`: no followers and no timers."""
        group.is_grown = False
        core, partition_log = group.core, group.log
        end = partition_log.end_index
        is_flushed = partition_log.flushed_offset == partition_log.end_offset
        try:
            is_commit = core.advance_single_voter(
                end, end if is_flushed else partition_log.flushed_index
            )
        except RaftError as error:
            self.fail(group, error)
            self.notify(group)
            return
        if not is_commit:
            return
        if is_flushed and not group.proposed:
            # Inlined note_commit: this is the hot path of a single broker.
            group.commit_notified = end
            group.owner.on_commit(group, partition_log.end_offset)
        else:
            group.owner.on_commit(group, self._effects.note_commit(group, core.commit))

    # ---- the owner

    def notify(self, group: RaftGroup) -> None:
        """Deliver the queued notifications, in order."""
        while group.notifications:
            group.notifications.popleft()()

    def fail(self, group: RaftGroup, error: MoldauError) -> None:
        """Stop the group; the caller then calls `notify`."""
        # A RaftError is a bug: log the traceback.
        bug = error if isinstance(error, RaftError) else None
        log.error(
            "group %s stops on this broker, its files are kept: %s",
            group.name,
            error,
            exc_info=bug,
            extra=events.REPLICA_STOPPED(group=group.name),
        )
        # Without the traceback, whose frames would keep files of the log open.
        group.failure = error.with_traceback(None)
        group.notifications.clear()
        group.notifications.append(lambda: group.owner.on_failed(group, error))
        self.detach(group)

    def detach(self, group: RaftGroup) -> None:
        """Drop everything queued for the group, and fail its pending reads and transfer."""
        group.is_alone = False
        self.touched.pop(group, None)
        for peer in self._peers.values():
            peer.forget(group)
            peer.heartbeat.forget(group)
        reads, group.reads = group.reads, {}
        for future in reads.values():
            if not future.done():
                future.set_exception(RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        group.end_transfer(NO_BROKER)

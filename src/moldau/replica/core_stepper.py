"""Owns how the core of a group is stepped: one event after another, each with all that follows.

What the core wants of log and peers is done before its next event; what the owner must hear is told
once the core is at rest. A group that breaks a rule or finds its log damaged stops here, alone.
"""

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping

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
from moldau.replica.peer import Peer
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)


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
        """`on_touched`: there are groups to look at, at the end of the turn."""
        self._loop = loop
        self._now = now
        self._effects = effects
        self._flusher = flusher
        self._peers = peers
        self._on_touched = on_touched
        self.touched: dict[RaftGroup, None] = {}
        """Groups to which something happened in this turn."""

    def touch(self, group: RaftGroup) -> None:
        """Something happened in the group: look at it at the end of the turn."""
        if group.failure is None and not group.is_removed:
            touched = self.touched
            if not touched:
                self._on_touched()
            touched[group] = None

    # ---- events

    def handle(self, group: RaftGroup, event: Event) -> None:
        """Step the core, and everything that follows at once. Raises RaftRefusal."""
        if group.failure is not None or group.is_removed:
            return
        group.is_alone = False
        queue = group.queue
        if group.is_grown:
            # Whatever happens next happens to the log as it is now.
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
                except DiskFullError as error:
                    log.warning("%s: %s", group.name, error)
                    # The rest of the step never happened, and the core must hear of it next.
                    queue.appendleft(e.AppendFailed())
        except (RaftError, CorruptionError) as error:
            self.fail(group, error)
        except StorageError as error:
            self._flusher.report(error)
            self.fail(group, error)
        finally:
            queue.clear()
            group.is_stepping = False
        self.touch(group)
        if group.news:
            self.tell(group)

    def handle_sent(self, group: RaftGroup, event: e.AppendSent) -> None:
        """An Append has left: all that can come of it is the next one."""
        if group.is_grown or group.is_stepping or not group.is_running:
            self.handle(group, event)
            return
        try:
            for effect in group.core.step(self._now(), event):
                self._effects.execute(group, effect)
        except (RaftError, CorruptionError) as error:
            self.fail(group, error)
            self.tell(group)

    def handle_all(self, work: deque[tuple[RaftGroup, Event]]) -> None:
        """Events of many groups. A defect in the owner of one must not cost another its event."""
        try:
            while work:
                self.handle(*work.popleft())
        finally:
            if work:
                self._loop.call_soon(self.handle_all, work)

    # ---- what the owner appended

    def handle_grown(self, group: RaftGroup) -> None:
        """Step what the owner appended in this turn, as one."""
        group.is_grown = False
        self.handle(group, e.Appended(group.log.end_index))

    def settled(self, group: RaftGroup) -> None:
        """All that the core wanted is done. Any further event takes back what is noted here."""
        core = group.core
        group.is_alone = (
            core.role is Role.LEADER
            and not core.progress
            and core.is_voter
            and core.is_ready
            and not group.news
            and not group.has_controls
        )

    def advance_single_voter(self, group: RaftGroup) -> None:
        """As handle_grown, and the commit, where `is_alone`: nobody is sent to, no timer is set."""
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
            self.tell(group)
            return
        if not is_commit:
            return
        if is_flushed and not group.proposed:
            # What note_commit does, on the path of every record of a broker without others.
            group.commit_notified = end
            group.owner.on_commit(group, partition_log.end_offset)
        else:
            group.owner.on_commit(group, self._effects.note_commit(group, core.commit))

    # ---- the owner

    def tell(self, group: RaftGroup) -> None:
        """What happened, in order."""
        while group.news:
            group.news.popleft()()

    def fail(self, group: RaftGroup, error: MoldauError) -> None:
        """Stop the group; `tell` tells."""
        # A broken rule is a defect of this program: where, whoever mends it has to know.
        defect = error if isinstance(error, RaftError) else None
        log.error("group %s stops: %s", group.name, error, exc_info=defect)
        # Without the frames that it came through: they would keep files of the log open.
        group.failure = error.with_traceback(None)
        group.news.clear()
        group.news.append(lambda: group.owner.on_failed(group, error))
        self.detach(group)

    def detach(self, group: RaftGroup) -> None:
        """Nothing is sent, promised or answered for the group any more."""
        group.is_alone = False
        self.touched.pop(group, None)
        for peer in self._peers.values():
            peer.forget(group)
            peer.beat.forget(group)
        reads, group.reads = group.reads, {}
        for future in reads.values():
            if not future.done():
                future.set_exception(RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        group.end_transfer(NO_BROKER)

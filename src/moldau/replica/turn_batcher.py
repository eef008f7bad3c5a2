"""Ends each turn of the event loop with the work that all groups share, batched.

Cores receive what was appended and flushed, entries are sent to peers that have room, each peer
gets one frame, and all votes go to the disk in one write.
"""

from asyncio import AbstractEventLoop
from collections.abc import Mapping
from typing import Final

from moldau.model.errors import CorruptionError, RefusedError, StorageError
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.replica.cold_sends import ColdSends
from moldau.replica.core_stepper import CoreStepper
from moldau.replica.effect_executor import EffectExecutor
from moldau.replica.flusher import Flusher
from moldau.replica.heartbeats import HeartbeatExchange
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup
from moldau.replica.timers import GroupTimers
from moldau.replica.vote_writer import VoteWriter

_PROPOSALS_FIRST: Final = 20
"""After this many proposals the batch is sent early: followers work while this broker reads on."""
_BULK_BYTES_PER_TURN_MAX = 4 * 1024 * 1024
"""Sent to one peer before the other peers get their turn."""
_COLD_BYTES = 1024 * 1024
"""How much a deferred Append counts toward the limit above."""


class TurnBatcher:
    """Runs the batched work once at the end of each loop turn."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        stepper: CoreStepper,
        effects: EffectExecutor,
        heartbeats: HeartbeatExchange,
        timers: GroupTimers,
        votes: VoteWriter,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
    ) -> None:
        self._loop = loop
        self._stepper = stepper
        self._effects = effects
        self._heartbeats = heartbeats
        self._timers = timers
        self._votes = votes
        self._flusher = flusher
        self._peers = peers
        self._cold_sends = ColdSends(loop=loop, stepper=stepper, on_read=self.soon)
        self._is_due = False
        self._is_running = False
        self._proposals = 0

    def soon(self) -> None:
        """Schedule a run at the end of this turn."""
        if not self._is_due and not self._is_running:
            self._is_due = True
            self._loop.call_soon(self._on_due)

    def proposed(self) -> None:
        """A batch was appended here. With many in one turn, the first are sent early."""
        self._proposals += 1
        if self._proposals == _PROPOSALS_FIRST and not self._is_running:
            self._run()
        self.soon()

    def _on_due(self) -> None:
        self._proposals = 0
        if self._is_due:
            self._run()

    def _run(self) -> None:
        self._is_due = False
        self._is_running = True
        # Also if a callback raised: the other groups' work is not done.
        is_more = True
        try:
            self._settle()
            is_more = self._send_bulk()
            self._settle()
            for peer in list(self._peers.values()):
                peer.flush()
            self._heartbeats.send_due()
            self._votes.write()
        finally:
            self._is_running = False
            if is_more or self._stepper.touched or self._heartbeats.is_due:
                self.soon()

    def _settle(self) -> None:
        """Step cores with appends and flushes, follow membership changes, and set timers."""
        stepper, touched = self._stepper, self._stepper.touched
        while touched:
            group = next(iter(touched))
            del touched[group]
            core = group.core
            is_behind = group.is_grown or core.flushed < core.end
            flushed = group.log.flushed_index if is_behind else core.flushed
            if group.is_alone:
                if group.is_grown or flushed > core.flushed:
                    stepper.advance_single_voter(group)
                continue
            if flushed > core.flushed:
                stepper.handle(group, e.Flushed(flushed, core.truncations))
                continue
            if group.is_grown:
                stepper.handle_grown(group)
                continue
            if core.commit > group.commit_notified:
                # A full disk interrupted the step that would have notified the owner.
                self._effects.notify_commit(group, core.commit)
                stepper.notify(group)
            if group.has_controls:
                self._effects.notify_controls(group)
                stepper.notify(group)
            if core.progress is not group.tracked:
                self._heartbeats.track(group)
            self._set_timer(group)
            stepper.settled(group)

    def is_settled(self, group: RaftGroup) -> bool:
        """Whether `_settle` would do nothing but set the timer."""
        core = group.core
        return (
            not group.is_grown
            and core.flushed >= core.end
            and core.commit <= group.commit_notified
            and not group.has_controls
            and core.progress is group.tracked
        )

    # ---- entries

    def _send_bulk(self) -> bool:
        """Send entries to peers that have room; True if more can be sent in the next turn."""
        is_more = False
        for peer in list(self._peers.values()):
            sent = 0
            waiting = peer.waiting
            while waiting and peer.link.has_room:
                if sent >= _BULK_BYTES_PER_TURN_MAX:
                    is_more = True
                    break
                group = next(iter(waiting))
                sent += self._send_waiting(peer, group)
            peer.flush()
        return is_more

    def _send_waiting(self, peer: Peer, group: RaftGroup) -> int:
        """Send what one group has for a peer; returns its size."""
        stepper = self._stepper
        effect = peer.waiting.pop(group)
        try:
            if self._cold_sends.defer_if_cold(peer, group, effect):
                # The lookup has its cost as well.
                return _COLD_BYTES
            event, size = self._effects.send_bulk(peer, group, effect)
        except (CorruptionError, RefusedError) as error:
            stepper.fail(group, error)
            stepper.notify(group)
            return 0
        except (StorageError, OSError) as unread:
            failure = StorageError(f"cannot read the log of group {group.name}: {unread}")
            self._flusher.report(failure)
            stepper.fail(group, failure)
            stepper.notify(group)
            return 0
        if isinstance(event, e.AppendSent):
            stepper.handle_sent(group, event)
            self._set_timer(group)
        elif event is not None:
            stepper.handle(group, event)
        return size

    def _set_timer(self, group: RaftGroup) -> None:
        deadline = group.core.deadline
        if deadline < group.timer_at:
            self._timers.set(group, deadline)

"""Owns the end of a turn of the loop: what all groups share, done once for all of them.

Cores hear what was appended and flushed, entries are read and sent to peers that have room, one
frame per peer leaves, votes go to the disk in one write.
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
from moldau.replica.peer import Peer
from moldau.replica.raft_group import RaftGroup
from moldau.replica.timers import GroupTimers
from moldau.replica.vote_writer import VoteWriter

_PROPOSALS_FIRST: Final = 20
"""So many are sent before the turn is over: followers work while this broker reads on."""
_BULK_BYTES_PER_TURN_MAX: Final = 4 * 1024 * 1024
"""Sent to one peer before it is the turn of others."""
_COLD_BYTES: Final = 1024 * 1024
"""As what an Append counts that is not sent yet."""


class TurnBatcher:
    """Ends turns."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        steps: CoreStepper,
        effects: EffectExecutor,
        beats: HeartbeatExchange,
        timers: GroupTimers,
        votes: VoteWriter,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
    ) -> None:
        self._loop = loop
        self._steps = steps
        self._effects = effects
        self._beats = beats
        self._timers = timers
        self._votes = votes
        self._flusher = flusher
        self._peers = peers
        self._cold_sends = ColdSends(loop=loop, steps=steps, on_read=self.soon)
        self._is_due = False
        self._is_running = False
        self._proposals = 0

    def soon(self) -> None:
        """There is something to do at the end of this turn."""
        if not self._is_due and not self._is_running:
            self._is_due = True
            self._loop.call_soon(self._on_due)

    def proposed(self) -> None:
        """Something was appended here. Of many, the first do not wait for the last."""
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
        # Also after a defect in an owner: the others' turn is not over.
        is_more = True
        try:
            self._settle()
            is_more = self._send_bulk()
            self._settle()
            for peer in list(self._peers.values()):
                peer.flush()
            self._beats.send_due()
            self._votes.write()
        finally:
            self._is_running = False
            if is_more or self._steps.touched or self._beats.is_due:
                self.soon()

    def _settle(self) -> None:
        """Tell cores what was appended and flushed, follow changes of members, and set timers."""
        steps, touched = self._steps, self._steps.touched
        while touched:
            group = next(iter(touched))
            del touched[group]
            core = group.core
            is_behind = group.is_grown or core.flushed < core.end
            flushed = group.log.flushed_index if is_behind else core.flushed
            if group.is_alone:
                if group.is_grown or flushed > core.flushed:
                    steps.advance_single_voter(group)
                continue
            if flushed > core.flushed:
                steps.handle(group, e.Flushed(flushed, core.truncations))
                continue
            if group.is_grown:
                steps.handle_grown(group)
                continue
            if core.commit > group.commit_notified:
                # A full disk cut the step short that would have told.
                self._effects.notify_commit(group, core.commit)
                steps.tell(group)
            if group.has_controls:
                self._effects.notify_controls(group)
                steps.tell(group)
            if core.progress is not group.tracked:
                self._beats.track(group)
            self._set_timer(group)
            steps.settled(group)

    # ---- entries

    def _send_bulk(self) -> bool:
        """Send entries to peers that have room; True if it is only the turn of others."""
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
        """Send what one group has for a peer; returns its size. What is cold is read first."""
        steps = self._steps
        effect = peer.waiting.pop(group)
        try:
            if self._cold_sends.holds_back(peer, group, effect):
                # Looking for it has its cost as well.
                return _COLD_BYTES
            event, size = self._effects.send_bulk(peer, group, effect)
        except (CorruptionError, RefusedError) as error:
            steps.fail(group, error)
            steps.tell(group)
            return 0
        except (StorageError, OSError) as error:
            failure = StorageError(f"{group.name} cannot be read: {error}")
            self._flusher.report(failure)
            steps.fail(group, failure)
            steps.tell(group)
            return 0
        if isinstance(event, e.AppendSent):
            steps.handle_sent(group, event)
            self._set_timer(group)
        elif event is not None:
            steps.handle(group, event)
        return size

    def _set_timer(self, group: RaftGroup) -> None:
        deadline = group.core.deadline
        if deadline < group.timer_at:
            self._timers.set(group, deadline)

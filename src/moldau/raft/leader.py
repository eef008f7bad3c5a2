"""Owns what a leader does: replicate, commit, and notice that it leads no longer.

Commit is a majority of flushed indexes, the leader's own among them (its flush runs while the
entries travel), and only once they include an entry of its own epoch: an older entry on a majority
of disks can still be overwritten by another leader (figure 8 of the Raft paper).
"""

from moldau.model.ids import BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.election import Electing
from moldau.raft.errors import RaftError
from moldau.raft.events import (
    AppendNoop,
    AppendSent,
    Role,
    Send,
    SendAppend,
    SendSnapshot,
    VoterReplaced,
)
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import AppendResponse, InstallSnapshot, RaftHeartbeat
from moldau.raft.progress import FOREVER, NO_LOG, Progress, ProgressState


class Leading(Electing):
    """A core that can lead."""

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self._campaigns = 0
        self.epoch_start = self.end
        self._quorum_checked_at = self._now
        self.progress = {}
        self._announce()
        self._append_noop()
        self._track_members()
        for peer in self.progress:
            # The first question carries the no-op along: mostly the logs agree.
            self._probe(peer, self.progress[peer], self.config.append_bytes_max)

    def _append_noop(self) -> None:
        self._emit(AppendNoop(self.epoch))
        self._grow(RaftIndex(self.end + 1))

    def _grow(self, end: RaftIndex) -> None:
        self.end = end
        self.last_epoch = self.epoch

    def _set_members(self, index: RaftIndex, members: Members) -> None:
        super()._set_members(index, members)
        if self.role is Role.LEADER:
            self._track_members()

    def _track_members(self) -> None:
        old, self.progress = self.progress, {}
        for peer in sorted(self.members.everyone):
            if peer != self.me:
                self.progress[peer] = old.get(peer) or Progress(
                    next_index=self.epoch_start, now=self._now
                )

    # ---- replication

    def _replicate(self) -> None:
        for peer, progress in self.progress.items():
            self._send_more(peer, progress)

    def _send_more(self, peer: BrokerId, progress: Progress) -> None:
        """Send what the member lacks, if it may be sent now."""
        if progress.is_sending:
            return
        if progress.state is ProgressState.REPLICATE:
            if progress.next >= self.end:
                return
            room = progress.room(self.config)
            if room <= 0:
                return
            if progress.next >= self.log.start_index:
                progress.is_sending = True
                self._send_append(peer, progress, min(room, self.config.append_bytes_max))
                return
            self._send_snapshot(peer, progress)
        elif progress.state is ProgressState.PROBE and not progress.is_waiting:
            self._probe(peer, progress, 0)

    def _probe(self, peer: BrokerId, progress: Progress, bytes_max: int) -> None:
        if progress.next < self.log.start_index:
            self._send_snapshot(peer, progress)
            return
        progress.is_waiting = progress.is_sending = True
        progress.deadline = self._now + self.config.retry_ms
        self._send_append(peer, progress, bytes_max)

    def _send_append(self, peer: BrokerId, progress: Progress, bytes_max: int) -> None:
        index = progress.next
        # Since its no-op all entries are the leader's own.
        prev_epoch = self.epoch if index > self.epoch_start else self._epoch_before(index)
        self._emit(SendAppend(peer, self.epoch, index, prev_epoch, bytes_max))

    def _send_snapshot(self, peer: BrokerId, progress: Progress) -> None:
        index = self.log.start_index
        message = InstallSnapshot(
            self.epoch, index, self._epoch_before(index), self.log.members(index)[1]
        )
        progress.become_snapshot(self._now + self.config.snapshot_retry_ms)
        # An Append that the driver still has in hand is dropped for it.
        progress.is_sending = False
        self._emit(SendSnapshot(peer, message))

    def _on_append_sent(self, event: AppendSent) -> None:
        progress = self.progress.get(event.peer)
        if progress is None or event.epoch != self.epoch:
            return
        progress.is_sending = False
        progress.sent(event.end, event.size, self._now + self.config.retry_ms)
        self._send_more(event.peer, progress)

    def _on_appended(self, end: RaftIndex) -> None:
        if self.role is not Role.LEADER or end < self.end:
            raise RaftError(f"appended up to {end} without leading from {self.end} on")
        self._grow(end)
        self._replicate()

    def advance_single_voter(self, end: RaftIndex, flushed: RaftIndex) -> bool:
        """Appended and Flushed in one, for the leader of a group without other members.

        Its own disk is the majority, so that a commit is all that can come of it: returned is
        whether there is one. `flushed` is what the log says now, not what a flush once covered.
        """
        if self.role is not Role.LEADER or self.progress or end < self.end:
            raise RaftError(f"appended up to {end} without leading alone from {self.end} on")
        self.end = end
        self.last_epoch = self.epoch
        if flushed > self.flushed:
            self.flushed = flushed
        if flushed <= self.commit or not self._may_commit(flushed) or flushed > end:
            return False
        self.commit = flushed
        return True

    def _on_append_answered(self, sender: BrokerId, message: AppendResponse) -> None:
        progress = self.progress.get(sender)
        if progress is None:
            return
        progress.last_contact_at = self._now
        if message.log_id != progress.log_id:
            self._on_log_told(sender, progress, message.log_id)
        if not message.is_accepted:
            self._on_refused(sender, progress, message)
            return
        if message.matched > self.end:
            raise RaftError(f"broker {sender} claims {message.matched} entries of {self.end}")
        match = progress.match
        deadline = self._now + self.config.retry_ms
        progress.answered(message.matched, message.flushed, deadline)
        progress.note_caught_up(self.end, self._now)
        if progress.state is ProgressState.PROBE or (
            progress.state is ProgressState.SNAPSHOT and progress.received >= self.log.start_index
        ):
            progress.become_replicate()
        if progress.match > match and progress.match > self.commit:
            self._maybe_commit()
        if self.role is Role.LEADER:
            self._maybe_hand_over()
            self._send_more(sender, progress)

    def _on_log_told(self, peer: BrokerId, progress: Progress, log_id: LogId) -> None:
        """The member has another log than this leader knew: what the old one held counts no more.

        A voter whose log is not the one that the group counts on gives no votes, so its entries may
        count for a commit: a majority of votes has to be found among the others."""
        if progress.match or progress.received:
            progress.begin_log(log_id)
            progress.become_probe(min(progress.next, self.end))
        progress.log_id = log_id
        if peer in self.members.voters and self.members.log_of(peer) != log_id:
            self._emit(VoterReplaced(peer))

    def _on_log_seen(self, peer: BrokerId, log_id: LogId) -> None:
        """A member answered without an append: one that begins anew is filled, also while nobody
        writes. Until then it counts for nothing that its old log held."""
        progress = self.progress.get(peer)
        if progress is not None and progress.log_id not in (NO_LOG, log_id):
            self._on_log_told(peer, progress, log_id)
            self._send_more(peer, progress)

    def replaced_voters(self) -> list[BrokerId]:
        """Leader: voters that came back with another log than the one that the group counts on."""
        return [
            voter
            for voter in self.members.voters
            if voter in self.progress
            and self.progress[voter].log_id not in (NO_LOG, self.members.log_of(voter))
        ]

    def _on_refused(self, peer: BrokerId, progress: Progress, message: AppendResponse) -> None:
        """The member's log is not this one at `index`. Go back by whole epochs, not one by one."""
        if message.asked <= progress.match:
            return
        if progress.state is ProgressState.PROBE and message.asked != progress.next:
            return
        if progress.state is ProgressState.SNAPSHOT:
            return
        if message.asked <= self.log.start_index:
            # Nothing of this log lies lower.
            self._send_snapshot(peer, progress)
            return
        limit = min(message.matched, message.asked, self.end)
        place = self._end_of_epoch(message.hint_epoch, limit)
        if 0 < place < self.end and self._epoch_before(place) != message.hint_epoch:
            # The member has other entries there: the place may lie inside one of this log's.
            place = self.log.boundary(place) if place >= self.log.start_index else place
        progress.received = min(progress.received, place)
        progress.become_probe(max(place, progress.match))
        self._send_more(peer, progress)

    def _on_peer_lost(self, peer: BrokerId) -> None:
        """What was sent may be gone, and after a lost disk even what was acknowledged."""
        progress = self.progress.get(peer)
        if progress is None:
            return
        progress.is_sending = False
        if progress.state is not ProgressState.PROBE:
            progress.become_probe(progress.match)
        progress.match = progress.received = RaftIndex(0)
        progress.is_waiting = True
        progress.deadline = self._now + self.config.retry_ms

    def _on_peer_found(self, peer: BrokerId) -> None:
        self._on_peer_lost(peer)
        progress = self.progress.get(peer)
        if progress is not None:
            progress.is_waiting = False
            self._send_more(peer, progress)

    def _on_peer_alive(self, peer: BrokerId, epoch: Epoch) -> None:
        progress = self.progress.get(peer)
        if progress is not None and epoch == self.epoch:
            progress.last_contact_at = self._now
            progress.note_caught_up(self.end, self._now)

    def _on_heartbeat_due(self, peer: BrokerId) -> None:
        if peer in self.progress:
            self._emit(Send(peer, RaftHeartbeat(self.epoch, self.commit, self._round)))

    # ---- commit

    def _on_flushed(self, index: RaftIndex, truncations: int) -> None:
        if truncations != self.truncations or index <= self.flushed:
            return
        self.flushed = index
        if self.role is Role.LEADER:
            self._maybe_commit()
        else:
            self._on_flushed_follower()

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        """How much a voter has on its disk."""
        if voter == self.me:
            return self.flushed
        return self.progress[voter].match

    def _maybe_commit(self) -> None:
        members = self.members
        flushed = sorted([self._match_of(voter) for voter in members.voters])
        index = flushed[-members.quorum]
        if index <= self.commit or not self._may_commit(index):
            return
        self._advance_commit(index)
        self._after_commit()

    def _may_commit(self, index: RaftIndex) -> bool:
        return index > self.epoch_start

    def _after_commit(self) -> None:
        """leadership.py: a leader that removed itself goes now."""

    def _maybe_hand_over(self) -> None:
        """leadership.py: the target of a transfer may have caught up."""

    # ---- time

    def _check_quorum(self) -> None:
        """Step down if a majority was silent for an election time: others may have elected."""
        self._quorum_checked_at = self._now
        # Counted back from now, not from the last check: this process may have been paused.
        since = self._now - self.config.election_ms_min
        heard = 0
        for voter in self.members.voters:
            if voter == self.me or self.progress[voter].last_contact_at > since:
                heard += 1
        if heard < self.members.quorum:
            self._become_follower(self.epoch, NO_BROKER)

    def _retry_late(self) -> None:
        now = self._now
        for peer, progress in self.progress.items():
            if progress.deadline > now:
                continue
            if progress.is_sending and progress.state is not ProgressState.SNAPSHOT:
                # The driver still waits to send: nothing is lost, the peer is slow.
                progress.deadline = now + self.config.retry_ms
                continue
            progress.become_probe(
                progress.next
                if progress.state is not ProgressState.REPLICATE
                else progress.received
            )
            self._send_more(peer, progress)

    def _follow_up_deadline(self) -> int:
        """When a member is late with an answer, or a majority must have been heard."""
        if not self.progress:
            # A majority of one never goes away.
            return FOREVER
        deadline = self._quorum_checked_at + self.config.election_ms_min
        for progress in self.progress.values():
            if progress.deadline < deadline:
                deadline = progress.deadline
        return deadline

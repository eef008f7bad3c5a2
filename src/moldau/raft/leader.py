"""What a leader does: replicate, commit, change members, and step down without a quorum.

An entry is committed once a majority of voters has flushed it, the leader included (its flush runs
while the entries travel), and only together with an entry of the leader's own epoch: an older entry
on a majority of disks can still be overwritten by another leader (figure 8 of the Raft paper).
"""

from collections.abc import Callable

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.errors import RaftError, RaftRejection
from moldau.raft.events import (
    AppendMembership,
    AppendNoop,
    AppendSent,
    Role,
    Send,
    SendAppend,
    SendSnapshot,
    VoterReplaced,
)
from moldau.raft.membership import NO_BROKER, Members, check_change
from moldau.raft.messages import (
    AppendResponse,
    InstallSnapshot,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    TimeoutNow,
)
from moldau.raft.progress import NO_LOG, Progress, ProgressState
from moldau.raft.read_index import ReadIndex
from moldau.raft.state import RaftState
from moldau.raft.transfer import LeadershipTransfer


class Leader:
    """One term of leadership: made when an election is won, dropped when the broker steps down."""

    def __init__(self, state: RaftState, step_down: Callable[[], None]) -> None:
        self._state = state
        self._step_down = step_down
        self._quorum_checked_at = state.now
        self.transfer = LeadershipTransfer(state)
        self.reads = ReadIndex(state)

    def start(self) -> None:
        self._append_noop()
        state = self._state
        state.track_members()
        for peer in state.progress:
            # The first probe carries the no-op: in most cases the logs match.
            self._probe(peer, state.progress[peer], state.config.append_bytes_max)

    def _append_noop(self) -> None:
        self._state.emit(AppendNoop(self._state.epoch))
        self._grow(RaftIndex(self._state.end + 1))

    def _grow(self, end: RaftIndex) -> None:
        self._state.end = end
        self._state.last_epoch = self._state.epoch

    # ---- replication

    def _replicate(self) -> None:
        for peer, progress in self._state.progress.items():
            self._send_more(peer, progress)

    def _send_more(self, peer: BrokerId, progress: Progress) -> None:
        """Send what the member lacks, if it may be sent now."""
        if progress.is_sending:
            return
        state = self._state
        if progress.state is ProgressState.REPLICATE:
            if progress.next >= state.end:
                return
            room = progress.room(state.config)
            if room <= 0:
                return
            if progress.next >= state.log.start_index:
                progress.is_sending = True
                self._send_append(peer, progress, min(room, state.config.append_bytes_max))
                return
            self._send_snapshot(peer, progress)
        elif progress.state is ProgressState.PROBE and not progress.is_waiting:
            self._probe(peer, progress, 0)

    def _probe(self, peer: BrokerId, progress: Progress, bytes_max: int) -> None:
        state = self._state
        if progress.next < state.log.start_index:
            self._send_snapshot(peer, progress)
            return
        progress.is_waiting = progress.is_sending = True
        progress.deadline = state.now + state.config.retry_ms
        self._send_append(peer, progress, bytes_max)

    def _send_append(self, peer: BrokerId, progress: Progress, bytes_max: int) -> None:
        state = self._state
        index = progress.next
        # Since its no-op all entries are the leader's own.
        prev_epoch = state.epoch if index > state.epoch_start else state.epoch_before(index)
        state.emit(SendAppend(peer, state.epoch, index, prev_epoch, bytes_max))

    def _send_snapshot(self, peer: BrokerId, progress: Progress) -> None:
        state = self._state
        index = state.log.start_index
        members = state.log.members(index)[1]
        progress.become_snapshot(state.now + state.config.snapshot_retry_ms)
        # An append that the driver has not sent yet is dropped.
        progress.is_sending = False
        message = InstallSnapshot(state.epoch, index, state.epoch_before(index), members)
        state.emit(SendSnapshot(peer, message))

    def on_append_sent(self, event: AppendSent) -> None:
        state = self._state
        progress = state.progress.get(event.peer)
        if progress is None or event.epoch != state.epoch:
            return
        progress.is_sending = False
        progress.sent(event.end, event.size, state.now + state.config.retry_ms)
        self._send_more(event.peer, progress)

    def on_appended(self, end: RaftIndex) -> None:
        self._grow(end)
        self._replicate()

    def on_append_response(self, sender: BrokerId, message: AppendResponse) -> None:
        state = self._state
        progress = state.progress.get(sender)
        if progress is None:
            return
        progress.last_contact_at = state.now
        if message.log_id != progress.log_id:
            self._on_new_log(sender, progress, message.log_id)
        if not message.is_accepted:
            self._on_rejected(sender, progress, message)
            return
        if message.matched > state.end:
            raise RaftError(f"broker {sender} claims {message.matched} entries of {state.end}")
        match = progress.match
        progress.acknowledged(message.matched, message.flushed, state.now + state.config.retry_ms)
        progress.note_caught_up(state.end, state.now)
        if progress.state is ProgressState.PROBE or (
            progress.state is ProgressState.SNAPSHOT and progress.received >= state.log.start_index
        ):
            progress.become_replicate()
        if progress.match > match and progress.match > state.commit:
            self.maybe_commit()
        if state.role is Role.LEADER:
            self.transfer.maybe_hand_over()
            self._send_more(sender, progress)

    def _on_new_log(self, peer: BrokerId, progress: Progress, log_id: LogId) -> None:
        """The member has another log than before: entries of the old one no longer count.

        A voter whose log is not the one that the group expects gives no votes, so its entries may
        count for a commit: a majority of votes has to come from the others."""
        state = self._state
        if progress.match or progress.received:
            progress.begin_log(log_id)
            progress.become_probe(min(progress.next, state.end))
        progress.log_id = log_id
        if peer in state.members.voters and state.members.log_of(peer) != log_id:
            state.emit(VoterReplaced(peer))

    def _on_rejected(self, peer: BrokerId, progress: Progress, message: AppendResponse) -> None:
        """The member's log does not match before `rejected_start`: go back by whole epochs."""
        state = self._state
        rejected = message.rejected_start
        if rejected <= progress.match or progress.state is ProgressState.SNAPSHOT:
            return
        if progress.state is ProgressState.PROBE and rejected != progress.next:
            return
        if rejected <= state.log.start_index:
            # No entry of this log is lower.
            self._send_snapshot(peer, progress)
            return
        limit = min(message.matched, rejected, state.end)
        index = state.end_of_epoch(message.hint_epoch, limit)
        if 0 < index < state.end and state.epoch_before(index) != message.hint_epoch:
            # The member has other entries there: the index may lie inside a batch of this log.
            index = state.log.boundary(index) if index >= state.log.start_index else index
        progress.received = min(progress.received, index)
        progress.become_probe(max(index, progress.match))
        self._send_more(peer, progress)

    # ---- connections and heartbeats

    def on_peer_disconnected(self, peer: BrokerId) -> None:
        """What was sent may be lost, and after a lost disk even what was acknowledged."""
        state = self._state
        progress = state.progress.get(peer)
        if progress is None:
            return
        progress.is_sending = False
        if progress.state is not ProgressState.PROBE:
            progress.become_probe(progress.match)
        progress.match = progress.received = RaftIndex(0)
        progress.is_waiting = True
        progress.deadline = state.now + state.config.retry_ms

    def on_peer_connected(self, peer: BrokerId) -> None:
        self.on_peer_disconnected(peer)
        progress = self._state.progress.get(peer)
        if progress is not None:
            progress.is_waiting = False
            self._send_more(peer, progress)

    def on_peer_alive(self, peer: BrokerId, epoch: Epoch) -> None:
        progress = self._state.progress.get(peer)
        if progress is not None and epoch == self._state.epoch:
            self._note_contact(progress)

    def on_heartbeat_due(self, peer: BrokerId) -> None:
        state = self._state
        if peer in state.progress:
            state.emit(Send(peer, RaftHeartbeat(state.epoch, state.commit, self.reads.round)))

    def on_heartbeat_response(self, sender: BrokerId, message: RaftHeartbeatResponse) -> None:
        progress = self._state.progress.get(sender)
        if progress is not None:
            if progress.log_id not in (NO_LOG, message.log_id):
                # A member that lost its log is filled again even while no client writes.
                self._on_new_log(sender, progress, message.log_id)
                self._send_more(sender, progress)
            self._note_contact(progress)
        self.reads.on_confirmed(sender, message.round)

    def heard_from(self, peer: BrokerId, at: int) -> None:
        progress = self._state.progress[peer]
        progress.last_contact_at = at
        progress.note_caught_up(self._state.end, at)

    def _note_contact(self, progress: Progress) -> None:
        progress.last_contact_at = self._state.now
        progress.note_caught_up(self._state.end, self._state.now)

    # ---- commit

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        """How much a voter has on its disk."""
        state = self._state
        return state.flushed if voter == state.me else state.progress[voter].match

    def maybe_commit(self) -> None:
        state = self._state
        members = state.members
        flushed = sorted([self._match_of(voter) for voter in members.voters])
        index = flushed[-members.quorum]
        if index > state.commit and self._may_commit(index):
            state.advance_commit(index)
            self._after_commit()

    def _may_commit(self, index: RaftIndex) -> bool:
        return index > self._state.epoch_start

    def _after_commit(self) -> None:
        """A leader whose own removal is committed hands over to the most advanced voter."""
        state = self._state
        if state.me in state.members.voters or state.members_index >= state.commit:
            return
        best = max(state.members.voters, key=lambda voter: state.progress[voter].match)
        state.emit(Send(best, TimeoutNow(state.epoch)))
        self._step_down()

    # ---- membership

    def change_members(self, members: Members) -> None:
        state = self._state
        if not self._may_change_members():
            raise RaftRejection("the leader has not committed an entry in this epoch yet")
        if state.members_index >= state.commit:
            raise RaftRejection("an earlier change of members is not committed yet")
        if self.transfer.target != NO_BROKER:
            raise RaftRejection("leadership is being transferred")
        if members.has_same_brokers(state.members):
            return
        check_change(state.members, members)
        for voter in members.voters:
            progress = state.progress.get(voter)
            if (
                progress is not None
                and voter not in state.members.voters
                and progress.match <= state.epoch_start
            ):
                raise RaftRejection(f"broker {voter} has not caught up yet")
        lost = set(state.replaced_voters()).intersection(members.voters)
        if len(members.voters) - len(lost) < members.quorum:
            # They give no votes: the group would never have a leader again.
            names = ", ".join(map(str, sorted(lost)))
            raise RaftRejection(
                f"brokers {names} lost their logs and must catch up as learners first: the other "
                "voters are no majority"
            )
        members = members._replace(logs=self._logs_of(members.voters))
        index = state.end
        state.emit(AppendMembership(state.epoch, members))
        self._grow(RaftIndex(state.end + 1))
        state.set_members(index, members)
        self._replicate()

    def _may_change_members(self) -> bool:
        """Before its first commit a leader may not know of a change that a majority already made;
        two changes of one voter each would then be one of two voters."""
        return self._state.commit > self._state.epoch_start

    def _logs_of(self, voters: tuple[BrokerId, ...]) -> tuple[tuple[BrokerId, LogId], ...]:
        """Existing voters keep theirs, even a lost one; new ones vote with the log they have."""
        state = self._state
        logs = []
        for voter in voters:
            if voter in state.members.voters:
                log_id = state.members.log_of(voter)
            else:
                log_id = state.log_id if voter == state.me else state.progress[voter].log_id
            if log_id != FIRST_LOG:
                logs.append((voter, log_id))
        return tuple(logs)

    # ---- time

    def on_tick(self) -> None:
        state = self._state
        if state.now >= self._quorum_checked_at + state.config.election_ms_min:
            self._check_quorum()
            if not state.is_leader:
                return
        self.transfer.on_tick()
        self.reads.on_tick()
        self._retry_late()

    def rests(self, now: int) -> bool:
        """As `on_tick`, if all that is due is the check of a quorum that is there; else False."""
        if self.transfer.deadline <= now or self.reads.deadline <= now:
            return False
        for member in self._state.progress.values():
            if member.deadline <= now:
                return False
        shortest = self._state.config.election_ms_min
        if now >= self._quorum_checked_at + shortest:
            if not self._has_quorum(now - shortest):
                return False
            self._quorum_checked_at = now
        return True

    def _check_quorum(self) -> None:
        """Step down without contact to a majority: it may have elected another leader."""
        state = self._state
        self._quorum_checked_at = state.now
        # Counted back from now, not from the last check: this process may have been paused.
        if not self._has_quorum(state.now - state.config.election_ms_min):
            self._step_down()

    def _has_quorum(self, since: int) -> bool:
        state = self._state
        alive = 0
        for voter in state.members.voters:
            if voter == state.me or state.progress[voter].last_contact_at > since:
                alive += 1
        return alive >= state.members.quorum

    def _retry_late(self) -> None:
        state = self._state
        for peer, progress in state.progress.items():
            if progress.deadline > state.now:
                continue
            if progress.is_sending and progress.state is not ProgressState.SNAPSHOT:
                # The driver has not sent it yet: nothing is lost, the peer is slow.
                progress.deadline = state.now + state.config.retry_ms
                continue
            is_replicating = progress.state is ProgressState.REPLICATE
            progress.become_probe(progress.received if is_replicating else progress.next)
            self._send_more(peer, progress)

    @property
    def deadline(self) -> int:
        """When a response is late, or the quorum, the transfer or the reads must be checked."""
        deadline = min(self.transfer.deadline, self.reads.deadline)
        progress = self._state.progress
        if not progress:
            # A single voter never loses its quorum.
            return deadline
        deadline = min(deadline, self._quorum_checked_at + self._state.config.election_ms_min)
        for member in progress.values():
            if member.deadline < deadline:
                deadline = member.deadline
        return deadline

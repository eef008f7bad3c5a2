"""Owns what is asked of a leader besides entries: transfer, change of members, fresh reads."""

from moldau.model.ids import FIRST_LOG, BrokerId, LogId, RaftIndex
from moldau.raft.errors import RaftRejection
from moldau.raft.events import AppendMembership, ReadReady, Role, Send, TransferEnded
from moldau.raft.leader import Leading
from moldau.raft.membership import NO_BROKER, Members, check_change
from moldau.raft.messages import RaftHeartbeat, TimeoutNow


class Leadership(Leading):
    """A core that leads, and can be asked to do more."""

    @property
    def is_ready(self) -> bool:
        """Leads and has committed in its epoch: its commit index is the true one."""
        return self.role is Role.LEADER and self.commit > self.epoch_start

    @property
    def may_propose(self) -> bool:
        """Whether the driver may append records now."""
        return self.role is Role.LEADER and self.transfer_target == NO_BROKER

    def in_sync(self, lag_ms_max: int) -> list[BrokerId]:
        """Voters that held everything within the last lag_ms_max, as of the last step."""
        if self.role is not Role.LEADER:
            return []
        since = self._now - lag_ms_max
        return [
            voter
            for voter in self.members.voters
            if voter == self.me or self.progress[voter].caught_up_at >= since
        ]

    @property
    def held(self) -> RaftIndex:
        """Below it, the disks of all members hold all entries; 0 unless this one leads."""
        if self.role is not Role.LEADER:
            return RaftIndex(0)
        return min((progress.match for progress in self.progress.values()), default=self.end)

    # ---- transfer

    def _on_transfer_asked(self, target: BrokerId) -> None:
        if self.role is not Role.LEADER:
            raise RaftRejection(f"broker {self.me} does not lead")
        if target == self.me or target not in self.members.voters:
            raise RaftRejection(f"broker {target} is no other voter")
        if self.transfer_target != NO_BROKER:
            raise RaftRejection(f"a transfer to broker {self.transfer_target} is under way")
        self.transfer_target = target
        self._transfer_deadline = self._now + self.config.transfer_ms_max
        self._is_transfer_told = False
        self._maybe_hand_over()

    def _maybe_hand_over(self) -> None:
        """Once the target holds everything, tell it to stand for election."""
        target = self.transfer_target
        if target == NO_BROKER or self._is_transfer_told:
            return
        progress = self.progress.get(target)
        if progress is not None and progress.match >= self.end:
            self._is_transfer_told = True
            self._emit(Send(target, TimeoutNow(self.epoch)))

    def _end_transfer(self) -> None:
        target, self.transfer_target = self.transfer_target, NO_BROKER
        self._emit(TransferEnded(target))

    # ---- members

    def _on_members_asked(self, members: Members) -> None:
        if self.role is not Role.LEADER:
            raise RaftRejection(f"broker {self.me} does not lead")
        if not self._may_change_members():
            raise RaftRejection("nothing is committed in this epoch yet")
        if self.members_index >= self.commit:
            raise RaftRejection("an earlier change of members is not committed yet")
        if self.transfer_target != NO_BROKER:
            raise RaftRejection("leadership is being transferred")
        if members.has_same_brokers(self.members):
            return
        check_change(self.members, members)
        for voter in members.voters:
            progress = self.progress.get(voter)
            if (
                progress is not None
                and voter not in self.members.voters
                and progress.match <= self.epoch_start
            ):
                raise RaftRejection(f"broker {voter} has not caught up yet")
        lost = set(self.replaced_voters()).intersection(members.voters)
        if len(members.voters) - len(lost) < members.quorum:
            # They give no votes: the group would never have a leader again.
            names = ", ".join(map(str, sorted(lost)))
            raise RaftRejection(f"too few voters would have their logs; {names} must learn first")
        members = members._replace(logs=self._logs_of(members.voters))
        index = self.end
        self._emit(AppendMembership(self.epoch, members))
        self._grow(RaftIndex(self.end + 1))
        self._set_members(index, members)
        self._replicate()

    def _logs_of(self, voters: tuple[BrokerId, ...]) -> tuple[tuple[BrokerId, LogId], ...]:
        """Old voters keep theirs, even one that lost it; new ones vote with the log they have."""
        logs = []
        for voter in voters:
            if voter in self.members.voters:
                log_id = self.members.log_of(voter)
            else:
                log_id = self.log_id if voter == self.me else self.progress[voter].log_id
            if log_id != FIRST_LOG:
                logs.append((voter, log_id))
        return tuple(logs)

    def _may_change_members(self) -> bool:
        """Before its first commit a leader may not know of a change that a majority already made;
        two changes of one voter each would then be one of two voters."""
        return self.commit > self.epoch_start

    def _after_commit(self) -> None:
        if self.me in self.members.voters or self.members_index >= self.commit:
            return
        # Removed, and everybody who matters knows: let the best of them go on.
        best = max(self.members.voters, key=lambda voter: self.progress[voter].match)
        self._emit(Send(best, TimeoutNow(self.epoch)))
        self._become_follower(self.epoch, NO_BROKER)

    # ---- reads

    def _on_read_asked(self, read_id: int) -> None:
        if not self.is_ready:
            raise RaftRejection(f"broker {self.me} does not lead, or has committed nothing yet")
        self._reads_waiting.append(read_id)
        if not self._round_reads:
            self._begin_round()

    def _begin_round(self) -> None:
        """Ask a majority whether this broker still leads, for all reads that wait."""
        self._round += 1
        self._round_reads = tuple(self._reads_waiting)
        self._reads_waiting = []
        self._round_index = self.commit
        self._round_answered = {}
        self._ask_round()
        self._on_pong(self.me, self._round)

    def _ask_round(self) -> None:
        self._round_deadline = self._now + self.config.retry_ms
        for voter in self.members.voters:
            if voter != self.me and voter not in self._round_answered:
                self._emit(Send(voter, RaftHeartbeat(self.epoch, self.commit, self._round)))

    def _on_pong(self, sender: BrokerId, round_number: int) -> None:
        progress = self.progress.get(sender)
        if progress is not None:
            progress.last_contact_at = self._now
            progress.note_caught_up(self.end, self._now)
        if round_number != self._round or not self._round_reads:
            return
        if sender in self.members.voters:
            self._round_answered[sender] = None
        if len(self._round_answered) >= self.members.quorum:
            self._emit(ReadReady(self._round_reads, self._round_index))
            self._round_reads = ()
            if self._reads_waiting:
                self._begin_round()

    # ---- time

    def _on_leader_tick(self) -> None:
        now = self._now
        if now >= self._quorum_checked_at + self.config.election_ms_min:
            self._check_quorum()
            if self.role is not Role.LEADER:
                return
        if self.transfer_target != NO_BROKER and now >= self._transfer_deadline:
            self._end_transfer()
        if self._round_reads and now >= self._round_deadline:
            self._ask_round()
        self._retry_late()

    def _leader_deadline(self) -> int:
        deadline = self._follow_up_deadline()
        if self.transfer_target != NO_BROKER:
            deadline = min(deadline, self._transfer_deadline)
        if self._round_reads:
            deadline = min(deadline, self._round_deadline)
        return deadline

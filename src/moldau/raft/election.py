"""Owns elections: pre-vote, votes, and who may get them.

A candidate first asks whether it would have a chance (pre-vote), without raising any epoch: a
broker that was cut off comes back without disturbing anybody. A follower that has heard its leader
within the shortest election time gives no vote away, unless that leader wished it or has ended.
"""

from moldau.model.ids import BrokerId, Epoch
from moldau.raft.events import Role
from moldau.raft.follower import Following
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import TimeoutNow, VoteRequest, VoteResponse


class Electing(Following):
    """A core that can stand for election, and vote."""

    def _become_leader(self) -> None:
        """leading.py."""
        raise AssertionError("a core without leadership")

    # ---- standing

    def _is_electable(self) -> bool:
        """Voters stand for election. So does one whose removal is not committed as far as it
        knows: it may be the only one that holds the entry, and nobody could be elected over it."""
        return self.is_voter or (
            self.members_index >= self.commit
            and self._previous_members.is_voter(self.me, self.log_id)
        )

    def _on_election_timeout(self) -> None:
        if not self._is_electable():
            self.last_contact_at = self._now
            return
        self._campaign(is_pre=True)

    def _campaign(self, *, is_pre: bool, is_transfer: bool = False) -> None:
        self.last_contact_at = self._now
        self._campaigns += is_pre
        self._election_ms = self._draw_election_ms()
        self._granted = {}
        self.leader = NO_BROKER
        self._is_transferred = is_transfer
        if is_pre:
            self.role = Role.PRE_CANDIDATE
            self._announce()
            self._ask_for_votes(Epoch(self.epoch + 1), is_pre=True)
            self._count_vote(self.me, is_pre=True)
            return
        self.role = Role.CANDIDATE
        self._enter_epoch(Epoch(self.epoch + 1), self.me)
        self._announce()
        self._ask_for_votes(self.epoch, is_pre=False)

    def _ask_for_votes(self, epoch: Epoch, *, is_pre: bool) -> None:
        for voter in self.members.voters:
            if voter != self.me:
                self._send(
                    voter,
                    VoteRequest(
                        epoch=epoch,
                        end=self.end,
                        last_epoch=self.last_epoch,
                        is_pre=is_pre,
                        is_transfer=self._is_transferred,
                        voter_log=self.members.log_of(voter),
                    ),
                )

    def _count_vote(self, voter: BrokerId, *, is_pre: bool) -> None:
        if voter not in self.members.voters:
            return
        self._granted[voter] = None
        if len(self._granted) < self.members.quorum:
            return
        if is_pre:
            self._campaign(is_pre=False)
        else:
            self._become_leader()

    def _on_own_vote_persisted(self) -> None:
        """Only now does the candidate's vote for itself count."""
        if self.role is Role.CANDIDATE and self._is_vote_durable:
            self._count_vote(self.me, is_pre=False)

    def _on_vote_answered(self, sender: BrokerId, message: VoteResponse) -> None:
        wanted = Role.PRE_CANDIDATE if message.is_pre else Role.CANDIDATE
        if not message.is_granted or self.role is not wanted:
            return
        if message.epoch == self.epoch + message.is_pre:
            self._count_vote(sender, is_pre=message.is_pre)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self.role is not Role.LEADER and self._is_electable():
            self._campaign(is_pre=False, is_transfer=True)

    # ---- voting

    def _hears_leader(self) -> bool:
        """Whether the current leader is alive, as far as this broker can tell."""
        if self.role is Role.LEADER:
            return True
        return (
            self.leader != NO_BROKER
            and self._now - self.last_contact_at < self.config.election_ms_min
        )

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        """Whether the candidate's log holds at least what this one does."""
        return (message.last_epoch, message.end) >= (self.last_epoch, self.end)

    def _is_asked(self, message: VoteRequest) -> bool:
        """Whether the candidate counts on this log, and not on one that this broker lost."""
        return message.voter_log == self.log_id

    def _on_pre_vote_asked(self, sender: BrokerId, message: VoteRequest) -> None:
        is_granted = (
            message.epoch > self.epoch and self._is_asked(message) and self._is_up_to_date(message)
        )
        epoch = message.epoch if is_granted else self.epoch
        self._send(sender, VoteResponse(epoch, is_granted, True))

    def _on_vote_asked(self, sender: BrokerId, message: VoteRequest) -> None:
        is_granted = (
            self.leader == NO_BROKER
            and self.voted_for in (NO_BROKER, sender)
            and self._is_asked(message)
            and self._is_up_to_date(message)
        )
        if is_granted:
            self.last_contact_at = self._now
            if self.voted_for == NO_BROKER:
                self.voted_for = sender
                self._persist_vote()
        self._send(sender, VoteResponse(self.epoch, is_granted, False))

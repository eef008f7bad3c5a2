"""Parts of the Raft core that break one rule of consensus each."""

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.core import RaftCore
from moldau.raft.election import Election
from moldau.raft.events import ReadReady, StoreEntries, Truncate
from moldau.raft.follower import Follower
from moldau.raft.leader import Leader
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryInfo,
    Message,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.read_index import ReadIndex
from moldau.raft.transfer import LeadershipTransfer


class AcksBeforeFlush(Follower):
    """A follower acknowledges what it has only written."""

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        super()._store(index, entries)
        self._state.flushed = self._state.end
        return False


class CountsOwnBeforeFlush(Leader):
    """A leader counts its own entries before they are on its disk."""

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        return self._state.end if voter == self._state.me else super()._match_of(voter)


class CountsReceived(Leader):
    """A leader counts what followers have received, flushed or not."""

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        state = self._state
        return state.flushed if voter == state.me else state.progress[voter].received


class SendsVoteAtOnce(RaftCore):
    """A vote is sent while it is still being written."""

    def persist_vote(self) -> None:
        super().persist_vote()
        self.is_vote_durable = True


class VotesTwice(Election):
    """A second candidate of the same epoch gets the vote, too."""

    def _on_vote(self, sender: BrokerId, message: VoteRequest) -> None:
        self._state.voted_for = NO_BROKER
        super()._on_vote(sender, message)


class VotesForStaleLogs(Election):
    """A vote is given without a look at the candidate's log."""

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        return True


class VotesWithAnyLog(Election):
    """A broker that lost its log gives the vote that its old log had."""

    def _is_expected_log(self, message: VoteRequest) -> bool:
        return True


class StandsWithAnyLog(RaftCore):
    """A broker that lost its log stands for election all the same."""

    @property
    def is_voter(self) -> bool:
        return self.me in self.members.voters


class ComparesLengthOnly(Election):
    """The longer log counts as the newer one, whatever its epochs."""

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        return message.end >= self._state.end


class CommitsOldEpochs(Leader):
    """An entry of an earlier epoch is committed by counting disks (figure 8)."""

    def _may_commit(self, index: RaftIndex) -> bool:
        return True


class SkipsNoop(Leader):
    """A new leader appends nothing of its own."""

    def _append_noop(self) -> None:
        pass


class TruncatesOnDuplicates(Follower):
    """An append truncates the log at its start, though the entries there are the same."""

    def _first_new(self, entries: tuple[EntryInfo, ...]) -> int:
        return 0

    def _truncate(self, index: RaftIndex) -> None:
        state = self._state
        state.emit(Truncate(index))
        state.last_epoch = state.epoch_before(index)
        state.truncations += 1
        state.end = index
        state.flushed = min(state.flushed, index)
        state.verified = min(state.verified, index)


class TruncatesToMessage(Follower):
    """An append truncates beyond its last entry: a late one removes acknowledged entries."""

    def on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        super().on_append(sender, message)
        if message.entries and message.entries[-1].end < self._state.end:
            self._truncate(message.entries[-1].end)


class NeverTruncates(Follower):
    """New entries are put behind old ones of another epoch."""

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        state = self._state
        entries = tuple(entry for entry in entries if entry.start >= state.end)
        if not entries or entries[0].start != state.end:
            return False
        state.emit(StoreEntries(entries[0].start))
        state.end = entries[-1].end
        state.last_epoch = entries[-1].epoch
        return True


class AcksOwnEnd(Follower):
    """A follower acknowledges the end of its log, not what it knows to be the leader's."""

    def _acknowledge(self, *, force: bool) -> None:
        self._state.verified = self._state.end
        super()._acknowledge(force=force)


class CommitsOwnEnd(Follower):
    """A follower takes the leader's commit for its own log, whether or not they agree there."""

    def _learn_commit(self, commit: RaftIndex) -> None:
        commit = min(commit, self._state.end)
        if commit > self._state.commit:
            self._state.advance_commit(commit)


class KeepsAgreement(RaftCore):
    """What was agreed with the last leader counts as agreed with the next."""

    def enter_epoch(self, epoch: Epoch, voted_for: BrokerId) -> None:
        verified = self.verified
        super().enter_epoch(epoch, voted_for)
        self.verified = verified


class SkipsPreviousEpoch(Follower):
    """Appends are taken without comparing the entry before them."""

    def on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        if message.start <= self._state.end:
            message = message._replace(prev_epoch=self._state.epoch_before(message.start))
        super().on_append(sender, message)


class TakesStaleAnswers(RaftCore):
    """Responses to an earlier epoch of this leader count in the current one."""

    def _respond_to_stale(self, sender: BrokerId, message: Message) -> None:
        if isinstance(message, AppendResponse) and self._leader is not None:
            self._leader.on_append_response(sender, message)
        else:
            super()._respond_to_stale(sender, message)


class CommitsWithMinority(Leader):
    """Half of the voters are taken for a majority."""

    def maybe_commit(self) -> None:
        members = self._state.members
        flushed = sorted((self._match_of(voter) for voter in members.voters), reverse=True)
        index = flushed[max(0, members.quorum - 2)]
        if index > self._state.commit and self._may_commit(index):
            self._state.advance_commit(index)
            self._after_commit()


class ChangesMembersEarly(Leader):
    """Members change before the leader has committed in its epoch."""

    def _may_change_members(self) -> bool:
        return True


class ChangesMembersAtOnce(Leader):
    """A change of members does not wait for the one before."""

    def change_members(self, members: Members) -> None:
        state = self._state
        index, state.members_index = state.members_index, RaftIndex(-1)
        try:
            super().change_members(members)
        finally:
            if state.members_index < 0:
                state.members_index = index


class KeepsTruncatedMembers(Follower):
    """A membership entry stays in force after it was truncated."""

    def _truncate(self, index: RaftIndex) -> None:
        state = self._state
        members = state.members_index, state.members
        super()._truncate(index)
        state.members_index, state.members = members


class ReadsWithoutAsking(ReadIndex):
    """A leader serves reads without confirming that it still leads."""

    def _begin_round(self) -> None:
        self._state.emit(ReadReady(tuple(self._waiting), self._state.commit))
        self._waiting = []


class PreVoteIgnoresLog(Election):
    """A pre-vote is given without a look at the candidate's log."""

    def _on_pre_vote(self, sender: BrokerId, message: VoteRequest) -> None:
        self._state.send(sender, VoteResponse(message.epoch, True, True))


class PreVoteIgnoresLeader(Election):
    """Votes are given while the leader is alive."""

    def has_leader_contact(self) -> bool:
        return False


class NeverStepsDown(Leader):
    """A leader without contact to any member goes on."""

    def _check_quorum(self) -> None:
        self._quorum_checked_at = self._state.now


class TransfersForever(LeadershipTransfer):
    """A transfer that does not end blocks writes for good."""

    def _give_up(self) -> None:
        self.deadline = self._state.now + 1000


class SearchesOneByOne(RaftCore):
    """A leader goes back one entry per rejection."""

    def end_of_epoch(self, epoch: Epoch, limit: RaftIndex) -> RaftIndex:
        return RaftIndex(max(0, limit - 1))

"""Owns cores that break one rule of the consensus each."""

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.core import RaftCore
from moldau.raft.events import ReadReady, StoreEntries, Truncate
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryInfo,
    Message,
    VoteRequest,
    VoteResponse,
)


class AcksBeforeFlush(RaftCore):
    """A follower acknowledges what it has only written."""

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        super()._store(index, entries)
        self.flushed = self.end
        return False


class CountsOwnBeforeFlush(RaftCore):
    """A leader counts its own entries before they are on its disk."""

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        return self.end if voter == self.me else super()._match_of(voter)


class CountsReceived(RaftCore):
    """A leader counts what followers have received, flushed or not."""

    def _match_of(self, voter: BrokerId) -> RaftIndex:
        return self.flushed if voter == self.me else self.progress[voter].received


class SendsVoteAtOnce(RaftCore):
    """A vote is sent while it is still being written."""

    def _persist_vote(self) -> None:
        super()._persist_vote()
        self._is_vote_durable = True


class VotesTwice(RaftCore):
    """A second candidate of the same epoch gets the vote, too."""

    def _on_vote_asked(self, sender: BrokerId, message: VoteRequest) -> None:
        self.voted_for = NO_BROKER
        super()._on_vote_asked(sender, message)


class VotesForStaleLogs(RaftCore):
    """A vote is given without a look at the candidate's log."""

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        return True


class VotesWithAnyLog(RaftCore):
    """A broker that lost its log gives the vote that its old log had."""

    def _is_asked(self, message: VoteRequest) -> bool:
        return True


class StandsWithAnyLog(RaftCore):
    """A broker that lost its log stands for election all the same."""

    @property
    def is_voter(self) -> bool:
        return self.me in self.members.voters


class ComparesLengthOnly(RaftCore):
    """The longer log counts as the newer one, whatever its epochs."""

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        return message.end >= self.end


class CommitsOldEpochs(RaftCore):
    """An entry of an earlier epoch is committed by counting disks (figure 8)."""

    def _may_commit(self, index: RaftIndex) -> bool:
        return True


class SkipsNoop(RaftCore):
    """A new leader appends nothing of its own."""

    def _append_noop(self) -> None:
        pass


class TruncatesOnDuplicates(RaftCore):
    """An append cuts the log at its start, though the entries there are the same."""

    def _first_new(self, entries: tuple[EntryInfo, ...]) -> int:
        return 0

    def _truncate(self, index: RaftIndex) -> None:
        self._emit(Truncate(index))
        self.last_epoch = self._epoch_before(index)
        self.truncations += 1
        self.end = index
        self.flushed = min(self.flushed, index)
        self.verified = min(self.verified, index)


class TruncatesToMessage(RaftCore):
    """An append cuts what lies beyond its last entry: a late one cuts acknowledged entries."""

    def _on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        super()._on_append(sender, message)
        if message.entries and message.entries[-1].end < self.end:
            self._truncate(message.entries[-1].end)


class NeverTruncates(RaftCore):
    """New entries are put behind old ones of another epoch."""

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        entries = tuple(entry for entry in entries if entry.start >= self.end)
        if not entries or entries[0].start != self.end:
            return False
        self._emit(StoreEntries(entries[0].start))
        self.end = entries[-1].end
        self.last_epoch = entries[-1].epoch
        return True


class AcksOwnEnd(RaftCore):
    """A follower answers with the end of its log, not with what it knows to be the leader's."""

    def _acknowledge(self, *, force: bool) -> None:
        self.verified = self.end
        super()._acknowledge(force=force)


class CommitsOwnEnd(RaftCore):
    """A follower takes the leader's commit for its own log, whether or not they agree there."""

    def _learn_commit(self, commit: RaftIndex) -> None:
        commit = min(commit, self.end)
        if commit > self.commit:
            self._advance_commit(commit)


class KeepsAgreement(RaftCore):
    """What was agreed with the last leader counts as agreed with the next."""

    def _enter_epoch(self, epoch: Epoch, voted_for: BrokerId) -> None:
        verified = self.verified
        super()._enter_epoch(epoch, voted_for)
        self.verified = verified


class SkipsPreviousEpoch(RaftCore):
    """Appends are taken without comparing the entry before them."""

    def _on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        if message.start <= self.end:
            message = message._replace(prev_epoch=self._epoch_before(message.start))
        super()._on_append(sender, message)


class TakesStaleAnswers(RaftCore):
    """Answers to an earlier epoch of this leader count in the current one."""

    def _answer_stale(self, sender: BrokerId, message: Message) -> None:
        if isinstance(message, AppendResponse) and self.is_leader:
            self._on_append_answered(sender, message)
        else:
            super()._answer_stale(sender, message)


class CommitsWithMinority(RaftCore):
    """Half of the voters are taken for a majority."""

    def _maybe_commit(self) -> None:
        flushed = sorted((self._match_of(voter) for voter in self.members.voters), reverse=True)
        index = flushed[max(0, self.members.quorum - 2)]
        if index > self.commit and self._may_commit(index):
            self._advance_commit(index)
            self._after_commit()


class ChangesMembersEarly(RaftCore):
    """Members change before the leader has committed in its epoch."""

    def _may_change_members(self) -> bool:
        return True


class ChangesMembersAtOnce(RaftCore):
    """A change of members does not wait for the one before."""

    def _on_members_asked(self, members: Members) -> None:
        index, self.members_index = self.members_index, RaftIndex(-1)
        try:
            super()._on_members_asked(members)
        finally:
            if self.members_index < 0:
                self.members_index = index


class KeepsTruncatedMembers(RaftCore):
    """A membership entry stays in force after it was cut from the log."""

    def _truncate(self, index: RaftIndex) -> None:
        members = self.members_index, self.members
        super()._truncate(index)
        self.members_index, self.members = members


class ReadsWithoutAsking(RaftCore):
    """A leader serves reads without asking whether it still leads."""

    def _begin_round(self) -> None:
        self._emit(ReadReady(tuple(self._reads_waiting), self.commit))
        self._reads_waiting = []


class PreVoteIgnoresLog(RaftCore):
    """A pre-vote is given without a look at the candidate's log."""

    def _on_pre_vote_asked(self, sender: BrokerId, message: VoteRequest) -> None:
        self._send(sender, VoteResponse(message.epoch, True, True))


class PreVoteIgnoresLeader(RaftCore):
    """Votes are given while the leader is alive."""

    def _hears_leader(self) -> bool:
        return False


class NeverStepsDown(RaftCore):
    """A leader that hears nobody goes on."""

    def _check_quorum(self) -> None:
        self._quorum_checked_at = self._now


class TransfersForever(RaftCore):
    """A transfer that does not end blocks writes for good."""

    def _end_transfer(self) -> None:
        self._transfer_deadline = self._now + 1000


class SearchesOneByOne(RaftCore):
    """A leader goes back one entry per refusal."""

    def _end_of_epoch(self, epoch: Epoch, limit: RaftIndex) -> RaftIndex:
        return RaftIndex(max(0, limit - 1))

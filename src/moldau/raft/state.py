"""The state that all roles of a Raft core share: log position, epoch, vote, members, commit.

RaftCore is this state plus the dispatch of events. Election, Follower and Leader work on it; state
that only one role needs is theirs.
"""

from collections.abc import Callable

from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.config import RaftConfig
from moldau.raft.errors import RaftError
from moldau.raft.events import Committed, Effect, PersistVote, Role, RoleChanged, Send
from moldau.raft.log_view import LogView
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import AppendResponse, Message
from moldau.raft.progress import NO_LOG, Progress

DELAYED_MESSAGES_MAX = 64
"""Messages that wait until a vote is durable. More are dropped, as the network may do as well."""


class RaftState:
    """Public fields may be read by anyone; only this package writes them."""

    def __init__(
        self,
        *,
        me: BrokerId,
        log: LogView,
        config: RaftConfig,
        now: int,
        epoch: Epoch = NO_EPOCH,
        voted_for: BrokerId = NO_BROKER,
        log_id: LogId = FIRST_LOG,
    ) -> None:
        """`epoch` and `voted_for` come from the vote journal; omit them if it has no entry.

        A broker whose log is not the one that the group expects of it may have lost entries that
        it acknowledged. It follows, stores and acknowledges, but does not vote.
        """
        self.me = me
        self.log = log
        self.config = config
        # An epoch in the log was accepted from a leader, even if the vote journal is older.
        is_vote_current = epoch >= log.last_epoch
        self.epoch = epoch if is_vote_current else log.last_epoch
        self.voted_for = voted_for if is_vote_current else NO_BROKER
        self.log_id = log_id
        self.role = Role.FOLLOWER
        self.leader = NO_BROKER
        self.end = log.end_index
        self.last_epoch = log.last_epoch
        self.flushed = log.flushed_index
        self.commit = log.start_index
        """All entries below are committed. Not stored: relearned after a restart."""
        self.truncations = 0
        """How often the log was truncated. Flushed events carry it back."""
        self.members_index, self.members = log.members(self.end)
        self.previous_members = self._members_before(self.members_index)
        self.verified = RaftIndex(0)
        """Follower: below this index, the log is known to match the current leader's."""
        self.acked = RaftIndex(0)
        """Follower: the highest flushed index that was acknowledged in this epoch."""
        self.last_contact_at = now
        """Follower: when the last message or heartbeat of the leader arrived."""
        self.progress: dict[BrokerId, Progress] = {}
        """Leader: the other members, in ascending order."""
        self.epoch_start = RaftIndex(0)
        """Leader: index of its no-op. Older entries are committed only together with it."""
        self.now = now
        self.out: list[Effect] = []
        self.emit: Callable[[Effect], None] = self.out.append
        self.is_vote_durable = True
        self._delayed: list[Send] = []

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """Whether this broker, with this log, is a voter."""
        return self.members.is_voter(self.me, self.log_id)

    # ---- log

    def epoch_before(self, index: RaftIndex) -> Epoch:
        """Epoch of the entry just below `index`."""
        if index == self.end:
            return self.last_epoch
        if index <= 0:
            return NO_EPOCH
        return self.log.epoch_of(RaftIndex(index - 1))

    def end_of_epoch(self, epoch: Epoch, limit: RaftIndex) -> RaftIndex:
        """The highest index up to `limit` below which no entry is of a later epoch.

        Epochs never decrease along a log, so this is a binary search.
        """
        low, high = min(self.log.start_index, limit), limit
        while low < high:
            middle = RaftIndex((low + high + 1) // 2)
            if self.epoch_before(middle) <= epoch:
                low = middle
            else:
                high = RaftIndex(middle - 1)
        return low

    def advance_commit(self, commit: RaftIndex) -> None:
        if commit > self.end:
            raise RaftError(f"commit {commit} is beyond the end {self.end}")
        self.commit = commit
        self.emit(Committed(commit))

    # ---- messages, epoch and vote

    def send(self, peer: BrokerId, message: Message) -> None:
        """Send once epoch and vote are durable: a broker that forgets them could vote twice."""
        if self.is_vote_durable:
            self.emit(Send(peer, message))
        elif len(self._delayed) < DELAYED_MESSAGES_MAX:
            self._delayed.append(Send(peer, message))

    def drop_delayed_acks(self) -> None:
        """Acknowledgements that wait for the vote are of entries that were not stored."""
        self._delayed = [s for s in self._delayed if not isinstance(s.message, AppendResponse)]

    def persist_vote(self) -> None:
        self.is_vote_durable = False
        self.emit(PersistVote(self.epoch, self.voted_for))

    def on_vote_persisted(self, epoch: Epoch, voted_for: BrokerId) -> None:
        if self.is_vote_durable or (epoch, voted_for) != (self.epoch, self.voted_for):
            return
        self.is_vote_durable = True
        self.out += self._delayed
        self._delayed.clear()

    def enter_epoch(self, epoch: Epoch, voted_for: BrokerId) -> None:
        self.epoch = epoch
        self.voted_for = voted_for
        # A match with an earlier leader's log does not imply one with the next leader's.
        self.verified = self.acked = RaftIndex(0)
        self._delayed.clear()
        self.persist_vote()

    def announce_role(self) -> None:
        self.emit(RoleChanged(self.role, self.epoch, self.leader))

    # ---- members

    def replaced_voters(self) -> list[BrokerId]:
        """Leader: voters that came back with another log than the one that the group expects."""
        return [
            voter
            for voter in self.members.voters
            if voter in self.progress
            and self.progress[voter].log_id not in (NO_LOG, self.members.log_of(voter))
        ]

    def _members_before(self, index: RaftIndex) -> Members:
        return self.log.members(index)[1] if index >= 0 else self.members

    def set_members(self, index: RaftIndex, members: Members) -> None:
        """The last membership entry of the log has changed."""
        is_newer = index > self.members_index
        previous = self.members
        self.members_index = index
        self.members = members
        self.previous_members = previous if is_newer else self._members_before(index)
        if self.role is Role.LEADER:
            self.track_members()

    def track_members(self) -> None:
        """Leader: one Progress per other member."""
        old, self.progress = self.progress, {}
        for peer in sorted(self.members.everyone):
            if peer != self.me:
                self.progress[peer] = old.get(peer) or Progress(
                    next_index=self.epoch_start, end=self.end, now=self.now
                )

"""Owns the state of a Raft core, and the transitions that every role shares.

The core is one class in five files, each building on the one before: state, following, electing,
leading, core. core.py has the way in.
"""

from collections.abc import Callable
from typing import Protocol

from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.config import RaftConfig
from moldau.raft.errors import RaftError
from moldau.raft.events import Committed, Effect, PersistVote, ReadFailed, Role, RoleChanged, Send
from moldau.raft.log_view import LogView
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import Message
from moldau.raft.progress import Progress

CAMPAIGN_SPREAD_MAX = 4
"""How many times further apart brokers stand for election after several that failed."""
HELD_MESSAGES_MAX = 64
"""Messages that wait for a vote to be durable. More are dropped: the network may do that, too."""


class Chance(Protocol):
    """The part of random.Random that the core uses. Injected: the same seed, the same election."""

    def randrange(self, start: int, stop: int, /) -> int: ...


class RaftState:
    """Fields that others may read are without underscore; nobody else writes any."""

    def __init__(
        self,
        *,
        me: BrokerId,
        log: LogView,
        config: RaftConfig,
        chance: Chance,
        now: int,
        epoch: Epoch = NO_EPOCH,
        voted_for: BrokerId = NO_BROKER,
        log_id: LogId = FIRST_LOG,
    ) -> None:
        """`epoch` and `voted_for` come from the vote journal; without an entry, leave them out.

        A broker whose log is not the one that its group counts on may have forgotten entries that
        it acknowledged. It follows, stores and acknowledges, but helps to elect nobody.
        """
        self.me = me
        self.log = log
        self.config = config
        self._chance = chance
        # An epoch in the log was accepted from a leader, even if the vote journal lags behind.
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
        """All entries below are committed. Relearned after a start: nothing depends on it."""
        self.truncations = 0
        """Times that entries were cut from the end. Flushed carries it back."""
        self.members_index, self.members = log.members(self.end)
        self._previous_members = self._members_before(self.members_index)
        self.verified = RaftIndex(0)
        """Follower: below this, the log is known to be that of the leader of this epoch."""
        self._acked = RaftIndex(0)
        self._before_reset = (RaftIndex(0), RaftIndex(0), RaftIndex(0))
        """Start, and commit and verified before, of the last snapshot that replaced the log."""
        self._is_vote_durable = True
        self._held: list[Send] = []
        self._granted: dict[BrokerId, None] = {}
        self._is_transferred = False
        self.last_contact_at = now
        """Follower: when the leader last gave a sign."""
        self._campaigns = 0
        """Since the last leader: with each that fails, brokers keep further out of each other's
        way, so that a storm of elections calms down by itself."""
        self._election_ms = self._draw_election_ms()
        self.progress: dict[BrokerId, Progress] = {}
        """Leader: the other members, in ascending order."""
        self.epoch_start = RaftIndex(0)
        """Leader: index of its no-op. Entries below are committed only along with that one."""
        self._quorum_checked_at = now
        self.transfer_target = NO_BROKER
        self._transfer_deadline = 0
        self._is_transfer_told = False
        self._reads_waiting: list[int] = []
        self._round = 0
        self._round_reads: tuple[int, ...] = ()
        self._round_index = RaftIndex(0)
        self._round_answered: dict[BrokerId, None] = {}
        self._round_deadline = 0
        self._now = now
        self._out: list[Effect] = []
        self._emit: Callable[[Effect], None] = self._out.append

    # ---- looking at the log

    def _epoch_before(self, index: RaftIndex) -> Epoch:
        """Epoch of the entry just below `index`."""
        if index == self.end:
            return self.last_epoch
        if index <= 0:
            return NO_EPOCH
        return self.log.epoch_of(RaftIndex(index - 1))

    def _end_of_epoch(self, epoch: Epoch, limit: RaftIndex) -> RaftIndex:
        """The highest place up to `limit` below which no entry is of a later epoch.

        Epochs never fall along a log, so this is a binary search.
        """
        low, high = min(self.log.start_index, limit), limit
        while low < high:
            middle = RaftIndex((low + high + 1) // 2)
            if self._epoch_before(middle) <= epoch:
                low = middle
            else:
                high = RaftIndex(middle - 1)
        return low

    # ---- talking

    def _send(self, peer: BrokerId, message: Message) -> None:
        """Send once epoch and vote are durable: a broker that forgets them could vote twice."""
        if self._is_vote_durable:
            self._emit(Send(peer, message))
        elif len(self._held) < HELD_MESSAGES_MAX:
            self._held.append(Send(peer, message))

    def _persist_vote(self) -> None:
        self._is_vote_durable = False
        self._emit(PersistVote(self.epoch, self.voted_for))

    def _on_vote_persisted(self, epoch: Epoch, voted_for: BrokerId) -> None:
        if self._is_vote_durable or (epoch, voted_for) != (self.epoch, self.voted_for):
            return
        self._is_vote_durable = True
        self._out += self._held
        self._held.clear()

    # ---- transitions

    def _draw_election_ms(self) -> int:
        shortest, longest = self.config.election_ms_min, self.config.election_ms_max
        spread = min(max(self._campaigns - 1, 1), CAMPAIGN_SPREAD_MAX)
        return self._chance.randrange(shortest, shortest + spread * (longest - shortest))

    def _enter_epoch(self, epoch: Epoch, voted_for: BrokerId) -> None:
        self.epoch = epoch
        self.voted_for = voted_for
        # What was agreed with an earlier leader says nothing about the next one's log.
        self.verified = self._acked = RaftIndex(0)
        self._held.clear()
        self._persist_vote()

    def _become_follower(self, epoch: Epoch, leader: BrokerId) -> None:
        if epoch > self.epoch:
            self._enter_epoch(epoch, NO_BROKER)
        was_leader = self.role is Role.LEADER
        self.role = Role.FOLLOWER
        self.leader = leader
        self._is_transferred = False
        if leader != NO_BROKER:
            self._campaigns = 0
        self._election_ms = self._draw_election_ms()
        if was_leader:
            self._leave_leadership()
            self.last_contact_at = self._now
        elif leader != NO_BROKER:
            self.last_contact_at = self._now
        self._announce()

    def _leave_leadership(self) -> None:
        self.progress = {}
        self.transfer_target = NO_BROKER
        reads = (*self._round_reads, *self._reads_waiting)
        self._round_reads = ()
        self._reads_waiting = []
        if reads:
            self._emit(ReadFailed(reads))

    def _announce(self) -> None:
        self._emit(RoleChanged(self.role, self.epoch, self.leader))

    def _advance_commit(self, commit: RaftIndex) -> None:
        if commit > self.end:
            raise RaftError(f"commit {commit} is beyond the end {self.end}")
        self.commit = commit
        self._emit(Committed(commit))

    def _members_before(self, index: RaftIndex) -> Members:
        return self.log.members(index)[1] if index >= 0 else self.members

    def _set_members(self, index: RaftIndex, members: Members) -> None:
        """The last membership entry of the log is another one now."""
        is_newer = index > self.members_index
        previous = self.members
        self.members_index = index
        self.members = members
        self._previous_members = previous if is_newer else self._members_before(index)

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """With this log."""
        return self.members.is_voter(self.me, self.log_id)

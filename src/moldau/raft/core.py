"""Owns the way into the consensus core: step(now, event) -> effects.

Nothing in here waits, reads a clock, draws chances of its own or touches a file or a socket. The
driver tells what happened and does what is returned; docs/internals/raft.md follows one entry
through it, and lists what a driver must keep.
"""

from typing import assert_never

from moldau.model.ids import BrokerId, RaftIndex
from moldau.raft.errors import RaftError
from moldau.raft.events import (
    Appended,
    AppendFailed,
    AppendSent,
    CampaignRequested,
    Effect,
    Event,
    Flushed,
    HeartbeatDue,
    LeaderAlive,
    MembershipChangeRequested,
    PeerAlive,
    PeerConnected,
    PeerDisconnected,
    PeerExited,
    RareEvent,
    ReadIndexRequested,
    Received,
    Role,
    Tick,
    TransferRequested,
    VotePersisted,
)
from moldau.raft.leadership import Leadership
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    InstallSnapshot,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.progress import FOREVER


class RaftCore(Leadership):
    """Consensus of one group on one broker."""

    @property
    def deadline(self) -> int:
        """When a Tick is due, if nothing else happens before."""
        if self.role is Role.LEADER:
            return self._leader_deadline()
        return self.last_contact_at + self._election_ms if self._is_electable() else FOREVER

    def step(self, now: int, event: Event) -> list[Effect]:
        """Take in one event. Raises RaftRefusal (nothing has changed), and RaftError: a rule is
        broken and this replica must stop."""
        self._now = now
        out: list[Effect] = []
        self._out = out
        self._emit = out.append
        # The four of every entry first, without patterns: they cost as much as the rest.
        if isinstance(event, Received):
            self._on_received(event.sender, event.message)
        elif isinstance(event, Flushed):
            self._on_flushed(event.end, event.truncations)
        elif isinstance(event, AppendSent):
            self._on_append_sent(event)
        elif isinstance(event, Appended):
            self._on_appended(event.end)
        else:
            self._step_rare(event)
        return out

    def _step_rare(self, event: RareEvent) -> None:
        match event:
            case Tick():
                self._on_tick()
            case LeaderAlive(leader, epoch, commit):
                self._on_leader_alive(leader, epoch, commit)
            case PeerAlive(peer, epoch):
                self._on_peer_alive(peer, epoch)
            case VotePersisted(epoch, voted_for):
                self._on_vote_persisted(epoch, voted_for)
                self._on_own_vote_persisted()
            case HeartbeatDue(peer):
                self._on_heartbeat_due(peer)
            case PeerDisconnected(peer):
                self._on_peer_lost(peer)
            case PeerConnected(peer):
                self._on_peer_found(peer)
            case PeerExited(peer):
                self._on_peer_ended(peer)
            case AppendFailed():
                self._on_append_failed()
            case CampaignRequested():
                if self.role is not Role.LEADER and self._is_electable():
                    self._campaign(is_pre=True)
            case TransferRequested(target):
                self._on_transfer_asked(target)
            case MembershipChangeRequested(members):
                self._on_members_asked(members)
            case ReadIndexRequested(read_id):
                self._on_read_asked(read_id)
            case _:
                assert_never(event)

    def _on_tick(self) -> None:
        if self.role is Role.LEADER:
            self._on_leader_tick()
        elif self._now >= self.last_contact_at + self._election_ms:
            self._on_election_timeout()

    def _on_received(self, sender: BrokerId, message: Message) -> None:
        if message.epoch > self.epoch:
            if not self._rise(sender, message):
                return
        elif message.epoch < self.epoch:
            self._answer_stale(sender, message)
            return
        match message:
            case AppendRequest():
                self._on_append(sender, message)
            case AppendResponse():
                self._on_append_answered(sender, message)
            case RaftHeartbeat():
                self._on_ping(sender, message)
            case RaftHeartbeatResponse(_, round_number, log_id):
                if self.role is Role.LEADER:
                    self._on_log_seen(sender, log_id)
                    self._on_pong(sender, round_number)
            case VoteRequest():
                if message.is_pre:
                    self._on_pre_vote_asked(sender, message)
                else:
                    self._on_vote_asked(sender, message)
            case VoteResponse():
                self._on_vote_answered(sender, message)
            case InstallSnapshot():
                self._on_snapshot(sender, message)
            case TimeoutNow():
                self._on_timeout_now(message)
            case _:
                assert_never(message)

    def _rise(self, sender: BrokerId, message: Message) -> bool:
        """A message of a later epoch: go there, but for questions that do not deserve it."""
        if isinstance(message, VoteRequest):
            if not message.is_transfer and self._hears_leader():
                return False
            if message.is_pre:
                return True
        if isinstance(message, VoteResponse) and message.is_pre and message.is_granted:
            return True
        is_leader = isinstance(message, (AppendRequest, RaftHeartbeat, InstallSnapshot))
        self._become_follower(message.epoch, sender if is_leader else NO_BROKER)
        return True

    def _answer_stale(self, sender: BrokerId, message: Message) -> None:
        """Tell a broker that its epoch is over: an old leader steps down, a candidate follows."""
        match message:
            case AppendRequest() | RaftHeartbeat() | InstallSnapshot():
                self._send(sender, RaftHeartbeatResponse(self.epoch, 0, self.log_id))
            case VoteRequest():
                self._send(sender, VoteResponse(self.epoch, False, message.is_pre))
            case AppendResponse() | RaftHeartbeatResponse() | VoteResponse() | TimeoutNow():
                pass
            case _:
                assert_never(message)

    def _on_append_failed(self) -> None:
        """The disk took nothing: be what the log is, and lead no longer without a no-op."""
        self.end = self.log.end_index
        self.last_epoch = self.log.last_epoch
        start, commit, verified = self._before_reset
        if self.log.start_index < start:
            # The old log is still there, and of its entries the snapshot says nothing.
            self.commit, self.verified = commit, verified
            self.flushed = self.log.flushed_index
        # A commit that the failed step would have learned; nobody was told of it.
        self.commit = min(self.commit, self.end)
        self.verified = min(self.verified, self.end)
        self.flushed = min(self.flushed, self.end)
        self._set_members(*self.log.members(self.end))
        # Answers that still wait for the vote to be durable speak of what was not stored.
        self._held = [held for held in self._held if not isinstance(held.message, AppendResponse)]
        self._acked = RaftIndex(0)
        if self.role is Role.LEADER:
            self._become_follower(self.epoch, NO_BROKER)

    def check_invariants(self) -> None:
        """What must hold between steps. Raises RaftError."""
        log = self.log
        if not log.start_index <= self.commit <= self.end:
            raise RaftError(f"start {log.start_index}, commit {self.commit}, end {self.end}")
        if self.end != log.end_index or self.last_epoch != log.last_epoch:
            raise RaftError(
                f"the log ends at {log.end_index} in epoch {log.last_epoch}, not at {self.end} in "
                f"epoch {self.last_epoch}"
            )
        if self.last_epoch > self.epoch:
            raise RaftError(f"the log is of epoch {self.last_epoch}, the core of {self.epoch}")
        if self.flushed > self.end or self.verified > self.end:
            raise RaftError(f"flushed {self.flushed}, agreed {self.verified}, end {self.end}")
        if self.members_index >= self.end:
            raise RaftError(f"members of entry {self.members_index} in a log of {self.end}")
        if self.role is Role.LEADER and self.last_epoch != self.epoch:
            raise RaftError(f"a leader of epoch {self.epoch} after entries of {self.last_epoch}")
        if (self.role is Role.LEADER) != (self.leader == self.me):
            raise RaftError(f"{self.role} with leader {self.leader}")

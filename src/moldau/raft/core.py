"""The Raft core of one group: step(now, event) -> effects.

The core does not wait, read a clock, draw random numbers of its own, or touch files and sockets.
The driver reports events and carries out the effects. docs/internals/raft.md follows one entry
through it and lists the rules for a driver.
"""

from typing import assert_never

from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.config import RaftConfig
from moldau.raft.election import Chance, Election
from moldau.raft.errors import RaftError, RaftRejection
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
from moldau.raft.follower import Follower
from moldau.raft.leader import Leader
from moldau.raft.log_view import LogView
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
from moldau.raft.state import RaftState


class RaftCore(RaftState):
    """Consensus of one group on one broker: the shared state, and one component per role."""

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
        super().__init__(
            me=me, log=log, config=config, now=now, epoch=epoch, voted_for=voted_for, log_id=log_id
        )
        self.election = Election(self, chance, self._become_leader)
        self._follower = Follower(self, self._become_follower)
        self._leader: Leader | None = None
        """Set as long as this broker leads."""

    @property
    def deadline(self) -> int:
        """When a Tick is due, if nothing else happens before."""
        return self.election.deadline if self._leader is None else self._leader.deadline

    @property
    def is_ready(self) -> bool:
        """Leads and has committed in its epoch: its commit index is up to date."""
        return self.role is Role.LEADER and self.commit > self.epoch_start

    @property
    def may_propose(self) -> bool:
        """Whether the driver may append records now."""
        return self._leader is not None and self._leader.transfer.target == NO_BROKER

    def in_sync(self, lag_ms_max: int) -> list[BrokerId]:
        """Voters that had every entry within the last lag_ms_max, as of the last step."""
        if self.role is not Role.LEADER:
            return []
        since = self.now - lag_ms_max
        return [
            voter
            for voter in self.members.voters
            if voter == self.me or self.progress[voter].caught_up_at >= since
        ]

    @property
    def replicated(self) -> RaftIndex:
        """Below it, every entry is on the disks of all members; 0 unless this broker leads."""
        if self.role is not Role.LEADER:
            return RaftIndex(0)
        return min((progress.match for progress in self.progress.values()), default=self.end)

    # ---- shortcuts: what steps of idle groups come to, for thousands of them a second

    def heard_from(self, peer: BrokerId, at: int) -> None:
        """As a step with PeerAlive or LeaderAlive of this epoch, which have no effects where the
        commit index is known."""
        if self._leader is not None:
            self._leader.heard_from(peer, at)
        elif peer == self.leader and self.role is Role.FOLLOWER:
            self.last_contact_at = at

    def rests(self, now: int) -> bool:
        """As a step with Tick, if that has no effects; False: it may have some, so step."""
        if self._leader is None:
            return self.election.deadline > now
        if not self._leader.rests(now):
            return False
        self.now = now
        return True

    def step(self, now: int, event: Event) -> list[Effect]:
        """Handle one event. Raises RaftRejection (nothing has changed), and RaftError: a rule is
        broken and this replica must stop."""
        self.now = now
        out: list[Effect] = []
        self.out = out
        self.emit = out.append
        # The four of every entry first, without patterns: they cost as much as the rest.
        if isinstance(event, Received):
            self._on_received(event.sender, event.message)
        elif isinstance(event, Flushed):
            self._on_flushed(event.end, event.truncations)
        elif isinstance(event, AppendSent):
            if self._leader is not None:
                self._leader.on_append_sent(event)
        elif isinstance(event, Appended):
            if self._leader is None or event.end < self.end:
                raise RaftError(f"appended up to {event.end} without leading from {self.end} on")
            self._leader.on_appended(event.end)
        else:
            self._step_rare(event)
        return out

    def _step_rare(self, event: RareEvent) -> None:  # noqa: C901 - one case per kind
        leader = self._leader
        match event:
            case Tick():
                if leader is not None:
                    leader.on_tick()
                else:
                    self.election.on_tick()
            case LeaderAlive(broker, epoch, commit):
                self._follower.on_leader_alive(broker, epoch, commit)
            case VotePersisted(epoch, voted_for):
                self.on_vote_persisted(epoch, voted_for)
                self.election.on_vote_persisted()
            case PeerExited(peer):
                if peer == self.leader:
                    self.election.note_leader_exited()
                self._follower.on_peer_exited(peer)
            case AppendFailed():
                self._on_append_failed()
            case CampaignRequested():
                self.election.on_campaign_requested()
            case PeerAlive(peer, epoch):
                if leader is not None:
                    leader.on_peer_alive(peer, epoch)
            case HeartbeatDue(peer):
                if leader is not None:
                    leader.on_heartbeat_due(peer)
            case PeerDisconnected(peer):
                if leader is not None:
                    leader.on_peer_disconnected(peer)
            case PeerConnected(peer):
                if leader is not None:
                    leader.on_peer_connected(peer)
            case TransferRequested(target):
                self._require_leader().transfer.request(target)
            case MembershipChangeRequested(members):
                self._require_leader().change_members(members)
            case ReadIndexRequested(read_id):
                if leader is None or not self.is_ready:
                    raise RaftRejection(
                        f"broker {self.me} is not the leader, or has not committed an entry yet"
                    )
                leader.reads.request(read_id)
            case _:
                assert_never(event)

    def _require_leader(self) -> Leader:
        if self._leader is None:
            raise RaftRejection(f"broker {self.me} is not the leader")
        return self._leader

    # ---- messages

    def _on_received(self, sender: BrokerId, message: Message) -> None:
        if message.epoch > self.epoch:
            if not self._adopt_epoch(sender, message):
                return
        elif message.epoch < self.epoch:
            self._respond_to_stale(sender, message)
            return
        match message:
            case AppendRequest():
                self._follower.on_append(sender, message)
            case AppendResponse():
                if self._leader is not None:
                    self._leader.on_append_response(sender, message)
            case RaftHeartbeat():
                self._follower.on_heartbeat(sender, message)
            case RaftHeartbeatResponse():
                if self._leader is not None:
                    self._leader.on_heartbeat_response(sender, message)
            case VoteRequest():
                self.election.on_vote_request(sender, message)
            case VoteResponse():
                self.election.on_vote_response(sender, message)
            case InstallSnapshot():
                self._follower.on_snapshot(sender, message)
            case TimeoutNow():
                self.election.on_timeout_now()
            case _:
                assert_never(message)

    def _adopt_epoch(self, sender: BrokerId, message: Message) -> bool:
        """Enter the later epoch of a message; False if the message is to be ignored."""
        if isinstance(message, VoteRequest):
            if not message.is_transfer and self.election.has_leader_contact():
                return False
            if message.is_pre:
                return True
        if isinstance(message, VoteResponse) and message.is_pre and message.is_granted:
            return True
        is_leader = isinstance(message, (AppendRequest, RaftHeartbeat, InstallSnapshot))
        self._become_follower(message.epoch, sender if is_leader else NO_BROKER)
        return True

    def _respond_to_stale(self, sender: BrokerId, message: Message) -> None:
        """Send the newer epoch to its sender: an old leader steps down, a candidate follows."""
        match message:
            case AppendRequest() | RaftHeartbeat() | InstallSnapshot():
                self.send(sender, RaftHeartbeatResponse(self.epoch, 0, self.log_id))
            case VoteRequest():
                self.send(sender, VoteResponse(self.epoch, False, message.is_pre))
            case AppendResponse() | RaftHeartbeatResponse() | VoteResponse() | TimeoutNow():
                pass
            case _:
                assert_never(message)

    # ---- transitions

    def _become_follower(self, epoch: Epoch, leader: BrokerId) -> None:
        if epoch > self.epoch:
            self.enter_epoch(epoch, NO_BROKER)
        leading, self._leader = self._leader, None
        self.role = Role.FOLLOWER
        self.leader = leader
        self.election.reset(is_leader_known=leader != NO_BROKER)
        if leading is not None:
            self.progress = {}
            leading.reads.fail_all()
        if leading is not None or leader != NO_BROKER:
            self.last_contact_at = self.now
        self.announce_role()

    def _step_down(self) -> None:
        self._become_follower(self.epoch, NO_BROKER)

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self.epoch_start = self.end
        self.progress = {}
        self.announce_role()
        self._leader = Leader(self, self._step_down)
        self._leader.start()

    # ---- storage

    def _on_flushed(self, index: RaftIndex, truncations: int) -> None:
        if truncations != self.truncations or index <= self.flushed:
            return
        self.flushed = index
        if self._leader is not None:
            self._leader.maybe_commit()
        else:
            self._follower.on_flushed()

    @property
    def leads_alone(self) -> bool:
        """Whether it leads a group without other members: nobody else can be elected."""
        return self.role is Role.LEADER and not self.progress

    def advance_single_voter(self, end: RaftIndex, flushed: RaftIndex) -> bool:
        """Appended and Flushed in one, for the leader of a group without other members.

        Its own disk is the majority: returns whether the commit advanced. `flushed` is what the
        log reports now, not what an earlier flush covered.
        """
        if self.role is not Role.LEADER or self.progress or end < self.end:
            raise RaftError(f"appended up to {end} without leading alone from {self.end} on")
        self.end = end
        self.last_epoch = self.epoch
        if flushed > self.flushed:
            self.flushed = flushed
        if flushed <= self.commit or flushed <= self.epoch_start or flushed > end:
            return False
        self.commit = flushed
        return True

    def _on_append_failed(self) -> None:
        """The disk was full: take over what the log has, and do not lead without a no-op."""
        self.end = self.log.end_index
        self.last_epoch = self.log.last_epoch
        start, commit, verified = self._follower.before_reset
        if self.log.start_index < start:
            # The old log is still there, and the snapshot does not cover its entries.
            self.commit, self.verified = commit, verified
            self.flushed = self.log.flushed_index
        # A commit that the failed step would have learned; it was not announced.
        self.commit = min(self.commit, self.end)
        self.verified = min(self.verified, self.end)
        self.flushed = min(self.flushed, self.end)
        self.set_members(*self.log.members(self.end))
        self.drop_delayed_acks()
        self.acked = RaftIndex(0)
        if self._leader is not None:
            self._step_down()

    def check_invariants(self) -> None:
        """What must hold between steps. Raises RaftError."""
        log = self.log
        if not log.start_index <= self.commit <= self.end:
            raise RaftError(
                f"commit {self.commit} is outside of the log, {log.start_index} to {self.end}"
            )
        if self.end != log.end_index or self.last_epoch != log.last_epoch:
            raise RaftError(
                f"the log ends at {log.end_index} in epoch {log.last_epoch}, not at {self.end} in "
                f"epoch {self.last_epoch}"
            )
        if self.last_epoch > self.epoch:
            raise RaftError(f"the log is of epoch {self.last_epoch}, the core of {self.epoch}")
        if self.flushed > self.end or self.verified > self.end:
            raise RaftError(f"flushed {self.flushed}, verified {self.verified}, end {self.end}")
        if self.members_index >= self.end:
            raise RaftError(f"members of entry {self.members_index} in a log of {self.end}")
        if self.role is Role.LEADER and self.last_epoch != self.epoch:
            raise RaftError(f"a leader of epoch {self.epoch} after entries of {self.last_epoch}")
        if (self.role is Role.LEADER) != (self.leader == self.me):
            raise RaftError(f"{self.role} with leader {self.leader}")

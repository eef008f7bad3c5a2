"""Runs every Raft group of this broker: steps the cores and executes their effects.

Everything happens on the event loop. An event is one step of one core (core_stepper.py); its
effects on log and peers are executed before that group's next step. What groups can share waits for
the end of the loop turn (turn_batcher.py): one frame per peer, one write of votes, one check of
what is flushed. So ten proposals of one turn travel as one Append and get one response.

Heartbeats are per pair of brokers (heartbeats.py). A core receives them only when it needs them:
before its timer fires, and before it decides about a vote.
"""

import asyncio
import logging
import random
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Mapping
from typing import Final

from moldau.log.interface import ControlKind, FlushPolicy, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, MoldauError, RefusedError
from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, LogId, Offset, RaftIndex
from moldau.raft import events as e
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Event
from moldau.raft.membership import NO_BROKER, Members
from moldau.replica.core_stepper import CoreStepper
from moldau.replica.effect_executor import EffectExecutor
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.replica.heartbeats import HeartbeatExchange
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import GroupKey
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_counts import RaftCounts
from moldau.replica.raft_group import GroupOwner, RaftGroup, expire_transfer
from moldau.replica.raft_receiver import RaftReceiver
from moldau.replica.timers import GroupTimers
from moldau.replica.transport import Transport
from moldau.replica.turn_batcher import TurnBatcher
from moldau.replica.vote_writer import Vote, Votes, VoteWriter

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 150
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Per group: proposals beyond it are rejected until a majority has caught up."""


class RaftDriver:
    """Runs all Raft groups of one broker."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        clock: Clock,
        rng: random.Random,
        flusher: Flusher,
        votes: Votes,
        transport: Transport,
        config: RaftConfig | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        """A disk failure is reported through the flusher, which ends the process."""
        self._loop = loop
        monotonic = clock.monotonic

        def now() -> int:
            return int(monotonic() * 1000)

        self._now = now
        self._monotonic = monotonic
        self._rng = rng
        self._flusher = flusher
        self._transport = transport
        self._config = config or RaftConfig()
        self._uncommitted_bytes_max = UNCOMMITTED_BYTES_MAX
        self.me = transport.me
        self._session = rng.getrandbits(64)
        self._groups: dict[bytes, RaftGroup] = {}
        self._names: dict[str, RaftGroup] = {}
        self._peers: dict[BrokerId, Peer] = {}
        self._votes = VoteWriter(
            loop=loop, votes=votes, on_persisted=self._on_votes, on_failure=flusher.report
        )
        self._effects = EffectExecutor(
            peers=self._peers, votes=self._votes, flusher=flusher, monotonic=monotonic
        )
        self._commit_counts = self._effects.counts.commit_seconds.counts
        self._stepper = CoreStepper(
            loop=loop,
            now=now,
            effects=self._effects,
            flusher=flusher,
            peers=self._peers,
            on_touched=lambda: self._batcher.soon(),
        )
        self._timers = GroupTimers(loop=loop, now=now, on_due=self._on_due)
        self._heartbeats = HeartbeatExchange(
            loop=loop,
            now=now,
            interval_ms=heartbeat_ms,
            peers=self._peers,
            groups=self._groups,
            handle_all=self._stepper.handle_all,
        )
        self._batcher = TurnBatcher(
            loop=loop,
            stepper=self._stepper,
            effects=self._effects,
            heartbeats=self._heartbeats,
            timers=self._timers,
            votes=self._votes,
            flusher=flusher,
            peers=self._peers,
        )
        self._receiver = RaftReceiver(
            loop=loop,
            now=now,
            stepper=self._stepper,
            effects=self._effects,
            heartbeats=self._heartbeats,
            flusher=flusher,
            peers=self._peers,
            groups=self._groups,
            append_bytes_max=self._config.append_bytes_max,
        )
        self._read_number = 0
        transport.attach(self)

    def start(self) -> None:
        """Start heartbeats; the caller starts the transport."""
        self._heartbeats.start()

    def stop(self) -> None:
        """Stop stepping. The caller closes logs, flusher and transport."""
        self._timers.stop()
        self._heartbeats.stop()
        for group in list(self._names.values()):
            self.remove_group(group)
        self._votes.stop()

    @property
    def now(self) -> int:
        """Milliseconds of the monotonic clock, as the cores use them."""
        return self._now()

    # ---- peers and groups

    def add_peer(self, broker: BrokerId, address: tuple[str, int]) -> None:
        """Add a broker of the cluster, or update its address."""
        link = self._transport.add_peer(broker, address)
        if broker not in self._peers:
            peer = self._peers[broker] = Peer(broker, link, PeerHeartbeat(self._session, broker))
            for group in self._names.values():
                if group.is_leader and broker in group.core.progress:
                    peer.heartbeat.lead(group)
            # Messages to it from before were dropped: there was no queue for it.
            self._handle_led(broker, e.PeerDisconnected(broker))

    def remove_peer(self, broker: BrokerId) -> None:
        self._transport.remove_peer(broker)
        self._peers.pop(broker, None)

    def add_group(
        self,
        key: GroupKey,
        partition_log: PartitionLog,
        members: Members,
        owner: GroupOwner,
    ) -> RaftGroup:
        """Run a group. `members` are the initial ones; those in the log are more recent.

        If this broker is the only voter, it is elected at once.
        """
        wire = key.wire
        if wire in self._groups:
            raise ValueError(f"group {key.name} is already running")
        view = GroupLog(partition_log, members)
        epoch, voted_for = self._votes.get(key.name)
        core = RaftCore(
            me=self.me,
            log=view,
            config=self._config,
            chance=self._rng,
            now=self.now,
            epoch=epoch,
            voted_for=voted_for,
            log_id=partition_log.log_id,
        )
        handle = FlushHandle(partition_log, lambda: self._stepper.touch(group))
        group = RaftGroup(
            key=key, log=partition_log, view=view, core=core, owner=owner, flush_handle=handle
        )
        self._groups[wire] = group
        self._names[group.name] = group
        if core.epoch > epoch:
            # The log knows a higher epoch. Record it, or a lost log would look like a new group.
            self._votes.request(group.name, (core.epoch, NO_BROKER))
        self._stepper.touch(group)
        if partition_log.flushed_index < partition_log.end_index:
            self._effects.flush_later(group, 0)
        if core.members.voters == (self.me,):
            self.campaign(group)
        return group

    def remove_group(self, group: RaftGroup, *, forget_vote: bool = False) -> None:
        """Stop a group; the owner closes its log. `forget_vote`: the topic was deleted."""
        if self._names.pop(group.name, None) is None:
            return
        del self._groups[group.wire]
        group.is_removed = True
        group.flush_handle.is_dropped = True
        self._stepper.detach(group)
        if forget_vote:
            self._votes.forget(group.name)

    def forget_vote(self, key: GroupKey) -> None:
        """Forget the vote of a group that was deleted in the whole cluster."""
        if self.knows(key):
            self._votes.forget(key.name)

    def knows(self, key: GroupKey) -> bool:
        """Whether this broker was ever a member of the group, even if its log is lost."""
        return self._votes.get(key.name)[0] != NO_EPOCH

    def new_log_id(self, key: GroupKey, members: Members) -> LogId:
        """The id for a new log of a group: FIRST_LOG for an initial voter, which has lost nothing;
        otherwise one that says the log may lack acknowledged entries."""
        if self.me in members.voters and not self.knows(key):
            return FIRST_LOG
        return self.make_log_id()

    def make_log_id(self) -> LogId:
        """An id for a log that may lack entries which the group has acknowledged."""
        return LogId(self._rng.getrandbits(62) + 1)

    @property
    def counts(self) -> RaftCounts:
        return self._effects.counts

    @property
    def groups(self) -> Mapping[str, RaftGroup]:
        return self._names

    # ---- for the owner of a group

    def check_leadership(self, group: RaftGroup) -> None:
        """Raises RefusedError unless this broker leads and not too much is uncommitted."""
        if group.is_alone and not group.proposed_bytes:
            return
        if group.failure is not None or group.is_removed or not group.core.may_propose:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"not leader for group {group.name}"
            )
        if group.proposed_bytes >= self._uncommitted_bytes_max:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{group.proposed_bytes} bytes of group {group.name} are not committed yet "
                f"(limit {self._uncommitted_bytes_max}); retry once a majority has caught up",
            )

    def appended(self, group: RaftGroup, size: int) -> None:
        """The owner appended stamped batches of the current epoch to the log.

        The core is stepped at the end of this loop turn, once for all appends, or before its next
        event; at once if there are no followers and nothing to wait for.
        """
        if group.is_alone and group.log.config.flush is not FlushPolicy.ALWAYS:
            group.flush_handle.unflushed_bytes += size
            self._stepper.advance_single_voter(group)
            # Committed in this moment.
            self._commit_counts[0] += 1
            return
        if group.failure is not None or group.is_removed:
            return
        self._effects.flush_later(group, size)
        group.proposed_bytes += size
        if not group.is_grown:
            group.is_grown = True
            group.grown_at = self._monotonic()
            self._stepper.touched[group] = None
        group.proposed.append((group.log.end_index, size, group.grown_at))
        self._batcher.proposed()

    def append_control(self, group: RaftGroup, kind: ControlKind, payload: bytes) -> RaftIndex:
        """Append a control entry; `on_control` reports its commit on every member.

        Raises RefusedError, DiskFullError, StorageError.
        """
        if kind in (ControlKind.NOOP, ControlKind.MEMBERSHIP):
            raise ValueError(f"only the Raft core writes {kind.name} entries")
        self.check_leadership(group)
        index = group.log.end_index
        with self._flusher.fencing():
            self._effects.append_control(group, group.core.epoch, kind, payload)
        group.has_controls = True
        group.is_alone = False
        self.appended(group, len(payload))
        return index

    def campaign(self, group: RaftGroup) -> None:
        """Start an election now, e.g. as the preferred leader of a new group."""
        self._stepper.handle(group, e.CampaignRequested())

    def transfer(self, group: RaftGroup, target: BrokerId) -> asyncio.Future[bool]:
        """Transfer leadership. Raises RaftRejection.

        The result is True once the target leads; False if another broker does, if the transfer was
        aborted (this broker still leads then), or if it timed out.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        if not group.is_running:
            future.set_result(False)
            return future
        self._stepper.handle(group, e.TransferRequested(target))
        group.end_transfer(NO_BROKER)
        group.transfer = (target, future)
        config = self._config
        seconds = (config.transfer_ms_max + 2 * config.election_ms_max) / 1000
        timer = self._loop.call_later(seconds, expire_transfer, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def recheck_flushed(self, group: RaftGroup) -> None:
        """The log's configuration changed, so the flushed index may have changed too."""
        self._stepper.touch(group)

    def change_members(self, group: RaftGroup, members: Members) -> None:
        """Raises RaftRejection."""
        self._stepper.handle(group, e.MembershipChangeRequested(members))

    def read_index(self, group: RaftGroup) -> asyncio.Future[Offset]:
        """Raft's ReadIndex as an offset. Raises RaftRejection; the future raises RefusedError."""
        if not group.is_running:
            raise RaftRejection(f"group {group.name} no longer runs on this broker")
        self._read_number += 1
        future: asyncio.Future[Offset] = self._loop.create_future()
        group.reads[self._read_number] = future
        try:
            self._stepper.handle(group, e.ReadIndexRequested(self._read_number))
        except MoldauError:
            del group.reads[self._read_number]
            raise
        return future

    def in_sync(self, group: RaftGroup, lag_ms_max: int) -> list[BrokerId]:
        """Voters that were caught up within that time; empty unless this broker leads."""
        if group.is_running:
            self._receiver.refresh(group)
        return group.core.in_sync(lag_ms_max)

    def has_recent_majority(self, group: RaftGroup) -> bool:
        """Whether a majority responded to this leader recently: after a stall, another broker may
        lead without this one knowing."""
        if not group.is_running or not group.is_leader:
            return False
        self._receiver.refresh(group)
        core = group.core
        since = self.now - core.config.election_ms_min
        in_contact = sum(
            voter == self.me
            or (core.progress[voter].last_contact_at > since and self._is_linked(voter))
            for voter in core.members.voters
        )
        return in_contact >= core.members.quorum

    def _is_linked(self, broker: BrokerId) -> bool:
        """A broker without a link may consider this one down, and vote for another."""
        peer = self._peers.get(broker)
        return peer is not None and peer.link.is_connected

    def has_recent_leader(self, group: RaftGroup, within_ms: int) -> bool:
        """Whether this broker leads, or heard from its leader within that time."""
        if not group.is_running or group.core.leader in (NO_BROKER, self.me):
            return group.core.leader == self.me
        self._receiver.refresh(group)
        return self.now - group.core.last_contact_at <= within_ms

    def can_lose_replica(self, group: RaftGroup, broker: BrokerId) -> bool:
        """On the leader: whether the group survives if that member loses its whole log.

        A majority of the other voters must be in contact, have their original logs, and hold
        everything committed."""
        members = group.core.members
        if broker not in members.voters or not self.has_recent_majority(group):
            return group.is_leader and broker not in members.voters
        core = group.core
        since = self.now - core.config.election_ms_min
        replaced = core.replaced_voters()

        def is_sound(voter: BrokerId) -> bool:
            if voter == self.me:
                return True
            progress = core.progress[voter]
            return progress.last_contact_at > since and progress.match >= core.commit

        sound = [
            voter
            for voter in members.voters
            if voter != broker and voter not in replaced and is_sound(voter)
        ]
        return len(sound) >= members.quorum

    def send_heartbeats_now(self) -> None:
        """Send heartbeats, with the newest commits, at the end of this loop turn."""
        self._heartbeats.is_due = True
        self._batcher.soon()

    def alive(self, within_ms: int) -> set[BrokerId]:
        """Peers whose heartbeat arrived within that time."""
        return self._heartbeats.alive(within_ms)

    # ---- events of many groups

    def _handle_led(self, broker: BrokerId, event: Event) -> None:
        """Step every group that this broker leads and that member belongs to."""
        self._stepper.handle_all(
            deque(
                (group, event)
                for group in self._names.values()
                if group.is_leader and broker in group.core.progress
            )
        )

    def _on_votes(self, votes: Mapping[str, Vote]) -> None:
        self._stepper.handle_all(
            deque(
                (self._names[name], e.VotePersisted(epoch, voted_for))
                for name, (epoch, voted_for) in votes.items()
                if name in self._names
            )
        )

    def _on_due(self, group: RaftGroup, now: int) -> None:
        self._receiver.refresh(group)
        core = group.core
        if not core.rests(now):
            self._stepper.handle(group, e.Tick())
        elif self._batcher.is_settled(group):
            # Idle, as nearly all groups of a broker may be: no step, and no turn of its own.
            deadline = core.deadline
            if deadline < group.timer_at:
                self._timers.set(group, deadline)
        else:
            self._stepper.touch(group)

    # ---- TransportHandler

    def on_heartbeat(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        self._heartbeats.receive(sender, body)

    def on_raft(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        self._receiver.take(sender, body)

    def on_link_up(self, broker: BrokerId) -> None:
        if (peer := self._peers.get(broker)) is not None:
            peer.has_exited = False
        self._handle_led(broker, e.PeerConnected(broker))

    def on_link_room(self, broker: BrokerId) -> None:
        self._batcher.soon()

    def on_link_lost(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is None:
            return
        peer.drop()
        peer.heartbeat.link_lost()
        self._handle_led(broker, e.PeerDisconnected(broker))

    def on_peer_changed(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is not None:
            peer.heartbeat.peer_disconnected()

    def on_peer_exited(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is None:
            return
        exited = e.PeerExited(broker)
        led = [group for group in self._names.values() if group.core.leader == broker]
        if led and not peer.has_exited:
            log.info(
                "the process of broker %d has ended: electing new leaders for %d partitions",
                broker,
                len(led),
            )
        peer.has_exited = True
        self._stepper.handle_all(deque((group, exited) for group in led))

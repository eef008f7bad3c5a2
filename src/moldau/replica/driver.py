"""Owns every Raft group of this broker: steps their cores, and runs what they want done.

Everything happens on the event loop. An event is one step of one core (steps.py); what it wants of
log and peers is done before the next step of that group. What can be shared between groups waits
for the end of the loop's turn (turns.py): one frame per peer, one write of votes, one look at what
is flushed. So ten proposals of one turn travel as one Append and are answered once.

Signs of life are per pair of brokers (beats.py) and reach a core only when it matters to it:
before its timer fires, and before it judges a candidate.
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
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import GroupKey
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.raft_group import FollowerProgress, GroupOwner, RaftGroup, expire_transfer
from moldau.replica.raft_receiver import RaftReceiver
from moldau.replica.timers import GroupTimers
from moldau.replica.transport import Transport
from moldau.replica.turn_batcher import TurnBatcher
from moldau.replica.vote_writer import Vote, Votes, VoteWriter

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 150
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one group: more is refused until a majority has caught up."""


class RaftDriver:
    """All groups of one broker."""

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
        uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX,
    ) -> None:
        """A failed disk is reported through the flusher, which ends the process."""
        self._loop = loop
        monotonic = clock.monotonic

        def now() -> int:
            return int(monotonic() * 1000)

        self._now = now
        self._rng = rng
        self._flusher = flusher
        self._transport = transport
        self._config = config or RaftConfig()
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self.me = transport.me
        self._session = rng.getrandbits(64)
        self._groups: dict[bytes, RaftGroup] = {}
        self._names: dict[str, RaftGroup] = {}
        self._peers: dict[BrokerId, Peer] = {}
        self._votes = VoteWriter(
            loop=loop, votes=votes, on_persisted=self._on_votes, on_failure=flusher.report
        )
        self._effects = EffectExecutor(peers=self._peers, votes=self._votes, flusher=flusher)
        self._steps = CoreStepper(
            loop=loop,
            now=now,
            effects=self._effects,
            flusher=flusher,
            peers=self._peers,
            on_touched=lambda: self._turns.soon(),
        )
        self._timers = GroupTimers(loop=loop, now=now, on_due=self._on_due)
        self._beats = HeartbeatExchange(
            loop=loop,
            now=now,
            interval_ms=heartbeat_ms,
            peers=self._peers,
            groups=self._groups,
            handle_all=self._steps.handle_all,
        )
        self._turns = TurnBatcher(
            loop=loop,
            steps=self._steps,
            effects=self._effects,
            beats=self._beats,
            timers=self._timers,
            votes=self._votes,
            flusher=flusher,
            peers=self._peers,
        )
        self._receiver = RaftReceiver(
            loop=loop,
            now=now,
            steps=self._steps,
            effects=self._effects,
            beats=self._beats,
            flusher=flusher,
            peers=self._peers,
            groups=self._groups,
            append_bytes_max=self._config.append_bytes_max,
        )
        self._read_number = 0
        transport.attach(self)

    def start(self) -> None:
        """Begin to beat; the transport is started by its owner."""
        self._beats.start()

    def stop(self) -> None:
        """Step nothing any more. Logs, flusher and transport are closed by their owners."""
        self._timers.stop()
        self._beats.stop()
        for group in list(self._names.values()):
            self.remove_group(group)
        self._votes.stop()

    @property
    def now(self) -> int:
        """Milliseconds of the steady clock, as the cores count."""
        return self._now()

    # ---- peers and groups

    def add_peer(self, broker: BrokerId, address: tuple[str, int]) -> None:
        """A broker of the cluster, or its new address."""
        link = self._transport.add_peer(broker, address)
        if broker not in self._peers:
            peer = self._peers[broker] = Peer(broker, link, PeerHeartbeat(self._session, broker))
            for group in self._names.values():
                if group.is_leader and broker in group.core.progress:
                    peer.beat.lead(group)
            # What was to be sent to it before had nowhere to wait.
            self._handle_led(broker, e.PeerDisconnected(broker))

    def remove_peer(self, broker: BrokerId) -> None:
        """It left the cluster."""
        self._transport.remove_peer(broker)
        self._peers.pop(broker, None)

    def add_group(
        self,
        key: GroupKey,
        partition_log: PartitionLog,
        members: Members,
        owner: GroupOwner,
    ) -> RaftGroup:
        """Run a group. `members`: as created; what the log says is more recent.

        A group with this broker as its only voter elects itself at once.
        """
        wire = key.wire
        if wire in self._groups:
            raise ValueError(f"group {key.name} runs already")
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
        handle = FlushHandle(partition_log, lambda: self._steps.touch(group))
        group = RaftGroup(
            key=key, log=partition_log, view=view, core=core, owner=owner, flush_handle=handle
        )
        self._groups[wire] = group
        self._names[group.name] = group
        if core.epoch > epoch:
            # By its log, which was quicker: without an entry a lost log would look like none.
            self._votes.ask(group.name, (core.epoch, NO_BROKER))
        self._steps.touch(group)
        if partition_log.flushed_index < partition_log.end_index:
            self._effects.flush_later(group, 0)
        if core.members.voters == (self.me,):
            self.campaign(group)
        return group

    def remove_group(self, group: RaftGroup, *, forget_vote: bool = False) -> None:
        """Stop a group; the owner closes its log. A deleted topic's vote is forgotten, too."""
        if self._names.pop(group.name, None) is None:
            return
        del self._groups[group.wire]
        group.is_removed = True
        group.flush_handle.is_dropped = True
        self._steps.detach(group)
        if forget_vote:
            self._votes.forget(group.name)

    def forget_vote(self, key: GroupKey) -> None:
        """Of a group that does not run here any more, and is deleted everywhere."""
        if self.knows(key):
            self._votes.forget(key.name)

    def knows(self, key: GroupKey) -> bool:
        """Whether this broker ever took part in the group, with a log that may be gone by now."""
        return self._votes.get(key.name)[0] != NO_EPOCH

    def new_log_id(self, key: GroupKey, members: Members) -> LogId:
        """For the log of a group, if there is none here: the one that was begun with the group, as
        `members` were, or one that comes later and knows nothing of what was acknowledged."""
        if self.me in members.voters and not self.knows(key):
            return FIRST_LOG
        return self.make_log_id()

    def make_log_id(self) -> LogId:
        """Of a log that knows nothing of what was acknowledged in the group."""
        return LogId(self._rng.getrandbits(62) + 1)

    @property
    def groups(self) -> Mapping[str, RaftGroup]:
        """By name."""
        return self._names

    # ---- what the owner asks for

    def check_leadership(self, group: RaftGroup) -> None:
        """Raises RefusedError unless records may be appended now, also if too many wait."""
        if group.is_alone and not group.proposed_bytes:
            return
        if group.failure is not None or group.is_removed or not group.core.may_propose:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{group.name} is led elsewhere")
        if group.proposed_bytes >= self._uncommitted_bytes_max:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{group.proposed_bytes} bytes of {group.name} wait for a majority",
            )

    def appended(self, group: RaftGroup, size: int) -> None:
        """For an owner that appends stamped batches of the current epoch to the log itself.

        The core hears of it at the end of this turn, once for all, or before its next event; at
        once if there is nobody to send it to and nothing to wait for.
        """
        if group.is_alone and group.log.config.flush is not FlushPolicy.ALWAYS:
            group.flush_handle.unflushed_bytes += size
            self._steps.advance_single_voter(group)
            return
        if group.failure is not None or group.is_removed:
            return
        self._effects.flush_later(group, size)
        group.proposed.append((group.log.end_index, size))
        group.proposed_bytes += size
        if not group.is_grown:
            group.is_grown = True
            self._steps.touched[group] = None
        self._turns.proposed()

    def append_control(self, group: RaftGroup, kind: ControlKind, payload: bytes) -> RaftIndex:
        """Append an entry that is no record; on_control says on every member when it counts.

        Raises RefusedError, DiskFullError, StorageError.
        """
        if kind in (ControlKind.NOOP, ControlKind.MEMBERSHIP):
            raise ValueError(f"{kind.name} is written by the consensus alone")
        self.check_leadership(group)
        index = group.log.end_index
        with self._flusher.fencing():
            self._effects.append_control(group, group.core.epoch, kind, payload)
        group.has_controls = True
        group.is_alone = False
        self.appended(group, len(payload))
        return index

    def campaign(self, group: RaftGroup) -> None:
        """Stand for election now, e.g. as the preferred leader of a fresh group."""
        self._steps.handle(group, e.CampaignRequested())

    def transfer(self, group: RaftGroup, target: BrokerId) -> asyncio.Future[bool]:
        """Hand leadership over. Raises RaftRefusal.

        Tells whether the target leads: True once it says so; False if somebody else does, if it
        was given up (this broker still leads then), or if nobody knows in time.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        if not group.is_running:
            future.set_result(False)
            return future
        self._steps.handle(group, e.TransferRequested(target))
        group.end_transfer(NO_BROKER)
        group.transfer = (target, future)
        config = self._config
        seconds = (config.transfer_ms_max + 2 * config.election_ms_max) / 1000
        timer = self._loop.call_later(seconds, expire_transfer, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def look_at(self, group: RaftGroup) -> None:
        """The log's settings changed: what counts as flushed may have, too."""
        self._steps.touch(group)

    def change_members(self, group: RaftGroup, members: Members) -> None:
        """Raises RaftRefusal."""
        self._steps.handle(group, e.MembershipChangeRequested(members))

    def read_index(self, group: RaftGroup) -> asyncio.Future[Offset]:
        """From which offset on a read is fresh. Raises RaftRefusal; the future RefusedError."""
        if not group.is_running:
            raise RaftRejection(f"{group.name} does not run here any more")
        self._read_number += 1
        future: asyncio.Future[Offset] = self._loop.create_future()
        group.reads[self._read_number] = future
        try:
            self._steps.handle(group, e.ReadIndexRequested(self._read_number))
        except MoldauError:
            del group.reads[self._read_number]
            raise
        return future

    def in_sync(self, group: RaftGroup, lag_ms_max: int) -> list[BrokerId]:
        """Voters that held everything within that time; empty unless this broker leads."""
        if group.is_running:
            self._receiver.refresh(group)
        return group.core.in_sync(lag_ms_max)

    def has_recent_majority(self, group: RaftGroup) -> bool:
        """Whether a majority has answered this leader lately: one that stood still may be one no
        more, and not know it yet."""
        if not group.is_running or not group.is_leader:
            return False
        self._receiver.refresh(group)
        core = group.core
        since = self.now - core.config.election_ms_min
        heard = sum(
            voter == self.me
            or (core.progress[voter].last_contact_at > since and self._is_linked(voter))
            for voter in core.members.voters
        )
        return heard >= core.members.quorum

    def _is_linked(self, broker: BrokerId) -> bool:
        """A broker that cannot be reached may take this one for ended, and vote for another."""
        peer = self._peers.get(broker)
        return peer is not None and peer.link.is_connected

    def has_recent_leader(self, group: RaftGroup, within_ms: int) -> bool:
        """Whether this broker follows somebody who told it so within that time."""
        if not group.is_running or group.core.leader in (NO_BROKER, self.me):
            return group.core.leader == self.me
        self._receiver.refresh(group)
        return self.now - group.core.last_contact_at <= within_ms

    def can_lose_replica(self, group: RaftGroup, broker: BrokerId) -> bool:
        """Leader: whether the group goes on if that member forgets all that it acknowledged.

        Without it, a majority of the voters must be heard, have the logs that the group counts on,
        and hold all that is committed."""
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

    def followers(self, group: RaftGroup) -> dict[BrokerId, FollowerProgress]:
        """How far the other members are; empty unless this broker leads."""
        return {
            broker: FollowerProgress(
                progress.match, progress.received, progress.caught_up_at, progress.state
            )
            for broker, progress in group.core.progress.items()
        }

    def send_heartbeats_now(self) -> None:
        """Let all peers hear at the end of this turn what else waits for the next heartbeat."""
        self._beats.is_due = True
        self._turns.soon()

    def alive(self, within_ms: int) -> set[BrokerId]:
        """Peers whose heartbeat was heard within that time."""
        return self._beats.alive(within_ms)

    # ---- events of many groups

    def _handle_led(self, broker: BrokerId, event: Event) -> None:
        """In every group that this broker leads, with that member."""
        self._steps.handle_all(
            deque(
                (group, event)
                for group in self._names.values()
                if group.is_leader and broker in group.core.progress
            )
        )

    def _on_votes(self, votes: Mapping[str, Vote]) -> None:
        self._steps.handle_all(
            deque(
                (self._names[name], e.VotePersisted(epoch, voted_for))
                for name, (epoch, voted_for) in votes.items()
                if name in self._names
            )
        )

    def _on_due(self, group: RaftGroup, now: int) -> None:
        self._receiver.refresh(group)
        if group.core.deadline <= now:
            self._steps.handle(group, e.Tick())
        else:
            self._steps.touch(group)

    # ---- what the transport says

    def on_heartbeat(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        self._beats.receive(sender, body)

    def on_raft(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        self._receiver.take(sender, body)

    def on_link_up(self, broker: BrokerId) -> None:
        if (peer := self._peers.get(broker)) is not None:
            peer.is_ended = False
        self._handle_led(broker, e.PeerConnected(broker))

    def on_link_room(self, broker: BrokerId) -> None:
        self._turns.soon()

    def on_link_lost(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is None:
            return
        peer.drop()
        peer.beat.link_lost()
        self._handle_led(broker, e.PeerDisconnected(broker))

    def on_peer_changed(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is not None:
            peer.beat.peer_disconnected()

    def on_peer_ended(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is None:
            return
        ended = e.PeerExited(broker)
        led = [group for group in self._names.values() if group.core.leader == broker]
        if led and not peer.is_ended:
            log.info("broker %d has ended: %d partitions elect new leaders", broker, len(led))
        peer.is_ended = True
        self._steps.handle_all(deque((group, ended) for group in led))

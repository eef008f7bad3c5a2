"""Owns every Raft group of this broker: steps their cores, and runs what they want done.

Everything happens on the event loop. An event is one step of one core; what it wants of log and
peers is done before the next step of that group. What can be shared between groups waits for the
end of the loop's turn: one frame per peer, one write of votes, one look at what is flushed. So ten
proposals of one turn travel as one Append and are answered once.

Signs of life are per pair of brokers (heartbeat.py) and reach a core only when it matters to it:
before its timer fires, and before it judges a candidate.
"""

import asyncio
import logging
import random
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.log.interface import ControlKind, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
    StorageError,
)
from moldau.model.ids import BrokerId, Offset, RaftIndex
from moldau.raft import events as e
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.errors import RaftError
from moldau.raft.events import Event, Role
from moldau.raft.membership import NO_BROKER, Members
from moldau.raft.messages import AppendAnswered, Pong, VoteAsked
from moldau.raft.progress import FOREVER
from moldau.records.batch import BatchHeader, stamp
from moldau.replica.beats import Beats
from moldau.replica.effects import Effects
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.replica.group import FollowerProgress, Group, GroupOwner, give_up
from moldau.replica.heartbeat import PeerBeat
from moldau.replica.log_view import GroupLog
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import GroupKey, Parcel, decode_frame
from moldau.replica.timers import GroupTimers
from moldau.replica.transport import Transport
from moldau.replica.vote_writer import Vote, Votes, VoteWriter

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 150
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one group: more is refused until a majority has caught up."""
_BULK_BYTES_PER_TURN_MAX: Final = 4 * 1024 * 1024
"""Sent to one peer before it is the turn of others."""


class Driver:
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
        self._clock = clock
        self._rng = rng
        self._flusher = flusher
        self._transport = transport
        self._config = config or RaftConfig()
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self.me = transport.me
        self._session = rng.getrandbits(64)
        self._groups: dict[bytes, Group] = {}
        self._names: dict[str, Group] = {}
        self._peers: dict[BrokerId, Peer] = {}
        self._votes = VoteWriter(
            loop=loop, votes=votes, on_persisted=self._on_votes, on_failure=flusher.report
        )
        self._effects = Effects(peers=self._peers, votes=self._votes, flusher=flusher)
        self._touched: dict[Group, None] = {}
        self._is_turning = False
        self._turn_due = False
        self._timers = GroupTimers(loop=loop, now=lambda: self.now, on_due=self._on_due)
        self._beats = Beats(
            loop=loop,
            now=lambda: self.now,
            interval_ms=heartbeat_ms,
            peers=self._peers,
            groups=self._groups,
            handle_all=self._handle_all,
        )
        self._read_number = 0
        self.unknown_total = 0
        """Messages for groups that are not here."""
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
        return int(self._clock.monotonic() * 1000)

    # ---- peers and groups

    def add_peer(self, broker: BrokerId, address: tuple[str, int]) -> None:
        """A broker of the cluster, or its new address."""
        link = self._transport.add_peer(broker, address)
        if broker not in self._peers:
            peer = self._peers[broker] = Peer(broker, link, PeerBeat(self._session, broker))
            for group in self._names.values():
                if group.is_leader and broker in group.core.progress:
                    peer.beat.lead(group)
            # What was to be sent to it before had nowhere to wait.
            self._handle_led(broker, e.PeerLost(broker))

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
        *,
        may_vote: bool = True,
    ) -> Group:
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
            may_vote=may_vote,
        )
        handle = FlushHandle(partition_log, lambda: self._on_flushed(group))
        group = Group(
            key=key, log=partition_log, view=view, core=core, owner=owner, flush_handle=handle
        )
        self._groups[wire] = group
        self._names[group.name] = group
        self._touch(group)
        if partition_log.flushed_index < partition_log.end_index:
            self._effects.flush_later(group, 0)
        if core.members.voters == (self.me,):
            self.campaign(group)
        return group

    def remove_group(self, group: Group, *, forget_vote: bool = False) -> None:
        """Stop a group; the owner closes its log. A deleted topic's vote is forgotten, too."""
        if self._names.pop(group.name, None) is None:
            return
        del self._groups[group.wire]
        group.is_removed = True
        group.flush_handle.is_dropped = True
        self._touched.pop(group, None)
        self._detach(group)
        if forget_vote:
            self._votes.forget(group.name)

    def _detach(self, group: Group) -> None:
        """Nothing is sent, promised or answered for the group any more."""
        for peer in self._peers.values():
            peer.waiting.pop(group, None)
            peer.beat.forget(group)
        reads, group.reads = group.reads, {}
        for future in reads.values():
            if not future.done():
                future.set_exception(RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        group.end_transfer(NO_BROKER)

    def get(self, key: GroupKey) -> Group | None:
        return self._groups.get(key.wire)

    @property
    def groups(self) -> Mapping[str, Group]:
        """By name."""
        return self._names

    # ---- what the owner asks for

    def propose(
        self, group: Group, data: bytearray | memoryview, headers: Sequence[BatchHeader]
    ) -> tuple[Offset, Offset]:
        """Append checked batches; returns the first offset and the one after the last.

        `data` is stamped in place and not kept. They are committed once on_commit says so; if the
        epoch ends before, they may be cut. Raises RefusedError, DiskFullError, StorageError.
        """
        self.check_leading(group)
        partition_log = group.log
        epoch = group.core.epoch
        base = offset = partition_log.end_offset
        position = 0
        stamped = []
        for header in headers:
            stamp(data, position, offset, epoch)
            header = header._replace(base_offset=offset, leader_epoch=epoch)
            stamped.append(header)
            position += header.size
            offset = header.next_offset
        with self._flusher.fencing():
            partition_log.append(data, stamped)
        self.appended(group, position)
        return base, offset

    def check_leading(self, group: Group) -> None:
        """Raises RefusedError unless records may be appended now, also if too many wait."""
        if not group.is_running or not group.core.may_propose:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{group.name} is led elsewhere")
        if group.proposed_bytes >= self._uncommitted_bytes_max:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{group.proposed_bytes} bytes of {group.name} wait for a majority",
            )

    def appended(self, group: Group, size: int) -> None:
        """For an owner that appends stamped batches of the current epoch to the log itself.

        The core hears of it at the end of this turn, once for all, or before its next event.
        """
        if not group.is_running:
            return
        self._effects.flush_later(group, size)
        group.proposed.append((group.log.end_index, size))
        group.proposed_bytes += size
        if not group.is_grown:
            group.is_grown = True
            self._touched[group] = None
            self._turn_soon()

    def append_control(self, group: Group, kind: ControlKind, payload: bytes) -> RaftIndex:
        """Append an entry that is no record; on_control says on every member when it counts.

        Raises RefusedError, DiskFullError, StorageError.
        """
        if kind in (ControlKind.NOOP, ControlKind.MEMBERSHIP):
            raise ValueError(f"{kind.name} is written by the consensus alone")
        self.check_leading(group)
        index = group.log.end_index
        with self._flusher.fencing():
            group.log.append_control(group.core.epoch, kind, payload)
        group.has_controls = True
        self.appended(group, len(payload))
        return index

    def campaign(self, group: Group) -> None:
        """Stand for election now, e.g. as the preferred leader of a fresh group."""
        self._handle(group, e.CampaignAsked())

    def transfer(self, group: Group, target: BrokerId) -> asyncio.Future[bool]:
        """Hand leadership over. Raises RaftRefusal.

        Tells whether the target leads: True once it says so; False if somebody else does, if it
        was given up (this broker still leads then), or if nobody knows in time.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        if not group.is_running:
            future.set_result(False)
            return future
        self._handle(group, e.TransferAsked(target))
        group.end_transfer(NO_BROKER)
        group.transfer = (target, future)
        config = self._config
        seconds = (config.transfer_ms_max + 2 * config.election_ms_max) / 1000
        timer = self._loop.call_later(seconds, give_up, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def restore_vote(self, group: Group) -> None:
        """The group made this broker a voter, and it holds the entry that says so."""
        self._handle(group, e.VoteRestored())

    def look_at(self, group: Group) -> None:
        """The log's settings changed: what counts as flushed may have, too."""
        self._touch(group)

    def change_members(self, group: Group, members: Members) -> None:
        """Raises RaftRefusal."""
        self._handle(group, e.MembersAsked(members))

    def read_index(self, group: Group) -> asyncio.Future[Offset]:
        """From which offset on a read is fresh. Raises RaftRefusal; the future RefusedError."""
        self._read_number += 1
        future: asyncio.Future[Offset] = self._loop.create_future()
        group.reads[self._read_number] = future
        try:
            self._handle(group, e.ReadAsked(self._read_number))
        except MoldauError:
            del group.reads[self._read_number]
            raise
        return future

    def in_sync(self, group: Group, lag_ms_max: int) -> list[BrokerId]:
        """Voters that held everything within that time; empty unless this broker leads."""
        if group.is_running:
            self._refresh(group)
        return group.core.in_sync(lag_ms_max)

    def followers(self, group: Group) -> dict[BrokerId, FollowerProgress]:
        """How far the other members are; empty unless this broker leads."""
        return {
            broker: FollowerProgress(
                progress.match, progress.received, progress.caught_up_at, progress.state
            )
            for broker, progress in group.core.progress.items()
        }

    def beat_now(self) -> None:
        """Let all peers hear at the end of this turn what else waits for the next heartbeat."""
        self._beats.is_due = True
        self._turn_soon()

    def alive(self, within_ms: int) -> set[BrokerId]:
        """Peers whose heartbeat was heard within that time."""
        return self._beats.alive(within_ms)

    # ---- steps

    def _handle(self, group: Group, event: Event) -> None:
        """Step the core, and everything that follows at once."""
        if not group.is_running:
            return
        queue = group.queue
        if group.is_grown:
            # Whatever happens next happens to the log as it is now.
            group.is_grown = False
            queue.append(e.Appended(group.log.end_index))
        queue.append(event)
        if group.is_stepping:
            return
        group.is_stepping = True
        now = self.now
        core, execute = group.core, self._effects.execute
        try:
            while queue:
                try:
                    for effect in core.step(now, queue.popleft()):
                        execute(group, effect)
                except DiskFullError as error:
                    log.warning("%s: %s", group.name, error)
                    # The rest of the step never happened, and the core must hear of it next.
                    queue.appendleft(e.AppendFailed())
        except (RaftError, CorruptionError) as error:
            self._fail(group, error)
        except StorageError as error:
            self._flusher.report(error)
            self._fail(group, error)
        finally:
            queue.clear()
            group.is_stepping = False
        self._touch(group)
        self._tell(group)

    def _handle_grown(self, group: Group) -> None:
        """Step what the owner appended in this turn, as one."""
        group.is_grown = False
        self._handle(group, e.Appended(group.log.end_index))

    def _is_alone(self, group: Group) -> bool:
        """Whether this broker leads without followers, and all that it did is done."""
        core = group.core
        return (
            core.role is Role.LEADER
            and core.progress is group.tracked
            and group.timer_at != FOREVER
            and not group.news
            and not group.has_controls
        )

    def _advance_alone(self, group: Group) -> None:
        """The same, and its commit, where this broker is the only member.

        A commit is then all that can come of it: nobody is sent to, no timer comes earlier.
        """
        group.is_grown = False
        core, now, partition_log = group.core, self.now, group.log
        try:
            core.step(now, e.Appended(partition_log.end_index))
            flushed = partition_log.flushed_index
            if flushed > core.flushed:
                core.step(now, e.Flushed(flushed, core.truncations))
        except RaftError as error:
            self._fail(group, error)
            self._tell(group)
            return
        if core.commit > group.commit_told:
            group.owner.on_commit(group, self._effects.note_commit(group, core.commit))

    def _tell(self, group: Group) -> None:
        while group.news:
            group.news.popleft()()

    def _fail(self, group: Group, error: MoldauError) -> None:
        log.error("group %s stops: %s", group.name, error)
        group.failure = error
        group.news.clear()
        group.news.append(lambda: group.owner.on_failed(group, error))
        self._detach(group)

    def _handle_all(self, work: deque[tuple[Group, Event]]) -> None:
        """Events of many groups. A defect in the owner of one must not cost another its event."""
        try:
            while work:
                self._handle(*work.popleft())
        finally:
            if work:
                self._loop.call_soon(self._handle_all, work)

    def _handle_led(self, broker: BrokerId, event: Event) -> None:
        """In every group that this broker leads, with that member."""
        self._handle_all(
            deque(
                (group, event)
                for group in self._names.values()
                if group.is_leader and broker in group.core.progress
            )
        )

    def _on_flushed(self, group: Group) -> None:
        self._touch(group)

    def _on_votes(self, votes: Mapping[str, Vote]) -> None:
        self._handle_all(
            deque(
                (self._names[name], e.VotePersisted(epoch, voted_for))
                for name, (epoch, voted_for) in votes.items()
                if name in self._names
            )
        )

    def _refresh(self, group: Group) -> None:
        """Let the core know what the brokers' heartbeats said of its members."""
        if group.is_grown:
            self._handle_grown(group)
        for heard_at, sign in self._beats.signs(group):
            for effect in group.core.step(heard_at, sign):
                self._effects.execute(group, effect)

    # ---- the end of a turn

    def _touch(self, group: Group) -> None:
        """Something happened in the group: look at it at the end of the turn."""
        if group.is_running:
            self._touched[group] = None
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_due and not self._is_turning:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._is_turning = True
        # Also after a defect in an owner: the others' turn is not over.
        is_more = True
        try:
            self._settle()
            is_more = self._send_bulk()
            self._settle()
            for peer in list(self._peers.values()):
                peer.flush()
            self._beats.send_due()
            self._votes.write()
        finally:
            self._is_turning = False
            if is_more or self._touched or self._beats.is_due:
                self._turn_soon()

    def _settle(self) -> None:
        """Tell cores what is flushed, follow changes of members, and set timers."""
        touched = self._touched
        while touched:
            group = next(iter(touched))
            del touched[group]
            core = group.core
            if group.is_grown and not core.progress and self._is_alone(group):
                self._advance_alone(group)
                continue
            flushed = group.log.flushed_index
            if flushed > core.flushed:
                self._handle(group, e.Flushed(flushed, core.truncations))
                continue
            if group.is_grown:
                self._handle_grown(group)
                continue
            if core.commit > group.commit_told:
                # A full disk cut the step short that would have told.
                self._effects.tell_commit(group, core.commit)
                self._tell(group)
            if group.has_controls:
                self._effects.tell_controls(group)
                self._tell(group)
            if core.progress is not group.tracked:
                self._beats.track(group)
            if core.deadline < group.timer_at:
                self._timers.set(group, core.deadline)

    def _on_due(self, group: Group, now: int) -> None:
        self._refresh(group)
        if group.core.deadline <= now:
            self._handle(group, e.Tick())
        else:
            self._touch(group)

    def _send_bulk(self) -> bool:
        """Send entries to peers that have room; True if it is only the turn of others."""
        is_more = False
        for peer in list(self._peers.values()):
            sent = 0
            waiting = peer.waiting
            while waiting and peer.link.has_room:
                if sent >= _BULK_BYTES_PER_TURN_MAX:
                    is_more = True
                    break
                group = next(iter(waiting))
                sent += self._send_waiting(peer, group)
            peer.flush()
        return is_more

    def _send_waiting(self, peer: Peer, group: Group) -> int:
        """Send what one group has for a peer; returns its size."""
        effect = peer.waiting.pop(group)
        try:
            event, size = self._effects.send_bulk(peer, group, effect)
        except (CorruptionError, RefusedError) as error:
            self._fail(group, error)
            self._tell(group)
            return 0
        except (StorageError, OSError) as error:
            failure = StorageError(f"{group.name} cannot be read: {error}")
            self._flusher.report(failure)
            self._fail(group, failure)
            self._tell(group)
            return 0
        if event is not None:
            self._handle(group, event)
        return size

    # ---- what the transport says

    def on_heartbeat(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        self._beats.receive(sender, body)

    def on_raft(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        for parcel in decode_frame(body):
            group = self._groups.get(parcel.group)
            if group is None or group.failure is not None:
                self.unknown_total += 1
            else:
                self._receive(peer, group, parcel)

    def _receive(self, peer: Peer, group: Group, parcel: Parcel) -> None:
        message = parcel.message
        if isinstance(message, VoteAsked):
            self._refresh(group)
        group.at_hand = parcel
        try:
            self._handle(group, e.Received(peer.id, message))
        finally:
            group.at_hand = None
        if isinstance(message, (AppendAnswered, Pong)):
            self._beats.confirm(peer, group, message.epoch)

    def on_link_up(self, broker: BrokerId) -> None:
        self._handle_led(broker, e.PeerFound(broker))

    def on_link_room(self, broker: BrokerId) -> None:
        self._turn_soon()

    def on_link_lost(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is None:
            return
        peer.drop()
        peer.beat.link_lost()
        self._handle_led(broker, e.PeerLost(broker))

    def on_peer_changed(self, broker: BrokerId) -> None:
        peer = self._peers.get(broker)
        if peer is not None:
            peer.beat.peer_gone()

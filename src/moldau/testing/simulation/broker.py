"""Owns one simulated broker: it drives its core as the product's driver does.

Effects of a step are carried out in order before the next step. Appends go to the log at once, its
flushes end later, votes are durable later still. Heartbeats are between brokers, as designed: the
core hears LeaderAlive and PeerAlive, and sends pings of its own only to peers that have not
confirmed.
"""

import random
from collections import deque
from typing import TYPE_CHECKING

from moldau.log.interface import ControlKind
from moldau.model.errors import DiskFullError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, RaftIndex
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.events import Effect, Event, Role
from moldau.raft.messages import (
    Append,
    AppendAnswered,
    Message,
    Pong,
    Snapshot,
    VoteAnswered,
    VoteAsked,
)
from moldau.replica.log_view import GroupLog
from moldau.testing.simulation.adapter import (
    Item,
    batch_items,
    read_items,
)
from moldau.testing.simulation.brokerdisk import BrokerDisk
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.network import Heartbeat, HeartbeatAnswered, Parcel
from moldau.testing.simulation.process import Peer, Pending, Process, describe_role
from moldau.testing.simulation.storage import Shadow, Storage

if TYPE_CHECKING:
    from moldau.testing.simulation.world import World

HEARTBEAT_MS = 150
PENDING_MAX = 100
"""Proposals that wait for commit; then clients are held back, as in the product."""


class SimBroker(BrokerDisk):
    """One broker, up or down."""

    def __init__(self, world: "World", broker_id: BrokerId, storage: Storage) -> None:
        super().__init__(world, broker_id, storage)
        self.process: Process | None = None
        self.incarnation = 0
        self.paused_until = 0
        self._at_hand: Parcel | None = None
        self._chance = random.Random(f"{world.seed}/core/{broker_id}")

    # ---- life

    def start(self) -> None:
        world = self.world
        self.incarnation += 1
        view = GroupLog(self.storage.log, world.initial)
        epoch, voted_for = self.storage.vote()
        core = world.core_class(
            me=self.id,
            log=view,
            config=world.raft_config,
            chance=self._chance,
            now=world.now,
            epoch=epoch,
            voted_for=voted_for,
            log_id=self.storage.log.log_id,
        )
        self.process = process = Process(core, view)
        for peer in world.brokers:
            if peer != self.id:
                process.peers[peer] = Peer()
        process.applied = core.commit
        world.at(world.now + 1 + self.id, self, self._on_heartbeat_time)
        self._after(process)

    def stop(self, *, is_power_cut: bool) -> None:
        """The process ends, and the disk is what it is then."""
        self.process = None
        self.is_full = self.is_disk_stalled = False
        self.paused_until = 0
        self._recover(is_power_cut=is_power_cut)

    # ---- events

    def handle(self, event: Event, heard_at: int | None = None) -> None:
        """Step the core, and everything that follows at once.

        A heartbeat that was kept back is stepped with the time at which it was heard.
        """
        process = self.process
        if process is None:
            return
        now = self.world.now if heard_at is None else heard_at
        queue: deque[Event] = deque((event,))
        while queue:
            try:
                effects = process.core.step(now, queue.popleft())
            except RaftError as error:
                raise Violation(f"broker {self.id}: {error}") from error
            try:
                for effect in effects:
                    self._execute(process, effect, queue)
            except DiskFullError:
                # The log is as it was: the rest of the step never happened.
                queue.append(e.AppendFailed())
        self._after(process)

    def _after(self, process: Process) -> None:
        core, log = process.core, self.storage.log
        if log.flushed_index > core.flushed and process.flush is None:
            self.promised = log.flushed_index
            self.handle(e.Flushed(log.flushed_index, core.truncations))
            return
        if process.flush is None:
            task = log.begin_flush()
            if task is not None:
                process.flush = (task, log.end_index, core.truncations)
                self.world.at(self.world.now + self.world.flush_delay(), self, self._on_flush_done)
        deadline = core.deadline
        if deadline < process.tick_at:
            process.tick_at = deadline
            self.world.at(max(deadline, self.world.now), self, self._on_tick_time)
        try:
            core.check_invariants()
        except RaftError as error:
            raise Violation(f"broker {self.id}: {error}") from error

    def _on_tick_time(self) -> None:
        process = self.process
        if process is None or process.tick_at > self.world.now:
            return
        process.tick_at = 1 << 62
        self._tell_signs(process)
        if process.core.deadline <= self.world.now:
            self.handle(e.Tick())
        else:
            self._after(process)

    def _on_flush_done(self) -> None:
        process = self.process
        if process is None or process.flush is None or self.is_disk_stalled:
            return
        task, end, truncations = process.flush
        process.flush = None
        log = self.storage.log
        try:
            self.storage.run_flush(task)
        except OSError:
            # A failed flush is never tried again: the process ends itself.
            self.world.crash(self, is_power_cut=True)
            return
        log.end_flush(task)
        self.promised = log.flushed_index
        self.handle(e.Flushed(end, truncations))

    def end_stall(self) -> None:
        """Whatever the disk held back is done now."""
        self.is_disk_stalled = False
        self._on_flush_done()

    def _on_heartbeat_time(self) -> None:
        process = self.process
        if process is None:
            return
        world, core = self.world, process.core
        world.at(world.now + HEARTBEAT_MS, self, self._on_heartbeat_time)
        if core.role is not Role.LEADER:
            return
        for peer in list(core.progress):
            if process.peers[peer].confirmed == core.epoch:
                self._post(peer, Heartbeat(core.epoch, core.commit))
            else:
                self.handle(e.HeartbeatDue(peer))

    def receive(self, parcel: Parcel) -> None:
        process = self.process
        if process is None:
            return
        peer = process.peers[parcel.source]
        if parcel.incarnation < peer.incarnation:
            return
        if parcel.incarnation > peer.incarnation:
            peer.incarnation = parcel.incarnation
            peer.confirmed = NO_EPOCH
            self.handle(e.PeerFound(parcel.source))
        parcel = self.world.prepare(self, parcel)
        message, core = parcel.message, process.core
        if isinstance(message, Heartbeat):
            follows = core.leader == parcel.source and core.epoch == message.epoch
            if self.world.rates.is_lazy and message.commit <= core.commit:
                if follows:
                    process.leader_sign = (parcel.source, message.epoch, self.world.now)
            else:
                self.handle(e.LeaderAlive(parcel.source, message.epoch, message.commit))
            self._post(parcel.source, HeartbeatAnswered(message.epoch, follows))
        elif isinstance(message, HeartbeatAnswered):
            if message.is_confirmed:
                process.peer_signs[parcel.source] = (message.epoch, self.world.now)
                if not self.world.rates.is_lazy:
                    self._tell_signs(process)
            elif peer.confirmed == message.epoch:
                peer.confirmed = NO_EPOCH
        else:
            if isinstance(message, VoteAsked):
                # Whether the leader is alive matters for the answer.
                self._tell_signs(process)
            self._at_hand = parcel
            if isinstance(message, (AppendAnswered, Pong)):
                peer.confirmed = message.epoch
            self.handle(e.Received(parcel.source, message))
            self._at_hand = None

    def _tell_signs(self, process: Process) -> None:
        """Tell the core of the heartbeats that were kept back, as long as they are news."""
        core = process.core
        sign, process.leader_sign = process.leader_sign, None
        if sign is not None and sign[2] > core.heard_at:
            self.handle(e.LeaderAlive(sign[0], sign[1], core.commit), sign[2])
        signs, process.peer_signs = process.peer_signs, {}
        for peer, (epoch, heard_at) in signs.items():
            progress = core.progress.get(peer)
            if progress is not None and heard_at > progress.heard_at:
                self.handle(e.PeerAlive(peer, epoch), heard_at)

    # ---- effects

    def _post(
        self,
        target: BrokerId,
        message: Message | Heartbeat | HeartbeatAnswered,
        items: tuple[Item, ...] = (),
    ) -> None:
        self.world.network.send(Parcel(self.id, target, self.incarnation, message, items))

    def _execute(self, process: Process, effect: Effect, queue: deque[Event]) -> None:
        match effect:
            case e.Send(peer, message):
                self.world.checker.sending(self.id, peer, message, self.storage)
                if isinstance(message, VoteAnswered):
                    what = "pre-vote" if message.is_pre else "vote"
                    verb = "gives" if message.is_granted else "refuses"
                    self.world.note(self.id, f"{verb} {peer} its {what}")
                self._post(peer, message)
            case e.SendAppend():
                self._send_append(process, effect, queue)
            case e.StoreEntries(start):
                parcel = self._at_hand
                if parcel is None:
                    raise Violation("entries stored that nobody sent")
                self._write([item for item in parcel.items if item.entry.start >= start])
            case e.Committed(end):
                self._commit(process, end)
            case e.PersistVote(epoch, voted_for):
                self._persist_vote(process, epoch, voted_for)
            case e.RoleChanged():
                self._on_role(process, effect)
            case e.AppendNoop(epoch):
                self._write_control(ControlKind.NOOP, epoch, None)
            case e.AppendMembership(epoch, members):
                self._write_control(ControlKind.MEMBERSHIP, epoch, members)
            case e.Truncate(end):
                self.promised = min(self.promised, end)
                self.storage.log.truncate(end)
                self.shadow.cut(end)
                self.world.count("truncations")
                self.world.note(self.id, f"cuts its log to {end}")
            case e.ResetLog():
                self._reset(process)
            case e.SendSnapshot(peer, message):
                place = process.view.snapshot_start()
                self.world.network.send(Parcel(self.id, peer, self.incarnation, message, (), place))
            case e.ReadReady(read_ids, end):
                for read_id in read_ids:
                    self.world.checker.read(process.reads.pop(read_id), end)
                    self.world.count("reads")
                    self.world.note(self.id, f"read {read_id} served at {end}")
            case e.ReadFailed(read_ids):
                for read_id in read_ids:
                    process.reads.pop(read_id)
                    self.world.note(self.id, f"read {read_id} failed")
            case e.VoterReplaced(voter):
                self.world.count("replaced voters")
                self.world.note(self.id, f"voter {voter} has another log")
            case e.TransferEnded():
                self.world.note(self.id, f"transfer to {effect.target} given up")

    def _send_append(self, process: Process, effect: e.SendAppend, queue: deque[Event]) -> None:
        if self.world.send_waits():
            delay = 1 + int(self.world.rng_net.random() * 300)
            self.world.at(self.world.now + delay, self, lambda: self._send_later(process, effect))
            return
        queue.append(self._send_now(process, effect))

    def _send_later(self, process: Process, effect: e.SendAppend) -> None:
        if self.process is process and process.core.epoch == effect.epoch:
            if process.core.role is Role.LEADER and effect.start < process.view.start_index:
                # Retention was faster: what was to be sent is gone.
                self.handle(e.PeerLost(effect.peer))
            elif process.core.role is Role.LEADER:
                self.handle(self._send_now(process, effect))

    def _send_now(self, process: Process, effect: e.SendAppend) -> e.AppendSent:
        items: tuple[Item, ...] = ()
        if effect.bytes_max:
            items = tuple(read_items(self.storage.log, effect.start, effect.bytes_max))
        entries = tuple(item.entry for item in items)
        commit = process.core.commit
        message = Append(effect.epoch, effect.start, effect.prev_epoch, entries, commit)
        self._post(effect.peer, message, items)
        end = entries[-1].end if entries else effect.start
        return e.AppendSent(effect.peer, effect.epoch, end, sum(len(item.data) for item in items))

    def _persist_vote(self, process: Process, epoch: Epoch, voted_for: BrokerId) -> None:
        def done() -> None:
            self.storage.record_vote(epoch, voted_for)
            self.handle(e.VotePersisted(epoch, voted_for))

        world = self.world
        process.votes_done_at = max(process.votes_done_at, world.now + world.vote_delay())
        world.at(process.votes_done_at, self, done)

    # ---- storage

    def _reset(self, process: Process) -> None:
        parcel = self._at_hand
        if parcel is None or parcel.start is None or not isinstance(parcel.message, Snapshot):
            raise Violation("a log was reset without a snapshot")
        self.promised = RaftIndex(0)
        self.storage.log.reset(parcel.start)
        self.shadow = Shadow(parcel.message.start)
        process.applied = max(process.applied, parcel.message.start)
        self.promised = self.storage.log.flushed_index
        self.world.count("snapshots")
        self.world.note(self.id, f"log reset to {parcel.message.start}")

    # ---- clients

    @property
    def takes_proposals(self) -> bool:
        process = self.process
        return (
            process is not None
            and process.core.may_propose
            and not self.is_full
            and len(process.pending) < PENDING_MAX
        )

    def propose(self, data: bytes, number: int) -> bool:
        """Append a client's batch, stamped for this place; False if this broker may not."""
        process = self.process
        if process is None or not self.takes_proposals:
            return False
        log = self.storage.log
        items = batch_items(log.end_index, data)
        self._write(items)
        entry = items[0].entry
        process.pending.append(Pending(number, entry.start, entry.end, entry.epoch))
        self.handle(e.Appended(log.end_index))
        return True

    def _commit(self, process: Process, end: RaftIndex) -> None:
        world, core = self.world, process.core
        items = self.shadow.between(process.applied, end)
        news = world.checker.committed_here(self.id, items, end, leads=process.leads)
        if news:
            world.check_majority(news[-1], core)
        process.applied = end
        world.note(self.id, f"commit {end}")
        while process.pending and process.pending[0].end <= end:
            pending = process.pending.popleft()
            if pending.epoch == process.leads:
                world.acked(pending.number, pending.start)

    def _on_role(self, process: Process, effect: e.RoleChanged) -> None:
        if effect.role is Role.LEADER:
            self.world.checker.elected(
                self.id, effect.epoch, self.shadow, self.storage.log.end_index
            )
            self.world.count("elections")
            process.leads = effect.epoch
        else:
            process.leads = None
            process.pending.clear()
        self.world.note(self.id, describe_role(effect))

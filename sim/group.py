"""One Raft group on several simulated brokers, without the rest of a broker.

The driver, transport, flusher, votes and log are the product's, over the simulated network and
disk; the group's owner only records its callbacks. For scripts that follow the group step by step.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from moldau.log.disk_log import open_disk_log
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.log.vote_journal import VoteJournal
from moldau.model.errors import MoldauError, StorageError
from moldau.model.ids import (
    FIRST_LOG,
    BrokerId,
    Epoch,
    LogId,
    Offset,
    PartitionIndex,
    RaftIndex,
    TopicId,
)
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.secret import PeerSecret
from moldau.raft.config import RaftConfig
from moldau.raft.events import Effect, Role, Send, TransferEnded, Truncate
from moldau.raft.membership import Members
from moldau.raft.messages import VoteResponse
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.driver import RaftDriver
from moldau.replica.flush_threads import FlushWork
from moldau.replica.flusher import Flusher
from moldau.replica.peer_codec import GroupKey, decode_frame
from moldau.replica.raft_group import RaftGroup
from moldau.replica.transport import Transport
from sim.loop import SimLoop
from sim.machine import SimClock
from sim.network import Network, Rates, SimSocket, SimSockets
from sim.scheduler import Scheduler
from sim.simdisk import SimDisk

KEY: Final = GroupKey(TopicId(b"topic" + bytes(11)), PartitionIndex(0))
LOG_PATH: Final = "log"
VOTES_PATH: Final = "votes"
STEP_SECONDS: Final = 0.001
"""What a message takes, and what a flush takes."""
_PORT: Final = 19092


class _Workers:
    """Flushes take one millisecond each, unless the disk stands still. They cover what was written
    before they began."""

    def __init__(self, loop: SimLoop, disk: SimDisk) -> None:
        self._loop = loop
        self._disk = disk
        self.is_stalled = False
        self._waiting: list[Callable[[], None]] = []

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        for work in works:
            self._run(work)

    def _run(self, work: FlushWork) -> None:
        step = self._disk.steps

        def flush() -> None:
            with self._disk.as_begun(step):
                work()

        def finish() -> None:
            if self.is_stalled:
                self._waiting.append(flush)
            else:
                flush()

        self._loop.run_as_thread(STEP_SECONDS, finish)

    def go_on(self) -> None:
        self.is_stalled = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def stop(self) -> None:
        self.go_on()


class GroupBroker:
    """One broker: what survives a stop, and the driver while it runs. Notes what its group does."""

    def __init__(self, world: "GroupWorld", number: int) -> None:
        self._world = world
        self.id = BrokerId(number)
        self.address = f"10.0.0.{number}"
        self.host = world.network.host(self.address)
        self.disk = SimDisk()
        self.log_id: LogId = FIRST_LOG
        self.starts = 0
        self.is_running = False
        self.is_stalled = False
        self.frames: list[tuple[BrokerId, bytes]] = []
        """Those with entries, by sender."""
        self.pending: list[tuple[RaftIndex, Epoch, int]] = []
        """Proposals that are not committed yet: their end, epoch and number."""
        self.loop: SimLoop
        self.driver: RaftDriver
        self.transport: Transport
        self.group: RaftGroup
        self._workers: _Workers

    def open_log(self, disk: SimDisk | None = None) -> PartitionLog:
        return open_disk_log(disk or self.disk, LOG_PATH, LogConfig(), self.log_id)

    # ---- its process

    def start(self) -> None:
        world = self._world
        world.network.switched_on(self.host)
        self.starts += 1
        self.is_running = True
        rng = random.Random(f"{world.seed}/{self.id}/{self.starts}")
        loop = self.loop = SimLoop(world.scheduler, rng, str(self.id))
        loop.new_socket = lambda: SimSocket(world.network, self.host, loop)
        loop.work_delay = lambda: STEP_SECONDS
        self._workers = _Workers(loop, self.disk)
        self._workers.is_stalled = self.is_stalled
        self.disk.on_flush = lambda: loop.spend(STEP_SECONDS)
        loop.begin(self._begin())

    async def _begin(self) -> None:
        world, loop = self._world, self.loop
        clock = SimClock(loop)
        rng = random.Random(f"{world.seed}/{self.id}/{self.starts}/driver")
        flusher = Flusher(
            loop=loop, clock=clock, workers=self._workers, on_failure=self._disk_failed
        )
        transport = self.transport = Transport(
            loop=loop,
            clock=clock,
            rng=rng,
            cluster_id="scenario",
            me=self.id,
            incarnation=str(self.id),
            secret=PeerSecret(b"scenario", random.Random(f"{self.id}/nonces").randbytes),
            authorize=lambda hello: None,
            sockets=SimSockets(world.network, self.host, loop),
        )
        transport.bind(self.address, _PORT)
        self.driver = RaftDriver(
            loop=loop,
            clock=clock,
            rng=rng,
            flusher=flusher,
            votes=VoteJournal.open(self.disk, VOTES_PATH),
            transport=transport,
            config=world.config,
        )
        self._listen_in()
        transport.start()
        self.driver.start()
        self.group = self.driver.add_group(KEY, self.open_log(), world.members, self)
        for other in world.brokers.values():
            if other is not self:
                self.driver.add_peer(other.id, (other.address, _PORT))

    def _listen_in(self) -> None:
        """Note what no owner gets, and keep frames with entries."""
        effects = self.driver._effects
        execute, on_raft = effects.execute, self.driver.on_raft

        def note_effect(group: RaftGroup, effect: Effect) -> None:
            if isinstance(effect, Send) and isinstance(effect.message, VoteResponse):
                what = "pre-vote" if effect.message.is_pre else "vote"
                verb = "gives" if effect.message.is_granted else "refuses"
                self.note(f"{verb} {effect.peer} its {what}")
            elif isinstance(effect, Truncate):
                self.note(f"cuts its log to {effect.end}")
            elif isinstance(effect, TransferEnded):
                self.note(f"transfer to {effect.target} given up")
            execute(group, effect)

        def keep(sender: BrokerId, body: memoryview) -> None:
            if any(parcel.parts for parcel in decode_frame(body)):
                self.frames.append((sender, bytes(body)))
            on_raft(sender, body)

        effects.execute = note_effect  # type: ignore[method-assign]
        self.driver.on_raft = keep  # type: ignore[method-assign]

    def _disk_failed(self, error: StorageError) -> None:
        self.note(f"disk failed: {error}")

    def kill(self, *, is_power_cut: bool) -> None:
        if not self.is_running:
            return
        self.is_running = self.is_stalled = False
        self.pending.clear()
        self.disk = self.disk.lose() if is_power_cut else self.disk.survive()
        self.loop.die()
        self._world.network.process_ended(self.host, is_power_cut=is_power_cut)
        self.note("power cut" if is_power_cut else "killed")

    def wipe(self) -> None:
        self.kill(is_power_cut=True)
        self.disk = SimDisk()
        self.log_id = LogId(1000 + self.starts)

    def stall(self, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        if is_stalled:
            self._workers.is_stalled = True
        else:
            self._workers.go_on()

    def fill_link(self, peer: BrokerId, is_full: bool) -> None:
        """As if other groups had sent so much that there is no room, or as if that were gone."""
        link = self.transport.links[peer]
        link._limits = LinkLimits(queue_bytes_max=0) if is_full else LinkLimits()
        self.do(link.on_progress)

    def do(self, action: Callable[[], Any]) -> None:
        """In its process, now."""
        self.loop.call_soon_threadsafe(action)
        self._world.run(0.0)

    def dial_again(self) -> None:
        for link in self.transport.links.values():
            if not link.is_connected:
                link.stop()
                link._attempts = link._refusals = 0
                # When the attempt that was stopped has ended.
                self.loop.call_soon(link.start)

    def deliver(self, sender: BrokerId, body: bytes) -> None:
        self.do(lambda: self.driver._receiver.take(sender, memoryview(body)))

    # ---- what its group tells

    def note(self, text: str) -> None:
        self._world.note(self.id, text)

    def on_role(self, group: RaftGroup, role: Role, epoch: Epoch, leader: BrokerId) -> None:
        if role is not Role.LEADER:
            self.pending.clear()
        text = f"{role.value} epoch={epoch}"
        if role is Role.FOLLOWER and leader >= 0:
            text += f" leader={leader}"
        self.note(text)

    def on_commit(self, group: RaftGroup, offset: Offset) -> None:
        end = group.core.commit
        self.note(f"commit {end}")
        while self.pending and self.pending[0][0] <= end:
            _, epoch, number = self.pending.pop(0)
            if epoch == group.core.epoch:
                self._world.note(BrokerId(0), f"proposal {number} acknowledged")

    def on_control(
        self, group: RaftGroup, kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        pass

    def on_stored(
        self, group: RaftGroup, headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        pass

    def on_truncated(self, group: RaftGroup, offset: Offset) -> None:
        pass

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        return b""

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        self.note(f"log reset to {group.view.start_index}")

    def on_voter_replaced(self, group: RaftGroup, voter: BrokerId) -> None:
        self.note(f"voter {voter} has another log")

    def on_failed(self, group: RaftGroup, error: MoldauError) -> None:
        self.note(f"stopped: {error}")


class GroupWorld:
    """Brokers 1 to n with one group, and the time."""

    def __init__(self, *, count: int, voters: int, config: RaftConfig, seed: int = 1) -> None:
        self.seed = seed
        self.config = config
        self.scheduler = Scheduler()
        rates = Rates(delay_seconds=STEP_SECONDS, jitter_seconds=0.0)
        self.network = Network(self.scheduler, random.Random(f"{seed}/net"), rates)
        self.members = Members(tuple(BrokerId(number) for number in range(1, voters + 1)))
        self.notes: list[str] = []
        self.brokers = {
            BrokerId(number): GroupBroker(self, number) for number in range(1, count + 1)
        }

    def note(self, broker: BrokerId, text: str) -> None:
        self.notes.append(f"{broker} {text}" if broker else text)

    def run(self, seconds: float) -> None:
        end = self.scheduler.now + seconds
        while (at := self.scheduler.next_at) is not None and at <= end:
            self.scheduler.step()
        self.scheduler.now = max(self.scheduler.now, end)

    def cut(self, source: GroupBroker, target: GroupBroker) -> None:
        """Nothing goes through any more, one way."""
        self.network.cut(source.address, target.address)

    def part(self, source: GroupBroker, target: GroupBroker) -> None:
        """Nothing goes through any more, either way, and what is on its way is lost."""
        self.cut(source, target)
        self.cut(target, source)
        for sock in self.network.connections():
            if sock.goes(source.address, target.address):
                sock.drop()

    def heal(self) -> None:
        self.network.heal()
        self.dial_again()

    def join(self, first: GroupBroker, second: GroupBroker) -> None:
        """These two reach each other again."""
        self.network.join(first.address, second.address)
        self.network.join(second.address, first.address)
        self.dial_again()

    def dial_again(self) -> None:
        """All that are not connected, at once: scripts do not wait for a lost first packet."""
        for broker in self.brokers.values():
            if broker.is_running:
                broker.do(broker.dial_again)

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.loop.die()


def describe(broker: GroupBroker) -> str:
    """One line on a broker: `leader epoch=2 log 0×3 2×1 flushed=4 commit=4`."""
    partition_log = (
        broker.group.log if broker.is_running else broker.open_log(broker.disk.durable_copy())
    )
    runs = _runs(partition_log)
    text = " ".join(f"{epoch}×{size}" for epoch, size in runs) or "empty"
    start = partition_log.start
    first = start.offset + start.control_count
    if first:
        text = f"from {first}: {text}"
    if not broker.is_running:
        return f"down log {text} flushed={partition_log.flushed_index}"
    core = broker.group.core
    role = core.role.value if core.role is not Role.FOLLOWER else f"follower of {core.leader}"
    if core.leader < 0 and core.role is Role.FOLLOWER:
        role = "follower"
    text = f"{role} epoch={core.epoch} log {text} flushed={core.flushed} commit={core.commit}"
    if core.members != broker._world.members:
        text += f" voters={','.join(map(str, core.members.voters))}"
        if core.members.learners:
            text += f" learners={','.join(map(str, core.members.learners))}"
    return text if core.log_id == core.members.log_of(core.me) else f"{text}, may not vote"


def _runs(partition_log: PartitionLog) -> list[tuple[Epoch, int]]:
    """Epochs of the entries, and how many follow each other of each."""
    start = partition_log.start
    index = RaftIndex(start.offset + start.control_count)
    runs: list[tuple[Epoch, int]] = []
    while index < partition_log.end_index:
        epoch = partition_log.epoch_of(index)
        if runs and runs[-1][0] == epoch:
            runs[-1] = (epoch, runs[-1][1] + 1)
        else:
            runs.append((epoch, 1))
        index = RaftIndex(index + 1)
    return runs

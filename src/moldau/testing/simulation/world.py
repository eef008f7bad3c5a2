"""Owns simulated time: one heap of events, the clients, and the actor that breaks things.

    world = World(seed=7, kind="disk")
    world.run(5000)        # faults throughout: nothing may be lost
    world.settle()         # heal a majority: it must make progress

Every subsystem has random numbers of its own, so that a change in one does not reshuffle another.
"""

import heapq
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from moldau.model.errors import StorageError
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
)
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.events import PeerEnded
from moldau.raft.membership import Members
from moldau.records.record import Record, build_batch
from moldau.testing.simdisk import SimCrash
from moldau.testing.simulation.adapter import Item
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.checks import Checker, Violation
from moldau.testing.simulation.compaction import CONFIG as COMPACTED
from moldau.testing.simulation.compaction import KEYS, check_values, originals, split_parcel
from moldau.testing.simulation.faults import Actor
from moldau.testing.simulation.network import Network, Parcel
from moldau.testing.simulation.rates import Rates
from moldau.testing.simulation.storage import DiskStorage, MemoryStorage, Storage

_TRACE: Final = struct.Struct(">qiqqq")
SETTLE_MS = 60_000
"""How long a healed majority may take: elections by lot can fail a few times in a row."""
SETTLE_ACKS = 3
RAFT_CONFIG: Final = RaftConfig(
    append_bytes_max=600, inflight_bytes_max=2000, inflight_count_max=5, snapshot_retry_ms=1500
)
"""Small bounds, so that they are reached."""


class World:
    """One group on several brokers, and everything around them."""

    def __init__(
        self,
        *,
        seed: int,
        kind: str = "memory",
        rates: Rates | None = None,
        brokers: int | None = None,
        voters: int | None = None,
        core_class: type[RaftCore] = RaftCore,
        broker_class: type[SimBroker] = SimBroker,
        raft_config: RaftConfig = RAFT_CONFIG,
        acts: bool = True,
        records_max: int = 5,
        compacts: bool = False,
    ) -> None:
        """acts False: nothing happens unless somebody outside does it, not even the start.

        compacts: records have keys, and each broker cleans its log now and then.
        """
        self.seed = seed
        self.compacts = compacts
        config = COMPACTED if compacts else None
        draw = random.Random(f"{seed}/rates")
        self.rates = rates or Rates.draw(draw)
        count = brokers or draw.choice((3, 3, 3, 4, 5))
        voter_count = voters or min(count, draw.choice((1, 3, 3, 3, 5)))
        self.raft_config = raft_config
        self._records_max = records_max
        self.core_class = core_class
        self.now = 0
        self.events = 0
        self.trace = 0
        self.rng_net = random.Random(f"{seed}/net")
        self.rng_disk = random.Random(f"{seed}/disk")
        self.rng_client = random.Random(f"{seed}/client")
        self.checker = Checker()
        self.counts: dict[str, int] = {}
        self.notes: list[str] | None = None
        """Lines for scenarios and traces; None: nobody wants them."""
        self._heap: list[tuple[int, int, SimBroker | None, int, Callable[[], None]]] = []
        self._posted = 0
        self.network = Network(rng=self.rng_net, rates=self.rates, post=self._deliver_in)
        self.initial = Members(tuple(BrokerId(n) for n in range(1, voter_count + 1)))
        self.brokers: dict[BrokerId, SimBroker] = {}
        for number in range(1, count + 1):
            storage: Storage = MemoryStorage(config) if kind == "memory" else DiskStorage(config)
            broker_id = BrokerId(number)
            self.brokers[broker_id] = broker_class(self, broker_id, storage)
        self.acks = 0
        self.proposals = 0
        self.actor = Actor(self, random.Random(f"{seed}/faults"))
        if acts:
            self.start()
            self.actor.begin()

    def start(self) -> None:
        for broker in self.brokers.values():
            self.restart(broker)

    # ---- time

    def at(self, time: int, broker: SimBroker | None, action: Callable[[], None]) -> None:
        """Do something later; with a broker, only if its process still runs then."""
        self._posted += 1
        incarnation = broker.incarnation if broker is not None else 0
        heapq.heappush(self._heap, (time, self._posted, broker, incarnation, action))

    def _deliver_in(self, delay: int, parcel: Parcel) -> None:
        broker = self.brokers[parcel.target]
        self._posted += 1
        heapq.heappush(
            self._heap,
            (self.now + delay, self._posted, broker, 0, lambda: broker.receive(parcel)),
        )

    def step(self) -> None:
        """One event."""
        time, number, broker, incarnation, action = heapq.heappop(self._heap)
        if broker is not None:
            if broker.process is None or (incarnation and incarnation != broker.incarnation):
                return
            if broker.paused_until > time:
                heapq.heappush(
                    self._heap, (broker.paused_until, number, broker, incarnation, action)
                )
                return
        self.now = time
        self.events += 1
        if broker is None:
            action()
            return
        self.on_disk(broker, lambda _: action())
        self._note_trace(broker)

    def _note_trace(self, broker: SimBroker) -> None:
        process = broker.process
        if process is None:
            facts = _TRACE.pack(self.now, broker.id, -1, 0, 0)
        else:
            core = process.core
            facts = _TRACE.pack(self.now, broker.id, core.epoch, core.end, core.commit)
        self.trace = zlib.crc32(facts, self.trace)

    def run(self, steps: int) -> None:
        """Faults throughout. Raises Violation."""
        end = self.events + steps
        while self.events < end and self._heap:
            self.step()

    def run_until(self, time: int) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.step()
        self.now = max(self.now, time)

    def settle(self) -> None:
        """Heal a majority; then proposals must be acknowledged, and everybody must learn of them.

        Raises Violation.
        """
        self.actor.heal_some()
        target = self.acks + SETTLE_ACKS
        self._run_until(lambda: self.acks >= target, "no proposal was acknowledged")
        self.actor.stop_proposing()
        self._run_until(self._is_level, "the members did not all learn all that is committed")
        if self.compacts:
            for broker in self.brokers.values():
                if broker.process is not None:
                    check_values(broker, self.checker)

    def _run_until(self, is_done: Callable[[], bool], failure: str) -> None:
        limit = self.now + SETTLE_MS
        while not is_done():
            if not self._heap or self._heap[0][0] > limit:
                raise Violation(f"{failure}, {SETTLE_MS} ms after everything was healed")
            self.step()

    def _is_level(self) -> bool:
        """The leader has committed all it has, and every member that is not cut off knows."""
        cores = {
            broker.id: broker.process.core
            for broker in self.brokers.values()
            if broker.process is not None and broker.id not in self.actor.left_out
        }
        leader = max(cores.values(), key=lambda core: (core.is_leader, core.epoch))
        return leader.is_leader and all(
            peer in cores and cores[peer].commit == leader.end
            for peer in leader.members.everyone
            if peer not in self.actor.left_out
        )

    def on_disk(self, broker: SimBroker, action: Callable[[SimBroker], object]) -> None:
        """Do something that may run into a power cut which was placed inside a write."""
        if broker.process is None:
            return
        try:
            action(broker)
        except (SimCrash, StorageError):
            # The power went, or the disk failed and the process ended itself.
            self.crash(broker, is_power_cut=True)
            self.count("crashes inside a write")

    # ---- chance

    def flush_delay(self) -> int:
        rates, rng = self.rates, self.rng_disk
        if rates.stall and rng.random() < rates.stall:
            return int(rng.random() * rates.stall_ms)
        return 1 + int(rng.random() * rates.flush_ms)

    def vote_delay(self) -> int:
        return 1 + int(self.rng_disk.random() * self.rates.vote_ms)

    def send_waits(self) -> bool:
        return self.rates.send_wait > 0 and self.rng_net.random() < self.rates.send_wait

    # ---- life of brokers

    def crash(self, broker: SimBroker, *, is_power_cut: bool) -> None:
        """End a broker's process; it comes back after a while."""
        if broker.process is None:
            return
        self.kill(broker, is_power_cut=is_power_cut)
        delay = 1 + int(self.actor.rng.random() * 2 * self.rates.down_ms)
        self.at(self.now + delay, None, lambda: self.restart(broker))

    def kill(self, broker: SimBroker, *, is_power_cut: bool) -> None:
        broker.stop(is_power_cut=is_power_cut)
        self.count("power cuts" if is_power_cut else "kills")
        self.note(broker.id, "power cut" if is_power_cut else "killed")
        if not is_power_cut:
            self.at(self.now + 1, None, lambda: self._tell_of_kill(broker))

    def _tell_of_kill(self, broker: SimBroker) -> None:
        """Its machine still answers those who reach it: nobody listens there."""
        if broker.process is None:
            self.tell_ended(broker)

    def tell_ended(self, broker: SimBroker) -> None:
        """Rightly or not: the others take its process for ended."""
        is_cut = self.network.is_cut
        for other in self.brokers.values():
            if other is not broker and not (
                is_cut(broker.id, other.id) or is_cut(other.id, broker.id)
            ):
                other.handle(PeerEnded(broker.id))

    def wipe(self, broker: SimBroker) -> None:
        """Its disk is lost, and it comes back with an empty one."""
        self.kill(broker, is_power_cut=True)
        broker.wipe()
        self.count("wipes")

    def restart(self, broker: SimBroker) -> None:
        if broker.process is None:
            self.note(broker.id, "starts")
            broker.start()

    # ---- clients

    def propose(self, broker: SimBroker) -> bool:
        """A client sends a batch that nobody sent before."""
        process = broker.process
        if process is None or not broker.takes_proposals:
            return False
        self.proposals += 1
        number = self.proposals
        data = make_proposal(
            number,
            self.rng_client,
            self._records_max,
            broker.storage.log.end_offset,
            process.core.epoch,
            keys=KEYS if self.compacts else 0,
        )
        return broker.propose(data, number)

    def acked(self, number: int, start: RaftIndex) -> None:
        self.acks += 1
        self.checker.acked(number, start)
        if self.notes is not None:
            self.notes.append(f"proposal {number} acknowledged")

    # ---- compaction

    def originals(self, items: Sequence[Item]) -> Sequence[Item]:
        """What entries were before anybody cleaned them."""
        return originals(self.checker, items) if self.compacts else items

    def prepare(self, broker: SimBroker, parcel: Parcel) -> Parcel:
        """What a receiver does to a message before its core sees it."""
        return split_parcel(parcel, broker.storage.log) if self.compacts else parcel

    # ---- watching

    def check_majority(self, item: Item, core: RaftCore) -> None:
        disks = {
            # A voter that lost its log has acknowledged what was in there all the same.
            broker.id: [(broker.shadow, broker.promised), broker.lost]
            for broker in self.brokers.values()
        }
        self.checker.on_majority(item, core.members.voters, disks)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def note(self, broker: BrokerId, text: str) -> None:
        if self.notes is not None:
            self.notes.append(f"{broker} {text}")


def make_proposal(
    number: int,
    rng: random.Random,
    records_max: int,
    base: Offset,
    epoch: Epoch,
    *,
    keys: int = 0,
) -> bytes:
    """A batch of a few records; its producer id is the number of the proposal."""
    count = 1 if rng.random() < 0.7 else rng.randint(1, records_max)
    value = b"v" * rng.choice((0, 3, 100))
    records = [
        Record(
            Offset(base + i),
            TimestampMs(1000 + number),
            b"%d" % rng.randrange(keys) if keys else None,
            None if keys and rng.random() < 0.1 else value,
            [],
        )
        for i in range(count)
    ]
    return build_batch(
        records,
        base_offset=base,
        leader_epoch=epoch,
        producer_id=ProducerId(number),
        producer_epoch=ProducerEpoch(0),
        base_sequence=0,
    )

"""Chooses brokers for new replicas. Deterministic: the topic id is the seed.

Criteria, most important first: (1) no machine gets a second replica of a partition while another
one has none; (2) replicas of a partition are in different racks, if possible, and beyond that on
different machines; (3) replicas and preferred leaders of a topic are spread evenly over racks and
machines, by size, and brokers; (4) two brokers share as few partitions of the topic as possible, so
that the load of a failed broker falls to many; (5) the broker with the lowest load in the cluster:
a new broker comes first, but does not get all replicas of a topic.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from msgspec import Struct, field

from moldau.metadata.image import Broker, Image, Place, Topic, changed_topics
from moldau.model.ids import BrokerId, TopicId

Replicas = tuple[BrokerId, ...]


class Loads(Struct, frozen=True):
    """Replicas and preferred leaders per broker, of one topic or of all."""

    replicas: Counter[BrokerId] = field(default_factory=Counter)
    leaders: Counter[BrokerId] = field(default_factory=Counter)

    def add(self, replicas: Sequence[BrokerId], change: int = 1) -> None:
        # Runs for every partition of the cluster: three times faster than Counter.update.
        for broker in replicas:
            self.replicas[broker] += change
        self.leaders[replicas[0]] += change


class _Counted:
    """Loads of the last image; for the next one, only changed topics are counted."""

    def __init__(self) -> None:
        self._topics: Mapping[TopicId, Topic] = {}
        self._loads = Loads()

    def count(self, image: Image) -> Loads:
        before, after = self._topics, image.topics_by_id
        for topic in changed_topics(after, before):
            self._add(topic, -1)
        for topic in changed_topics(before, after):
            self._add(topic, 1)
        self._topics = after
        return Loads(Counter(self._loads.replicas), Counter(self._loads.leaders))

    def _add(self, topic: Topic, change: int) -> None:
        for partition in topic.partitions:
            self._loads.add(partition.desired, change)


cluster_loads: Final = _Counted().count
"""The desired replicas and preferred leaders of every broker."""


def place(
    brokers: Iterable[Broker],
    *,
    topic_id: TopicId,
    count: int,
    replication_factor: int,
    existing: Iterable[Replicas] = (),
    cluster: Loads | None = None,
) -> tuple[Replicas, ...]:
    """Replicas for `count` partitions besides the `existing` ones, the preferred leader first."""
    spread = ReplicaPlacer(brokers, topic_id=topic_id, existing=existing, cluster=cluster)
    for _ in range(count):
        spread.place((), replication_factor)
    return tuple(spread.placed)


class ReplicaPlacer:
    """Places the partitions of one topic, one by one, on active brokers."""

    def __init__(
        self,
        brokers: Iterable[Broker],
        *,
        topic_id: TopicId,
        existing: Iterable[Replicas] = (),
        cluster: Loads | None = None,
    ) -> None:
        known = sorted(brokers, key=lambda broker: broker.id)
        self._rack_of = {broker.id: broker.rack for broker in known}
        self._racks: dict[str | None, list[BrokerId]] = {}
        for broker in known:
            if broker.active:
                self._racks.setdefault(broker.rack, []).append(broker.id)
        active = [broker.id for broker in known if broker.active]
        self._machines = _Machines(known)
        start = crc32(topic_id) % max(len(active), 1)
        self._turn = {broker: rank for rank, broker in enumerate(active[start:] + active[:start])}
        self._topic = Loads()
        self._shared: Counter[tuple[BrokerId, BrokerId]] = Counter()
        self._cluster = cluster or Loads()
        self._rack_load = dict.fromkeys(self._racks, 0)
        self._rack_tie = {
            rack: (
                sum(self._cluster.replicas[broker] for broker in brokers) / len(brokers),
                min(self._turn[broker] for broker in brokers),
            )
            for rack, brokers in self._racks.items()
        }
        self.placed: list[Replicas] = []
        # Positions in `placed` by preferred leader: keys of a dict, because a set has no order.
        self._led: dict[BrokerId, dict[int, None]] = {}
        for replicas in existing:
            self._count(replicas)

    def place(self, kept: Replicas, replication_factor: int) -> None:
        """Place a partition: `kept`, and other brokers up to the replication factor."""
        chosen = self._chosen(kept, replication_factor)
        leader = min(chosen, key=self._leader_key)
        replicas = _led_by(leader, chosen)
        self._led.setdefault(leader, {})[len(self.placed)] = None
        self.placed.append(replicas)
        self._count(replicas)
        self._balance(leader)

    def replace(self, replicas: Replicas, leaving: BrokerId, replication_factor: int) -> Replicas:
        """`replicas` with `leaving` replaced by another broker, or dropped if there is none."""
        kept = tuple(broker for broker in replicas if broker != leaving)
        added = self._chosen(kept, replication_factor)[len(kept) :]
        self._count(replicas, -1)
        # At the same position: the successor of a preferred leader becomes the preferred leader.
        position = replicas.index(leaving)
        replaced = (*replicas[:position], *added, *replicas[position + 1 :])
        self._count(replaced)
        return replaced

    def _chosen(self, kept: Replicas, replication_factor: int) -> list[BrokerId]:
        chosen = list(kept)
        used = dict.fromkeys(self._racks, 0)
        for broker in kept:
            if broker in self._rack_of and self._rack_of[broker] in used:
                used[self._rack_of[broker]] += 1
        left = {
            rack: [broker for broker in brokers if broker not in kept]
            for rack, brokers in self._racks.items()
        }
        if self._machines.are_shared:
            self._choose_apart(chosen, replication_factor, used, left)
            return chosen
        while len(chosen) < replication_factor and any(left.values()):
            rack = min(
                (rack for rack, brokers in left.items() if brokers),
                key=lambda rack: (
                    used[rack],
                    (self._rack_load[rack] + used[rack]) / len(self._racks[rack]),
                    self._rack_tie[rack],
                ),
            )
            broker = min(left[rack], key=lambda broker: self._broker_key(broker, chosen))
            left[rack].remove(broker)
            chosen.append(broker)
            used[rack] += 1
        return chosen

    def _choose_apart(
        self,
        chosen: list[BrokerId],
        replication_factor: int,
        used: dict[str | None, int],
        left: dict[str | None, list[BrokerId]],
    ) -> None:
        """As above, and apart from each other where brokers share machines."""
        machines = self._machines
        on = Counter(machines.of[broker] for broker in chosen if broker in machines.of)
        while len(chosen) < replication_factor:
            free = machines.without(left, on)
            fewest = {
                rack: min(on[machines.of[broker]] for broker in brokers)
                for rack, brokers in (free or left).items()
                if brokers
            }
            if not fewest:
                return
            rack = min(
                fewest,
                key=lambda rack: (
                    used[rack],
                    fewest[rack],
                    (self._rack_load[rack] + used[rack]) / len(self._racks[rack]),
                    self._rack_tie[rack],
                ),
            )
            broker = min(
                (free or left)[rack],
                key=lambda broker: (
                    on[machines.of[broker]],
                    machines.load(broker),
                    self._broker_key(broker, chosen),
                ),
            )
            left[rack].remove(broker)
            chosen.append(broker)
            used[rack] += 1
            on[machines.of[broker]] += 1

    def _broker_key(self, broker: BrokerId, chosen: Sequence[BrokerId]) -> tuple[int, ...]:
        return (
            self._topic.replicas[broker],
            sum(self._shared[(broker, other)] for other in chosen),
            self._cluster.replicas[broker],
            self._turn[broker],
        )

    def _leader_key(self, broker: BrokerId) -> tuple[int, ...]:
        # A draining broker leads only if there is no other.
        return (
            broker not in self._turn,
            self._topic.leaders[broker],
            self._cluster.leaders[broker],
            self._turn.get(broker, broker),
        )

    def _balance(self, leader: BrokerId) -> None:
        """If `leader` leads two more than another broker, pass one on, maybe along a chain.

        With evenly spread replicas, an even choice of leaders exists; choosing one by one can miss
        it.
        """
        leaders = self._topic.leaders
        few = leaders[leader] - 2
        if min(leaders[broker] for broker in self._turn) > few:
            return
        came_from: dict[BrokerId, tuple[BrokerId, int]] = {}
        queue = [leader]
        for broker in queue:
            for position in self._led.get(broker, ()):
                for other in self.placed[position]:
                    if other in came_from:
                        continue
                    came_from[other] = (broker, position)
                    if leaders[other] <= few and other in self._turn:
                        self._pass_on(leader, other, came_from)
                        return
                    queue.append(other)

    def _pass_on(
        self, leader: BrokerId, to: BrokerId, came_from: dict[BrokerId, tuple[BrokerId, int]]
    ) -> None:
        self._topic.leaders[leader] -= 1
        self._topic.leaders[to] += 1
        while to != leader:
            giver, position = came_from[to]
            self.placed[position] = _led_by(to, self.placed[position])
            del self._led[giver][position]
            self._led.setdefault(to, {})[position] = None
            to = giver

    def _count(self, replicas: Replicas, change: int = 1) -> None:
        self._topic.add(replicas, change)
        for broker in replicas:
            if broker in self._turn:
                self._rack_load[self._rack_of[broker]] += change
                if self._machines.are_shared:
                    self._machines.count(broker, change)
            for other in replicas:
                if broker != other:
                    self._shared[(broker, other)] += change


class _Machines:
    """Which brokers share a machine."""

    def __init__(self, known: Sequence[Broker]) -> None:
        self.of: dict[BrokerId, Place] = {broker.id: broker.place for broker in known}
        self._sizes = Counter(broker.place for broker in known if broker.active)
        self._replicas: Counter[Place] = Counter()
        self.are_shared = len(self._sizes) > 1 and len(set(self.of.values())) < len(self.of)
        """Whether two brokers are on the same machine, and another machine has brokers, too."""

    def without(
        self, brokers: Mapping[str | None, Sequence[BrokerId]], used: Container[Place]
    ) -> dict[str | None, list[BrokerId]]:
        """The brokers of machines that are not used, by rack; empty if there are none."""
        found = {
            rack: [broker for broker in some if self.of[broker] not in used]
            for rack, some in brokers.items()
        }
        return found if any(found.values()) else {}

    def count(self, broker: BrokerId, change: int) -> None:
        self._replicas[self.of[broker]] += change

    def load(self, broker: BrokerId) -> float:
        """Replicas per active broker of its machine."""
        machine = self.of[broker]
        return self._replicas[machine] / self._sizes[machine]


def _led_by(leader: BrokerId, brokers: Sequence[BrokerId]) -> Replicas:
    return (leader, *(broker for broker in brokers if broker != leader))

"""Plans which replicas to move so that brokers hold and lead about the same, in few moves.

Pure. In this order, and no step undoes what an earlier one reached: (1) replicas leave brokers that
are to be emptied, and machines and racks that hold more of a partition than they must; (2) brokers
hold equally many replicas; (3) and equally many bytes; (4) equally many preferred leaders, which
moves no data. The brokers of (1) are chosen by `placement`, as for a broker that is drained.

Every step makes a sum smaller, so that the plan of a balanced cluster is empty.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from moldau.metadata.image import Broker, BrokerState, Place, place_of
from moldau.metadata.placement import Loads, ReplicaPlacer, Replicas
from moldau.model.ids import BrokerId, TopicId

_DISK_SPREAD_PERCENT: Final = 10
"""Of the mean: smaller differences of bytes are not worth moving data."""
_DISK_SPREAD_MIN: Final = 64 * 1024 * 1024
_DISK_USED_PERCENT_MAX: Final = 90
_CANDIDATES_MAX: Final = 64
_SWAPS_MAX: Final = 24

Key = tuple[str, int]
"""Topic and partition."""


class PlanBroker(NamedTuple):
    """A broker of the cluster."""

    id: BrokerId
    rack: str | None = None
    takes: bool = True
    """It is alive, and not to be emptied."""
    leaves: bool = False
    """All its replicas are to move."""
    disk_free_bytes: int = -1
    """-1: unknown."""
    disk_total_bytes: int = -1
    machine: str | None = None

    @property
    def place(self) -> Place:
        return place_of(self.id, self.machine)


class PlanPartition(NamedTuple):
    """A partition with its replicas, the preferred leader first."""

    topic: str
    partition: int
    replicas: Replicas
    size_bytes: int = 0
    fixed: bool = False
    """It is counted, and not changed: it is being moved, or not one of those to plan."""
    topic_id: TopicId = TopicId(b"\0" * 16)

    @property
    def key(self) -> Key:
        return self.topic, self.partition


class PlannedMove(NamedTuple):
    """The new replicas of a partition."""

    topic: str
    partition: int
    before: Replicas
    after: Replicas
    size_bytes: int
    """Of one replica."""

    @property
    def added(self) -> Replicas:
        return tuple(one for one in self.after if one not in self.before)

    @property
    def bytes_moved(self) -> int:
        return self.size_bytes * len(self.added)


class Balance(NamedTuple):
    """How well a cluster is balanced; each number is better if it is smaller."""

    leaving: int
    """Replicas and preferred leaders on brokers that are to be emptied."""
    machines: int
    """Minus the sum over partitions of the machines that they are on."""
    crowding: int
    """Sum over partitions and racks of the square of the replicas there."""
    sharing: int
    """As that, over machines."""
    replicas: int
    """Sum over brokers of the square of their replicas; so are the others."""
    bytes: int
    leaders: int


def plan_moves(
    brokers: Iterable[PlanBroker],
    partitions: Iterable[PlanPartition],
    *,
    moves_max: int | None = None,
) -> list[PlannedMove]:
    """The moves, by topic and partition; at most `moves_max` of them move data."""
    planner = _Planner(brokers, partitions, moves_max)
    planner.vacate()
    planner.spread_apart()
    while planner.spread_replicas() | planner.spread_bytes():
        # Where racks and machines cross, what moved may let another replica move apart.
        planner.spread_apart()
    planner.spread_leaders()
    return planner.moves()


def balance_of(brokers: Iterable[PlanBroker], partitions: Iterable[PlanPartition]) -> Balance:
    known = {broker.id: broker for broker in brokers}
    replicas: Counter[BrokerId] = Counter()
    sizes: Counter[BrokerId] = Counter()
    leaders: Counter[BrokerId] = Counter()
    leaving = 0
    crowding = _Crowding(0, 0, 0)
    for partition in partitions:
        for broker in partition.replicas:
            replicas[broker] += 1
            sizes[broker] += partition.size_bytes
            leaving += broker in known and known[broker].leaves
        leaders[partition.replicas[0]] += 1
        leaving += partition.replicas[0] in known and known[partition.replicas[0]].leaves
        crowding = _Crowding(
            *map(sum, zip(crowding, _crowding(partition.replicas, known), strict=True))
        )
    return Balance(
        leaving,
        *crowding,
        *(sum(count * count for count in loads.values()) for loads in (replicas, sizes, leaders)),
    )


class _Crowding(NamedTuple):
    """See Balance: what comes first is worse than all that follows."""

    machines: int
    racks: int
    sharing: int


def _crowding(replicas: Iterable[BrokerId], known: Mapping[BrokerId, PlanBroker]) -> _Crowding:
    brokers = [known[one] for one in replicas if one in known]
    machines = Counter(one.place for one in brokers)
    racks = Counter(one.rack for one in brokers)
    return _Crowding(
        -len(machines),
        sum(count * count for count in racks.values()),
        sum(count * count for count in machines.values()),
    )


class _Planner:
    """The state of the cluster after the moves that are planned so far."""

    def __init__(
        self,
        brokers: Iterable[PlanBroker],
        partitions: Iterable[PlanPartition],
        moves_max: int | None,
    ) -> None:
        self._brokers = {broker.id: broker for broker in brokers}
        self._takers = sorted(one.id for one in self._brokers.values() if one.takes)
        self._partitions = {one.key: one for one in sorted(partitions)}
        self._now: dict[Key, Replicas] = {
            key: one.replicas for key, one in self._partitions.items()
        }
        self._moves_max = moves_max
        self._moved: set[Key] = set()
        """Partitions with a replica on a new broker."""
        self._bytes: Counter[BrokerId] = Counter()
        self._count: Counter[BrokerId] = Counter()
        # Keys of dicts, because a set has no order.
        self._held: dict[BrokerId, dict[str, dict[Key, None]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._topics: dict[str, list[Key]] = defaultdict(list)
        self._loads = Loads()
        self._disks = {one.id: _disk_of(one) for one in self._brokers.values()}
        self._free: dict[Hashable, int] = {}
        for one in self._brokers.values():
            disk = self._disks[one.id]
            self._free[disk] = min(one.disk_free_bytes, self._free.get(disk, one.disk_free_bytes))
        for key, replicas in self._now.items():
            self._topics[key[0]].append(key)
            self._loads.add(replicas)
            for broker in replicas:
                self._hold(key, broker)

    def moves(self) -> list[PlannedMove]:
        return [
            PlannedMove(*key, before=one.replicas, after=self._now[key], size_bytes=one.size_bytes)
            for key, one in self._partitions.items()
            if self._now[key] != one.replicas
        ]

    # ---- 1: brokers that are emptied, machines and racks

    def vacate(self) -> None:
        for broker in sorted(self._brokers):
            if self._brokers[broker].leaves:
                for topic in sorted(self._held[broker]):
                    self._replace(topic, [(key, broker) for key in self._held[broker][topic]])

    def spread_apart(self) -> None:
        """Where a machine or rack holds more replicas of a partition than another one could."""
        for topic, keys in self._topics.items():
            # The fullest broker first: of two that are too near, either may give its replica.
            held = (
                (key, broker)
                for key in keys
                for broker in sorted(self._now[key], key=lambda one: -self._count[one])
            )
            self._replace(topic, (each for each in held if self._crowds(*each)))

    def _crowds(self, key: Key, broker: BrokerId) -> bool:
        # It may have been replaced a moment ago.
        if broker not in self._brokers or broker not in self._now[key]:
            return False
        others = [one for one in self._now[key] if one != broker]
        known = [self._brokers[one] for one in others if one in self._brokers]
        racks = Counter(one.rack for one in known)
        machines = Counter(one.place for one in known)

        def crowd(one: PlanBroker) -> tuple[bool, int, int]:
            return machines[one.place] > 0, racks[one.rack], machines[one.place]

        me = crowd(self._brokers[broker])
        free = (self._brokers[one] for one in self._takers if one not in self._now[key])
        return any(crowd(one) < me for one in free)

    def _replace(self, topic: str, held: Iterable[tuple[Key, BrokerId]]) -> None:
        """Other brokers for these replicas of a topic. A replica is not given up if there is none.

        `held` may be lazy, and see each change before the next.
        """
        placer: ReplicaPlacer | None = None
        for key, broker in held:
            before = self._now[key]
            if not self._may_change(key) or {*self._takers} <= {*before}:
                continue
            if placer is None:
                # Reads all partitions of the topic.
                placer = self._placer(topic)
            self._set(key, placer.replace(before, broker, len(before)))

    def _placer(self, topic: str) -> ReplicaPlacer:
        keys = self._topics[topic]
        return ReplicaPlacer(
            self._active(),
            topic_id=self._partitions[keys[0]].topic_id,
            existing=[self._now[key] for key in keys],
            cluster=self._loads,
        )

    def _active(self) -> list[Broker]:
        return [
            Broker(
                id=one.id,
                host="",
                port=0,
                rack=one.rack,
                machine=one.machine,
                state=BrokerState.ACTIVE if one.takes else BrokerState.DRAINING,
            )
            for one in self._brokers.values()
        ]

    # ---- 2: replicas

    def spread_replicas(self) -> bool:
        """Single replicas move from brokers with two more than another. Whether any did."""
        has_moved = False
        barren: set[tuple[BrokerId, BrokerId]] = set()
        while move := self._next_replica(barren):
            key, source, target = move
            self._swap(key, source, target)
            has_moved = True
            # What moved may make a move from or to these brokers possible.
            barren = {pair for pair in barren if not {source, target} & {*pair}}
        return has_moved

    def _next_replica(
        self, barren: set[tuple[BrokerId, BrokerId]]
    ) -> tuple[Key, BrokerId, BrokerId] | None:
        count = self._count
        pairs = sorted(
            (count[target] - count[source], source, target)
            for source in self._takers
            for target in self._takers
            if count[source] - count[target] >= 2 and (source, target) not in barren
        )
        for _, source, target in pairs:
            key = self._best_replica(source, target)
            if key is not None:
                return key, source, target
            barren.add((source, target))
        return None

    def _best_replica(self, source: BrokerId, target: BrokerId) -> Key | None:
        """Of a topic of which the source has most more than the target; then by size."""
        wanted = (self._bytes[source] - self._bytes[target]) // 2
        held, other = self._held[source], self._held[target]
        for topic in sorted(held, key=lambda name: (len(other[name]) - len(held[name]), name)):
            legal = (key for key in held[topic] if self._is_legal(key, source, target))
            found = [
                (abs(wanted - self._partitions[key].size_bytes), key)
                for key in islice(legal, _CANDIDATES_MAX)
            ]
            if found:
                return min(found)[1]
        return None

    # ---- 3: bytes

    def spread_bytes(self) -> bool:
        """Swaps of a large for a small replica, between the fullest brokers and the emptiest."""
        has_moved = False
        while swap := self._next_swap():
            (source, target), large, small = swap
            self._swap(large, source, target)
            if small is not None:
                self._swap(small, target, source)
            has_moved = True
        return has_moved

    def _next_swap(self) -> tuple[tuple[BrokerId, BrokerId], Key, Key | None] | None:
        if len(self._takers) < 2:
            return None
        mean = sum(self._bytes[one] for one in self._takers) // len(self._takers)
        least = max(_DISK_SPREAD_MIN, mean * _DISK_SPREAD_PERCENT // 100)
        pairs = sorted(
            (self._bytes[target] - self._bytes[source], source, target)
            for source in self._takers
            for target in self._takers
            if self._bytes[source] - self._bytes[target] > least
        )
        for _, source, target in pairs:
            found = self._best_swap(source, target)
            if found is not None:
                return (source, target), *found
        return None

    def _best_swap(self, source: BrokerId, target: BrokerId) -> tuple[Key, Key | None] | None:
        """The swap that halves the difference best, and takes away a quarter of it at least."""
        gap = self._bytes[source] - self._bytes[target]
        large = self._legal_by_size(source, target, largest=True)
        small: list[Key | None] = [*self._legal_by_size(target, source, largest=False)]
        if self._count[source] > self._count[target]:
            small.append(None)
        best: tuple[int, Key, Key | None] | None = None
        for first in large:
            for second in small:
                given = 0 if second is None else self._partitions[second].size_bytes
                net = self._partitions[first].size_bytes - given
                rest = abs(gap - 2 * net)
                if not gap // 4 <= net < gap or (best is not None and rest >= best[0]):
                    continue
                if second is None or self._may_both(first, second):
                    best = (rest, first, second)
        return None if best is None else best[1:]

    def _may_both(self, first: Key, second: Key) -> bool:
        if self._moves_max is None:
            return True
        return len(self._moved | {first, second}) <= self._moves_max

    def _legal_by_size(self, source: BrokerId, target: BrokerId, *, largest: bool) -> list[Key]:
        def size(key: Key) -> tuple[int, Key]:
            found = self._partitions[key].size_bytes
            return (-found if largest else found), key

        held = [key for keys in self._held[source].values() for key in keys]
        legal = (key for key in sorted(held, key=size) if self._is_legal(key, source, target))
        return list(islice(legal, _SWAPS_MAX))

    # ---- 4: preferred leaders

    def spread_leaders(self) -> None:
        """Another replica becomes the preferred leader, maybe along a chain of partitions."""
        led: dict[BrokerId, dict[Key, None]] = defaultdict(dict)
        for key, replicas in self._now.items():
            led[replicas[0]][key] = None
        while chain := self._chain(led):
            for key, giver, taker in chain:
                others = tuple(one for one in self._now[key] if one != taker)
                self._now[key] = (taker, *others)
                del led[giver][key]
                led[taker][key] = None

    def _chain(
        self, led: Mapping[BrokerId, Collection[Key]]
    ) -> list[tuple[Key, BrokerId, BrokerId]]:
        """From a broker that leads two more than another one to that; empty: there is none.

        A broker that is to be emptied gives what it can. A dead one keeps what it leads when it is
        back.
        """
        leaving = {one.id for one in self._brokers.values() if one.leaves}
        givers = sorted(
            (one for one in led if one in self._takers or one in leaving),
            key=lambda broker: (broker in self._takers, -len(led[broker]), broker),
        )
        for giver in givers:
            few = len(led[giver]) - 2 if giver in self._takers else len(self._now)
            came_from: dict[BrokerId, tuple[BrokerId, Key]] = {}
            queue = [giver]
            for broker in queue:
                for key in led.get(broker, ()):
                    if self._partitions[key].fixed:
                        continue
                    for other in self._now[key][1:]:
                        if other in came_from or other == giver or other not in self._takers:
                            continue
                        came_from[other] = (broker, key)
                        if len(led.get(other, ())) <= few:
                            return list(_links(giver, other, came_from))
                        queue.append(other)
        return []

    # ---- changes

    def _may_change(self, key: Key) -> bool:
        """Whether this partition may move data, in this plan."""
        if self._partitions[key].fixed:
            return False
        is_full = self._moves_max is not None and len(self._moved) >= self._moves_max
        return key in self._moved or not is_full

    def _is_legal(self, key: Key, source: BrokerId, target: BrokerId) -> bool:
        """Whether a replica may move: to a broker without one, with space, in no fuller rack and
        on no fuller machine."""
        replicas = self._now[key]
        if target in replicas or not self._may_change(key):
            return False
        others = [one for one in replicas if one != source]
        known = self._brokers
        if _crowding([*others, target], known) > _crowding(replicas, known):
            return False
        total, free = known[target].disk_total_bytes, self._free[self._disks[target]]
        if min(total, free) < 0:
            return True
        left = free - self._partitions[key].size_bytes
        return left * 100 >= (100 - _DISK_USED_PERCENT_MAX) * total

    def _swap(self, key: Key, source: BrokerId, target: BrokerId) -> None:
        """`target` replaces `source`, at its position."""
        self._set(key, tuple(target if one == source else one for one in self._now[key]))

    def _set(self, key: Key, after: Replicas) -> None:
        before = self._now[key]
        self._now[key] = after
        self._loads.add(before, -1)
        self._loads.add(after)
        for broker in before:
            if broker not in after:
                self._drop(key, broker)
        for broker in after:
            if broker not in before:
                self._hold(key, broker)
                disk = self._disks.get(broker, broker)
                self._free[disk] = _less(self._free.get(disk, -1), self._partitions[key].size_bytes)
        if {*after} <= {*self._partitions[key].replicas}:
            self._moved.discard(key)
        else:
            self._moved.add(key)

    def _hold(self, key: Key, broker: BrokerId) -> None:
        self._held[broker][key[0]][key] = None
        self._count[broker] += 1
        self._bytes[broker] += self._partitions[key].size_bytes

    def _drop(self, key: Key, broker: BrokerId) -> None:
        del self._held[broker][key[0]][key]
        self._count[broker] -= 1
        self._bytes[broker] -= self._partitions[key].size_bytes


def _disk_of(broker: PlanBroker) -> Hashable:
    """Brokers of one machine with disks of one size may share it, as processes of a node do.

    Two disks of one size are counted as one, which places too little on them, and never too much.
    """
    return broker.id if broker.machine is None else (broker.machine, broker.disk_total_bytes)


def _less(free: int, size: int) -> int:
    return free if free < 0 else max(0, free - size)


def _links(
    giver: BrokerId, taker: BrokerId, came_from: Mapping[BrokerId, tuple[BrokerId, Key]]
) -> Iterator[tuple[Key, BrokerId, BrokerId]]:
    while taker != giver:
        source, key = came_from[taker]
        yield key, source, taker
        taker = source

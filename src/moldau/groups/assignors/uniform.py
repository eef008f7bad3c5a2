"""The `uniform` assignor: balances the number of partitions, and moves as few as possible.

Every member first keeps its previous partitions. If all members subscribe to the same topics, each
gets total // members, and those that own the most get one of the remainder, so that the fewest
partitions move. Free partitions then go round-robin to members below their share.

If subscriptions differ, free partitions go to the member with the fewest, topics with the fewest
subscribers first. Then partitions move along chains, from a member over others to one that has at
least two fewer, until no such chain is left: that is the optimum. The search is bounded; beyond the
bound, a group with very many different subscriptions may stay unbalanced.
"""

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heapreplace
from typing import Final

from moldau.groups.assignors.interface import Assignment, GroupSpec
from moldau.model.ids import TopicId

_CHAIN_VISITS_MAX: Final = 300_000
"""Members visited in the search for chains: blocks the event loop for about 0.1 s."""

_Partitions = dict[TopicId, list[int]]


class UniformAssignor:
    name: Final = "uniform"

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        if not spec.members:
            return {}
        plan, free = _kept(spec)
        if len({member.topics for member in spec.members.values()}) == 1:
            _level(plan, free)
        else:
            _place(spec, plan, free)
            _Chains(spec, plan).shorten()
        return {
            member_id: {topic: frozenset(indexes) for topic, indexes in mine.items() if indexes}
            for member_id, mine in plan.items()
        }


def _kept(spec: GroupSpec) -> tuple[dict[str, _Partitions], _Partitions]:
    """What each member keeps, and the unassigned partitions."""
    free = {topic: set(range(spec.topics[topic])) for topic in sorted(spec.topics)}
    plan: dict[str, _Partitions] = {}
    for member_id in sorted(spec.members):
        member = spec.members[member_id]
        mine = plan[member_id] = {}
        for topic in sorted(member.owned):
            if topic in member.topics and topic in free:
                # A partition that two members claim stays with the first.
                mine[topic] = sorted(free[topic].intersection(member.owned[topic]))
                free[topic].difference_update(mine[topic])
    wanted = frozenset().union(*(member.topics for member in spec.members.values()))
    return plan, {topic: sorted(left) for topic, left in free.items() if topic in wanted}


def _count(partitions: _Partitions) -> int:
    return sum(map(len, partitions.values()))


# ---- equal subscriptions


def _level(plan: dict[str, _Partitions], free: _Partitions) -> None:
    counts = {member_id: _count(mine) for member_id, mine in plan.items()}
    total = sum(counts.values()) + _count(free)
    share, more = divmod(total, len(plan))
    needs: dict[str, int] = {}
    order = sorted(counts, key=lambda member_id: (-counts[member_id], member_id))
    for rank, member_id in enumerate(order):
        need = share + (rank < more) - counts[member_id]
        if need < 0:
            _release(plan[member_id], -need, free)
        elif need:
            needs[member_id] = need
    takers = deque(sorted(needs))
    for topic in sorted(free):
        for index in sorted(free[topic]):
            # Round-robin, so that the partitions of a topic spread over the members.
            member_id = takers.popleft()
            plan[member_id].setdefault(topic, []).append(index)
            needs[member_id] -= 1
            if needs[member_id]:
                takers.append(member_id)


def _release(mine: _Partitions, number: int, free: _Partitions) -> None:
    """The highest partitions of all topics, rather than all of one topic."""
    last = sorted(((index, topic) for topic in mine for index in mine[topic]), reverse=True)
    for index, topic in last[:number]:
        mine[topic].remove(index)
        free.setdefault(topic, []).append(index)


# ---- different subscriptions


def _place(spec: GroupSpec, plan: dict[str, _Partitions], free: _Partitions) -> None:
    loads = {member_id: _count(mine) for member_id, mine in plan.items()}
    takers = _takers(spec)
    for topic in sorted(free, key=lambda topic: (len(takers[topic]), topic)):
        if not free[topic]:
            continue
        heap = [(loads[member_id], member_id) for member_id in takers[topic]]
        heapify(heap)
        for index in free[topic]:
            load, member_id = heap[0]
            heapreplace(heap, (load + 1, member_id))
            loads[member_id] += 1
            # Last in the list: chains move new partitions first.
            plan[member_id].setdefault(topic, []).append(index)


def _takers(spec: GroupSpec) -> dict[TopicId, list[str]]:
    takers: dict[TopicId, list[str]] = {topic: [] for topic in spec.topics}
    for member_id in sorted(spec.members):
        for topic in spec.members[member_id].topics:
            if topic in takers:
                takers[topic].append(member_id)
    return takers


class _Chains:
    """Moves partitions along chains of members until the loads are balanced."""

    def __init__(self, spec: GroupSpec, plan: dict[str, _Partitions]) -> None:
        self._plan = plan
        self._takers = _takers(spec)
        self._loads = {member_id: _count(mine) for member_id, mine in plan.items()}
        self._visits_left = _CHAIN_VISITS_MAX

    def shorten(self) -> None:
        left = set(self._loads)
        while left and self._visits_left > 0:
            start = max(left, key=lambda member_id: (self._loads[member_id], member_id))
            steps, end = self._search(start)
            if end is None:
                # No member reachable from there has two fewer, so no chain through them helps.
                left -= set(steps)
                continue
            self._move(steps, end)

    def _search(self, start: str) -> tuple[dict[str, tuple[str, TopicId]], str | None]:
        """The step to each visited member, and the first with two fewer than `start`."""
        steps: dict[str, tuple[str, TopicId]] = {start: (start, TopicId(b""))}
        seen: set[TopicId] = set()
        queue = deque([start])
        few = self._loads[start] - 2
        while queue:
            member_id = queue.popleft()
            for topic, indexes in self._plan[member_id].items():
                if not indexes or topic in seen:
                    continue
                seen.add(topic)
                takers = self._takers[topic]
                self._visits_left -= len(takers)
                for taker in takers:
                    if taker in steps:
                        continue
                    steps[taker] = (member_id, topic)
                    if self._loads[taker] <= few:
                        return steps, taker
                    queue.append(taker)
        return steps, None

    def _move(self, steps: dict[str, tuple[str, TopicId]], end: str) -> None:
        taker = end
        self._loads[end] += 1
        while True:
            giver, topic = steps[taker]
            if giver == taker:
                break
            self._plan[taker].setdefault(topic, []).append(self._plan[giver][topic].pop())
            taker = giver
        self._loads[taker] -= 1

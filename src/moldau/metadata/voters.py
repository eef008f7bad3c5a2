"""The desired members of the metadata group, and the single steps towards desired members.

Every broker is a member, because every broker has the image; up to five vote. Three or five, not
four: a fourth voter slows down commits and tolerates no further failure. Two brokers both vote,
although neither can fail then: an acknowledged change must be on more than one disk.

For the same reason no machine has a majority, unless it is the only one. Two machines have equally
many voters, so four may vote there: each change is on both, and one process of the four may fail.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from moldau.metadata.broker_rules import replicas_on
from moldau.metadata.image import Broker, Image, Place
from moldau.model.ids import BrokerId
from moldau.raft.membership import Members

VOTERS_MAX: Final = 5
NOWHERE: Final[Mapping[BrokerId, Place]] = MappingProxyType({})


def desired_voters(brokers: Iterable[Broker], current: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    """The desired voters of the metadata group, in ascending order.

    Spread over racks and then machines, so that the loss of one does not lose the majority;
    current voters are preferred. Draining brokers do not vote, unless there is no other.
    """
    known = sorted(brokers, key=lambda broker: broker.id)
    able = [broker for broker in known if broker.active] or known
    count, most = _count_and_most(able)
    chosen: list[Broker] = []
    racks: Counter[str | None] = Counter()
    machines: Counter[Place] = Counter()
    while len(chosen) < count:
        best = min(
            (broker for broker in able if broker not in chosen and machines[broker.place] < most),
            key=lambda broker: (
                racks[broker.rack],
                machines[broker.place],
                broker.id not in current,
                broker.id,
            ),
        )
        chosen.append(best)
        racks[best.rack] += 1
        machines[best.place] += 1
    return tuple(sorted(broker.id for broker in chosen))


def _count_and_most(able: Sequence[Broker]) -> tuple[int, int]:
    """How many vote, and how many of them on one machine."""
    sizes = Counter(broker.place for broker in able)
    count = min(len(able), VOTERS_MAX)
    # While a broker has not said where it is, in an upgrade: as earlier versions choose. Else
    # voters would leave that come back a minute later, when its machine is known.
    if (
        len(sizes) > 1
        and any(size > 1 for size in sizes.values())
        and all(broker.machine for broker in able)
    ):
        for wanted in (5, 3, 4, 2):
            if sum(min(size, wanted // 2) for size in sizes.values()) >= wanted:
                return wanted, wanted // 2
    if count > 3:
        count -= 1 - count % 2
    return count, count


def voter_places(brokers: Iterable[Broker]) -> dict[BrokerId, Place]:
    """The machine of each broker; empty while one has not said where it is."""
    known = list(brokers)
    return {one.id: one.place for one in known} if all(one.machine for one in known) else {}


def has_majority(voters: Iterable[BrokerId], places: Mapping[BrokerId, Place]) -> bool:
    """Whether one of several machines has a majority of these voters."""
    used = Counter(places.get(voter, voter) for voter in voters)
    return len({*places.values()}) > 1 and max(used.values(), default=0) > used.total() // 2


def desired_members(image: Image, current: Members) -> Members:
    """The desired metadata group: every broker, except completely drained ones."""
    voters = desired_voters(image.brokers.values(), current.voters)
    learners = [
        broker.id
        for broker in image.brokers.values()
        if broker.id not in voters and (broker.active or replicas_on(image, broker.id))
    ]
    return Members(voters, tuple(sorted(learners)))


def next_members(
    current: Members,
    desired: Members,
    *,
    leader: BrokerId,
    ready: Collection[BrokerId],
    places: Mapping[BrokerId, Place] = NOWHERE,
) -> Members | None:
    """The next membership on the way to `desired`; None if it is reached, or no learner is ready.

    Also for partitions, whose desired replicas are the voters. Call again when a step is committed,
    and when a learner has caught up, which adds it to `ready`. Voters are added and removed one by
    one, alternately: the group is never smaller than both its old and its new size, and its
    majority hardly larger. `leader` is removed last, and those that are not ready first; before a
    step without the leader, the caller transfers leadership to a voter of that step. No voter is
    removed if those that stay would have no majority that is ready: the group could then commit
    nothing, not even the removal. Of the steps that are as good otherwise, the one after which no
    machine of `places` has a majority; if there is none, the group grows only when the step that
    mends it can follow at once.
    """
    step = current
    for broker in desired.everyone:
        if broker not in current.everyone:
            step = step.with_learner(broker)
    if step != current:
        return step
    leaving = [broker for broker in current.voters if broker not in desired.voters]
    if not leaving or len(current.voters) <= len(desired.voters):
        added = _next_voter(current, desired, leader, ready, places)
        if added is not None:
            return current.with_voter(added)
    if leaving and len(current.voters) > len(desired.voters):
        removed = min(
            (one for one in leaving if _stays_able(current.without(one), {leader, *ready})),
            key=lambda one: (
                one == leader,
                has_majority(current.without(one).voters, places),
                one in ready,
                one,
            ),
            default=None,
        )
        if removed is None:
            return None
        step = current.without(removed)
        return step.with_learner(removed) if removed in desired.learners else step
    for broker in current.learners:
        if broker not in desired.everyone:
            step = step.without(broker)
    return step if step != current else None


def _next_voter(
    current: Members,
    desired: Members,
    leader: BrokerId,
    ready: Collection[BrokerId],
    places: Mapping[BrokerId, Place],
) -> BrokerId | None:
    able = [one for one in current.learners if one in desired.voters and one in ready]
    if not able:
        return None
    now = current.voters
    leaving = [one for one in now if one not in desired.voters and one != leader]

    def is_mended(added: BrokerId) -> bool:
        """By the removal that follows."""
        later = Members((*now, added))
        return any(not has_majority(later.without(one).voters, places) for one in leaving)

    best = min(able, key=lambda one: (has_majority((*now, one), places), not is_mended(one)))
    rest = [one for one in desired.voters if one not in now and one != best]
    if (
        not rest
        or not {*now} <= {*desired.voters}
        or has_majority(now, places)
        or not has_majority((*now, best), places)
        or any(one in able and not has_majority((*now, best, one), places) for one in rest)
    ):
        return best
    return None


def _stays_able(step: Members, able: Collection[BrokerId]) -> bool:
    return sum(one in able for one in step.voters) > len(step.voters) // 2

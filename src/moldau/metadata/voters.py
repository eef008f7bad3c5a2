"""The desired members of the metadata group, and the single steps towards desired members.

Every broker is a member, because every broker has the image; up to five vote. Three or five, not
four: a fourth voter slows down commits and tolerates no further failure. Two brokers both vote,
although neither can fail then: an acknowledged change must be on more than one disk.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from moldau.metadata.broker_rules import replicas_on
from moldau.metadata.image import Broker, Image
from moldau.model.ids import BrokerId
from moldau.raft.membership import Members

VOTERS_MAX: Final = 5


def desired_voters(brokers: Iterable[Broker], current: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    """The desired voters of the metadata group, in ascending order.

    Spread over racks, so that the loss of a rack does not lose the majority; current voters are
    preferred. Draining brokers do not vote, unless there is no other.
    """
    known = sorted(brokers, key=lambda broker: broker.id)
    able = [broker for broker in known if broker.active] or known
    count = min(len(able), VOTERS_MAX)
    if count > 3:
        count -= 1 - count % 2
    chosen: list[Broker] = []
    voting: Counter[str | None] = Counter()
    while len(chosen) < count:
        best = min(
            (broker for broker in able if broker not in chosen),
            key=lambda broker: (voting[broker.rack], broker.id not in current, broker.id),
        )
        chosen.append(best)
        voting[best.rack] += 1
    return tuple(sorted(broker.id for broker in chosen))


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
    current: Members, desired: Members, *, leader: BrokerId, ready: Collection[BrokerId]
) -> Members | None:
    """The next membership on the way to `desired`; None if it is reached, or no learner is ready.

    Also for partitions, whose desired replicas are the voters. Call again when a step is committed,
    and when a learner has caught up, which adds it to `ready`. Voters are added and removed one by
    one, alternately: the group is never smaller than both its old and its new size, and its
    majority hardly larger. `leader` is removed last, and those that are not ready first; before a
    step without the leader, the caller transfers leadership to a voter of that step. No voter is
    removed if those that stay would have no majority that is ready: the group could then commit
    nothing, not even the removal.
    """
    step = current
    for broker in desired.everyone:
        if broker not in current.everyone:
            step = step.with_learner(broker)
    if step != current:
        return step
    leaving = [broker for broker in current.voters if broker not in desired.voters]
    if not leaving or len(current.voters) <= len(desired.voters):
        for broker in current.learners:
            if broker in desired.voters and broker in ready:
                return current.with_voter(broker)
    if leaving and len(current.voters) > len(desired.voters):
        broker = min(leaving, key=lambda broker: (broker == leader, broker in ready, broker))
        step = current.without(broker)
        able = {leader, *ready}.intersection(step.voters)
        if len(able) <= len(step.voters) // 2:
            return None
        return step.with_learner(broker) if broker in desired.learners else step
    for broker in current.learners:
        if broker not in desired.everyone:
            step = step.without(broker)
    return step if step != current else None

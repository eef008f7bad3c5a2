"""Moves a member towards its target assignment, one step per heartbeat.

    STABLE ──the target revokes partitions    ──▶ UNREVOKED ─revoked──┐
      ▲ │                                                             ▼
      │ └──the target only adds──▶ gets the free ones; some owned by others? ────────▶ UNRELEASED
      └───────────────────────────────────── none ◀───────────────────────────────────────┘

A member never has to stop reading partitions that it keeps. A partition is assigned again only when
its owner has reported that it released it: no two members ever own the same one.
"""

from collections.abc import Callable, Mapping

from moldau.groups.assignors.interface import Assignment
from moldau.groups.consumer.records import CurrentAssignment, MemberState
from moldau.groups.consumer.state import ConsumerState
from moldau.model.ids import TopicId


def next_step(
    current: CurrentAssignment,
    *,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicId, int], bool],
) -> CurrentAssignment:
    """The next assignment. `owned` is what the member reports to own, None if it reports nothing.

    `is_free` returns whether a partition has no other owner.
    """
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            return current
        case MemberState.UNREVOKED if _holds(owned, current.revoking):
            return current
    kept = _pick(current.assigned, lambda topic, index: index in target.get(topic, ()))
    revoking = subtract(current.assigned, target)
    if revoking and _holds(owned, revoking):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=MemberState.UNREVOKED,
            assigned=kept,
            revoking=revoking,
        )
    coming = subtract(target, kept)
    given = _pick(coming, is_free)
    is_complete = given == coming
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=current.epoch if target_epoch != current.epoch else current.previous_epoch,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED,
        assigned=_union(kept, given),
    )


def must_rejoin(state: ConsumerState, member_id: str) -> bool:
    """Whether a member has a step to take. A classic member may stop reading to rejoin, so it waits
    until all the partitions that others own are free."""
    current = state.current(member_id)
    if current.epoch != state.number:
        return True
    if current.state is not MemberState.UNRELEASED:
        return False
    coming = subtract(state.target(member_id), current.assigned)
    return all(
        state.owner(topic, index) is None for topic, indexes in coming.items() for index in indexes
    )


def covers(larger: Assignment, smaller: Assignment) -> bool:
    return all(indexes <= larger.get(topic, frozenset()) for topic, indexes in smaller.items())


def subtract(one: Assignment, other: Assignment) -> dict[TopicId, frozenset[int]]:
    left = {topic: indexes - other.get(topic, frozenset()) for topic, indexes in one.items()}
    return {topic: indexes for topic, indexes in left.items() if indexes}


def _holds(owned: Assignment | None, revoking: Assignment) -> bool:
    """Whether the member still has any of them; assumed if it does not report it."""
    if owned is None:
        return True
    return any(not indexes.isdisjoint(owned.get(t, ())) for t, indexes in revoking.items())


def _pick(
    assignment: Assignment, chosen: Callable[[TopicId, int], bool]
) -> dict[TopicId, frozenset[int]]:
    picked = {
        topic: frozenset(index for index in indexes if chosen(topic, index))
        for topic, indexes in assignment.items()
    }
    return {topic: indexes for topic, indexes in picked.items() if indexes}


def _union(one: Assignment, other: Assignment) -> Mapping[TopicId, frozenset[int]]:
    return {
        topic: one.get(topic, frozenset()) | other.get(topic, frozenset())
        for topic in (*one, *(topic for topic in other if topic not in one))
    }

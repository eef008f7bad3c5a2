"""Owns the change of a group that has members from one protocol to the other.

A consumer of the next-generation protocol joins a live classic group: the group is taken over. Its
members go on with what they read, and take part as `classic` says. When the last consumer of the
newer protocol has left and the others have settled, the group is a classic one again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from moldau.groups.assignors.interface import Assignment
from moldau.groups.consumer.records import (
    ClassicClient,
    ConsumerMember,
    ConsumerRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer.subscriptions import Subscriptions
from moldau.groups.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    assignment_bytes,
    read_assignment,
    read_subscription,
)
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from moldau.groups.records import GroupRecord, GroupsRecord, StoredGroup
from moldau.groups.results import ConsumerGroupState, GroupState
from moldau.groups.runtime import TOO_LARGE, Write
from moldau.groups.timers import TimerKey, TimerKind
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId

if TYPE_CHECKING:
    from moldau.groups.consumer.consumer_groups import ConsumerGroups

_PLAIN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of clients that remember in their data no more than who had what."""
_NO_HASH: Final = 0
_TOO_LARGE_SECONDS: Final = 600.0
"""Until a group is tried again whose members together are too large for one record."""


def upgrade_records(group: Group, subscriptions: Subscriptions) -> list[ConsumerRecord]:
    """What the members of a classic group are from now on, all in its generation as their epoch.

    Those that have never been in a generation have nothing to go on with; they join anew. Raises
    RefusedError.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group."
        )
    read = {
        member.member_id: _read(group, member)
        for member in group.members.values()
        if not member.is_new
    }
    held = _held(read, subscriptions)
    described = {
        member_id: classic_member(group.members[member_id], subscription)
        for member_id, (subscription, _) in read.items()
    }
    group_id, epoch = group.group_id, group.generation
    wanted = subscriptions.wanted(described)
    # If anything is still to be assigned, the epoch must rise: no hash is that of the topics then.
    is_settled = group.state is GroupState.STABLE and (
        _is_as_assigned(held, read, subscriptions) and _is_all(held, subscriptions.sizes(wanted))
    )
    topics_hash = subscriptions.hash(wanted) if is_settled else _NO_HASH
    records: list[ConsumerRecord] = [
        EpochRecord(group_id=group_id, value=GroupEpoch(epoch=epoch, topics_hash=topics_hash)),
        TargetEpochRecord(group_id=group_id, value=epoch),
    ]
    for member_id, member in described.items():
        assigned = held[member_id]
        current = CurrentAssignment(epoch=epoch, previous_epoch=epoch, assigned=assigned)
        records += (
            MemberRecord(group_id=group_id, member_id=member_id, value=member),
            TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=assigned),
            CurrentAssignmentRecord(group_id=group_id, member_id=member_id, value=current),
        )
    return records


def classic_member(member: Member, subscription: Subscription) -> ConsumerMember:
    """A member that speaks the classic protocol, in a group whose broker assigns."""
    return ConsumerMember(
        instance_id=member.instance_id,
        rack=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(subscription.topics)),
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if member.rebalance_timeout_ms > 0
        else member.session_timeout_ms,
        classic=ClassicClient(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )


def assignable(protocol: str, data: bytes) -> Subscription | None:
    """The subscription of a member, if a broker may assign in the place of its client's assignor.
    Not if that one has data of its own: Kafka Streams sends its tasks in it."""
    read = read_subscription(data)
    if read is None or (read.user_data and protocol not in _PLAIN_ASSIGNORS):
        return None
    return read


def _read(group: Group, member: Member) -> tuple[Subscription, ConsumerAssignment]:
    subscription = assignable(*member.protocols[0])
    assigned = read_assignment(member.assignment)
    is_plain = group.protocol_name in _PLAIN_ASSIGNORS
    if subscription is None or assigned is None or (assigned.user_data and not is_plain):
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group.group_id} has members that assign partitions in a way of their own. "
            "Stop all its members first, or join it by the classic protocol.",
        )
    return subscription, assigned


def _held(
    read: Mapping[str, tuple[Subscription, ConsumerAssignment]], subscriptions: Subscriptions
) -> dict[str, Assignment]:
    """What each member reads: what it was assigned, and what it said it has and nobody was
    assigned: in the middle of a rebalance assignments may be gone, or out of date."""
    owners: dict[tuple[TopicId, int], str] = {}
    assigned = [(member_id, one.partitions) for member_id, (_, one) in read.items()]
    owned = [(member_id, one.owned) for member_id, (one, _) in read.items()]
    for member_id, partitions in assigned + owned:
        for topic, indexes in subscriptions.by_id(partitions).items():
            for index in indexes:
                owners.setdefault((topic, index), member_id)
    held: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in read}
    for (topic, index), member_id in owners.items():
        mine = held[member_id]
        mine[topic] = mine.get(topic, frozenset()) | {index}
    return dict(held)


def _is_as_assigned(
    held: Mapping[str, Assignment],
    read: Mapping[str, tuple[Subscription, ConsumerAssignment]],
    subscriptions: Subscriptions,
) -> bool:
    """Not in the middle of a cooperative rebalance, nor where one partition was given to two."""
    return all(
        held[member_id] == subscriptions.by_id(assigned.partitions)
        for member_id, (_, assigned) in read.items()
    )


def _is_all(held: Mapping[str, Assignment], sizes: Mapping[TopicId, int]) -> bool:
    """Whether somebody has each partition: no topic has grown, and nobody left."""
    count = sum(len(mine.get(topic, ())) for mine in held.values() for topic in sizes)
    return count == sum(sizes.values())


class DowngradeGroup(Write):
    """A group whose members all speak the classic protocol becomes a classic one, and rebalances:
    its own assignor is asked again, and a leader that watches its topics is chosen.

    It waits until all have reached the same epoch: that is their generation, and nobody is fenced.
    It is stored without a leader, by which whoever loads it knows that it must rebalance.
    """

    __slots__ = ("_consumers", "_group", "_protocols")

    def __init__(self, consumers: "ConsumerGroups", group: Group) -> None:
        self._consumers = consumers
        self._group = group
        self._protocols: dict[str, tuple[tuple[str, bytes], ...]] = {}

    def decide(self, now: float) -> list[GroupsRecord]:
        state = self._group.consumer
        if state is None or not can_downgrade(state):
            return []
        classic = Group(self._group.group_id)
        for member_id, member in state.members.items():
            classic.add(self._member(state, member_id, member))
        protocol_name = classic.vote()
        self._protocols = {one: member.protocols for one, member in classic.members.items()}
        value = StoredGroup(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            generation=state.number,
            protocol_name=protocol_name,
            leader=None,
            state_timestamp=self._consumers.runtime.wall_ms(),
            members=tuple(
                member.stored(protocol_name, member.assignment)
                for member in classic.members.values()
            ),
        )
        group_id = self._group.group_id
        return [*state.tombstones(group_id), GroupRecord(group_id=group_id, value=value)]

    def _member(self, state: ConsumerState, member_id: str, member: ConsumerMember) -> Member:
        client = member.classic
        assert client is not None, "only groups of classic members go back"
        made = Member(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=client.session_timeout_ms,
            protocols=client.protocols,
        )
        names = self._consumers.subscriptions.by_name(member, state.current(member_id).assigned)
        made.assignment = assignment_bytes(names)
        return made

    def committed(self, now: float) -> None:
        group, rebalance = self._group, self._consumers.rebalance
        group.restore()
        for member_id, member in group.members.items():
            member.protocols = self._protocols[member_id]
            self._consumers.forget(group, member_id)
            rebalance.renew_session(now, group, member)
        rebalance.prepare(now, group)

    def failed(self, now: float, error: ErrorCode) -> None:
        key = TimerKey(TimerKind.DOWNGRADE, self._group.group_id)
        seconds = _TOO_LARGE_SECONDS if error in TOO_LARGE else 1.0
        self._consumers.runtime.timers.set(key, now + seconds)


def can_downgrade(state: ConsumerState) -> bool:
    return state.is_all_classic and state.state is ConsumerGroupState.STABLE

"""Upgrade and downgrade of live groups between the classic and the consumer protocol.

When a consumer-protocol member joins a live classic group, the group is upgraded. Its members keep
their assignment, see `classic_members`. When the last consumer-protocol member has left and the
others are stable, the group is downgraded.
"""

from collections.abc import Mapping
from typing import Final

from moldau.groups.assignors.interface import Assignment
from moldau.groups.consumer.context import ConsumerContext
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
from moldau.groups.timers import TimerKey, TimerKind
from moldau.groups.write import Write
from moldau.model.coordinator_events import TOO_LARGE
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId

_PLAIN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Client-side assignors whose user data only repeats the previous assignment."""
_NO_HASH: Final = 0
_TOO_LARGE_SECONDS: Final = 600.0
"""Retry interval of a downgrade whose members are too large for one record."""


def upgrade_records(group: Group, subscriptions: Subscriptions) -> list[ConsumerRecord]:
    """Records that upgrade a classic group; its generation becomes the epoch of all members.

    Members that have never been in a generation are left out and must rejoin. Raises RefusedError.
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
    owned_by = _owned_partitions(read, subscriptions)
    described = {
        member_id: classic_member(group.members[member_id], subscription)
        for member_id, (subscription, _) in read.items()
    }
    group_id, epoch = group.group_id, group.generation
    wanted = subscriptions.all_names(described)
    # If anything is unassigned, the epoch must be bumped: an invalid hash causes that.
    is_settled = group.state is GroupState.STABLE and (
        _is_as_assigned(owned_by, read, subscriptions)
        and _is_all(owned_by, subscriptions.sizes(wanted))
    )
    topics_hash = subscriptions.hash(wanted) if is_settled else _NO_HASH
    records: list[ConsumerRecord] = [
        EpochRecord(group_id=group_id, value=GroupEpoch(epoch=epoch, topics_hash=topics_hash)),
        TargetEpochRecord(group_id=group_id, value=epoch),
    ]
    for member_id, member in described.items():
        assigned = owned_by[member_id]
        current = CurrentAssignment(epoch=epoch, previous_epoch=epoch, assigned=assigned)
        records += (
            MemberRecord(group_id=group_id, member_id=member_id, value=member),
            TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=assigned),
            CurrentAssignmentRecord(group_id=group_id, member_id=member_id, value=current),
        )
    return records


def classic_member(member: Member, subscription: Subscription) -> ConsumerMember:
    """A classic member as stored in a consumer-protocol group."""
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
    """The subscription, if the broker can assign instead of the client-side assignor: not if that
    has user data of its own, such as the tasks of Kafka Streams."""
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
            f"Group {group.group_id} has members with a custom client-side assignor. "
            "Stop all its members first, or join it with group.protocol=classic.",
        )
    return subscription, assigned


def _owned_partitions(
    read: Mapping[str, tuple[Subscription, ConsumerAssignment]], subscriptions: Subscriptions
) -> dict[str, Assignment]:
    """What each member has: its assignment, and the partitions it reports that are assigned to no
    one else; in the middle of a rebalance, assignments may be missing or stale."""
    owners: dict[tuple[TopicId, int], str] = {}
    assigned = [(member_id, one.partitions) for member_id, (_, one) in read.items()]
    owned = [(member_id, one.owned) for member_id, (one, _) in read.items()]
    for member_id, partitions in assigned + owned:
        for topic, indexes in subscriptions.by_id(partitions).items():
            for index in indexes:
                owners.setdefault((topic, index), member_id)
    owned_by: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in read}
    for (topic, index), member_id in owners.items():
        mine = owned_by[member_id]
        mine[topic] = mine.get(topic, frozenset()) | {index}
    return dict(owned_by)


def _is_as_assigned(
    owned_by: Mapping[str, Assignment],
    read: Mapping[str, tuple[Subscription, ConsumerAssignment]],
    subscriptions: Subscriptions,
) -> bool:
    """False in a cooperative rebalance, or if one partition was assigned to two members."""
    return all(
        owned_by[member_id] == subscriptions.by_id(assigned.partitions)
        for member_id, (_, assigned) in read.items()
    )


def _is_all(owned_by: Mapping[str, Assignment], sizes: Mapping[TopicId, int]) -> bool:
    """Whether every partition has an owner."""
    count = sum(len(mine.get(topic, ())) for mine in owned_by.values() for topic in sizes)
    return count == sum(sizes.values())


class DowngradeGroup(Write):
    """Makes a group with only classic members a classic group, and rebalances it: a leader is
    elected, and the client-side assignor runs again.

    It waits until all members have reached the same epoch, which becomes the generation, so no
    member is fenced. It is stored without a leader: a coordinator that loads it must rebalance.
    """

    __slots__ = ("_context", "_group", "_protocols")

    def __init__(self, context: ConsumerContext, group: Group) -> None:
        self._context = context
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
            state_timestamp=self._context.runtime.wall_ms(),
            members=tuple(
                member.stored(protocol_name, member.assignment)
                for member in classic.members.values()
            ),
        )
        group_id = self._group.group_id
        return [*state.tombstones(group_id), GroupRecord(group_id=group_id, value=value)]

    def _member(self, state: ConsumerState, member_id: str, member: ConsumerMember) -> Member:
        client = member.classic
        assert client is not None, "only groups of classic members are downgraded"
        names = self._context.subscriptions.by_name(member, state.current(member_id).assigned)
        return Member(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=client.session_timeout_ms,
            protocols=client.protocols,
            assignment=assignment_bytes(names),
        )

    def committed(self, now: float) -> None:
        group, rebalance = self._group, self._context.rebalance
        group.restore()
        for member_id, member in group.members.items():
            member.protocols = self._protocols[member_id]
            group.weigh(member)
            self._context.forget(group, member_id)
            rebalance.renew_session(now, group, member)
        rebalance.prepare(now, group)

    def failed(self, now: float, error: ErrorCode) -> None:
        key = TimerKey(TimerKind.DOWNGRADE, self._group.group_id)
        seconds = _TOO_LARGE_SECONDS if error in TOO_LARGE else 1.0
        self._context.runtime.timers.set(key, now + seconds)


def can_downgrade(state: ConsumerState) -> bool:
    return state.is_all_classic and state.state is ConsumerGroupState.STABLE


def downgrade(context: ConsumerContext, now: float, group: Group) -> None:
    """Make the group a classic one again, if possible."""
    if group.consumer is not None and can_downgrade(group.consumer):
        context.runtime.submit(now, group, DowngradeGroup(context, group))

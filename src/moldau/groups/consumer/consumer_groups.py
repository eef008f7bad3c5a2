"""Owns the door to the consumer groups: checks heartbeats, keeps their time, describes them.

A heartbeat that makes sense by itself is decided when its turn comes (`beat`).
"""

from collections.abc import Callable, Mapping
from typing import Final

from moldau.groups.assignors.interface import Assignor
from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.consumer.heartbeat import HeartbeatWrite
from moldau.groups.consumer.migration import DowngradeGroup, can_downgrade
from moldau.groups.consumer.patterns import PatternError
from moldau.groups.consumer.reconcile import must_rejoin
from moldau.groups.consumer.records import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer.subscriptions import Subscriptions
from moldau.groups.consumer.writes import ClassicLeave, ExpireMember, RemoveMembers, revoke_key
from moldau.groups.events import ConsumerHeartbeat, Leave
from moldau.groups.group import Group
from moldau.groups.rebalance import Rebalance, session_key
from moldau.groups.records import TEXT_BYTES_MAX
from moldau.groups.results import (
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    GroupState,
)
from moldau.groups.runtime import Runtime
from moldau.groups.timers import TimerKey
from moldau.model.errors import ErrorCode, RefusedError

_TOPICS_MAX: Final = 10_000
"""Names that one member may subscribe to."""


class ConsumerGroups:
    """Handles ConsumerHeartbeat, and the silence of members."""

    def __init__(
        self,
        runtime: Runtime,
        subscriptions: Subscriptions,
        assignors: Mapping[str, Assignor],
        new_member_id: Callable[[str], str],
        rebalance: Rebalance,
    ) -> None:
        self.runtime = runtime
        self.rebalance = rebalance
        self.subscriptions = subscriptions
        self.assignors = assignors
        self.new_member_id = new_member_id

    def heartbeat(self, now: float, event: ConsumerHeartbeat) -> None:
        try:
            self._check(event)
        except RefusedError as error:
            self.refuse(event, error)
            return
        group = self.runtime.groups.get(event.group_id)
        if group is None and event.member_epoch != JOIN_EPOCH:
            self.refuse(event, RefusedError(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group = self.runtime.group(event.group_id)
        self.runtime.submit(now, group, HeartbeatWrite(self, group, event))

    def leave(self, now: float, group: Group, event: Leave, classic: ClassicLeave) -> None:
        """Members that speak the classic protocol leave, or an administrator removes members.
        `classic` is asked instead if the group is a classic one when its turn comes."""
        self.runtime.submit(now, group, RemoveMembers(self, group, event, classic))

    def refuse(self, event: ConsumerHeartbeat, error: RefusedError) -> None:
        self.runtime.reply(
            event.request_id,
            ConsumerHeartbeatResult(error=error.code, message=str(error) or None),
        )

    def _check(self, event: ConsumerHeartbeat) -> None:
        """Whether the request makes sense by itself. Raises RefusedError."""
        if event.member_epoch < STATIC_LEAVE_EPOCH:
            raise _invalid("MemberEpoch is invalid.")
        if event.member_epoch == STATIC_LEAVE_EPOCH and event.instance_id is None:
            raise _invalid("InstanceId can't be null.")
        if not event.member_id and (event.member_epoch != JOIN_EPOCH or event.makes_member_id):
            raise _invalid("MemberId can't be empty.")
        if event.instance_id == "":
            raise _invalid("InstanceId can't be empty.")
        if event.rack == "":
            raise _invalid("RackId can't be empty.")
        if event.member_epoch == JOIN_EPOCH:
            if event.rebalance_timeout_ms <= 0:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if event.owned is None or event.owned:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if event.topics is None and event.pattern is None:
                raise _invalid("SubscribedTopicNames must be set in first request.")
        if event.assignor is not None and event.assignor not in self.assignors:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {event.assignor} is not supported. Supported assignors: "
                + ", ".join(name for name in self.assignors if name != QUEUE_ASSIGNOR)
                + ".",
            )
        _check_sizes(event)
        if event.pattern:
            try:
                self.subscriptions.check(event.pattern)
            except PatternError as error:
                raise RefusedError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{event.pattern[:200]}` is not usable: {error}",
                ) from None

    # ---- reads

    def wanted_topics(self, group: Group) -> frozenset[str]:
        return self.subscriptions.wanted(group.consumer.members if group.consumer else {})

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        group = self.runtime.groups.get(group_id)
        state = None if group is None else group.consumer
        if group is None or state is None or group.state is GroupState.DEAD:
            what = "not found" if group is None else "not a consumer group"
            return DescribedConsumerGroup(
                group_id=group_id,
                error=ErrorCode.GROUP_ID_NOT_FOUND,
                message=f"Group {group_id[:200]} is {what}.",
            )
        return DescribedConsumerGroup(
            group_id=group_id,
            error=ErrorCode.NONE,
            state=state.state,
            epoch=state.number,
            target_epoch=state.target_epoch or 0,
            assignor=self.assignor(state.members).name,
            members=tuple(_described(state, member_id) for member_id in state.members),
        )

    def member(self, group_id: str, member_id: str) -> DescribedConsumer | None:
        """One member of a consumer group; None if there is no such one."""
        group = self.runtime.groups.get(group_id)
        if group is None or group.consumer is None or member_id not in group.consumer.members:
            return None
        return _described(group.consumer, member_id)

    def assignor(self, members: Mapping[str, ConsumerMember]) -> Assignor:
        """The one that most members ask for; the first of the broker's if nobody does."""
        votes = dict.fromkeys(self.assignors, 0)
        for member in members.values():
            if member.assignor in votes:
                votes[member.assignor] += 1
        return self.assignors[max(votes, key=lambda name: votes[name])]

    # ---- time

    def load(self, now: float, group: Group) -> None:
        """Sessions begin anew; whoever was asked to let go of something is given its time again."""
        if group.consumer is not None:
            for member_id in group.consumer.members:
                self.renew_session(now, group, member_id)
                self.watch(now, group, member_id)
            self.go_back(now, group)

    def interval_ms(self, member: ConsumerMember) -> int:
        """How often a member is to be heard of: three times within its session at least."""
        usual = self.runtime.config.consumer_heartbeat_interval_ms
        session_ms = member.session_timeout_ms
        return usual if session_ms is None else max(1, min(usual, session_ms // 3))

    def renew_session(
        self, now: float, group: Group, member_id: str, member: ConsumerMember | None = None
    ) -> None:
        """`member`: what it is about to be, if that is not stored yet."""
        if member is None and group.consumer is not None:
            member = group.consumer.members.get(member_id)
        timeout_ms = self.runtime.config.consumer_session_timeout_ms
        if member is not None and member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        elif member is not None and member.session_timeout_ms is not None:
            timeout_ms = member.session_timeout_ms
        self.runtime.timers.set(session_key(group, member_id), now + timeout_ms / 1000)

    def watch(self, now: float, group: Group, member_id: str) -> None:
        """A member that must let go of partitions has its rebalance timeout for that."""
        state = group.consumer
        if state is None or state.current(member_id).state is not MemberState.UNREVOKED:
            self.runtime.timers.cancel(revoke_key(group, member_id))
            return
        member = state.members.get(member_id)
        if member is not None:
            timeout_s = max(member.rebalance_timeout_ms, 0) / 1000
            self.runtime.timers.set(revoke_key(group, member_id), now + timeout_s)

    def call_back(self, now: float, group: Group, member_id: str) -> bool:
        """Whether a classic member is to join again; it has its rebalance timeout for that."""
        state, key = group.consumer, revoke_key(group, member_id)
        if state is None or not must_rejoin(state, member_id):
            self.runtime.timers.cancel(key)
            return False
        if self.runtime.timers.deadline(key) is None:
            timeout_s = state.members[member_id].rebalance_timeout_ms / 1000
            self.runtime.timers.set(key, now + timeout_s)
        return True

    def forget(self, group: Group, member_id: str) -> None:
        self.runtime.timers.cancel(session_key(group, member_id))
        self.runtime.timers.cancel(revoke_key(group, member_id))

    # ---- from one protocol to the other

    def adopt(self, now: float, group: Group, taken: list[str]) -> None:
        """Members of a classic group are stored as members of this one, and go on as such."""
        still_here = set(group.members)
        self.rebalance.hand_over(group)
        for member_id in taken:
            self.renew_session(now, group, member_id)
            if member_id not in still_here:
                # It left while this was written.
                self.runtime.timers.set(session_key(group, member_id), now)

    def go_back(self, now: float, group: Group) -> None:
        """If the group may be a classic one again, it will be."""
        if group.consumer is not None and can_downgrade(group.consumer):
            self.runtime.submit(now, group, DowngradeGroup(self, group))

    def expired(self, now: float, group: Group, key: TimerKey) -> None:
        if group.consumer is not None and key.member_id in group.consumer.members:
            self.runtime.submit(now, group, ExpireMember(self, group, key))


def _described(state: ConsumerState, member_id: str) -> DescribedConsumer:
    member, current = state.members[member_id], state.current(member_id)
    return DescribedConsumer(
        member_id=member_id,
        instance_id=member.instance_id,
        rack=member.rack,
        epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=member.topics,
        pattern=member.pattern,
        assigned=current.assigned,
        target=state.target(member_id),
        revoking=current.revoking,
        assignor=member.assignor,
        is_classic=member.classic is not None,
    )


def _check_sizes(event: ConsumerHeartbeat) -> None:
    texts = (
        event.member_id,
        event.instance_id or "",
        event.rack or "",
        event.client_id,
        event.client_host,
        event.pattern or "",
        event.assignor or "",
        *(event.topics or ()),
    )
    if any(len(text.encode()) > TEXT_BYTES_MAX - 256 for text in texts):
        raise _invalid("A text is too long.")
    if len(event.topics or ()) > _TOPICS_MAX:
        raise _invalid(f"More than {_TOPICS_MAX} topics.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)

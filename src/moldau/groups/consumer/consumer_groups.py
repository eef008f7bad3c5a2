"""Entry point of consumer-protocol groups: validation of heartbeats, timeouts, descriptions.

A valid heartbeat is decided by `heartbeat` when the writes before it are done.
"""

from typing import Final

from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.consumer.context import ConsumerContext
from moldau.groups.consumer.heartbeat import HeartbeatWrite
from moldau.groups.consumer.migration import downgrade
from moldau.groups.consumer.patterns import PatternError
from moldau.groups.consumer.records import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer.writes import ClassicLeave, ExpireMember, RemoveMembers
from moldau.groups.events import ConsumerHeartbeat, Leave
from moldau.groups.group import Group
from moldau.groups.records import TEXT_BYTES_MAX
from moldau.groups.results import DescribedConsumer, DescribedConsumerGroup, GroupState
from moldau.groups.timers import TimerKey
from moldau.groups.weights import member_weight
from moldau.model.errors import ErrorCode, RefusedError

_TOPICS_MAX: Final = 10_000
"""Topics that one member may subscribe to."""
_ID_BYTES_MAX: Final = 1_024
"""Of the id that a client makes for its member: usually 22 characters."""


class ConsumerGroups:
    """Handles ConsumerHeartbeat, and expires sessions of members."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._runtime = context.runtime

    def heartbeat(self, now: float, event: ConsumerHeartbeat) -> None:
        try:
            self._check(event)
        except RefusedError as error:
            self._context.reject(event, error)
            return
        group = self._runtime.groups.get(event.group_id)
        if group is None and event.member_epoch != JOIN_EPOCH:
            self._context.reject(event, RefusedError(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group = self._runtime.group(event.group_id)
        self._runtime.submit(now, group, HeartbeatWrite(self._context, group, event))

    def leave(self, now: float, group: Group, event: Leave, classic: ClassicLeave) -> None:
        """Classic members leave, or an administrator removes members. `classic` is called instead
        if the group is a classic one by then."""
        self._runtime.submit(now, group, RemoveMembers(self._context, group, event, classic))

    def _check(self, event: ConsumerHeartbeat) -> None:
        """Validate the fields of the request. Raises RefusedError."""
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
        if event.assignor is not None and event.assignor not in self._context.assignors:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {event.assignor} is not supported. Supported assignors: "
                + ", ".join(name for name in self._context.assignors if name != QUEUE_ASSIGNOR)
                + ".",
            )
        _check_sizes(event, self._runtime.config.member_bytes_max)
        if event.pattern:
            try:
                self._context.subscriptions.check(event.pattern)
            except PatternError as error:
                raise RefusedError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{event.pattern[:200]}` is not usable: {error}",
                ) from None

    # ---- reads

    def subscribed_topics(self, group: Group) -> frozenset[str]:
        return self._context.subscriptions.all_names(
            group.consumer.members if group.consumer else {}
        )

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        group = self._runtime.groups.get(group_id)
        state = None if group is None else group.consumer
        if group is None or state is None or group.state is GroupState.DEAD:
            what = "not found" if group is None else "not a consumer group"
            return DescribedConsumerGroup(
                error=ErrorCode.GROUP_ID_NOT_FOUND,
                message=f"Group {group_id[:200]} is {what}.",
            )
        return DescribedConsumerGroup(
            error=ErrorCode.NONE,
            state=state.state,
            epoch=state.number,
            target_epoch=state.target_epoch or 0,
            assignor=self._context.assignor(state.members).name,
            members=tuple(_described(state, member_id) for member_id in state.members),
        )

    def member(self, group_id: str, member_id: str) -> DescribedConsumer | None:
        group = self._runtime.groups.get(group_id)
        if group is None or group.consumer is None or member_id not in group.consumer.members:
            return None
        return _described(group.consumer, member_id)

    # ---- timeouts

    def load(self, now: float, group: Group) -> None:
        """Restart the timeouts of sessions and revocations after loading."""
        if group.consumer is not None:
            for member_id in group.consumer.members:
                self._context.renew_session(now, group, member_id)
                self._context.start_revoke_timeout(now, group, member_id)
            downgrade(self._context, now, group)

    def expired(self, now: float, group: Group, key: TimerKey) -> None:
        if group.consumer is not None and key.member_id in group.consumer.members:
            self._runtime.submit(now, group, ExpireMember(self._context, group, key))


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


def _check_sizes(event: ConsumerHeartbeat, bytes_max: int) -> None:
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
    if len(event.member_id.encode()) > _ID_BYTES_MAX:
        raise _invalid(f"MemberId has more than {_ID_BYTES_MAX} bytes.")
    if len(event.topics or ()) > _TOPICS_MAX:
        raise _invalid(f"More than {_TOPICS_MAX} topics.")
    if member_weight((), topics=texts) > bytes_max:
        raise RefusedError(
            ErrorCode.MESSAGE_TOO_LARGE, f"A member may send at most {bytes_max} bytes."
        )


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)

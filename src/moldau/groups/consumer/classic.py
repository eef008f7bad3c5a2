"""Owns members that speak the classic protocol in a group whose broker assigns.

    JoinGroup   one heartbeat of the newer protocol: says what the member wants and still reads
    SyncGroup   tells what it has
    Heartbeat   calls it back to JoinGroup, by REBALANCE_IN_PROGRESS, when it is to take a step

A member's generation is its epoch. Nobody leads: no member is told that it is the leader.
"""

from collections.abc import Callable

from moldau.groups.consumer.beat import Beat, Entered
from moldau.groups.consumer.consumers import Consumers
from moldau.groups.consumer.records import (
    JOIN_EPOCH,
    ConsumerMember,
    Current,
    MemberState,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer.takeover import classic_member
from moldau.groups.consumer.writes import revoke_key
from moldau.groups.events import NO_MEMBER_ID, ConsumerHeartbeat, Heartbeat, Join, Sync
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from moldau.groups.rebalance import pending_key
from moldau.groups.records import GroupsRecord
from moldau.groups.results import HeartbeatResult, JoinResult, SyncResult
from moldau.groups.subscription import Subscription, assignment_bytes, read_subscription
from moldau.model.errors import ErrorCode, RefusedError

JoinElsewhere = Callable[[float, Group, Join], None]


class ClassicMembers:
    """Handles Join, Sync and Heartbeat for groups whose broker assigns."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self._runtime = consumers.runtime

    def join(self, now: float, group: Group, event: Join, elsewhere: JoinElsewhere) -> None:
        """`elsewhere`: who is asked if the group has no members whose broker assigns by then."""
        read = read_subscription(event.protocols[0][1]) if event.protocols else None
        if read is None or event.protocol_type != CONSUMER_PROTOCOL_TYPE:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            result = JoinResult(error=error, member_id=event.member_id)
            self._runtime.reply(event.request_id, result)
            return
        write = ClassicJoin(self._consumers, group, event, read, elsewhere)
        self._runtime.submit(now, group, write)

    def sync(self, now: float, group: Group, event: Sync) -> None:
        error, member = self._member(group, event)
        if member is None or member.classic is None:
            result = SyncResult(error=error)
        else:
            self._consumers.heard_of(now, group, event.member_id)
            result = self._assignment(group, event, member, member.classic.protocols[0][0])
        self._runtime.reply(event.request_id, result)

    def _assignment(
        self, group: Group, event: Sync, member: ConsumerMember, protocol: str
    ) -> SyncResult:
        assert group.consumer is not None, "it has this member"
        if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            event.protocol_name not in (None, protocol)
        ):
            return SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        assigned = group.consumer.current(event.member_id).assigned
        return SyncResult(
            error=ErrorCode.NONE,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol,
            assignment=assignment_bytes(self._consumers.subscriptions.by_name(member, assigned)),
        )

    def heartbeat(self, now: float, group: Group, event: Heartbeat) -> None:
        error, member = self._member(group, event)
        if member is not None:
            self._consumers.heard_of(now, group, event.member_id)
            if self._consumers.call_back(now, group, event.member_id):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._runtime.reply(event.request_id, HeartbeatResult(error=error))

    def _member(
        self, group: Group, event: Sync | Heartbeat
    ) -> tuple[ErrorCode, ConsumerMember | None]:
        """The member that asks; None with the reason why it is none."""
        state = group.consumer or ConsumerState()
        error = group.consumer_error(event.member_id, event.instance_id, event.generation)
        member = state.members.get(event.member_id)
        if member is not None and member.classic is None:
            # The id of a member that speaks the newer protocol: it never asks this way.
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return error, member if error is ErrorCode.NONE else None


class ClassicJoin(Beat):
    """A JoinGroup, judged as the heartbeat that it stands for."""

    __slots__ = ("_elsewhere", "_join", "_subscription")

    def __init__(
        self,
        consumers: Consumers,
        group: Group,
        event: Join,
        subscription: Subscription,
        elsewhere: JoinElsewhere,
    ) -> None:
        heartbeat = ConsumerHeartbeat(
            request_id=event.request_id,
            group_id=event.group_id,
            member_id=event.member_id,
            member_epoch=JOIN_EPOCH,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            owned=consumers.subscriptions.by_id(subscription.owned),
        )
        super().__init__(consumers, group, heartbeat)
        self._join = event
        self._subscription = subscription
        self._elsewhere = elsewhere

    def decide(self, now: float) -> list[GroupsRecord]:
        if not self.state.members:
            self._elsewhere(now, self.group, self._join)
            return []
        return super().decide(now)

    def committed(self, now: float) -> None:
        super().committed(now)
        self.group.pending.pop(self._member_id, None)
        self.consumers.runtime.timers.cancel(pending_key(self.group, self._member_id))
        self.consumers.go_back(self.group)

    def _enter(self, state: ConsumerState) -> Entered:
        event = self._join
        member_id = event.member_id
        if member_id == NO_MEMBER_ID:
            member_id = self.consumers.new_member_id(event.instance_id or event.client_id)
            holder = state.static_member(event.instance_id or "")
            if holder is not None:
                # As in a classic group: whoever comes last under an instance id has it.
                return self._replace(state, holder, member_id)
            return self._admit(state, member_id)
        error = state.member_error(member_id, event.instance_id)
        known = state.members.get(member_id)
        if known is not None and known.classic is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        is_awaited = member_id in self.group.pending and event.instance_id is None
        if error is not ErrorCode.NONE and not is_awaited:
            raise RefusedError(error)
        return self._admit(state, member_id)

    def _described(self, before: ConsumerMember | None) -> ConsumerMember:
        return classic_member(Member.of(self._join, self._member_id), self._subscription)

    def _answer(self, member: ConsumerMember, current: Current, stepped: Current) -> JoinResult:
        if stepped.state is not MemberState.UNREVOKED:
            # It came as it was called. If it is called again, its time begins anew.
            self.consumers.runtime.timers.cancel(revoke_key(self.group, self._member_id))
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=self._member_id,
            generation=stepped.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=self._join.protocols[0][0],
        )

    def _refuse(self, error: RefusedError) -> None:
        code = error.code
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            # A queue's group; JoinGroup has no such code.
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        result = JoinResult(error=code, member_id=self._join.member_id)
        self.consumers.runtime.reply(self._join.request_id, result)

"""Classic members of consumer-protocol groups.

    JoinGroup   a heartbeat of the consumer protocol: sends the subscription and owned partitions
    SyncGroup   returns the assignment
    Heartbeat   returns REBALANCE_IN_PROGRESS when the member must rejoin to take its next step

A member's generation is its epoch. No member is the leader.
"""

from collections.abc import Callable

from moldau.groups.consumer.context import ConsumerContext, revoke_key
from moldau.groups.consumer.heartbeat import AdmittedMember, HeartbeatWrite
from moldau.groups.consumer.migration import assignable, classic_member, downgrade
from moldau.groups.consumer.records import (
    JOIN_EPOCH,
    ClassicClient,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer_protocol import assignment_bytes
from moldau.groups.events import NO_MEMBER_ID, ConsumerHeartbeat, Heartbeat, Join, Sync
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from moldau.groups.records import GroupsRecord
from moldau.groups.results import HeartbeatResult, JoinResult, SyncResult
from moldau.model.errors import ErrorCode, RefusedError

JoinEmpty = Callable[[float, Group, Join], None]


class ClassicMembers:
    """Handles Join, Sync and Heartbeat for consumer-protocol groups."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._runtime = context.runtime

    def join(self, now: float, group: Group, event: Join, join_empty: JoinEmpty) -> None:
        """`join_empty` is called instead if the group has no members by then."""
        self._runtime.submit(now, group, ClassicJoinWrite(self._context, group, event, join_empty))

    def sync(self, now: float, group: Group, event: Sync) -> None:
        error, member = self._member(group, event)
        if member is None or member.classic is None:
            result = SyncResult(error=error)
        else:
            self._context.renew_session(now, group, event.member_id)
            result = self._assignment(group, event, member, member.classic)
        self._runtime.reply(event.request_id, result)

    def _assignment(
        self, group: Group, event: Sync, member: ConsumerMember, client: ClassicClient
    ) -> SyncResult:
        # Before the upgrade, the group may have chosen another of the member's protocols.
        protocols = [name for name, _ in client.protocols]
        if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            event.protocol_name not in (None, *protocols)
        ):
            return SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        assigned = _state(group).current(event.member_id).assigned
        return SyncResult(
            error=ErrorCode.NONE,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=event.protocol_name or protocols[0],
            assignment=assignment_bytes(self._context.subscriptions.by_name(member, assigned)),
        )

    def heartbeat(self, now: float, group: Group, event: Heartbeat) -> None:
        error, member = self._member(group, event)
        if member is not None:
            self._context.renew_session(now, group, event.member_id)
            if self._context.request_rejoin(now, group, event.member_id):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._runtime.reply(event.request_id, HeartbeatResult(error=error))

    def _member(
        self, group: Group, event: Sync | Heartbeat
    ) -> tuple[ErrorCode, ConsumerMember | None]:
        """The member; None, with the error, if it is not a classic member of this epoch."""
        error = group.consumer_error(event.member_id, event.instance_id, event.generation)
        member = _state(group).members.get(event.member_id)
        if member is not None and member.classic is None:
            # Members of the consumer protocol never send classic requests.
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return error, member if error is ErrorCode.NONE else None


class ClassicJoinWrite(HeartbeatWrite):
    """A JoinGroup, decided like a heartbeat of the consumer protocol."""

    __slots__ = ("_join", "_join_empty", "_subscription")

    def __init__(
        self, context: ConsumerContext, group: Group, event: Join, join_empty: JoinEmpty
    ) -> None:
        is_consumer = event.protocol_type == CONSUMER_PROTOCOL_TYPE and event.protocols
        read = assignable(*event.protocols[0]) if is_consumer else None
        heartbeat = ConsumerHeartbeat(
            request_id=event.request_id,
            group_id=event.group_id,
            member_id=event.member_id,
            member_epoch=JOIN_EPOCH,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            owned={} if read is None else context.subscriptions.by_id(read.owned),
        )
        super().__init__(context, group, heartbeat)
        self._join = event
        self._join_empty = join_empty
        self._subscription = read

    def decide(self, now: float) -> list[GroupsRecord]:
        if not self.state.members:
            self._join_empty(now, self.group, self._join)
            return []
        return super().decide(now)

    def committed(self, now: float) -> None:
        super().committed(now)
        downgrade(self.context, now, self.group)

    def _identify(self, state: ConsumerState) -> AdmittedMember:
        event = self._join
        member_id = event.member_id
        self._check_protocols(state)
        if member_id == NO_MEMBER_ID:
            member_id = self.context.new_member_id(event.instance_id or event.client_id)
            holder = state.static_member(event.instance_id or "")
            if holder is not None:
                # As in a classic group: the last member to join with an instance id gets it.
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

    def _check_protocols(self, state: ConsumerState) -> None:
        """Classic members must have a protocol in common, for a later downgrade."""
        common = {name for name, _ in self._join.protocols}
        itself = (self._join.member_id, state.static_member(self._join.instance_id or ""))
        for member_id, member in state.members.items():
            if member.classic is not None and member_id not in itself:
                common &= {name for name, _ in member.classic.protocols}
        if self._subscription is None or not common:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _described(self, before: ConsumerMember | None) -> ConsumerMember:
        assert self._subscription is not None, "it was checked"
        return classic_member(Member.of(self._join, self._member_id), self._subscription)

    def _make_result(
        self,
        now: float,
        member: ConsumerMember,
        current: CurrentAssignment,
        stepped: CurrentAssignment,
    ) -> JoinResult:
        key = revoke_key(self.group, self._member_id)
        if stepped.state is not MemberState.UNREVOKED:
            # It rejoined as requested. The next request starts a new timeout.
            self.context.runtime.timers.cancel(key)
        elif stepped != current:
            # Now, not when it is stored: its timeout may be the next write.
            timeout_s = member.rebalance_timeout_ms / 1000
            self.context.runtime.timers.set(key, now + timeout_s)
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
            # A queue group; JoinGroup has no such code.
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        result = JoinResult(error=code, member_id=self._join.member_id)
        self.context.runtime.reply(self._join.request_id, result)


def _state(group: Group) -> ConsumerState:
    return group.consumer or ConsumerState()

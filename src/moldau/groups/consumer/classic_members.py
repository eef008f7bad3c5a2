"""Owns members that speak the classic protocol in a group whose broker assigns.

    JoinGroup   one heartbeat of the newer protocol: says what the member wants and still reads
    SyncGroup   tells what it has
    Heartbeat   calls it back to JoinGroup, by REBALANCE_IN_PROGRESS, when it is to take a step

A member's generation is its epoch. Nobody leads: no member is told that it is the leader.
"""

from collections.abc import Callable

from moldau.groups.consumer.consumer_groups import ConsumerGroups
from moldau.groups.consumer.heartbeat import AdmittedMember, HeartbeatWrite
from moldau.groups.consumer.migration import assignable, classic_member
from moldau.groups.consumer.records import (
    JOIN_EPOCH,
    ClassicClient,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.consumer.writes import revoke_key
from moldau.groups.consumer_protocol import assignment_bytes
from moldau.groups.events import NO_MEMBER_ID, ConsumerHeartbeat, Heartbeat, Join, Sync
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from moldau.groups.records import GroupsRecord
from moldau.groups.results import HeartbeatResult, JoinResult, SyncResult
from moldau.model.errors import ErrorCode, RefusedError

JoinEmpty = Callable[[float, Group, Join], None]


class ClassicMembers:
    """Handles Join, Sync and Heartbeat for groups whose broker assigns."""

    def __init__(self, consumers: ConsumerGroups) -> None:
        self._consumers = consumers
        self._runtime = consumers.runtime

    def join(self, now: float, group: Group, event: Join, join_empty: JoinEmpty) -> None:
        """`join_empty` is asked instead if the group has no members when its turn comes."""
        self._runtime.submit(
            now, group, ClassicJoinWrite(self._consumers, group, event, join_empty)
        )

    def sync(self, now: float, group: Group, event: Sync) -> None:
        error, member = self._member(group, event)
        if member is None or member.classic is None:
            result = SyncResult(error=error)
        else:
            self._consumers.renew_session(now, group, event.member_id)
            result = self._assignment(group, event, member, member.classic)
        self._runtime.reply(event.request_id, result)

    def _assignment(
        self, group: Group, event: Sync, member: ConsumerMember, client: ClassicClient
    ) -> SyncResult:
        # Before the group was taken over, the member may have been told another of its protocols.
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
            assignment=assignment_bytes(self._consumers.subscriptions.by_name(member, assigned)),
        )

    def heartbeat(self, now: float, group: Group, event: Heartbeat) -> None:
        error, member = self._member(group, event)
        if member is not None:
            self._consumers.renew_session(now, group, event.member_id)
            if self._consumers.call_back(now, group, event.member_id):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._runtime.reply(event.request_id, HeartbeatResult(error=error))

    def _member(
        self, group: Group, event: Sync | Heartbeat
    ) -> tuple[ErrorCode, ConsumerMember | None]:
        """The member that asks; None with the reason why it is none."""
        error = group.consumer_error(event.member_id, event.instance_id, event.generation)
        member = _state(group).members.get(event.member_id)
        if member is not None and member.classic is None:
            # The id of a member that speaks the newer protocol: it never asks this way.
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return error, member if error is ErrorCode.NONE else None


class ClassicJoinWrite(HeartbeatWrite):
    """A JoinGroup, judged as the heartbeat that it stands for."""

    __slots__ = ("_join", "_join_empty", "_subscription")

    def __init__(
        self, consumers: ConsumerGroups, group: Group, event: Join, join_empty: JoinEmpty
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
            owned={} if read is None else consumers.subscriptions.by_id(read.owned),
        )
        super().__init__(consumers, group, heartbeat)
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
        self.consumers.go_back(now, self.group)

    def _enter(self, state: ConsumerState) -> AdmittedMember:
        event = self._join
        member_id = event.member_id
        self._check_protocols(state)
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

    def _check_protocols(self, state: ConsumerState) -> None:
        """Classic members must be able to be a group of their own when the others have left."""
        spoken = {name for name, _ in self._join.protocols}
        itself = (self._join.member_id, state.static_member(self._join.instance_id or ""))
        for member_id, member in state.members.items():
            if member.classic is not None and member_id not in itself:
                spoken &= {name for name, _ in member.classic.protocols}
        if self._subscription is None or not spoken:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _described(self, before: ConsumerMember | None) -> ConsumerMember:
        assert self._subscription is not None, "it was checked"
        return classic_member(Member.of(self._join, self._member_id), self._subscription)

    def _answer(
        self,
        now: float,
        member: ConsumerMember,
        current: CurrentAssignment,
        stepped: CurrentAssignment,
    ) -> JoinResult:
        key = revoke_key(self.group, self._member_id)
        if stepped.state is not MemberState.UNREVOKED:
            # It came as it was called. If it is called again, its time begins anew.
            self.consumers.runtime.timers.cancel(key)
        elif stepped != current:
            # Now, not when it is stored: the end of its time may be next in turn.
            timeout_s = member.rebalance_timeout_ms / 1000
            self.consumers.runtime.timers.set(key, now + timeout_s)
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


def _state(group: Group) -> ConsumerState:
    return group.consumer or ConsumerState()

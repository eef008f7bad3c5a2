"""Handles SyncGroup, Heartbeat and LeaveGroup of classic groups."""

from moldau.groups.events import NO_MEMBER_ID, Heartbeat, Leave, LeavingMember, Sync
from moldau.groups.group import Group, Member
from moldau.groups.rebalance import Rebalance, sync_result
from moldau.groups.records import GroupRecord, GroupsRecord
from moldau.groups.results import GroupState, HeartbeatResult, LeaveResult, LeftMember, SyncResult
from moldau.groups.runtime import Runtime
from moldau.groups.write import Write
from moldau.model.coordinator_events import client_error
from moldau.model.errors import ErrorCode


class SyncHandler:
    def __init__(self, runtime: Runtime, rebalance: Rebalance) -> None:
        self.runtime = runtime
        self.rebalance = rebalance

    def sync(self, now: float, event: Sync) -> None:
        group = self.runtime.groups.get(event.group_id)
        error = _sync_error(group, event)
        if group is not None and error is ErrorCode.NONE:
            error = self._size_error(group, event)
        if group is None or error is not ErrorCode.NONE:
            self.runtime.reply(event.request_id, SyncResult(error=error))
            return
        member = group.members[event.member_id]
        if group.state is GroupState.STABLE:
            self.rebalance.sync_received(group, member)
            self.rebalance.renew_session(now, group, member)
            result = sync_result(group, member, ErrorCode.NONE)
            self.runtime.reply(event.request_id, result)
            return
        if member.sync_request is not None:
            # The client sent a new request, so it no longer reads the response to the first.
            again = SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
            self.runtime.reply(member.sync_request, again)
        member.sync_request = event.request_id
        self.rebalance.sync_received(group, member)
        if group.leader == member.member_id:
            self.runtime.submit(now, group, StoreGeneration(self, group, event))

    def _size_error(self, group: Group, event: Sync) -> ErrorCode:
        sizes = [len(data) for _, data in event.assignments]
        if max(sizes, default=0) > self.runtime.config.member_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        before = sum(len(member.assignment) for member in group.members.values())
        if not self.runtime.may_grow(group, sum(sizes) - before):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def heartbeat(self, now: float, event: Heartbeat) -> None:
        group = self.runtime.groups.get(event.group_id)
        self.runtime.reply(
            event.request_id, HeartbeatResult(error=self._heartbeat_error(now, group, event))
        )

    def _heartbeat_error(self, now: float, group: Group | None, event: Heartbeat) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = generation_error(group, event.member_id, event.instance_id, event.generation)
        if error is not ErrorCode.NONE:
            return error
        self.rebalance.renew_session(now, group, group.members[event.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, now: float, event: Leave) -> None:
        group = self.runtime.groups.get(event.group_id)
        if group is not None and group.state is GroupState.DEAD:
            result = LeaveResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            result = LeaveResult(
                error=ErrorCode.NONE,
                members=tuple(
                    LeftMember(
                        member_id=leaving.member_id,
                        instance_id=leaving.instance_id,
                        error=self._leave_one(now, group, leaving),
                    )
                    for leaving in event.members
                ),
            )
        self.runtime.reply(event.request_id, result)

    def _leave_one(self, now: float, group: Group | None, leaving: LeavingMember) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if leaving.instance_id is None and leaving.member_id in group.pending:
            self.rebalance.remove_pending(now, group, leaving.member_id)
            return ErrorCode.NONE
        member_id = leaving.member_id
        if member_id == NO_MEMBER_ID and leaving.instance_id is not None:
            # An administrator removes a static member without knowing its id.
            member_id = group.static.get(leaving.instance_id, NO_MEMBER_ID)
        error = group.member_error(member_id, leaving.instance_id)
        if error is ErrorCode.NONE:
            self.rebalance.remove_member(now, group, group.members[member_id])
        return error


class StoreGeneration(Write):
    """Stores the leader's assignment before the members get it, so that it survives a failover."""

    __slots__ = ("_assignments", "_generation", "_group", "_handler", "_leader")

    def __init__(self, handler: SyncHandler, group: Group, event: Sync) -> None:
        self._handler = handler
        self._group = group
        self._generation = event.generation
        self._leader = event.member_id
        self._assignments = dict(event.assignments)

    def decide(self, now: float) -> list[GroupsRecord]:
        if not self._current:
            # A rebalance in between has replied to the syncs, or the same sync came twice.
            return []
        group = self._group
        members = [
            member.stored(group.protocol_name, self._assignment(member))
            for member in group.members.values()
        ]
        snapshot = group.snapshot(self._handler.runtime.wall_ms(), members)
        return [GroupRecord(group_id=group.group_id, value=snapshot)]

    def committed(self, now: float) -> None:
        if not self._current:
            # A newer generation will replace this one.
            return
        group = self._group
        for member in group.members.values():
            group.assign(member, self._assignment(member))
        group.state = GroupState.STABLE
        self._handler.rebalance.finish_syncs(now, group, ErrorCode.NONE)

    def failed(self, now: float, error: ErrorCode) -> None:
        if self._current:
            self._handler.rebalance.finish_syncs(now, self._group, client_error(error))
            self._handler.rebalance.prepare(now, self._group)

    @property
    def _current(self) -> bool:
        return (
            self._group.state is GroupState.COMPLETING_REBALANCE
            and self._group.generation == self._generation
            and self._group.leader == self._leader
        )

    def _assignment(self, member: Member) -> bytes:
        return self._assignments.get(member.member_id, b"")


def generation_error(
    group: Group, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """NONE if this is a member of the current generation."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.member_error(member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _sync_error(group: Group | None, event: Sync) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = generation_error(group, event.member_id, event.instance_id, event.generation)
    if error is not ErrorCode.NONE:
        return error
    if group.state is GroupState.PREPARING_REBALANCE:
        # Before the names are compared: the protocol may have changed since its last join.
        return ErrorCode.REBALANCE_IN_PROGRESS
    if event.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if event.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE

"""Writes of consumer-protocol groups: their base class, the expiry and the removal of members.

Waiting writes are decided one after the other on a draft of the group, and stored together: a slow
disk causes larger batches, not a longer queue.
"""

from collections.abc import Callable

from moldau.groups.consumer.context import ConsumerContext
from moldau.groups.consumer.reconcile import must_rejoin
from moldau.groups.consumer.records import (
    ConsumerRecord,
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    TargetAssignmentRecord,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.events import Leave
from moldau.groups.group import Group
from moldau.groups.rebalance import session_key
from moldau.groups.records import GroupsRecord
from moldau.groups.results import LeaveResult, LeftMember
from moldau.groups.timers import TimerKey, TimerKind
from moldau.groups.write import Write
from moldau.model.coordinator_events import client_error
from moldau.model.errors import ErrorCode

ClassicLeave = Callable[[float, Leave], None]


class ConsumerWrite(Write):
    """A write of a consumer-protocol group, decided on the group's draft."""

    __slots__ = ("context", "group")
    merges = "consumer"

    def __init__(self, context: ConsumerContext, group: Group) -> None:
        self.context = context
        self.group = group

    @property
    def state(self) -> ConsumerState:
        """The state after all writes before this one."""
        return self.group.draft or self.group.consumer or ConsumerState()

    def drafted(self, records: list[ConsumerRecord]) -> list[GroupsRecord]:
        if records:
            if self.group.draft is None:
                self.group.draft = self.state.copy()
            for record in records:
                self.group.draft.apply(record)
        return list(records)

    def undo(self, now: float) -> None:
        """Drop the draft. Sessions that expired with it restart."""
        self.group.draft = None
        members = self.group.consumer.members if self.group.consumer is not None else {}
        for member_id in members:
            if self.context.runtime.timers.deadline(session_key(self.group, member_id)) is None:
                self.context.renew_session(now, self.group, member_id)

    def without(
        self, state: ConsumerState, member_id: str, *, is_replaced: bool = False
    ) -> list[ConsumerRecord]:
        """Records that remove the member and bump the group epoch."""
        group_id = self.group.group_id
        records: list[ConsumerRecord] = [
            CurrentAssignmentRecord(group_id=group_id, member_id=member_id, value=None),
            TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=None),
            MemberRecord(group_id=group_id, member_id=member_id, value=None),
        ]
        if not is_replaced:
            left = {one: each for one, each in state.members.items() if one != member_id}
            subscriptions = self.context.subscriptions
            epoch = GroupEpoch(
                epoch=state.number + 1,
                topics_hash=subscriptions.hash(subscriptions.all_names(left)),
            )
            if not left:
                epoch = GroupEpoch(epoch=epoch.epoch, empty_since=self.context.runtime.wall_ms())
            records.append(EpochRecord(group_id=group_id, value=epoch))
        return records


class ExpireMember(ConsumerWrite):
    """Removes a member whose session expired, or that did not revoke partitions in time."""

    __slots__ = ("_key",)

    def __init__(self, context: ConsumerContext, group: Group, key: TimerKey) -> None:
        super().__init__(context, group)
        self._key = key

    def decide(self, now: float) -> list[GroupsRecord]:
        state = self.state
        member_id = self._key.member_id
        # A heartbeat may have arrived while this waited.
        is_renewed = self.context.runtime.timers.deadline(self._key) is not None
        if member_id not in state.members or is_renewed:
            return []
        if self._key.kind is TimerKind.REVOKE and not self._is_late(state, member_id):
            return []
        return self.drafted(self.without(state, member_id))

    def _is_late(self, state: ConsumerState, member_id: str) -> bool:
        if state.members[member_id].classic is not None:
            return must_rejoin(state, member_id)
        return state.current(member_id).state is MemberState.UNREVOKED

    def committed(self, now: float) -> None:
        self.group.draft = None
        self.context.forget(self.group, self._key.member_id)

    def failed(self, now: float, error: ErrorCode) -> None:
        self.undo(now)
        # Retry: a dead member must not keep its partitions.
        self.context.runtime.timers.set(self._key, now + 1.0)


class RemoveMembers(ConsumerWrite):
    """LeaveGroup of classic members, or of any members by an administrator."""

    __slots__ = ("_classic", "_event", "_removed", "_result")

    def __init__(
        self, context: ConsumerContext, group: Group, event: Leave, classic: ClassicLeave
    ) -> None:
        super().__init__(context, group)
        self._event = event
        self._classic = classic
        self._removed: list[str] = []
        self._result = LeaveResult(error=ErrorCode.NONE)

    def decide(self, now: float) -> list[GroupsRecord]:
        if self.group.consumer is None and self.group.draft is None:
            self._classic(now, self._event)
            return []
        records: list[GroupsRecord] = []
        left: list[LeftMember] = []
        for leaving in self._event.members:
            state = self.state
            holder = state.static_member(leaving.instance_id or "")
            member_id = leaving.member_id or holder or ""
            error = state.member_error(member_id, leaving.instance_id)
            if error is ErrorCode.NONE:
                records += self.drafted(self.without(state, member_id))
                self._removed.append(member_id)
            elif leaving.instance_id is None and member_id in self.group.pending:
                self.context.rebalance.remove_pending(now, self.group, member_id)
                error = ErrorCode.NONE
            left.append(
                LeftMember(
                    member_id=leaving.member_id, instance_id=leaving.instance_id, error=error
                )
            )
        self._result = LeaveResult(error=ErrorCode.NONE, members=tuple(left))
        if not records:
            self.context.runtime.reply(self._event.request_id, self._result)
        return records

    def committed(self, now: float) -> None:
        self.group.draft = None
        for member_id in self._removed:
            self.context.forget(self.group, member_id)
        self.context.runtime.reply(self._event.request_id, self._result)

    def failed(self, now: float, error: ErrorCode) -> None:
        self.undo(now)
        self.context.runtime.reply(self._event.request_id, LeaveResult(error=client_error(error)))

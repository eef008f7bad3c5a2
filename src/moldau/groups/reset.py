"""Sets offsets of a group for an administrator; its members are removed first, if that is wanted.

One write does both. So nothing is committed in between by members that were removed, or by members
that joined since: those get their partitions by a later write, and then fetch the new offsets. An
offset in an open transaction does not replace one that is set here, see `Group.apply`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.groups.consumer.context import ConsumerContext
from moldau.groups.consumer.records import (
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetAssignmentRecord,
)
from moldau.groups.consumer.state import ConsumerState
from moldau.groups.events import ResetOffsets
from moldau.groups.group import Group
from moldau.groups.offsets import GroupOffsets
from moldau.groups.records import GroupRecord, GroupsRecord
from moldau.groups.results import ResetResult
from moldau.groups.write import Write
from moldau.model.coordinator_events import TOO_LARGE, client_error
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TopicPartition

_NOTHING: Final[Mapping[TopicPartition, Offset]] = MappingProxyType({})


class GroupReset:
    """Handles ResetOffsets."""

    def __init__(self, context: ConsumerContext, offsets: GroupOffsets) -> None:
        self.context = context
        self.runtime = context.runtime
        self.offsets = offsets

    def reset(self, now: float, event: ResetOffsets) -> None:
        if not self.runtime.has_room_for(event.group_id):
            self.reply(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        group = self.runtime.group(event.group_id)
        self.runtime.submit(now, group, ResetOffsetsWrite(self, group, event))

    def reply(
        self,
        event: ResetOffsets,
        error: ErrorCode,
        replaced: Mapping[TopicPartition, Offset] = _NOTHING,
    ) -> None:
        self.runtime.reply(event.request_id, ResetResult(error=error, replaced=dict(replaced)))


class ResetOffsetsWrite(Write):
    """All of it, or nothing: but members that were removed stay away if the append fails."""

    __slots__ = ("_event", "_group", "_removed", "_replaced", "_reset")

    def __init__(self, reset: GroupReset, group: Group, event: ResetOffsets) -> None:
        self._reset = reset
        self._group = group
        self._event = event
        self._removed: list[str] = []
        """Members of the consumer protocol."""
        self._replaced: dict[TopicPartition, Offset] = {}

    def decide(self, now: float) -> list[GroupsRecord]:
        group, event = self._group, self._event
        if not group.is_empty and not event.removes_members:
            self._reset.reply(event, ErrorCode.NON_EMPTY_GROUP)
            return []
        # Members go on to commit until they are removed, which is here.
        known = {place: one.offset for place, one in group.offsets.items()}
        if any(known.get(place) != offset for place, offset in event.expected):
            self._reset.reply(event, ErrorCode.INVALID_UPDATE_VERSION)
            return []
        wanted = (one.partition for one in event.offsets)
        self._replaced = {place: known[place] for place in wanted if place in known}
        records: list[GroupsRecord] = []
        if group.consumer is not None and group.has_consumers:
            records += self._without_consumers(group.consumer)
        elif not group.is_empty:
            self._reset.context.rebalance.remove_all(group)
            value = group.snapshot(self._reset.runtime.wall_ms(), ())
            records.append(GroupRecord(group_id=group.group_id, value=value))
        records += self._reset.offsets.records(group, event.offsets)
        if not records:
            self._reset.reply(event, ErrorCode.NONE, self._replaced)
        return records

    def _without_consumers(self, state: ConsumerState) -> list[GroupsRecord]:
        group_id = self._group.group_id
        records: list[GroupsRecord] = []
        for member_id in state.members:
            self._removed.append(member_id)
            records += (
                CurrentAssignmentRecord(group_id=group_id, member_id=member_id, value=None),
                TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=None),
                MemberRecord(group_id=group_id, member_id=member_id, value=None),
            )
        epoch = GroupEpoch(epoch=state.number + 1, empty_since=self._reset.runtime.wall_ms())
        records.append(EpochRecord(group_id=group_id, value=epoch))
        return records

    def committed(self, now: float) -> None:
        for member_id in self._removed:
            self._reset.context.forget(self._group, member_id)
        self._reset.reply(self._event, ErrorCode.NONE, self._replaced)

    def failed(self, now: float, error: ErrorCode) -> None:
        too_large = error in TOO_LARGE
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if too_large else client_error(error)
        self._reset.reply(self._event, code)

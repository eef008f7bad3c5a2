"""Deletes durable state: offsets of deleted topics, expired offsets, and whole groups."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from moldau.groups.events import DeleteGroups
from moldau.groups.group import Group
from moldau.groups.rebalance import pending_key
from moldau.groups.records import GroupRecord, GroupsRecord, OffsetRecord
from moldau.groups.results import DeleteGroupsResult, GroupState
from moldau.groups.runtime import Runtime
from moldau.groups.write import Write
from moldau.model.coordinator_events import client_error
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition

_REMOVED_MAX: Final = 1_000
"""Offsets removed per write: bounds the batch size, and the time on the event loop."""


class RemoveOffsets(Write):
    """Removes offsets of deleted topics, or those that `choose` returns. No request waits for it.

    Large numbers are removed by several writes in a row. An empty group is deleted with its last
    offset, unless it has pending member ids.
    """

    __slots__ = ("_choose", "_group", "_is_full", "_runtime", "_topics")

    def __init__(
        self,
        runtime: Runtime,
        group: Group,
        *,
        topics: frozenset[str] = frozenset(),
        choose: Callable[[Group], Iterable[TopicPartition]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._group = group
        self._topics = topics
        self._choose = choose
        self._is_full = False

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self._group
        if self._choose is None:
            old: Iterable[TopicPartition] = (
                partition for partition in _known(group) if partition.topic in self._topics
            )
        else:
            old = self._choose(group)
        removed = list(islice(old, _REMOVED_MAX))
        self._is_full = len(removed) == _REMOVED_MAX
        records: list[GroupsRecord] = [
            OffsetRecord(group_id=group.group_id, partition=partition, value=None)
            for partition in removed
        ]
        if (
            self._choose is not None
            and len(removed) == len(group.offsets)
            and group.is_empty
            and not group.pending
            and not group.pending_offsets
        ):
            records += tombstones(group)
        return records

    def committed(self, now: float) -> None:
        if self._is_full:
            # Before all that wait: they may commit to the next topic of that name.
            self._group.waiting.appendleft(self)

    def failed(self, now: float, error: ErrorCode) -> None:
        """The next expiry round retries; offsets of deleted topics expire eventually."""


class GroupDeletion:
    """Collects the results of one DeleteGroups request."""

    __slots__ = ("_errors", "_event", "_left", "_runtime")

    def __init__(self, runtime: Runtime, event: DeleteGroups) -> None:
        self._runtime = runtime
        self._event = event
        self._errors: dict[str, ErrorCode] = {}
        self._left = dict.fromkeys(event.group_ids)

    def start(self, now: float) -> None:
        group_ids = list(self._left)
        if not group_ids:
            self._runtime.reply(self._event.request_id, DeleteGroupsResult(errors=()))
        for group_id in group_ids:
            group = self._runtime.groups.get(group_id)
            if group is None or group.state is GroupState.DEAD:
                self.done(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            else:
                self._runtime.submit(now, group, DeleteGroupWrite(self._runtime, group, self))

    def done(self, group_id: str, error: ErrorCode) -> None:
        self._errors[group_id] = error
        self._left.pop(group_id, None)
        if not self._left:
            self._runtime.reply(
                self._event.request_id,
                DeleteGroupsResult(
                    errors=tuple((one, self._errors[one]) for one in self._event.group_ids)
                ),
            )


class DeleteGroupWrite(Write):
    """Deletes a group with all its offsets; Dead while the tombstones are in flight."""

    __slots__ = ("_deletion", "_group", "_is_full", "_runtime")

    def __init__(self, runtime: Runtime, group: Group, deletion: GroupDeletion) -> None:
        self._runtime = runtime
        self._group = group
        self._deletion = deletion
        self._is_full = False

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self._group
        is_begun = self._is_full
        if not (group.is_empty or is_begun):
            self._deletion.done(group.group_id, ErrorCode.NON_EMPTY_GROUP)
            return []
        removed = list(islice(_known(group), _REMOVED_MAX))
        self._is_full = len(removed) == _REMOVED_MAX
        records: list[GroupsRecord] = [
            OffsetRecord(group_id=group.group_id, partition=partition, value=None)
            for partition in removed
        ]
        if not self._is_full:
            records += tombstones(group)
        if records:
            group.state = GroupState.DEAD
        else:
            self._reset()
            self._deletion.done(group.group_id, ErrorCode.NONE)
        return records

    def committed(self, now: float) -> None:
        if self._is_full:
            # Its next write goes before all waiting ones.
            self._group.waiting.appendleft(self)
            return
        self._reset()
        self._deletion.done(self._group.group_id, ErrorCode.NONE)

    def failed(self, now: float, error: ErrorCode) -> None:
        if self._group.state is GroupState.DEAD:
            self._group.state = GroupState.EMPTY
        self._deletion.done(self._group.group_id, client_error(error))

    def _reset(self) -> None:
        """Requests that waited for the deletion find a new, empty group."""
        group = self._group
        group.state = GroupState.EMPTY
        group.generation = 0
        group.protocol_type = None
        for member_id in group.pending:
            self._runtime.timers.cancel(pending_key(group, member_id))
        group.pending.clear()


def _known(group: Group) -> Iterable[TopicPartition]:
    """Partitions with an offset, including offsets of open transactions."""
    return dict.fromkeys((*group.offsets, *sorted(group.pending_partitions)))


def tombstones(group: Group) -> list[GroupsRecord]:
    """Delete everything stored of a group except its offsets."""
    records: list[GroupsRecord] = []
    if group.stored is not None:
        records.append(GroupRecord(group_id=group.group_id, value=None))
    if group.consumer is not None:
        records += group.consumer.tombstones(group.group_id)
    return records

"""Owns the stored state of one consumer group, and how records change it.

Records of different keys may be applied in any order: a loading replays the last record of each
key, not the log. So nothing here looks at another record's part, except the index of owners, which
follows the current assignments alone.
"""

from collections.abc import Iterator

from moldau.groups.assignors.interface import NOTHING, Assignment
from moldau.groups.consumer.records import (
    ConsumerMember,
    ConsumerRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from moldau.groups.results import ConsumerGroupState
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicId

_NO_CURRENT = CurrentAssignment()


class ConsumerState:
    """Members, their targets and what they have. Changed by `apply` only."""

    __slots__ = (
        "_owners",
        "_static",
        "currents",
        "epoch",
        "members",
        "seen_topics",
        "target_epoch",
        "targets",
    )

    def __init__(self) -> None:
        self.epoch: GroupEpoch | None = None
        self.members: dict[str, ConsumerMember] = {}
        self.target_epoch: int | None = None
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self._owners: dict[TopicId, dict[int, str]] = {}
        self._static: dict[str, str] = {}
        """instance id -> member id"""
        self.seen_topics = -1
        """Version of the topics that the group was last compared with. Not stored."""

    def copy(self) -> "ConsumerState":
        other = ConsumerState()
        other.epoch = self.epoch
        other.members = dict(self.members)
        other.target_epoch = self.target_epoch
        other.targets = dict(self.targets)
        other.currents = dict(self.currents)
        other._owners = {topic: dict(owners) for topic, owners in self._owners.items()}
        other._static = dict(self._static)
        other.seen_topics = self.seen_topics
        return other

    # ---- questions

    @property
    def is_gone(self) -> bool:
        return (
            self.epoch is None
            and self.target_epoch is None
            and not (self.members or self.targets or self.currents)
        )

    @property
    def number(self) -> int:
        return 0 if self.epoch is None else self.epoch.epoch

    def current(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, _NO_CURRENT)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def owner(self, topic: TopicId, index: int) -> str | None:
        """Who has the partition, be it that it must let go of it."""
        owners = self._owners.get(topic)
        return None if owners is None else owners.get(index)

    def static_member(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Is this a member, and the one that it says it is?"""
        holder = None if instance_id is None else self._static.get(instance_id)
        if holder is not None and holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members or (instance_id is not None and holder is None):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    @property
    def is_all_classic(self) -> bool:
        """Members, and none of them left for whom the broker would have to assign."""
        return bool(self.members) and all(
            member.classic is not None for member in self.members.values()
        )

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if (self.target_epoch or 0) < self.number:
            return ConsumerGroupState.ASSIGNING
        for member_id in self.members:
            current = self.current(member_id)
            if current.state is not MemberState.STABLE or current.epoch != self.target_epoch:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    def tombstones(self, group_id: str) -> Iterator[ConsumerRecord]:
        """Everything of the group is gone with these."""
        for member_id in self.currents:
            yield CurrentAssignmentRecord(group_id=group_id, member_id=member_id, value=None)
        for member_id in self.targets:
            yield TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=None)
        if self.target_epoch is not None:
            yield TargetEpochRecord(group_id=group_id, value=None)
        for member_id in self.members:
            yield MemberRecord(group_id=group_id, member_id=member_id, value=None)
        if self.epoch is not None:
            yield EpochRecord(group_id=group_id, value=None)

    # ---- changes

    def apply(self, record: ConsumerRecord) -> None:
        match record:
            case EpochRecord():
                self.epoch = record.value
            case TargetEpochRecord():
                self.target_epoch = record.value
            case TargetAssignmentRecord():
                if record.value is None:
                    self.targets.pop(record.member_id, None)
                else:
                    self.targets[record.member_id] = record.value
            case MemberRecord():
                self._apply_member(record.member_id, record.value)
            case CurrentAssignmentRecord():
                self._apply_current(record.member_id, record.value)

    def _apply_member(self, member_id: str, value: ConsumerMember | None) -> None:
        before = self.members.pop(member_id, None)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        if value is not None:
            self.members[member_id] = value
            if value.instance_id is not None:
                self._static[value.instance_id] = member_id

    def _apply_current(self, member_id: str, value: CurrentAssignment | None) -> None:
        before = self.currents.pop(member_id, None)
        if before is not None:
            for topic, index in _all_of(before):
                owners = self._owners.get(topic)
                # The partition may have gone to another before this record was applied.
                if owners is not None and owners.get(index) == member_id:
                    del owners[index]
                    if not owners:
                        del self._owners[topic]
        if value is not None:
            self.currents[member_id] = value
            for topic, index in _all_of(value):
                self._owners.setdefault(topic, {})[index] = member_id


def _all_of(current: CurrentAssignment) -> Iterator[tuple[TopicId, int]]:
    for assignment in (current.assigned, current.revoking):
        for topic, indexes in assignment.items():
            for index in indexes:
                yield topic, index

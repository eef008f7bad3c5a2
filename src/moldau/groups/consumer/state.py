"""Stored state of one consumer-protocol group, and how records change it.

Records of different keys may be applied in any order: loading replays the last record of each key,
not the log. So a record changes only its own part; the index of owners depends on the current
assignments alone.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

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
from moldau.groups.weights import member_weight
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicId

_NO_CURRENT = CurrentAssignment()


class ConsumerState(Struct, eq=False):
    """Members, their target and current assignments. Changed by `apply` only."""

    epoch: GroupEpoch | None = None
    members: dict[str, ConsumerMember] = {}
    target_epoch: int | None = None
    targets: dict[str, Assignment] = {}
    currents: dict[str, CurrentAssignment] = {}
    _owners: dict[TopicId, dict[int, str]] = {}
    _static: dict[str, str] = {}
    """instance id -> member id"""
    member_bytes: int = 0
    """What the members weigh."""
    seen_topics: int = -1
    """Version of the topics at the last check for changes. Not stored."""

    def copy(self) -> "ConsumerState":
        return replace(
            self,
            members=dict(self.members),
            targets=dict(self.targets),
            currents=dict(self.currents),
            _owners={topic: dict(owners) for topic, owners in self._owners.items()},
            _static=dict(self._static),
        )

    # ---- queries

    @property
    def is_deleted(self) -> bool:
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
        """The owner of the partition, even if it must revoke it."""
        owners = self._owners.get(topic)
        return None if owners is None else owners.get(index)

    def static_member(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member, and its instance id is not taken by another one."""
        holder = None if instance_id is None else self._static.get(instance_id)
        if holder is not None and holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members or (instance_id is not None and holder is None):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    @property
    def is_all_classic(self) -> bool:
        """Whether there are members, and all of them use the classic protocol."""
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
        """Records that delete the whole group."""
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
        if before is not None:
            self.member_bytes -= consumer_weight(member_id, before)
        if value is not None:
            self.members[member_id] = value
            self.member_bytes += consumer_weight(member_id, value)
            if value.instance_id is not None:
                self._static[value.instance_id] = member_id

    def _apply_current(self, member_id: str, value: CurrentAssignment | None) -> None:
        before = self.currents.pop(member_id, None)
        if before is not None:
            for topic, index in _all_of(before):
                owners = self._owners.get(topic)
                # Another member may own the partition by the time this record is applied.
                if owners is not None and owners.get(index) == member_id:
                    del owners[index]
                    if not owners:
                        del self._owners[topic]
        if value is not None:
            self.currents[member_id] = value
            for topic, index in _all_of(value):
                self._owners.setdefault(topic, {})[index] = member_id


def consumer_weight(member_id: str, member: ConsumerMember) -> int:
    texts = (
        member_id,
        member.instance_id,
        member.rack,
        member.client_id,
        member.client_host,
        member.pattern,
    )
    protocols = () if member.classic is None else member.classic.protocols
    return member_weight(texts, protocols, member.topics)


def _all_of(current: CurrentAssignment) -> Iterator[tuple[TopicId, int]]:
    for assignment in (current.assigned, current.revoking):
        for topic, indexes in assignment.items():
            for index in indexes:
                yield topic, index

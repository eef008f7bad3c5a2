"""Consumer groups: members, committed offsets, descriptions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from moldau.api.audit import VALIDATED, Parts
from moldau.api.broker import Broker
from moldau.api.cluster_queries import GroupListing, PartitionExtent
from moldau.api.guard import REFUSAL_CODES, Guard
from moldau.api.overview.group_lags import GroupLag, PositionLag
from moldau.api.topic_groups import TopicGroupPage, groups_max
from moldau.api.topic_stats import TopicFigures
from moldau.groups.events import (
    NO_GENERATION,
    NO_MEMBER_ID,
    ConsumerHeartbeat,
    Heartbeat,
    Join,
    Leave,
    OffsetToCommit,
    Sync,
)
from moldau.groups.results import (
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchOffsetsResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    ListedGroup,
    SyncResult,
)
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId, TopicPartition
from moldau.security.acl import ResourceType

_GROUP: Final = ResourceType.GROUP
_TOPIC: Final = ResourceType.TOPIC
_TOPIC_REFUSED: Final = REFUSAL_CODES[_TOPIC]

_PER_LINE: Final = 50
"""Positions in one line of the audit log."""

MemberEvent = TypeVar("MemberEvent", Join, Sync, Heartbeat, Leave, ConsumerHeartbeat)


class GuardedGroups:
    """Methods raise RefusedError for the whole group."""

    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.groups

    # ---- members; `make_event` gets the id of the request

    async def join(self, group_id: str, make_event: Callable[[int], Join]) -> JoinResult:
        self._check_member("groups.join", group_id, make_event)
        return await self._service.submit(group_id, make_event, JoinResult)

    async def sync(self, group_id: str, make_event: Callable[[int], Sync]) -> SyncResult:
        self._check_member("groups.sync", group_id, make_event)
        return await self._service.submit(group_id, make_event, SyncResult)

    async def heartbeat(
        self, group_id: str, make_event: Callable[[int], Heartbeat]
    ) -> HeartbeatResult:
        self._check_member("groups.heartbeat", group_id, make_event)
        return await self._service.submit(group_id, make_event, HeartbeatResult)

    async def leave(self, group_id: str, make_event: Callable[[int], Leave]) -> LeaveResult:
        self._check_member("groups.leave", group_id, make_event)
        return await self._service.submit(group_id, make_event, LeaveResult)

    async def consumer_heartbeat(
        self, group_id: str, make_event: Callable[[int], ConsumerHeartbeat]
    ) -> ConsumerHeartbeatResult:
        use_case = "groups.consumer_heartbeat"
        event = self._check_member(use_case, group_id, make_event)
        if event is not None:
            for name in event.topics or ():
                self._guard.check(use_case, _TOPIC, name)
        found = await self._service.submit(group_id, make_event, ConsumerHeartbeatResult)
        if event is None or found.assignment is None:
            return found
        # A pattern may also match topics that the client must not know of.
        seen = {
            topic_id: indexes
            for topic_id, indexes in found.assignment.items()
            if (topic := self._broker.image.topic_by_id(topic_id)) is not None
            and self._guard.sees(use_case, _TOPIC, topic.name)
        }
        return replace(found, assignment=seen)

    def _check_member(
        self, use_case: str, group_id: str, make_event: Callable[[int], MemberEvent]
    ) -> MemberEvent | None:
        """A sample of the event that the coordinator will get; None if all is allowed."""
        if self._guard.is_open:
            return None
        self._guard.check(use_case, _GROUP, group_id)
        event = make_event(0)
        if event.group_id != group_id:
            raise ValueError("the event is for another group than the one that was checked")
        return event

    # ---- offsets

    async def commit_offsets(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = NO_MEMBER_ID,
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
        retention_ms: int = -1,
    ) -> list[ErrorCode]:
        """An error per offset, in their order."""
        self._guard.check("groups.commit_offsets", _GROUP, group_id)
        allowed = self._allowed("groups.commit_offsets", (each.partition for each in offsets))
        stored: list[ErrorCode] = []
        wanted = [each for each in offsets if each.partition.topic in allowed]
        if wanted and generation < 0 and self._is_of_members(group_id):
            about = _by_topic((each.partition, f"={each.offset}") for each in wanted)
            self._guard.allows("groups.reset_offsets", _GROUP, group_id, about)
        if wanted or not offsets:
            stored = await self._service.commit_offsets(
                group_id,
                wanted,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
                retention_ms=retention_ms,
            )
        left = iter(stored)
        return [
            next(left) if each.partition.topic in allowed else _TOPIC_REFUSED for each in offsets
        ]

    def _is_of_members(self, group_id: str) -> bool:
        """Whether a commit by none of them is a reset. Other groups are of consumers that assign
        partitions to themselves, and commit like that each few seconds."""
        return not self._guard.is_open and (
            bool(self._service.describe(group_id).protocol_type)
            or self._service.describe_consumers(group_id).error is ErrorCode.NONE
        )

    async def reset(
        self,
        group_id: str,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        removes_members: bool,
        validate_only: bool,
        expected: Mapping[int, int] | None = None,
    ) -> dict[int, int] | None:
        """Sets offsets of one topic, all or none; returns those that they replace.

        With `validate_only`, only checks the rights. Refused if others than the `expected` ones are
        committed.
        """
        parts = [
            OffsetToCommit(
                partition=TopicPartition(topic.name, PartitionIndex(index)), offset=Offset(offset)
            )
            for index, offset in offsets.items()
        ]
        heading = VALIDATED if validate_only else ""
        removal = "members removed, " if removes_members else ""
        positions = [f"{index}={offset}" for index, offset in offsets.items()]
        # In lines, each of which the audit log holds in full.
        lines = [positions[at : at + _PER_LINE] for at in range(0, len(positions), _PER_LINE)]
        about = Parts(lines, ", ".join, f"{heading}{removal}{topic.name}: ")
        self._guard.check("groups.reset", _GROUP, group_id, about)
        self._guard.check("groups.reset", _TOPIC, topic.name, heading)
        if validate_only:
            return None
        replaced = await self._service.reset_offsets(
            group_id,
            parts,
            removes_members=removes_members,
            expected={
                TopicPartition(topic.name, PartitionIndex(index)): Offset(offset)
                for index, offset in (expected or {}).items()
            },
        )
        return {place.partition: offset for place, offset in replaced.items()}

    async def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all; without those of topics that the client
        may not describe."""
        use_case, guard = "groups.fetch_offsets", self._guard
        guard.check(use_case, _GROUP, group_id)
        if partitions is not None and not guard.is_open:
            partitions = list(partitions)
            allowed = self._allowed(use_case, partitions)
            partitions = [each for each in partitions if each.topic in allowed]
        found = await self._service.fetch_offsets(
            group_id, partitions, member_id=member_id, member_epoch=member_epoch
        )
        if partitions is None and not guard.is_open:
            seen = {
                topic
                for topic in {each.topic for each in (*found.offsets, *found.unstable)}
                if guard.sees(use_case, _TOPIC, topic)
            }
            found = replace(
                found,
                offsets={each: at for each, at in found.offsets.items() if each.topic in seen},
                unstable=frozenset(each for each in found.unstable if each.topic in seen),
            )
        return found

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[ErrorCode]:
        """An error per partition, in their order."""
        about = _by_topic((each, "") for each in partitions)
        self._guard.check("groups.delete_offsets", _GROUP, group_id, about)
        allowed = self._allowed("groups.delete_offsets", partitions)
        deleted: list[ErrorCode] = []
        wanted = [each for each in partitions if each.topic in allowed]
        if wanted or not partitions:
            deleted = await self._service.delete_offsets(group_id, wanted)
        left = iter(deleted)
        return [next(left) if each.topic in allowed else _TOPIC_REFUSED for each in partitions]

    def _allowed(self, use_case: str, partitions: Iterable[TopicPartition]) -> set[str]:
        """The topics that the client may use."""
        topics = {each.topic for each in partitions}
        if self._guard.is_open:
            return topics
        return {name for name in topics if self._guard.allows(use_case, _TOPIC, name)}

    # ---- groups

    def describe(self, group_id: str) -> DescribedGroup:
        """State and members of a group; its errors are in the result."""
        self._guard.check("groups.describe", _GROUP, group_id)
        return self._service.describe(group_id)

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        """Like `describe`, for groups of the consumer protocol (KIP-848). As in Kafka, all of it is
        refused if it has topics that the client may not describe."""
        use_case, guard = "groups.describe_consumers", self._guard
        guard.check(use_case, _GROUP, group_id)
        found = self._service.describe_consumers(group_id)
        if not guard.is_open:
            names = {name for member in found.members for name in self._topics_of(member)}
            if not all(guard.allows(use_case, _TOPIC, name) for name in names):
                return DescribedConsumerGroup(
                    error=_TOPIC_REFUSED,
                    message="The group has topics that the client may not describe",
                )
        return found

    def _topics_of(self, member: DescribedConsumer) -> set[str]:
        find = self._broker.image.topic_by_id
        assigned = (find(topic_id) for topic_id in {*member.assigned, *member.target})
        return {*member.topics, *(topic.name for topic in assigned if topic is not None)}

    def list_groups(
        self, states: Iterable[str], group_types: Iterable[str]
    ) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups of this broker, filtered by state and type."""
        error, listed = self._service.list_groups(states, group_types)
        if not self._guard.is_open:
            sees = self._guard.sees
            listed = [each for each in listed if sees("groups.list_groups", _GROUP, each.group_id)]
        return error, listed

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """An error per group."""
        allows = self._guard.allows
        allowed = [each for each in group_ids if allows("groups.delete_groups", _GROUP, each)]
        errors = dict.fromkeys(group_ids, REFUSAL_CODES[_GROUP])
        if allowed:
            errors.update(await self._service.delete_groups(allowed))
        return errors

    async def find_coordinator(self, group_id: str) -> BrokerId:
        """The broker that coordinates the group, as far as known."""
        self._guard.check("groups.find_coordinator", _GROUP, group_id)
        if not self.are_stored:
            self._guard.check("groups.start_coordinators", _GROUP, group_id)
        return await self._service.find_coordinator(group_id)

    @property
    def are_stored(self) -> bool:
        """Whether there was ever a group: finding its coordinator would create the topic."""
        return self._broker.image.topic(CONSUMER_OFFSETS_TOPIC) is not None


class GuardedQueries:
    """Queries that need other brokers."""

    __slots__ = ("_broker", "_guard", "_offsets_at", "_service", "_topic_groups")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.queries
        self._topic_groups = broker.topic_groups
        self._offsets_at = broker.offsets_at

    async def extents(
        self, wanted: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, PartitionExtent]:
        """Without partitions whose leader does not respond, and those of hidden topics."""
        if not self._guard.is_open:
            wanted = list(wanted)
            sees = self._guard.sees
            topics = {each.topic for each in wanted}
            seen = {name for name in topics if sees("queries.extents", _TOPIC, name)}
            wanted = [each for each in wanted if each.topic in seen]
            if not wanted:
                return {}
        return await self._service.extents(wanted)

    async def groups_of_topic(self, topic: Topic, after: str | None, size: int) -> TopicGroupPage:
        """The groups that consume a topic, by name."""
        use_case, guard = "queries.groups_of_topic", self._guard
        guard.check(use_case, _TOPIC, topic.name)
        service = self._topic_groups
        names, silent = await service.names(topic)
        seen = (each for each in names if after is None or each > after)
        if not guard.is_open:
            seen = (each for each in seen if guard.sees(use_case, _GROUP, each))
        most = groups_max(topic, size)
        page = list(islice(seen, most + 1))
        return await service.page(topic, page[:most], silent, has_more=len(page) > most)

    async def offsets_at(
        self, topic: Topic, partitions: Iterable[int], timestamp: int
    ) -> Mapping[int, int]:
        """The first offset of each at or after a time, or its end; without partitions whose leader
        does not respond."""
        self._guard.check("queries.offsets_at", _TOPIC, topic.name)
        return await self._offsets_at.find(topic, partitions, timestamp)

    async def groups(self) -> tuple[list[tuple[GroupListing, BrokerId]], list[BrokerId]]:
        """The groups with their coordinators, by name; and the brokers that did not respond."""
        found, silent = await self._service.groups()
        if not self._guard.is_open:
            sees = self._guard.sees
            found = [each for each in found if sees("queries.groups", _GROUP, each[0].group_id)]
        return found, silent

    async def topic_figures(self, topics: Iterable[Topic]) -> Mapping[TopicId, TopicFigures]:
        """Records, bytes and rates, by id; without those that the client may not describe."""
        if not self._guard.is_open:
            sees = self._guard.sees
            topics = [each for each in topics if sees("queries.topic_figures", _TOPIC, each.name)]
            if not topics:
                return {}
        return await self._broker.topic_stats.of(topics)

    async def group_lags(self, groups: Iterable[tuple[str, BrokerId]]) -> Mapping[str, GroupLag]:
        """The lag of groups, which are named with their coordinators; without hidden ones, and
        those whose coordinator does not respond."""
        if not self._guard.is_open:
            sees = self._guard.sees
            groups = [each for each in groups if sees("queries.group_lags", _GROUP, each[0])]
            if not groups:
                return {}
        return await self._broker.group_lags.by_coordinator(groups)

    async def position_lags(self, group: str) -> Mapping[TopicPartition, PositionLag]:
        """Of each committed offset of a group that this broker coordinates; without those of
        topics that the client may not describe. Empty, if it is not known now."""
        use_case, guard = "queries.position_lags", self._guard
        guard.check(use_case, _GROUP, group)
        try:
            found = await self._broker.group_lags.positions(group)
        except RefusedError:
            # Too many ask: the offsets are shown without.
            return {}
        if guard.is_open:
            return found
        topics = {each.topic for each in found}
        seen = {name for name in topics if guard.sees(use_case, _TOPIC, name)}
        return {each: lag for each, lag in found.items() if each.topic in seen}


def _by_topic(partitions: Iterable[tuple[TopicPartition, str]]) -> Parts[str]:
    """For the audit log, e.g. `orders: 0=5, 1=7`."""
    texts: dict[str, list[str]] = {}
    for (topic, index), more in partitions:
        texts.setdefault(topic, []).append(f"{index}{more}")
    return Parts([f"{topic}: {', '.join(found)}" for topic, found in texts.items()])

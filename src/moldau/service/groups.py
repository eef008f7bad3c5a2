"""Owns the use cases of consumer groups: finds the coordinator of a group and asks it.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to.
The topic is created when the first group shows up.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from moldau.groups.coordinator import Coordinator
from moldau.groups.events import (
    NO_GENERATION,
    NO_MEMBER_ID,
    CommitOffsets,
    DeleteGroups,
    DeleteOffsets,
    Event,
    OffsetToCommit,
    TopicsDeleted,
)
from moldau.groups.results import (
    CommitResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedGroup,
    FetchOffsetsResult,
    ListedGroup,
    Result,
)
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import TopicPartition
from moldau.service.coordinators import PartitionCoordinator
from moldau.service.partitions import Partitions
from moldau.service.topics import TopicService

R = TypeVar("R", bound=Result)


class GroupService:
    """Consumer groups of this broker."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        new_coordinator: Callable[[], Coordinator],
        partitions: Partitions,
        topics: TopicService,
        offsets_partitions: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._new_coordinator = new_coordinator
        self._partitions = partitions
        self._topics = topics
        self._offsets_partitions = offsets_partitions
        self._coordinators: dict[int, PartitionCoordinator] = {}

    # ---- start and stop

    def load(self) -> None:
        """Begin to coordinate every partition of the offsets topic that is here and is not yet."""
        topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            hosted = self._partitions.get(CONSUMER_OFFSETS_TOPIC, partition.index)
            if hosted is None or partition.index in self._coordinators:
                continue
            coordinator = PartitionCoordinator(
                loop=self._loop,
                clock=self._clock,
                coordinator=self._new_coordinator(),
                replica=hosted.replica,
            )
            try:
                coordinator.load()
            except CorruptionError as error:
                # Its groups are refused: some of their offsets would be worse than none.
                self._partitions.take_offline(hosted, error)
            else:
                self._coordinators[partition.index] = coordinator

    def answer_waiting(self) -> None:
        """The broker stops: nobody shall wait for members that never come."""
        for coordinator in self._coordinators.values():
            coordinator.answer_waiting()

    def stop(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.stop()

    # ---- finding the coordinator

    async def ready(self) -> None:
        """Make sure that there is a place to store offsets. Raises RefusedError if there is none.

        Clients try again on its code; any other would end a consumer.
        """
        try:
            await self._topics.ensure(
                CONSUMER_OFFSETS_TOPIC, internal=True, partitions=self._offsets_partitions
            )
        except RefusedError as error:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None
        self.load()

    async def find_coordinator(self, group_id: str) -> None:
        """Raises RefusedError unless this broker can serve the group."""
        await self.ready()
        try:
            self._coordinator_of(group_id)
        except RefusedError as error:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None

    def _coordinator_of(self, group_id: str) -> PartitionCoordinator:
        """Raises RefusedError if the group is not coordinated here."""
        topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = java_hash(group_id) % len(topic.partitions)
        coordinator = self._coordinators.get(index)
        if coordinator is None or self._partitions.get(CONSUMER_OFFSETS_TOPIC, index) is None:
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR, f"the offsets of group {group_id!r} are not served here"
            )
        return coordinator

    # ---- requests

    async def ask(self, group_id: str, make_event: Callable[[int], Event], kind: type[R]) -> R:
        """Hand in a request about a group; `make_event` gets its id. Raises RefusedError."""
        if self._topics.image.topic(CONSUMER_OFFSETS_TOPIC) is None:
            await self.ready()
        result = await self._coordinator_of(group_id).submit(make_event)
        if not isinstance(result, kind):
            raise TypeError(
                f"the coordinator answered {type(result).__name__}, not {kind.__name__}"
            )
        return result

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all.

        Refused while what the group stored cannot be read: "no offset" would send its consumers
        back to the start, or past records that they never saw.
        """
        try:
            coordinator = self._coordinator_of(group_id)
        except RefusedError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # No group has stored anything yet.
                return FetchOffsetsResult(error=ErrorCode.NONE, offsets={})
            return FetchOffsetsResult(error=error.code, offsets={})
        return coordinator.state.fetch_offsets(group_id, partitions)

    def describe(self, group_id: str) -> DescribedGroup:
        """State and members of a group; what is wrong is in its error."""
        try:
            return self._coordinator_of(group_id).state.describe(group_id)
        except RefusedError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return DescribedGroup(group_id=group_id, error=ErrorCode.GROUP_ID_NOT_FOUND)
            return DescribedGroup(group_id=group_id, error=error.code)

    def list_groups(
        self, states: Iterable[str], group_types: Iterable[str]
    ) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups that this broker coordinates, by state and type if any are named."""
        states, group_types = list(states), list(group_types)
        found: list[ListedGroup] = []
        for coordinator in self._coordinators.values():
            error, groups = coordinator.state.list_groups(states, group_types)
            if error is not ErrorCode.NONE:
                return error, []
            found += groups
        return ErrorCode.NONE, found

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """Delete groups without members; an error per group."""
        errors: dict[str, ErrorCode] = {}
        by_coordinator: dict[PartitionCoordinator, list[str]] = defaultdict(list)
        for group_id in group_ids:
            try:
                by_coordinator[self._coordinator_of(group_id)].append(group_id)
            except RefusedError as error:
                is_new = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
                errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND if is_new else error.code
        for coordinator, theirs in by_coordinator.items():
            result = await coordinator.submit(partial(_delete_event, tuple(theirs)))
            if isinstance(result, DeleteGroupsResult):
                errors.update(result.errors)
        return errors

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
        """Store positions; an error per offset, in their order. Raises RefusedError.

        The coordinator knows no topics, so those that do not exist are refused here.
        """
        known = [self._exists(offset.partition) for offset in offsets]
        to_store = tuple(offset for offset, exists in zip(offsets, known, strict=True) if exists)
        if not to_store and offsets:
            return [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(offsets)
        result = await self.ask(
            group_id,
            lambda request_id: CommitOffsets(
                request_id=request_id,
                group_id=group_id,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
                offsets=to_store,
                retention_ms=retention_ms,
            ),
            CommitResult,
        )
        stored = iter(result.errors)
        return [
            next(stored)[1] if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for exists in known
        ]

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[ErrorCode]:
        """Forget positions; an error per partition. RefusedError is about the group."""
        known = [self._exists(partition) for partition in partitions]
        to_delete = tuple(
            partition for partition, exists in zip(partitions, known, strict=True) if exists
        )
        result = await self.ask(
            group_id,
            lambda request_id: DeleteOffsets(
                request_id=request_id, group_id=group_id, partitions=to_delete
            ),
            DeleteOffsetsResult,
        )
        if result.error is not ErrorCode.NONE:
            raise RefusedError(result.error)
        deleted = iter(result.errors)
        return [
            next(deleted)[1] if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for exists in known
        ]

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.image.topic(partition.topic)
        return topic is not None and 0 <= partition.partition < len(topic.partitions)

    def topics_deleted(self, names: frozenset[str]) -> None:
        for coordinator in self._coordinators.values():
            coordinator.handle(TopicsDeleted(topics=names))


def _delete_event(group_ids: tuple[str, ...], request_id: int) -> DeleteGroups:
    return DeleteGroups(request_id=request_id, group_ids=group_ids)


def java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, by which Kafka places groups on partitions."""
    value = 0
    units = text.encode("utf-16-be")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF

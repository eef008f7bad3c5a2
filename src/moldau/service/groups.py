"""Owns the use cases of consumer groups: finds the coordinator of a group and asks it.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to.
The topic is created when the first group shows up. Coordinators follow leadership: `lead` loads
one, `unlead` ends it, and clients are told to look for the other broker.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image, Topic
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicPartition
from moldau.service.coordinators import PartitionCoordinator
from moldau.service.partitions import Hosted, Partitions
from moldau.service.topics import TopicService

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Result)

_POLL_SECONDS = 0.02
_POLLS_MAX = 100
"""Two seconds: clients try again by themselves, but their first try shall do."""
_IMAGE_RETRY_SECONDS = 5.0


class GroupService:
    """Consumer groups of this broker.

    `leader_of` tells who leads a partition as far as this broker knows. `fresh_image` returns an
    image that holds everything that was committed when it was called; it raises RefusedError while
    there is none to be had. `on_defect` hears of a loading that failed as nobody foresaw.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        new_coordinator: Callable[[], Coordinator],
        partitions: Partitions,
        topics: TopicService,
        offsets_partitions: int,
        broker: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
        fresh_image: Callable[[], Awaitable[Image]],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._new_coordinator = new_coordinator
        self._partitions = partitions
        self._topics = topics
        self._offsets_partitions = offsets_partitions
        self._broker = broker
        self._leader_of = leader_of
        self._fresh_image = fresh_image
        self._on_defect = on_defect
        self._coordinators: dict[int, PartitionCoordinator] = {}
        self._turns = asyncio.Lock()
        self._is_stopping = False

    # ---- following leadership

    def lead(self, index: int, hosted: Hosted) -> None:
        """This broker leads that partition of the offsets topic and is ready: load its groups."""
        if self._is_stopping:
            return
        current = self._coordinators.get(index)
        if current is not None and current.replica is hosted.replica and current.is_current:
            return
        self.unlead(index)
        coordinator = PartitionCoordinator(
            loop=self._loop,
            clock=self._clock,
            coordinator=self._new_coordinator(),
            replica=hosted.replica,
            turns=self._turns,
            on_lost=partial(self._lost, index, hosted),
        )
        self._coordinators[index] = coordinator
        coordinator.loading = self._loop.create_task(self._load(index, hosted, coordinator))
        coordinator.loading.add_done_callback(partial(self._load_ended, index, coordinator))

    def unlead(self, index: int) -> None:
        """This broker leads that partition no longer: answer who waits, and forget its groups."""
        coordinator = self._coordinators.pop(index, None)
        if coordinator is not None:
            coordinator.resign()

    async def _load(self, index: int, hosted: Hosted, coordinator: PartitionCoordinator) -> None:
        try:
            await coordinator.load()
        except RefusedError as error:
            log.debug("groups of %s are not loaded: %s", hosted.replica.partition, error)
            coordinator.loading = None
            coordinator.resign()
            self._lost(index, hosted, coordinator)
        except CorruptionError as error:
            # Its groups are refused: some of their offsets would be worse than none.
            self._forget(index, coordinator)
            self._partitions.take_offline(hosted, error)
        else:
            await self._drop_deleted_topics(coordinator)

    def _load_ended(
        self, index: int, coordinator: PartitionCoordinator, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the groups of partition %d could not be loaded", index, exc_info=error)
        self._forget(index, coordinator)
        self._on_defect(error)

    def _forget(self, index: int, coordinator: PartitionCoordinator) -> None:
        if self._coordinators.get(index) is coordinator:
            del self._coordinators[index]
        coordinator.loading = None
        coordinator.resign()

    def _lost(self, index: int, hosted: Hosted, coordinator: PartitionCoordinator) -> None:
        """It ended by itself. If this broker still leads after all, another one takes over."""
        self._loop.call_soon(self._replace, index, hosted, coordinator)

    def _replace(self, index: int, hosted: Hosted, coordinator: PartitionCoordinator) -> None:
        if self._coordinators.get(index) is not coordinator:
            return
        del self._coordinators[index]
        is_here = self._partitions.get(CONSUMER_OFFSETS_TOPIC, index) is hosted
        if is_here and hosted.replica.is_ready:
            self.lead(index, hosted)

    async def _drop_deleted_topics(self, coordinator: PartitionCoordinator) -> None:
        """Topics may have been deleted when nobody led, or by a leader that did not get to it.

        Only a fresh image proves it: one that lags behind also lacks topics that are new, and what
        is stored for those must stay.
        """
        doubtful = self._unknown(coordinator.state.offset_topics(), self._topics.image)
        if not doubtful:
            return
        while True:
            try:
                image = await self._fresh_image()
            except RefusedError:
                await asyncio.sleep(_IMAGE_RETRY_SECONDS)
            else:
                break
        # One that was created again meanwhile is known here before offsets are stored for it.
        gone = self._unknown(self._unknown(doubtful, image), self._topics.image)
        if gone:
            coordinator.handle(TopicsDeleted(topics=gone))

    @staticmethod
    def _unknown(names: frozenset[str], image: Image) -> frozenset[str]:
        return frozenset(name for name in names if image.topic(name) is None)

    # ---- stop

    def answer_waiting(self) -> None:
        """The broker stops: nobody shall wait for members that never come."""
        self._is_stopping = True
        for coordinator in self._coordinators.values():
            coordinator.answer_waiting()

    def stop(self) -> None:
        self._is_stopping = True
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

    async def find_coordinator(self, group_id: str) -> BrokerId:
        """The broker that serves the group, as far as is known here. Raises RefusedError."""
        is_first = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC) is None
        await self.ready()
        leader = await self._await_leader(group_id, is_first=is_first)
        if leader.broker == NO_LEADER_ID:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"nobody leads the partition that stores the offsets of group {group_id!r}",
            )
        return leader.broker

    async def _await_leader(self, group_id: str, *, is_first: bool) -> Leader:
        """Who leads the group's partition. Waits shortly for what is about to be there.

        That is a loading on this broker, and the first election of a topic that is new; any other
        may take longer than the client's own pause between tries.
        """
        for _ in range(_POLLS_MAX):
            topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
            if topic is None:
                break
            index = java_hash(group_id) % len(topic.partitions)
            leader = self._leader_of(topic, index)
            coordinator = self._coordinators.get(index)
            is_coming = is_first
            if coordinator is not None and not coordinator.state.loaded:
                is_coming = True
            elif leader.broker == self._broker and coordinator is None:
                # Elected, and ready in a moment; or damaged, and others have not heard of it yet.
                is_coming |= self._partitions.get(CONSUMER_OFFSETS_TOPIC, index) is not None
            elif leader.broker != NO_LEADER_ID:
                return leader
            if not is_coming:
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            if coordinator is not None:
                # It takes its time to load, and clients ask it again until it is done.
                return leader
        return NO_LEADER

    def _coordinator_of(self, group_id: str) -> PartitionCoordinator:
        """Raises RefusedError if the group is not coordinated here."""
        topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = java_hash(group_id) % len(topic.partitions)
        coordinator = self._coordinators.get(index)
        if (
            coordinator is None
            or not coordinator.is_current
            or self._partitions.get(CONSUMER_OFFSETS_TOPIC, index) is None
        ):
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR, f"the offsets of group {group_id!r} are not served here"
            )
        return coordinator

    # ---- requests

    async def ask(self, group_id: str, make_event: Callable[[int], Event], kind: type[R]) -> R:
        """Hand in a request about a group; `make_event` gets its id. Raises RefusedError."""
        if self._topics.image.topic(CONSUMER_OFFSETS_TOPIC) is None:
            await self.ready()
            await self._await_leader(group_id, is_first=True)
        result = await self._coordinator_of(group_id).submit(make_event)
        if not isinstance(result, kind):
            raise TypeError(
                f"the coordinator answered {type(result).__name__}, not {kind.__name__}"
            )
        return result

    async def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all.

        A majority is asked first whether this broker still leads: one that stood still for a while
        would tell what was committed before, and the consumer would go back.
        """
        known = self.known_offsets(group_id, partitions)
        if known.error is not ErrorCode.NONE:
            return known
        try:
            await self._coordinator_of(group_id).replica.confirm_leading()
        except RefusedError:
            return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
        return self.known_offsets(group_id, partitions)

    def known_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> FetchOffsetsResult:
        """Committed offsets as this broker knows them.

        Refused while what the group stored cannot be read: "no offset" would send its consumers
        back to the start, or past records that they never saw. That holds also where this broker
        knows of no topic of offsets: it may just not have heard of it yet.
        """
        try:
            coordinator = self._coordinator_of(group_id)
        except RefusedError:
            # The one code that makes every client look for the coordinator again.
            return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
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
            if not coordinator.is_current:
                continue
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
            try:
                result = await coordinator.submit(partial(_delete_event, tuple(theirs)))
            except RefusedError as error:
                errors.update(dict.fromkeys(theirs, error.code))
                continue
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
        """The image lacks these topics now. One that still loads looks into the image itself."""
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

"""Requests to consumer groups: finds the coordinator of a group and submits them.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to,
see `coordinator_service`.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from types import MappingProxyType
from typing import Final, TypeVar, Unpack

from moldau.coordination.coordinator_host import CoordinatorHost
from moldau.coordination.coordinator_service import (
    CoordinatorService,
    ServiceParts,
    java_hash,
    wait_for_image,
)
from moldau.coordination.latest_records import LatestRecords
from moldau.data.partitions import HostedPartition
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.events import (
    NO_GENERATION,
    NO_MEMBER_ID,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroups,
    DeleteOffsets,
    Event,
    OffsetToCommit,
    ResetOffsets,
    TopicsDeleted,
    TransactionEnded,
    TransactionEnding,
)
from moldau.groups.results import (
    CommitResult,
    ConsumerHeartbeatResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchOffsetsResult,
    JoinResult,
    ListedGroup,
    ResetResult,
    Result,
)
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition

_ANY: Final[Mapping[TopicPartition, Offset]] = MappingProxyType({})

R = TypeVar("R", bound=Result)


class GroupCoordinatorHost(CoordinatorHost[GroupCoordinator, Event, Result]):
    topics_deleted: frozenset[str] = frozenset()
    """While it was loading."""

    async def _replay(self, latest: LatestRecords) -> int:
        used = await super()._replay(latest)
        return used + await self._in_turns(
            latest.pending(),
            lambda one: self.state.replay_pending(one.producer_id, one.key, one.value),
        )


class GroupService(CoordinatorService[GroupCoordinatorHost]):
    """Consumer groups of this broker.

    `fresh_image` returns an image with everything committed before the call, or raises
    RefusedError.
    """

    def __init__(
        self,
        *,
        new_coordinator: Callable[[], GroupCoordinator],
        offsets_partitions: int,
        fresh_image: Callable[[], Awaitable[Image]],
        **parts: Unpack[ServiceParts],
    ) -> None:
        super().__init__(
            topic=CONSUMER_OFFSETS_TOPIC, partitions_wanted=offsets_partitions, **parts
        )
        self._new_state = new_coordinator
        self._fresh_image = fresh_image

    def _new_coordinator(self, index: int, hosted: HostedPartition) -> GroupCoordinatorHost:
        return GroupCoordinatorHost(self._new_state(), **self._host_parts(index, hosted))

    async def _loaded(self, coordinator: GroupCoordinatorHost) -> None:
        """Remove offsets of topics that were deleted while there was no leader.

        Only a fresh image proves a deletion: a lagging one also lacks new topics, whose offsets
        must stay.
        """
        missed, coordinator.topics_deleted = coordinator.topics_deleted, frozenset()
        if missed:
            coordinator.handle(TopicsDeleted(topics=missed))
        doubtful = self._unknown(coordinator.state.offset_topics(), self._topics.image)
        if not doubtful:
            return
        image = await wait_for_image(self._fresh_image)
        # A topic recreated meanwhile is in the local image before offsets are stored for it.
        deleted = self._unknown(self._unknown(doubtful, image), self._topics.image)
        if deleted:
            coordinator.handle(TopicsDeleted(topics=deleted))

    @staticmethod
    def _unknown(names: frozenset[str], image: Image) -> frozenset[str]:
        return frozenset(name for name in names if image.topic(name) is None)

    # ---- requests

    async def submit(self, group_id: str, make_event: Callable[[int], Event], kind: type[R]) -> R:
        """Submit a request to a group; `make_event` gets its id. Raises RefusedError.

        Kafka consumers cannot join a queue group: for them it is a group of another type.
        """
        if kind is JoinResult:
            self._check_not_queue(group_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif kind is ConsumerHeartbeatResult:
            self._check_not_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        return await self.submit_for_member(group_id, make_event, kind)

    def _check_not_queue(self, group_id: str, code: ErrorCode) -> None:
        if group_id in self._topics.image.queue_groups:
            raise RefusedError(code, f"Group {group_id} is a queue group.")

    async def submit_for_member(
        self, group_id: str, make_event: Callable[[int], Event], kind: type[R]
    ) -> R:
        """Like `submit`, also for members of queue groups. Raises RefusedError."""
        coordinator = await self._coordinator_for(group_id)
        result = await coordinator.submit(make_event)
        if not isinstance(result, kind):
            raise TypeError(
                f"the coordinator returned {type(result).__name__}, not {kind.__name__}"
            )
        return result

    async def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all.

        A member of a consumer group names its id and epoch, and is rejected if they are stale.
        Leadership is confirmed with a majority first: a stale leader would return old offsets, and
        the consumer would read messages again.
        """
        known = self.known_offsets(
            group_id, partitions, member_id=member_id, member_epoch=member_epoch
        )
        if known.error is not ErrorCode.NONE:
            return known
        try:
            await self._coordinator_of(group_id).replica.confirm_leadership()
        except RefusedError:
            return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
        return self.known_offsets(
            group_id, partitions, member_id=member_id, member_epoch=member_epoch
        )

    def known_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchOffsetsResult:
        """Committed offsets as this broker knows them.

        Rejected while the group cannot be read: on "no offset", consumers would start at the
        beginning or skip records. Also without a topic of offsets: the image may lag behind.
        """
        try:
            coordinator = self._coordinator_of(group_id)
        except RefusedError:
            # The only code that makes every client look up the coordinator again.
            return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
        return coordinator.state.fetch_offsets(
            group_id, partitions, member_id=member_id, member_epoch=member_epoch
        )

    def describe(self, group_id: str) -> DescribedGroup:
        """State and members of a group; errors are in the result."""
        try:
            return self._coordinator_of(group_id).state.describe(group_id)
        except RefusedError as error:
            return DescribedGroup(error=_unknown_if_unavailable(error))

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        """Like `describe`, for groups of the consumer protocol (KIP-848)."""
        try:
            return self._coordinator_of(group_id).state.describe_consumers(group_id)
        except RefusedError as error:
            return DescribedConsumerGroup(error=_unknown_if_unavailable(error))

    def consumer(self, group_id: str, member_id: str) -> DescribedConsumer | None:
        """One member of a consumer-protocol group. Raises RefusedError if this broker is not its
        coordinator."""
        coordinator = self._coordinator_of(group_id)
        if not coordinator.state.loaded:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return coordinator.state.consumer(group_id, member_id)

    def list_groups(
        self, states: Iterable[str], group_types: Iterable[str]
    ) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups of this broker, filtered by state and type."""
        states, group_types = list(states), list(group_types)
        return self._list_all(lambda one: one.state.list_groups(states, group_types))

    def groups_of_each(self) -> Iterator[tuple[ErrorCode, list[ListedGroup]]]:
        """The groups of one coordinator of this broker after another."""
        for one in list(self._coordinators.values()):
            if one.is_current:
                yield one.state.list_groups()

    def coordinators_here(self) -> list[GroupCoordinator]:
        """For reads of many groups. Raises RefusedError if one of them is loading."""
        found = [one.state for one in self._coordinators.values() if one.is_current]
        if not all(state.loaded for state in found):
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return found

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """Delete groups without members; an error per group.

        Not for queue groups: their state in `__queue_state` would remain.
        """
        errors: dict[str, ErrorCode] = {}
        by_coordinator: dict[GroupCoordinatorHost, list[str]] = defaultdict(list)
        for group_id in group_ids:
            try:
                self._check_not_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
                by_coordinator[self._coordinator_of(group_id)].append(group_id)
            except RefusedError as error:
                errors[group_id] = _unknown_if_unavailable(error)
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
        """Commit offsets; an error per offset, in their order. Raises RefusedError.

        Unknown topics are rejected here, because the coordinator does not know topics.
        """
        self._check_not_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        known = [self._topics.image.has_partition(*offset.partition) for offset in offsets]
        to_store = tuple(compress(offsets, known))
        if not to_store and offsets:
            return [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(offsets)
        result = await self.submit(
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
        return _with_unknown(known, result.errors)

    async def reset_offsets(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        removes_members: bool,
        expected: Mapping[TopicPartition, Offset] = _ANY,
    ) -> Mapping[TopicPartition, Offset]:
        """Set offsets for an administrator, all or none; returns those that they replace.

        Raises RefusedError, NON_EMPTY_GROUP if the group has members that are not to be removed,
        INVALID_UPDATE_VERSION if others than the `expected` ones are committed. The caller has
        checked the topics.
        """
        self._check_not_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        result = await self.submit(
            group_id,
            lambda request_id: ResetOffsets(
                request_id=request_id,
                group_id=group_id,
                offsets=tuple(offsets),
                removes_members=removes_members,
                expected=tuple(expected.items()),
            ),
            ResetResult,
        )
        if result.error is not ErrorCode.NONE:
            raise RefusedError(result.error)
        return result.replaced

    # ---- transactions

    async def partition_of(self, group_id: str) -> TopicPartition:
        """The partition that stores the offsets of a group. Raises RefusedError."""
        is_first = self._topics.image.topic(self._topic) is None
        await self.ready()
        if is_first:
            # After AddOffsetsToTxn, the producer looks up the group coordinator.
            await self._await_leader(group_id, is_first=True)
        topic = self._topics.image.topic(self._topic)
        if topic is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = java_hash(group_id) % len(topic.partitions)
        return TopicPartition(self._topic, PartitionIndex(index))

    async def commit_transaction_offsets(
        self,
        group_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        offsets: Sequence[OffsetToCommit],
        *,
        admit: Callable[[TopicPartition], Awaitable[ErrorCode]],
        member_id: str = NO_MEMBER_ID,
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> list[ErrorCode]:
        """Store offsets that take effect when the producer's transaction commits.

        `admit` verifies that the transaction includes the partition that stores this group. Returns
        an error per offset, in their order. Raises RefusedError.
        """
        self._check_not_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        before = self._topics.image
        coordinator = await self._coordinator_for(group_id)
        guard = coordinator.state.transaction_guard()
        error = await admit(coordinator.replica.partition)
        if error is not ErrorCode.NONE:
            return [error] * len(offsets)
        # A topic that was deleted meanwhile: its offsets would count for the next of its name.
        known = [_is_same(offset.partition, before, self._topics.image) for offset in offsets]
        to_store = tuple(compress(offsets, known))
        # The same coordinator: another one does not know what ended since.
        result = await coordinator.submit(
            lambda request_id: CommitTransactionOffsets(
                request_id=request_id,
                group_id=group_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                guard=guard,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
                offsets=to_store,
            )
        )
        if not isinstance(result, CommitResult):
            raise TypeError(f"the coordinator returned {type(result).__name__}")
        return _with_unknown(known, result.errors)

    def transaction_ends(
        self, index: int, producer_id: ProducerId, next_epoch_min: int
    ) -> Callable[[bool], None]:
        """A transaction's end marker is about to be written to that partition. Returns a callback
        for when it is committed. Offsets from epoch next_epoch_min on belong to a later one.

        Raises RefusedError if the group coordinator is not on this broker or not loaded: its
        offsets would stay pending.
        """
        coordinator = self._coordinators.get(index)
        if coordinator is None or not coordinator.is_current:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not coordinator.state.loaded:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        coordinator.handle(
            TransactionEnding(producer_id=producer_id, next_epoch_min=next_epoch_min)
        )
        return partial(_transaction_ended, coordinator, producer_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[ErrorCode]:
        """Delete offsets; an error per partition. Raises RefusedError for the whole group."""
        known = [self._topics.image.has_partition(*partition) for partition in partitions]
        to_delete = tuple(compress(partitions, known))
        result = await self.submit(
            group_id,
            lambda request_id: DeleteOffsets(
                request_id=request_id, group_id=group_id, partitions=to_delete
            ),
            DeleteOffsetsResult,
        )
        if result.error is not ErrorCode.NONE:
            raise RefusedError(result.error)
        return _with_unknown(known, result.errors)

    def topics_deleted(self, names: frozenset[str]) -> None:
        """Topics were deleted. Coordinators that are still loading also check the image: it tells
        of earlier deletions, unless there is another topic of that name."""
        for coordinator in self._coordinators.values():
            if coordinator.state.loaded:
                coordinator.handle(TopicsDeleted(topics=names))
            else:
                coordinator.topics_deleted |= names


def _is_same(partition: TopicPartition, before: Image, after: Image) -> bool:
    """Whether it exists in both, in one topic."""
    old, new = before.topic(partition.topic), after.topic(partition.topic)
    is_kept = old is not None and new is not None and old.topic_id == new.topic_id
    return is_kept and before.has_partition(*partition)


def _transaction_ended(
    coordinator: GroupCoordinatorHost, producer_id: ProducerId, is_commit: bool
) -> None:
    if not coordinator.is_over:
        coordinator.handle(TransactionEnded(producer_id=producer_id, is_commit=is_commit))


def _delete_event(group_ids: tuple[str, ...], request_id: int) -> DeleteGroups:
    return DeleteGroups(request_id=request_id, group_ids=group_ids)


def _unknown_if_unavailable(error: RefusedError) -> ErrorCode:
    """Without the topic that stores groups there are none."""
    is_new = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.GROUP_ID_NOT_FOUND if is_new else error.code


def _with_unknown(
    known: Iterable[bool], errors: Iterable[tuple[TopicPartition, ErrorCode]]
) -> list[ErrorCode]:
    """The errors of known partitions in their order, and of unknown ones in between."""
    left = iter(errors)
    return [next(left)[1] if each else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in known]

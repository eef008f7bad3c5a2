"""Owns the use cases of consumer groups: finds the coordinator of a group and asks it.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to;
where coordinators run, and since when, is `coordination.py`'s.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, assert_never

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_host import CoordinatorHost, CoordinatorReplica
from moldau.coordination.coordinator_service import CoordinatorService, java_hash
from moldau.coordination.latest_records import LatestRecords
from moldau.data.partitions import HostedPartition, Partitions
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
    Persisted,
    PersistFailed,
    Tick,
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
    Effect,
    FetchOffsetsResult,
    JoinResult,
    ListedGroup,
    Persist,
    Reply,
    Result,
)
from moldau.groups.runtime import client_error
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image, Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    BrokerId,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)

R = TypeVar("R", bound=Result)

_IMAGE_RETRY_SECONDS = 5.0


class GroupCoordinatorHost(CoordinatorHost[Event, Effect, Result]):
    """The groups that are stored in one partition."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        coordinator: GroupCoordinator,
        replica: CoordinatorReplica,
        turns: asyncio.Lock,
        on_lost: Callable[["GroupCoordinatorHost"], None],
    ) -> None:
        super().__init__(
            loop=loop,
            clock=clock,
            core=coordinator,
            replica=replica,
            turns=turns,
            on_lost=lambda _: on_lost(self),
        )
        self.state = coordinator
        """For reads, which need no effects: describe, list, fetch offsets."""

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(request_id=request_id, result=result):
                self._answer(request_id, result)
            case Persist(token=token, records=records, group_id=group_id):
                self._persist(
                    token,
                    records,
                    f"offsets of group {group_id}",
                    producer_id=effect.producer[0],
                    producer_epoch=effect.producer[1],
                )
            case _:
                assert_never(effect)

    async def _replay(self, latest: LatestRecords) -> int:
        used = await super()._replay(latest)
        return used + await self._in_turns(
            latest.pending(),
            lambda one: self.state.replay_pending(one.producer_id, one.key, one.value),
        )

    def _persisted(self, token: int) -> Event:
        return Persisted(token=token)

    def _persist_failed(self, token: int, code: ErrorCode) -> Event:
        return PersistFailed(token=token, error=code)

    def _time_passed(self) -> Event:
        return Tick()

    def _client_error(self, code: ErrorCode) -> ErrorCode:
        return client_error(code)


class GroupService(CoordinatorService[GroupCoordinatorHost]):
    """Consumer groups of this broker.

    `fresh_image` returns an image that holds everything that was committed when it was called; it
    raises RefusedError while there is none to be had.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        new_coordinator: Callable[[], GroupCoordinator],
        partitions: Partitions,
        topics: TopicService,
        offsets_partitions: int,
        broker: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
        fresh_image: Callable[[], Awaitable[Image]],
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        super().__init__(
            loop=loop,
            clock=clock,
            topic=CONSUMER_OFFSETS_TOPIC,
            partitions_wanted=offsets_partitions,
            partitions=partitions,
            topics=topics,
            broker=broker,
            leader_of=leader_of,
            on_internal_error=on_internal_error,
        )
        self._new_state = new_coordinator
        self._fresh_image = fresh_image

    def _new_coordinator(self, index: int, hosted: HostedPartition) -> GroupCoordinatorHost:
        return GroupCoordinatorHost(
            loop=self._loop,
            clock=self._clock,
            coordinator=self._new_state(),
            replica=hosted.replica,
            turns=self._turns,
            on_lost=partial(self._lost, index, hosted),
        )

    async def _loaded(self, coordinator: GroupCoordinatorHost) -> None:
        await self._drop_deleted_topics(coordinator)

    async def _drop_deleted_topics(self, coordinator: GroupCoordinatorHost) -> None:
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

    # ---- requests

    async def ask(self, group_id: str, make_event: Callable[[int], Event], kind: type[R]) -> R:
        """Hand in a request about a group; `make_event` gets its id. Raises RefusedError.

        Consumers of Kafka do not get into a queue group: as to them, it is of another type.
        """
        if kind is JoinResult:
            self._check_is_no_queue(group_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif kind is ConsumerHeartbeatResult:
            self._check_is_no_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        return await self.ask_for_member(group_id, make_event, kind)

    def _check_is_no_queue(self, group_id: str, code: ErrorCode) -> None:
        if group_id in self._topics.image.queue_groups:
            raise RefusedError(code, f"Group {group_id} is a queue group.")

    async def ask_for_member(
        self, group_id: str, make_event: Callable[[int], Event], kind: type[R]
    ) -> R:
        """As `ask`, for members of queue groups too. Raises RefusedError."""
        coordinator = await self._coordinator_for(group_id)
        result = await coordinator.submit(make_event)
        if not isinstance(result, kind):
            raise TypeError(
                f"the coordinator answered {type(result).__name__}, not {kind.__name__}"
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

        A member of a consumer group says who it is, and is refused if it is no longer up to date.
        A majority is asked first whether this broker still leads: one that stood still for a while
        would tell what was committed before, and the consumer would go back.
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

        Refused while what the group stored cannot be read: "no offset" would send its consumers
        back to the start, or past records that they never saw. That holds also where this broker
        knows of no topic of offsets: it may just not have heard of it yet.
        """
        try:
            coordinator = self._coordinator_of(group_id)
        except RefusedError:
            # The one code that makes every client look for the coordinator again.
            return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
        return coordinator.state.fetch_offsets(
            group_id, partitions, member_id=member_id, member_epoch=member_epoch
        )

    def describe(self, group_id: str) -> DescribedGroup:
        """State and members of a group; what is wrong is in its error."""
        try:
            return self._coordinator_of(group_id).state.describe(group_id)
        except RefusedError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return DescribedGroup(group_id=group_id, error=ErrorCode.GROUP_ID_NOT_FOUND)
            return DescribedGroup(group_id=group_id, error=error.code)

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        """As `describe`, for groups of the next-generation protocol."""
        try:
            return self._coordinator_of(group_id).state.describe_consumers(group_id)
        except RefusedError as error:
            is_new = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            code = ErrorCode.GROUP_ID_NOT_FOUND if is_new else error.code
            return DescribedConsumerGroup(group_id=group_id, error=code)

    def consumer(self, group_id: str, member_id: str) -> DescribedConsumer | None:
        """One member of a group of the next-generation protocol. Raises RefusedError if this broker
        cannot tell."""
        coordinator = self._coordinator_of(group_id)
        if not coordinator.loaded:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return coordinator.state.consumer(group_id, member_id)

    def list_groups(
        self, states: Iterable[str], group_types: Iterable[str]
    ) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups that this broker coordinates, by state and type if any are named."""
        states, group_types = list(states), list(group_types)
        found: list[ListedGroup] = []
        for coordinator in self._current():
            error, groups = coordinator.state.list_groups(states, group_types)
            if error is not ErrorCode.NONE:
                return error, []
            found += groups
        return ErrorCode.NONE, found

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """Delete groups without members; an error per group.

        A queue group is none of them: what it has settled is stored elsewhere, and would stay.
        """
        errors: dict[str, ErrorCode] = {}
        by_coordinator: dict[GroupCoordinatorHost, list[str]] = defaultdict(list)
        for group_id in group_ids:
            try:
                self._check_is_no_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
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
        self._check_is_no_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
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

    # ---- transactions

    async def partition_of(self, group_id: str) -> TopicPartition:
        """Where the offsets of a group are stored. Raises RefusedError."""
        is_first = self._topics.image.topic(self._topic) is None
        await self.ready()
        if is_first:
            # Who enters offsets into a transaction looks for the group's coordinator next.
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
        """Store positions that count once the producer's transaction is committed.

        `admit` asks whether the transaction includes the partition that stores this group. An
        error per offset, in their order. Raises RefusedError.
        """
        self._check_is_no_queue(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        known = [self._exists(offset.partition) for offset in offsets]
        to_store = tuple(offset for offset, exists in zip(offsets, known, strict=True) if exists)
        coordinator = await self._coordinator_for(group_id)
        guard = coordinator.state.transaction_guard()
        error = await admit(coordinator.replica.partition)
        if error is not ErrorCode.NONE:
            return [error] * len(offsets)
        # Of the same coordinator: another one would not know what ended since.
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
            raise TypeError(f"the coordinator answered {type(result).__name__}")
        stored = iter(result.errors)
        return [
            next(stored)[1] if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for exists in known
        ]

    def transaction_ends(
        self, index: int, producer_id: ProducerId, next_epoch_min: int
    ) -> Callable[[bool], None]:
        """The end of a transaction is about to be written to that partition; tell when it is there.

        Offsets of an epoch from next_epoch_min on belong to a later transaction.

        Raises RefusedError if its groups are not served here, or are still being loaded: they
        would not hear of the end, and the offsets would stay pending.
        """
        coordinator = self._coordinators.get(index)
        if coordinator is None or not coordinator.is_current:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not coordinator.loaded:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        coordinator.handle(
            TransactionEnding(producer_id=producer_id, next_epoch_min=next_epoch_min)
        )
        return partial(_tell_end, coordinator, producer_id)

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


def _tell_end(coordinator: GroupCoordinatorHost, producer_id: ProducerId, is_commit: bool) -> None:
    if not coordinator.is_over:
        coordinator.handle(TransactionEnded(producer_id=producer_id, is_commit=is_commit))


def _delete_event(group_ids: tuple[str, ...], request_id: int) -> DeleteGroups:
    return DeleteGroups(request_id=request_id, group_ids=group_ids)

"""Owns the shell of the group coordinator: feeds it events and time, carries out its effects.

State that must survive is written to `__consumer_offsets`; the coordinator hears of it only once
it is committed. The topic is created when the first group shows up.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, assert_never

from moldau.groups.coordinator import Coordinator
from moldau.groups.events import (
    NO_GENERATION,
    NO_MEMBER_ID,
    CommitOffsets,
    DeleteOffsets,
    Event,
    OffsetToCommit,
    Persisted,
    PersistFailed,
    Tick,
    TopicsDeleted,
)
from moldau.groups.results import (
    CommitResult,
    DeleteOffsetsResult,
    Effect,
    FetchOffsetsResult,
    Persist,
    Reply,
    Result,
)
from moldau.log.interface import PartitionLog
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError, StorageError
from moldau.model.ids import Offset, TopicPartition
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.replica import Replica
from moldau.service.partitions import Partitions
from moldau.service.topics import TopicService

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Result)


class GroupService:
    """Consumer groups of this broker."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        coordinator: Coordinator,
        partitions: Partitions,
        topics: TopicService,
        offsets_partitions: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._coordinator = coordinator
        self._partitions = partitions
        self._topics = topics
        self._offsets_partitions = offsets_partitions
        self._request_ids = 0
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    # ---- start and stop

    def load(self) -> None:
        """Replay what is stored, at start."""
        topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
        count = 0
        for partition in topic.partitions if topic is not None else ():
            hosted = self._partitions.get(CONSUMER_OFFSETS_TOPIC, partition.index)
            if hosted is None:
                continue
            try:
                count += self._load_from(hosted.replica.log)
            except CorruptionError as error:
                # Its groups are refused: some of their offsets would be worse than none.
                self._partitions.take_offline(hosted, error)
        self._run(self._coordinator.finish_loading(self._now()))
        log.debug("groups loaded: %d records", count)

    def _load_from(self, stored: PartitionLog) -> int:
        count = 0
        for batch in stored.batches(stored.start_offset):
            for record in read_records(batch):
                if record.key is not None:
                    self._coordinator.replay(record.key, record.value)
                    count += 1
        return count

    def answer_waiting(self) -> None:
        """The broker stops: refuse joins and syncs, which would wait for members that never come.

        Called until nothing is left: what is being written is answered when it is committed.
        """
        if not self._coordinator.is_writing:
            self._run(self._coordinator.close(self._now()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    # ---- requests

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

    async def find_coordinator(self, group_id: str) -> None:
        """Raises RefusedError unless this broker can serve the group."""
        await self.ready()
        try:
            self._replica_of(group_id)
        except RefusedError as error:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all.

        Refused while what the group stored cannot be read: "no offset" would send its consumers
        back to the start, or past records that they never saw.
        """
        if self._topics.image.topic(CONSUMER_OFFSETS_TOPIC) is not None:
            try:
                self._replica_of(group_id)
            except RefusedError:
                return FetchOffsetsResult(error=ErrorCode.NOT_COORDINATOR, offsets={})
        return self._coordinator.fetch_offsets(group_id, partitions)

    async def submit(self, make_event: Callable[[int], Event]) -> Result:
        """Hand in a request; `make_event` gets its id. The result may take a whole rebalance."""
        if self._topics.image.topic(CONSUMER_OFFSETS_TOPIC) is None:
            await self.ready()
        self._request_ids += 1
        request_id = self._request_ids
        waiting: asyncio.Future[Result] = self._loop.create_future()
        self._waiting[request_id] = waiting
        try:
            self.handle(make_event(request_id))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    async def ask(self, make_event: Callable[[int], Event], kind: type[R]) -> R:
        """As `submit`, for a caller that knows the kind of the result."""
        result = await self.submit(make_event)
        if not isinstance(result, kind):
            raise TypeError(
                f"the coordinator answered {type(result).__name__}, not {kind.__name__}"
            )
        return result

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

    def handle(self, event: Event) -> None:
        self._run(self._coordinator.handle(self._now(), event))
        self._schedule()

    def topics_deleted(self, names: frozenset[str]) -> None:
        self.handle(TopicsDeleted(topics=names))

    @property
    def coordinator(self) -> Coordinator:
        """For reads, which need no effects: describe, list."""
        return self._coordinator

    # ---- effects and time

    def _now(self) -> float:
        return self._clock.monotonic()

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(request_id=request_id, result=result):
                    waiting = self._waiting.get(request_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(result)
                case Persist():
                    self._persist(effect)
                case _:
                    assert_never(effect)

    def _persist(self, effect: Persist) -> None:
        now = self._clock.wall_ms()
        data = bytearray(
            build_batch([Record(Offset(0), now, key, value, []) for key, value in effect.records])
        )
        token = effect.token

        def settled(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.handle(Persisted(token=token))
            else:
                self.handle(PersistFailed(token=token, error=code))

        try:
            replica = self._replica_of(effect.group_id)
            proposal = replica.propose(data, [read_header(data)])
        except RefusedError as error:
            # Not from within the coordinator's own call: it hears of it in an event of its own.
            self._loop.call_soon(settled, error.code)
        except StorageError as error:
            log.error("offsets of group %s were not stored: %s", effect.group_id, error)
            self._loop.call_soon(settled, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            replica.when_committed(proposal.end_offset, settled)

    def _replica_of(self, group_id: str) -> Replica:
        topic = self._topics.image.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = java_hash(group_id) % len(topic.partitions)
        return self._partitions.find(CONSUMER_OFFSETS_TOPIC, index).replica

    def _schedule(self) -> None:
        deadline = self._coordinator.next_deadline()
        if deadline is None:
            deadline = float("inf")
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline != float("inf"):
            self._timer = self._loop.call_later(max(0.0, deadline - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.handle(Tick())


def java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, by which Kafka places groups on partitions."""
    value = 0
    units = text.encode("utf-16-be")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF

"""Hosts the queues of the partitions that this broker leads, and routes requests to them.

A single queue is in `queue_partition.py`. A queue is loaded on its first request, and closed when
this broker loses its partition, its group or topic is deleted, or it was idle for long.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest

from moldau.control.topic_service import TopicService
from moldau.data.append_forwarding import AppendForwarder
from moldau.data.partitions import Partitions
from moldau.leases.commands import Evict
from moldau.leases.results import Refusal, SettleResult
from moldau.leases.state import QueueId
from moldau.leases.tokens import Token, decode_token
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.delivery_tokens import ROUTING_BYTES, TokenKind, decode_delivery_token
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TopicId
from moldau.queues.dead_letter_writer import DeadLetterWriter
from moldau.queues.inspection import peek_queue, stats_of
from moldau.queues.ledgers import Ledgers
from moldau.queues.limits import QueueLimits
from moldau.queues.mailbox import PendingPoll
from moldau.queues.monotonic_wall_clock import MonotonicWallClock
from moldau.queues.queue_counts import Backlog, QueueCounts
from moldau.queues.queue_partition import QueueContext, QueuePartition
from moldau.queues.settlement import RESULT_BY_REFUSAL, Settlement
from moldau.queues.types import (
    DONE,
    ErrorReason,
    InspectedMessage,
    PartitionStats,
    PollResult,
    QueueRefusedError,
    TokenResult,
    not_in_group,
    unavailable,
)
from moldau.queues.unloaded_queue import UnloadedQueue
from moldau.replica.replica import Replica

_BAD_TOKEN = TokenResult(ErrorReason.BAD_TOKEN)
_PART_BYTES_MIN = 128 * 1024
"""A poll is not spread over more partitions if their shares of the response get smaller."""

_FORGET_CONCURRENCY = 32

PartitionKey = tuple[TopicId, PartitionIndex]


class QueueHost:
    """The queues of this broker. Arguments are valid (QueueService). Methods raise
    QueueRefusedError.

    `group_of` looks up a group in the image: a queue whose group was deleted is closed.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Partitions,
        image: Callable[[], Image],
        group_of: Callable[[str], QueueGroup | None],
        leader_of: Callable[[Topic, int], Leader],
        ledgers: Ledgers,
        topics: TopicService,
        appends: AppendForwarder,
        on_internal_error: Callable[[BaseException], None],
        limits: QueueLimits | None = None,
    ) -> None:
        self._loop = loop
        self._partitions = partitions
        self._image = image
        self._leader_of = leader_of
        self._ledgers = ledgers
        self._limits = limits or QueueLimits()
        self._queues: dict[QueueId, QueuePartition] = {}
        self._unloaded: dict[QueueId, UnloadedQueue] = {}
        """Those that nobody used for long."""
        self._at: dict[PartitionKey, dict[str, QueuePartition]] = {}
        """The same by partition, then by group."""
        self._ready: dict[PartitionKey, tuple[Replica, Epoch, Offset]] = {}
        """The high watermark when this broker became ready as leader."""
        self._turns: dict[str, int] = {}
        self._counts: dict[tuple[str, str], QueueCounts] = {}
        """By group and topic."""
        self.parked_count = 0
        """Polls that wait for messages."""
        self._is_stopping = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._context = QueueContext(
            loop=loop,
            time=MonotonicWallClock(clock),
            ledgers=ledgers,
            dead_letters=DeadLetterWriter(clock=clock, topics=topics, appends=appends),
            limits=self._limits,
            group_of=group_of,
            take_offline=self._take_offline,
            on_closed=self._forget_queue,
            on_internal_error=on_internal_error,
        )

    # ---- polls

    async def poll(
        self,
        group: QueueGroup,
        partitions: Sequence[tuple[Topic, PartitionIndex]],
        member: str,
        count_max: int,
        visibility_ms: int | None,
        wait_seconds: float,
    ) -> PollResult:
        """Lease messages of these partitions, or wait for some.

        Partitions that this broker does not serve are skipped, unless all are.
        """
        queues = self._find_all(group, partitions)
        new_poll = partial(PendingPoll, member=member, visibility_ms=visibility_ms)
        polled = await self._take_now(self._in_turn(group.name, queues), count_max, new_poll)
        if polled.deliveries or wait_seconds <= 0:
            return polled
        bytes_max = self._limits.poll_bytes_max
        parked = new_poll(count_max=count_max, bytes_max=bytes_max, is_parked=True)
        return await self._wait(queues, parked, wait_seconds)

    async def _take_now(
        self, queues: list[QueuePartition], count_max: int, new_poll: Callable[..., PendingPoll]
    ) -> PollResult:
        """Poll the queues that seem to have messages, in parallel, each for its estimated count."""
        counts: list[tuple[QueuePartition, int]] = []
        left = count_max
        parts_max = max(1, self._limits.poll_bytes_max // _PART_BYTES_MIN)
        for queue in queues:
            count = min(left, queue.available_estimate())
            if count > 0:
                counts.append((queue, count))
                left -= count
                if left == 0 or len(counts) == parts_max:
                    break
        if not counts:
            return PollResult()
        bytes_max = self._limits.poll_bytes_max // len(counts)
        polls: list[tuple[QueuePartition, PendingPoll]] = []
        try:
            for queue, count in counts:
                self._check_room(queue)
                poll = new_poll(count_max=count, bytes_max=bytes_max, is_strict=bool(polls))
                polls.append((queue, poll))
                queue.add_poll(poll)
            return await _all_of([poll for _, poll in polls])
        finally:
            for queue, poll in polls:
                poll.future.cancel()
                queue.remove_poll(poll)

    async def _wait(
        self, queues: list[QueuePartition], poll: PendingPoll, wait_seconds: float
    ) -> PollResult:
        """Wait at all queues until one has a message."""
        if self.parked_count >= self._limits.parked_max:
            raise QueueRefusedError(ErrorReason.BUSY)
        for queue in queues:
            self._check_room(queue)
        self.parked_count += 1
        timer = self._loop.call_later(wait_seconds, poll.expire)
        try:
            # Counted once more, so that a failure of the first queue does not fail the poll.
            poll.queue_count += 1
            for queue in queues:
                queue.add_poll(poll)
            poll.queue_count -= 1
            if poll.queue_count == 0:
                raise QueueRefusedError(ErrorReason.NOT_LEADER)
            return await poll.future
        finally:
            self.parked_count -= 1
            timer.cancel()
            poll.future.cancel()
            for queue in queues:
                queue.remove_poll(poll)

    def _in_turn(self, group_name: str, queues: list[QueuePartition]) -> list[QueuePartition]:
        """Starting with another queue each time."""
        turn = self._turns.get(group_name, 0) % len(queues)
        self._turns[group_name] = turn + 1
        return queues[turn:] + queues[:turn]

    def _check_room(self, queue: QueuePartition) -> None:
        if not queue.has_room:
            raise QueueRefusedError(ErrorReason.BUSY)

    # ---- settling

    async def settle(
        self, group: QueueGroup, member: str, tokens: Sequence[bytes], settlement: Settlement
    ) -> list[TokenResult]:
        """One result per token, in order."""
        results = [DONE] * len(tokens)
        parts: dict[bytes, tuple[list[int], list[Token]]] = {}
        routing = b""
        indexes: list[int] = []
        part: list[Token] = []
        for index, data in enumerate(tokens):
            token = decode_token(data, ROUTING_BYTES)
            if token is None:
                results[index] = _BAD_TOKEN
                continue
            if data[:ROUTING_BYTES] != routing:
                # Mostly, all of them are of one queue.
                routing = data[:ROUTING_BYTES]
                indexes, part = parts.setdefault(routing, ([], []))
            indexes.append(index)
            part.append(token)
        if len(parts) == 1 and len(part) == len(tokens):
            return await self._settle_part(group, member, routing, tuple(part), settlement)
        settled = await asyncio.gather(
            *(
                self._settle_part(group, member, routing, tuple(part), settlement)
                for routing, (_, part) in parts.items()
            )
        )
        for (indexes, _), part_results in zip(parts.values(), settled, strict=True):
            for index, result in zip(indexes, part_results, strict=True):
                results[index] = result
        return results

    async def _settle_part(
        self,
        group: QueueGroup,
        member: str,
        routing: bytes,
        tokens: tuple[Token, ...],
        settlement: Settlement,
    ) -> list[TokenResult]:
        try:
            queue = self._find_by_routing(group, routing)
            result = await queue.submit(
                lambda now: settlement(member=member, tokens=tokens, now=now), len(tokens)
            )
        except QueueRefusedError as error:
            return [TokenResult(error.reason, str(error))] * len(tokens)
        if not isinstance(result, SettleResult):
            raise TypeError(f"a queue returned {type(result).__name__}, not SettleResult")
        if result.refusals.count(Refusal.NONE) == len(tokens):
            return [DONE] * len(tokens)
        return [RESULT_BY_REFUSAL[refusal] for refusal in result.refusals]

    def _find_by_routing(self, group: QueueGroup, routing: bytes) -> QueuePartition:
        token = decode_delivery_token(routing)
        if token is None or token.kind is not TokenKind.QUEUE:
            raise QueueRefusedError(ErrorReason.BAD_TOKEN)
        topic = self._image().topic_by_id(token.topic_id)
        if topic is None or token.partition >= len(topic.partitions):
            raise QueueRefusedError(ErrorReason.UNKNOWN_TOPIC)
        if topic.name not in group.topics:
            raise QueueRefusedError(ErrorReason.OTHER_GROUP)
        return self.find(group, topic, token.partition)

    # ---- inspection

    async def stats(self, group: QueueGroup, topic: Topic, index: PartitionIndex) -> PartitionStats:
        """Counts of a queue; only the leader, if it is another broker."""
        try:
            queue = self.find(group, topic, index)
        except QueueRefusedError:
            leader = self._leader_of(topic, index).broker
            return PartitionStats(topic=topic.name, partition=index, leader=leader, is_here=False)
        return await stats_of(queue)

    async def peek(self, group: QueueGroup, topic: Topic, count_max: int) -> list[InspectedMessage]:
        """Messages of the partitions that this broker leads, without leasing them.

        In turn from each partition, by offset.
        """
        queues = self._find_all(group, [(topic, part.index) for part in topic.partitions])
        bytes_max = self._limits.poll_bytes_max // len(queues)
        found = [await peek_queue(queue, count_max, bytes_max) for queue in queues]
        rows = (one for row in zip_longest(*found) for one in row if one is not None)
        return [one for one, _ in zip(rows, range(count_max), strict=False)]

    def backlogs(self) -> Iterator[tuple[str, str, Backlog]]:
        """Group, topic and counts of each queue that was used here since this broker leads its
        partition. Queues are neither loaded for it, nor kept loaded."""
        for queue in list(self._queues.values()):
            if queue.is_current and (backlog := queue.backlog()) is not None:
                yield queue.queue.group, queue.topic, backlog
        for queue_id, unloaded in list(self._unloaded.items()):
            if self._is_known(queue_id, unloaded):
                yield queue_id.group, unloaded.topic, unloaded.backlog()

    def _is_known(self, queue_id: QueueId, unloaded: UnloadedQueue) -> bool:
        has_group = self._context.group_of(queue_id.group) is not None
        return has_group and unloaded.is_current and queue_id not in self._queues

    @property
    def counts(self) -> Mapping[tuple[str, str], QueueCounts]:
        """By group and topic, of those that were served here and still exist."""
        gone = [
            (group, topic)
            for group, topic in self._counts
            if self._context.group_of(group) is None or self._image().topic(topic) is None
        ]
        for key in gone:
            del self._counts[key]
        return self._counts

    # ---- members and groups that leave

    async def evict(self, group_name: str, member: str) -> None:
        """The member left: its leases end at once.

        If that cannot be written now, they expire normally.
        """
        queues = [queue for queue in self._queues.values() if queue.queue.group == group_name]
        await asyncio.gather(
            *(queue.submit(lambda now: Evict(member=member, now=now)) for queue in queues),
            return_exceptions=True,
        )

    async def forget(
        self, group_name: str, topics: Iterable[Topic], *, if_deleted: bool = False
    ) -> None:
        """The group is deleted: close its queues here, and delete their stored state everywhere.

        `if_deleted`: only while the name is unknown. Workers that reconnect create the group again,
        and what is stored then are acks of the new group.
        Raises UNAVAILABLE if some state could not be deleted; the call may be repeated.
        """
        self._turns.pop(group_name, None)
        queues = [
            QueueId(group_name, topic.topic_id, part.index)
            for topic in topics
            for part in topic.partitions
        ]
        failures: list[RefusedError] = []

        async def forget_one(queue_id: QueueId) -> None:
            if if_deleted and self._context.group_of(group_name) is not None:
                return
            queue = self._queues.get(queue_id)
            if queue is not None:
                queue.close(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            try:
                await self._ledgers.forget(queue_id)
            except RefusedError as error:
                failures.append(error)

        for first in range(0, len(queues), _FORGET_CONCURRENCY):
            batch = queues[first : first + _FORGET_CONCURRENCY]
            await asyncio.gather(*map(forget_one, batch))
        if failures:
            raise unavailable(str(failures[-1]))

    # ---- lookup

    def load(self, group: QueueGroup, partitions: Iterable[tuple[Topic, PartitionIndex]]) -> None:
        """Load the queues of those partitions that this broker leads: a new queue that starts at
        the end gets the current end."""
        for topic, index in partitions:
            hosted = self._partitions.get(topic.name, index)
            if hosted is not None and hosted.replica.is_ready:
                with suppress(QueueRefusedError):
                    self.find(group, topic, index)

    def _find_all(
        self, group: QueueGroup, partitions: Sequence[tuple[Topic, PartitionIndex]]
    ) -> list[QueuePartition]:
        """At least one queue; otherwise raises the reason."""
        queues: list[QueuePartition] = []
        failure = QueueRefusedError(
            ErrorReason.NOT_LEADER, "this broker leads none of the requested partitions"
        )
        for topic, index in partitions:
            if topic.name not in group.topics:
                # It was deleted and recreated: messages leased now could not be settled.
                failure = not_in_group(topic.name, group.name)
                continue
            try:
                queues.append(self.find(group, topic, index))
            except QueueRefusedError as error:
                failure = error
        if not queues:
            raise failure
        return queues

    def find(self, group: QueueGroup, topic: Topic, index: PartitionIndex) -> QueuePartition:
        """The queue; it starts loading on its first use."""
        queue_id = QueueId(group.name, topic.topic_id, index)
        queue = self._queues.get(queue_id)
        if queue is not None and queue.is_current:
            return queue
        replica = self.lead(topic, index)
        if queue is not None:
            queue.close(unavailable())
        key = (topic.topic_id, index)
        known, epoch, end = self._ready.get(key, (None, replica.epoch, replica.high_watermark))
        if known is not replica or epoch != replica.epoch:
            end = replica.high_watermark
        counts = self._counts.setdefault((group.name, topic.name), QueueCounts())
        queue = QueuePartition(queue_id, topic.name, group, replica, end, self._context, counts)
        self._queues[queue_id] = queue
        self._unloaded.pop(queue_id, None)
        self._at.setdefault(key, {})[group.name] = queue
        queue.start()
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)
        return queue

    def lead(self, topic: Topic, index: PartitionIndex) -> Replica:
        """The replica of a partition that this broker leads."""
        if self._is_stopping:
            raise unavailable("the broker is stopping")
        try:
            hosted = self._partitions.lead(topic.name, index)
        except RefusedError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                reason = ErrorReason.NOT_LEADER
            elif error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                reason = ErrorReason.UNKNOWN_TOPIC
            else:
                reason = ErrorReason.UNAVAILABLE
            raise QueueRefusedError(reason, str(error)) from None
        replica = hosted.replica
        if not replica.is_ready or replica.topic_id != topic.topic_id:
            raise unavailable(f"{topic.name}-{index} is not ready yet: retry")
        return replica

    # ---- leadership and cleanup

    def on_leadership(self, replica: Replica) -> None:
        """As Partitions.on_leadership."""
        key = (replica.topic_id, replica.partition.partition)
        for queue in list(self._at.get(key, {}).values()):
            if not queue.is_current:
                queue.on_unavailable(replica)
        if not replica.is_ready:
            self._ready.pop(key, None)
        elif self._ready.get(key, (None, None))[:2] != (replica, replica.epoch):
            self._ready[key] = (replica, replica.epoch, replica.high_watermark)

    def _take_offline(self, replica: Replica, error: CorruptionError) -> None:
        hosted = self._partitions.get(*replica.partition)
        if hosted is not None and hosted.replica is replica:
            self._partitions.take_offline(hosted, error)

    def _forget_queue(self, queue: QueuePartition) -> None:
        if self._queues.get(queue.queue) is queue:
            del self._queues[queue.queue]
        key = (queue.queue.topic_id, queue.queue.partition)
        there = self._at.get(key, {})
        if there.get(queue.queue.group) is queue:
            del there[queue.queue.group]
            if not there:
                del self._at[key]

    def _sweep(self) -> None:
        """Close queues that are idle, or whose group was deleted."""
        self._sweep_timer = None
        idle_before = self._loop.time() - self._limits.idle_seconds_max
        for queue in list(self._queues.values()):
            if self._context.group_of(queue.queue.group) is None:
                self._turns.pop(queue.queue.group, None)
                queue.close(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            elif queue.is_idle and queue.used_at < idle_before:
                if queue.is_current and (backlog := queue.backlog()) is not None:
                    self._unloaded[queue.queue] = UnloadedQueue(
                        queue.topic, queue.replica, queue.epoch, backlog
                    )
                queue.close(unavailable())
        for queue_id, unloaded in list(self._unloaded.items()):
            if not self._is_known(queue_id, unloaded):
                del self._unloaded[queue_id]
        self._drop_messages()
        if self._queues and not self._is_stopping:
            self._sweep_timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)

    def _drop_messages(self) -> None:
        """Let the least recently used queues drop the messages that they have read."""
        held = sum(queue.reader.held_bytes for queue in self._queues.values())
        if held <= self._limits.held_bytes_max:
            return
        for queue in sorted(self._queues.values(), key=lambda queue: queue.used_at):
            held -= queue.reader.held_bytes
            queue.request_drop()
            if held <= self._limits.held_bytes_max:
                break

    def stop(self) -> None:
        """The broker stops: reject all waiting calls."""
        self._is_stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for queue in list(self._queues.values()):
            queue.stop(unavailable("the broker is stopping"))


async def _all_of(polls: list[PendingPoll]) -> PollResult:
    """All deliveries of these polls; raises only if all polls failed."""
    if len(polls) == 1:
        return await polls[0].future
    deliveries = []
    is_full = False
    failures: list[QueueRefusedError] = []
    for poll in polls:
        try:
            polled = await poll.future
        except QueueRefusedError as error:
            failures.append(error)
        else:
            deliveries += polled.deliveries
            is_full |= polled.is_full
    if len(failures) == len(polls):
        raise failures[0]
    return PollResult(deliveries=deliveries, is_full=is_full and not deliveries)

"""Owns the queues of the partitions that this broker leads: finds them, and asks them.

One queue, with its machine, its mailbox and its timers, is `one_queue.py`'s. A queue is loaded when
somebody asks for it, and let go when this broker leads its partition no more, its group or topic is
gone, or nobody has asked for long.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest

from moldau.data.partitions import Partitions
from moldau.groups.queue.commands import Evict
from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.results import SettleResult
from moldau.groups.queue.state import QueueId
from moldau.groups.queue.tokens import Token, decode_token
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.delivery_tokens import ROUTING_BYTES, TokenKind, decode_delivery_token
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TopicId
from moldau.queues.dead_letter_writer import Appends, DeadLetterWriter, Topics
from moldau.queues.inspection import peek_queue, stats_of
from moldau.queues.limits import QueueLimits
from moldau.queues.monotonic_wall_clock import MonotonicWallClock
from moldau.queues.pending_poll import PendingPoll
from moldau.queues.ports import LedgerStore
from moldau.queues.queue_partition import QueueContext, QueuePartition
from moldau.queues.settlement import RESULT_BY_REFUSAL, Extended, Nacked, Settlement, command_for
from moldau.queues.types import (
    DONE,
    ErrorReason,
    InspectedMessage,
    PartitionStats,
    PollResult,
    QueueRefusedError,
    TokenResult,
)
from moldau.replica.replica import Replica

_BAD_TOKEN = TokenResult(ErrorReason.BAD_TOKEN, ErrorReason.BAD_TOKEN.value)
_BOUNDS = QueueConfig()
_PART_BYTES_MIN = 128 * 1024
"""A part of an answer that is smaller is not worth asking another partition for."""

_FORGOTTEN_AT_ONCE = 32

Place = tuple[TopicId, PartitionIndex]


class QueueHost:
    """The queues of this broker. Everything raises QueueRefusedError.

    `group_of` tells what the image knows of a group: a queue whose group is gone ends.
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
        ledgers: LedgerStore,
        topics: Topics,
        appends: Appends,
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
        self._at: dict[Place, dict[str, QueuePartition]] = {}
        """The same by place, and there by group."""
        self._ready: dict[Place, tuple[Replica, Epoch, Offset]] = {}
        """Where the log ended when this broker was ready to lead there."""
        self._turns: dict[str, int] = {}
        self.parked_count = 0
        """Polls that wait for a message."""
        self._is_stopping = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._around = QueueContext(
            loop=loop,
            time=MonotonicWallClock(clock),
            ledgers=ledgers,
            dead_letters=DeadLetterWriter(clock=clock, topics=topics, appends=appends),
            limits=self._limits,
            group_of=group_of,
            take_offline=self._take_offline,
            on_over=self._forget_queue,
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
        """Take messages from these partitions, or wait for some.

        Partitions that are not served here are passed over, unless all are.
        """
        self._check_member(member)
        if count_max < 1:
            raise QueueRefusedError(
                ErrorReason.INVALID_ARGUMENT, "at least one message must be asked for"
            )
        if visibility_ms is not None:
            _check_visibility(visibility_ms)
        queues = self._find_all(group, partitions)
        count_max = min(count_max, self._limits.poll_count_max)

        def new_ask(
            count: int, bytes_max: int, *, parked: bool, strict: bool = False
        ) -> PendingPoll:
            return PendingPoll(
                self._loop,
                member=member,
                count_max=count,
                bytes_max=bytes_max,
                visibility_ms=visibility_ms,
                is_parked=parked,
                is_strict=strict,
            )

        polled = await self._take_now(self._in_turn(group.name, queues), count_max, new_ask)
        wait_seconds = min(wait_seconds, self._limits.poll_wait_seconds_max)
        if polled.deliveries or wait_seconds <= 0:
            return polled
        return await self._wait(
            queues, new_ask(count_max, self._limits.poll_bytes_max, parked=True), wait_seconds
        )

    async def _take_now(
        self, queues: list[QueuePartition], count_max: int, new_ask: Callable[..., PendingPoll]
    ) -> PollResult:
        """Ask those that seem to have something, for as much as they seem to have, all at once."""
        counts: list[tuple[QueuePartition, int]] = []
        left = count_max
        parts_max = max(1, self._limits.poll_bytes_max // _PART_BYTES_MIN)
        for queue in queues:
            count = min(left, queue.may_have())
            if count > 0:
                counts.append((queue, count))
                left -= count
                if left == 0 or len(counts) == parts_max:
                    break
        if not counts:
            return PollResult()
        bytes_max = self._limits.poll_bytes_max // len(counts)
        asks: list[tuple[QueuePartition, PendingPoll]] = []
        try:
            for queue, count in counts:
                self._check_room(queue)
                ask = new_ask(count, bytes_max, parked=False, strict=bool(asks))
                asks.append((queue, ask))
                queue.ask(ask)
            return await _all_of([ask for _, ask in asks])
        finally:
            for queue, ask in asks:
                ask.future.cancel()
                queue.leave(ask)

    async def _wait(
        self, queues: list[QueuePartition], ask: PendingPoll, wait_seconds: float
    ) -> PollResult:
        """At all of them, until one has something."""
        if self.parked_count >= self._limits.parked_max:
            raise QueueRefusedError(ErrorReason.BUSY)
        for queue in queues:
            self._check_room(queue)
        self.parked_count += 1
        timer = self._loop.call_later(wait_seconds, ask.expire)
        try:
            # Counted as waiting at all before the first may refuse it.
            ask.places += 1
            for queue in queues:
                queue.ask(ask)
            ask.places -= 1
            if ask.places == 0:
                raise QueueRefusedError(ErrorReason.NOT_LEADER)
            return await ask.future
        finally:
            self.parked_count -= 1
            timer.cancel()
            ask.future.cancel()
            for queue in queues:
                queue.leave(ask)

    def _in_turn(self, group_name: str, queues: list[QueuePartition]) -> list[QueuePartition]:
        """Beginning with another one each time."""
        turn = self._turns.get(group_name, 0) % len(queues)
        self._turns[group_name] = turn + 1
        return queues[turn:] + queues[:turn]

    def _check_room(self, queue: QueuePartition) -> None:
        if not queue.has_room:
            raise QueueRefusedError(ErrorReason.BUSY)

    def _check_member(self, member: str) -> None:
        if not 0 < len(member.encode("utf-8", "replace")) <= _BOUNDS.text_bytes_max:
            raise QueueRefusedError(
                ErrorReason.INVALID_ARGUMENT,
                f"a consumer's name takes 1 to {_BOUNDS.text_bytes_max} bytes",
            )

    # ---- settling

    async def settle(
        self, group: QueueGroup, member: str, tokens: Sequence[bytes], what: Settlement
    ) -> list[TokenResult]:
        """One verdict per token, in order. Raises only if the call as a whole is out of bounds."""
        self._check_member(member)
        self._check_settling(tokens, what)
        verdicts = [DONE] * len(tokens)
        parts: dict[bytes, tuple[list[int], list[Token]]] = {}
        for place, data in enumerate(tokens):
            token = decode_token(data[ROUTING_BYTES:])
            if token is None:
                verdicts[place] = _BAD_TOKEN
                continue
            part = parts.get(head := data[:ROUTING_BYTES])
            if part is None:
                part = parts[head] = ([], [])
            part[0].append(place)
            part[1].append(token)
        waiting = [
            self._settle_part(group, member, head, tuple(part), what)
            for head, (_, part) in parts.items()
        ]
        if len(waiting) == 1:
            results = [await waiting[0]]
        else:
            results = await asyncio.gather(*waiting)
        for (places, _), result in zip(parts.values(), results, strict=True):
            for place, verdict in zip(places, result, strict=True):
                verdicts[place] = verdict
        return verdicts

    async def _settle_part(
        self,
        group: QueueGroup,
        member: str,
        head: bytes,
        tokens: tuple[Token, ...],
        what: Settlement,
    ) -> list[TokenResult]:
        """Those of one queue."""
        try:
            queue = self._find_by_head(group, head)
            answer = await queue.tell(
                lambda now: command_for(what, member, tokens, now), len(tokens)
            )
        except QueueRefusedError as error:
            return [TokenResult(error.why, str(error))] * len(tokens)
        if not isinstance(answer, SettleResult):
            raise TypeError(f"a queue answered {type(answer).__name__}, not Judged")
        return [RESULT_BY_REFUSAL[refusal] for refusal in answer.refusals]

    def _find_by_head(self, group: QueueGroup, head: bytes) -> QueuePartition:
        ticket = decode_delivery_token(head)
        if ticket is None or ticket.kind is not TokenKind.QUEUE:
            raise QueueRefusedError(ErrorReason.BAD_TOKEN)
        topic = self._image().topic_by_id(ticket.topic_id)
        if topic is None or ticket.partition >= len(topic.partitions):
            raise QueueRefusedError(ErrorReason.UNKNOWN_TOPIC)
        if topic.name not in group.topics:
            raise QueueRefusedError(ErrorReason.OTHER_GROUP)
        return self._find(group, topic, ticket.partition)

    def _check_settling(self, tokens: Sequence[bytes], what: Settlement) -> None:
        if len(tokens) > self._limits.tokens_per_call_max:
            raise QueueRefusedError(
                ErrorReason.INVALID_ARGUMENT,
                f"{len(tokens)} tokens in one call; at most {self._limits.tokens_per_call_max}",
            )
        match what:
            case Extended(visibility_ms=visibility_ms):
                _check_visibility(visibility_ms)
            case Nacked(delay_ms=int(delay_ms)):
                if not 0 <= delay_ms <= _BOUNDS.delay_ms_max:
                    raise QueueRefusedError(
                        ErrorReason.INVALID_ARGUMENT,
                        f"a delay is 0 to {_BOUNDS.delay_ms_max} ms, not {delay_ms}",
                    )

    # ---- looking

    async def stats(self, group: QueueGroup, topic: Topic, index: PartitionIndex) -> PartitionStats:
        """What is known here; of a partition that is led elsewhere, who leads it."""
        try:
            queue = self._find(group, topic, index)
        except QueueRefusedError:
            leader = self._leader_of(topic, index).broker
            return PartitionStats(topic=topic.name, partition=index, leader=leader, is_here=False)
        return await stats_of(queue)

    async def peek(self, group: QueueGroup, topic: Topic, count_max: int) -> list[InspectedMessage]:
        """Messages of the partitions that are led here, without taking them.

        In turn from each, those first that are open longest.
        """
        if count_max < 1:
            raise QueueRefusedError(
                ErrorReason.INVALID_ARGUMENT, "at least one message must be asked for"
            )
        count_max = min(count_max, self._limits.poll_count_max)
        queues = self._find_all(group, [(topic, part.index) for part in topic.partitions])
        bytes_max = self._limits.poll_bytes_max // len(queues)
        found = [await peek_queue(queue, count_max, bytes_max) for queue in queues]
        rows = (one for row in zip_longest(*found) for one in row if one is not None)
        return [one for one, _ in zip(rows, range(count_max), strict=False)]

    # ---- members and groups that go

    async def evict(self, group_name: str, member: str) -> None:
        """The member is gone: what it has from this broker's queues is for others at once.

        Where that cannot be written now, its leases end in their time.
        """
        queues = [queue for queue in self._queues.values() if queue.queue.group == group_name]
        await asyncio.gather(
            *(queue.tell(lambda now: Evict(member=member, now=now)) for queue in queues),
            return_exceptions=True,
        )

    async def forget(
        self, group_name: str, topics: Iterable[Topic], *, if_gone: bool = False
    ) -> None:
        """The group is deleted: end its queues here, and what is stored of them, wherever led.

        `if_gone`: only as long as its name is known no more. Workers that connect again make it
        anew at once, and what is stored then are acks of the new group.
        Refused if some of it could not be forgotten now; it may be called again.
        """
        self._turns.pop(group_name, None)
        queues = [
            QueueId(group_name, topic.topic_id, part.index)
            for topic in topics
            for part in topic.partitions
        ]
        failures: list[RefusedError] = []

        async def forget_one(queue_id: QueueId) -> None:
            if if_gone and self._around.group_of(group_name) is not None:
                return
            queue = self._queues.get(queue_id)
            if queue is not None:
                queue.end(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            try:
                await self._ledgers.forget(queue_id)
            except RefusedError as error:
                failures.append(error)

        for first in range(0, len(queues), _FORGOTTEN_AT_ONCE):
            some = queues[first : first + _FORGOTTEN_AT_ONCE]
            await asyncio.gather(*map(forget_one, some))
        if failures:
            raise QueueRefusedError(ErrorReason.UNAVAILABLE, str(failures[-1]))

    # ---- finding queues

    def touch(self, group: QueueGroup, partitions: Iterable[tuple[Topic, PartitionIndex]]) -> None:
        """Begin to load the queues of these partitions, where they are led here: a new queue that
        starts at the end starts at what is the end then."""
        for topic, index in partitions:
            hosted = self._partitions.get(topic.name, index)
            if hosted is not None and hosted.replica.is_ready:
                with suppress(QueueRefusedError):
                    self._find(group, topic, index)

    def _find_all(
        self, group: QueueGroup, partitions: Sequence[tuple[Topic, PartitionIndex]]
    ) -> list[QueuePartition]:
        """At least one, or the reason why there is none."""
        queues: list[QueuePartition] = []
        failure = QueueRefusedError(
            ErrorReason.NOT_LEADER, "no partition is asked for that is led here"
        )
        for topic, index in partitions:
            if topic.name not in group.topics:
                # It was deleted and made anew: what would be taken now could not be settled.
                failure = QueueRefusedError(
                    ErrorReason.UNKNOWN_TOPIC,
                    f"topic {topic.name!r} is none of group {group.name!r}: connect again",
                )
                continue
            try:
                queues.append(self._find(group, topic, index))
            except QueueRefusedError as error:
                failure = error
        if not queues:
            raise failure
        return queues

    def _find(self, group: QueueGroup, topic: Topic, index: PartitionIndex) -> QueuePartition:
        """The queue; it is about to be loaded if it was not asked for so far."""
        queue_id = QueueId(group.name, topic.topic_id, index)
        queue = self._queues.get(queue_id)
        if queue is not None and queue.is_current:
            return queue
        replica = self._lead(topic, index)
        if queue is not None:
            queue.end(QueueRefusedError(ErrorReason.UNAVAILABLE))
        place = (topic.topic_id, index)
        known, epoch, end = self._ready.get(place, (None, replica.epoch, replica.high_watermark))
        if known is not replica or epoch != replica.epoch:
            end = replica.high_watermark
        queue = QueuePartition(queue_id, topic.name, group, replica, end, self._around)
        self._queues[queue_id] = queue
        self._at.setdefault(place, {})[group.name] = queue
        queue.start()
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)
        return queue

    def _lead(self, topic: Topic, index: PartitionIndex) -> Replica:
        if self._is_stopping:
            raise QueueRefusedError(ErrorReason.UNAVAILABLE, "the broker stops")
        try:
            hosted = self._partitions.lead(topic.name, index)
        except RefusedError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                why = ErrorReason.NOT_LEADER
            elif error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                why = ErrorReason.UNKNOWN_TOPIC
            else:
                why = ErrorReason.UNAVAILABLE
            raise QueueRefusedError(why, str(error)) from None
        replica = hosted.replica
        if not replica.is_ready or replica.topic_id != topic.topic_id:
            raise QueueRefusedError(
                ErrorReason.UNAVAILABLE, f"{topic.name}-{index} is not ready: try again"
            )
        return replica

    # ---- what happens to partitions

    def on_leadership(self, replica: Replica) -> None:
        """As Partitions.on_leadership."""
        place = (replica.topic_id, replica.partition.partition)
        for queue in list(self._at.get(place, {}).values()):
            if not queue.is_current:
                queue.on_gone(replica)
        if not replica.is_ready:
            self._ready.pop(place, None)
        elif self._ready.get(place, (None, None))[:2] != (replica, replica.epoch):
            self._ready[place] = (replica, replica.epoch, replica.high_watermark)

    def _take_offline(self, replica: Replica, error: CorruptionError) -> None:
        hosted = self._partitions.get(*replica.partition)
        if hosted is not None and hosted.replica is replica:
            self._partitions.take_offline(hosted, error)

    def _forget_queue(self, queue: QueuePartition) -> None:
        if self._queues.get(queue.queue) is queue:
            del self._queues[queue.queue]
        place = (queue.queue.topic_id, queue.queue.partition)
        there = self._at.get(place, {})
        if there.get(queue.queue.group) is queue:
            del there[queue.queue.group]
            if not there:
                del self._at[place]

    def _sweep(self) -> None:
        """Let go of what nobody uses any more; who asks again finds it as it was."""
        self._sweep_timer = None
        idle_before = self._loop.time() - self._limits.idle_seconds_max
        for queue in list(self._queues.values()):
            if self._around.group_of(queue.queue.group) is None:
                self._turns.pop(queue.queue.group, None)
                queue.end(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            elif queue.is_idle and queue.used_at < idle_before:
                queue.end(QueueRefusedError(ErrorReason.UNAVAILABLE))
        self._make_room()
        if self._queues and not self._is_stopping:
            self._sweep_timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)

    def _make_room(self) -> None:
        """Let queues that were used longest ago forget what they have read; it is in the log."""
        held = sum(queue.reader.held_bytes for queue in self._queues.values())
        if held <= self._limits.held_bytes_max:
            return
        for queue in sorted(self._queues.values(), key=lambda queue: queue.used_at):
            held -= queue.reader.held_bytes
            queue.forget_messages()
            if held <= self._limits.held_bytes_max:
                break

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def stop(self) -> None:
        """The broker stops: everybody who waits is refused."""
        self._is_stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for queue in list(self._queues.values()):
            queue.stop(QueueRefusedError(ErrorReason.UNAVAILABLE, "the broker stops"))


def _check_visibility(visibility_ms: int) -> None:
    if not 1 <= visibility_ms <= _BOUNDS.visibility_ms_max:
        raise QueueRefusedError(
            ErrorReason.INVALID_ARGUMENT,
            f"a lease lasts 1 to {_BOUNDS.visibility_ms_max} ms, not {visibility_ms}",
        )


async def _all_of(asks: list[PendingPoll]) -> PollResult:
    """What they get together; what keeps one from being served counts only if none is."""
    if len(asks) == 1:
        return await asks[0].future
    deliveries = []
    is_full = False
    failures: list[QueueRefusedError] = []
    for ask in asks:
        try:
            polled = await ask.future
        except QueueRefusedError as error:
            failures.append(error)
        else:
            deliveries += polled.deliveries
            is_full |= polled.is_full
    if len(failures) == len(asks):
        raise failures[0]
    return PollResult(deliveries=deliveries, is_full=is_full and not deliveries)

"""Owns the way of a transaction's end into its partitions: asks their leaders, and answers as one.

The coordinator hands in what is to be marked; partitions are sorted by leader, and what one broker
is to be told travels together. Whatever cannot be told now is reported as failed, and the
coordinator asks again, whoever leads then.

A question may be held up on its way, and come after the same was asked again and answered. By then
the producer may be in its next transaction, with the same epoch if its client is an older one, and
a late marker would end that. So questions are numbered, and who is asked ignores older ones.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from moldau.data.partitions import Partitions
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image, Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    BrokerId,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from moldau.records.control import EndMarker
from moldau.replica.producers import TRANSACTIONS_V2

log = logging.getLogger(__name__)

WRITE_MARKERS_METHOD: Final = 5
"""Number of the question by which a leader is asked to write markers."""

_CALLS_PER_BROKER_MAX: Final = 8
_QUESTIONS_PER_CALL_MAX: Final = 500
_CALL_SECONDS_MAX: Final = 6.0
_WRITE_SECONDS_MAX: Final = 3.0
_NUMBERS_REMEMBERED_MAX: Final = 50_000

_NO_COORDINATOR: Final = -1

MarkerCallback = Callable[[ErrorCode], None]
_OVER: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The transaction is over in the partition: marked, or its producer has a later epoch there, which
it gets only after the end. To ask again would change nothing, ever."""
Report = Callable[[bool, frozenset[TopicPartition]], None]
"""(whether they are marked, which)"""


class MarkerRequest(msgspec.Struct, frozen=True, array_like=True):
    """One question: the end of one transaction, for the partitions that one broker leads."""

    coordinator: int
    """Partition of `__transaction_state` that decided it."""
    coordinator_epoch: int
    number: int
    """Rises with every question of that coordinator."""
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


_decode = msgspec.msgpack.Decoder(list[MarkerRequest]).decode
_decode_codes = msgspec.msgpack.Decoder(list[list[int]]).decode


class PeerCaller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class GroupMarkers(Protocol):
    """What groups have to know of ends in the partitions that store them."""

    def transaction_ends(
        self, index: int, producer_id: ProducerId, next_epoch_min: int
    ) -> Callable[[bool], None]:
        """Before the end is written; returns whom to tell when it is committed.

        Raises RefusedError while the groups of that partition cannot take it in.
        """
        ...


class MarkerWriter:
    """Writes markers into the partitions that this broker leads."""

    def __init__(self, partitions: Partitions, groups: GroupMarkers) -> None:
        self._partitions = partitions
        self._groups = groups
        self._numbers: OrderedDict[tuple[TopicPartition, int], tuple[int, int]] = OrderedDict()
        """(partition, producer) -> coordinator's epoch and number of the last question"""

    def write(
        self, marking: MarkerRequest, partition: TopicPartition, settled: MarkerCallback
    ) -> None:
        """`settled` hears the outcome once, perhaps at once."""
        try:
            self._check_number(marking, partition)
            self._write(marking, partition, settled)
        except RefusedError as error:
            if error.code in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            ):
                log.warning("the end of a transaction is refused by %s: %s", partition, error)
            settled(error.code)

    def abort_hanging(
        self,
        partition: TopicPartition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        settled: MarkerCallback,
    ) -> None:
        """End what is open in a partition and known to no coordinator, as an administrator asks.

        Nothing but that: a marker of an epoch that nobody has, or that claims a later coordinator,
        would lock the true ones out.
        """
        try:
            replica = self._partitions.lead(*partition).replica
            state = replica.producers.get(producer_id)
            if state is not None and state.epoch != producer_epoch:
                raise RefusedError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {producer_id} has epoch {state.epoch}, not {producer_epoch}",
                )
            if state is None or not replica.producers.is_open(producer_id, producer_epoch):
                settled(ErrorCode.NONE)
                return
            marking = MarkerRequest(
                coordinator=_NO_COORDINATOR,
                coordinator_epoch=max(state.coordinator_epoch, 0),
                number=0,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=False,
                transaction_version=0,
                partitions=(partition,),
            )
            self._write(marking, partition, settled)
        except RefusedError as error:
            settled(error.code)

    def _check_number(self, marking: MarkerRequest, partition: TopicPartition) -> None:
        key = (partition, marking.producer_id)
        asked = (marking.coordinator_epoch, marking.number)
        last = self._numbers.pop(key, None)
        self._numbers[key] = asked if last is None else max(last, asked)
        if len(self._numbers) > _NUMBERS_REMEMBERED_MAX:
            self._numbers.popitem(last=False)
        if last is not None and asked <= last:
            raise RefusedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED, "the question was asked again since"
            )

    def _write(
        self, marking: MarkerRequest, partition: TopicPartition, settled: MarkerCallback
    ) -> None:
        topic, index = partition
        replica = self._partitions.lead(topic, index).replica
        tell_groups: Callable[[bool], None] | None = None
        if topic == CONSUMER_OFFSETS_TOPIC:
            rises = marking.transaction_version >= TRANSACTIONS_V2
            tell_groups = self._groups.transaction_ends(
                index, ProducerId(marking.producer_id), marking.producer_epoch + (not rises)
            )

        def committed(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and tell_groups is not None:
                tell_groups(marking.is_commit)
            settled(code)

        replica.write_marker(
            ProducerId(marking.producer_id),
            ProducerEpoch(marking.producer_epoch),
            EndMarker(marking.is_commit, marking.coordinator_epoch),
            committed,
            transaction_version=marking.transaction_version,
        )

    # ---- for the peers

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """Codes per question and partition, in their order. Raises RefusedError."""
        try:
            markings = _decode(payload)
        except msgspec.DecodeError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None
        outcomes = _Outcomes([len(marking.partitions) for marking in markings])
        for row, marking in enumerate(markings):
            for column, (topic, index) in enumerate(marking.partitions):
                partition = TopicPartition(topic, PartitionIndex(index))
                self.write(marking, partition, outcomes.place(row, column))
        # What is missing by then may yet be committed; the asker asks again.
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_SECONDS_MAX):
                await outcomes.done
        return msgspec.msgpack.encode(outcomes.codes)


class _Outcomes:
    """Collects codes; late ones are not looked at."""

    def __init__(self, widths: list[int]) -> None:
        self.codes = [[int(ErrorCode.REQUEST_TIMED_OUT)] * width for width in widths]
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = sum(widths)
        if not self._left:
            self.done.set_result(None)

    def place(self, row: int, column: int) -> MarkerCallback:
        def settled(code: ErrorCode) -> None:
            self.codes[row][column] = code
            self._left -= 1
            if not self._left and not self.done.done():
                self.done.set_result(None)

        return settled


class _Waiting(NamedTuple):
    marking: MarkerRequest
    report: Report


class MarkerSender:
    """Brings markers to the leaders of their partitions, on this broker or another."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        me: BrokerId,
        writer: MarkerWriter,
        caller: PeerCaller,
        image: Callable[[], Image],
        fresh_image: Callable[[], Awaitable[Image]],
        leader_of: Callable[[Topic, int], Leader],
    ) -> None:
        self._loop = loop
        self._me = me
        self.writer = writer
        self._caller = caller
        self._image = image
        self._fresh_image = fresh_image
        self._leader_of = leader_of
        self._queues: dict[BrokerId, list[_Waiting]] = defaultdict(list)
        self._calls: dict[BrokerId, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, marking: MarkerRequest, report: Report) -> None:
        """Have all partitions marked; `report` tells of each once, never from within this call."""
        image = self._image()
        by_leader: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
        unknown: list[TopicPartition] = []
        for name, index in marking.partitions:
            partition = TopicPartition(name, PartitionIndex(index))
            topic = image.topic(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                unknown.append(partition)
            else:
                by_leader[self._leader_of(topic, index).broker].append(partition)
        if unknown:
            self._spawn(self._look_for(unknown, report))
        for leader, partitions in by_leader.items():
            if leader == NO_LEADER_ID:
                self._loop.call_soon(report, False, frozenset(partitions))
                continue
            part = marking
            if len(partitions) < len(marking.partitions):
                part = msgspec.structs.replace(marking, partitions=tuple(partitions))
            if leader == self._me:
                for partition in partitions:
                    self.writer.write(part, partition, self._settled_here(partition, report))
            else:
                self._queues[leader].append(_Waiting(part, report))
                self._send_queue(leader)

    def _settled_here(self, partition: TopicPartition, report: Report) -> MarkerCallback:
        def settled(code: ErrorCode) -> None:
            self._loop.call_soon(report, code in _OVER, frozenset((partition,)))

        return settled

    # ---- to other brokers

    def _send_queue(self, leader: BrokerId) -> None:
        if self._calls[leader] < _CALLS_PER_BROKER_MAX and self._queues[leader]:
            queue = self._queues[leader]
            some = queue[:_QUESTIONS_PER_CALL_MAX]
            del queue[: len(some)]
            self._calls[leader] += 1
            self._spawn(self._ask(leader, some))

    async def _ask(self, leader: BrokerId, asked: Sequence[_Waiting]) -> None:
        payload = msgspec.msgpack.encode([each.marking for each in asked])
        try:
            reply = await self._caller.call(
                leader, WRITE_MARKERS_METHOD, payload, _CALL_SECONDS_MAX
            )
            rows = _decode_codes(reply)
        except RefusedError as error:
            log.debug("broker %d did not write markers: %s", leader, error)
            rows = []
        except msgspec.DecodeError as error:
            log.warning("broker %d answered about markers what cannot be read: %s", leader, error)
            rows = []
        finally:
            self._calls[leader] -= 1
        for place, (marking, report) in enumerate(asked):
            codes = rows[place] if place < len(rows) else []
            marked = {
                TopicPartition(topic, PartitionIndex(index))
                for (topic, index), code in zip(marking.partitions, codes, strict=False)
                if code in _OVER
            }
            others = {
                TopicPartition(topic, PartitionIndex(index)) for topic, index in marking.partitions
            } - marked
            if marked:
                report(True, frozenset(marked))
            if others:
                report(False, frozenset(others))
        self._send_queue(leader)

    # ---- partitions that are not known

    async def _look_for(self, unknown: list[TopicPartition], report: Report) -> None:
        """A topic that was deleted needs no marker. That this broker knows of none proves little:
        it may not have heard of a new one yet."""
        try:
            image = await self._fresh_image()
        except RefusedError:
            report(False, frozenset(unknown))
            return
        gone = frozenset(each for each in unknown if not _exists(image, each))
        if gone:
            report(True, gone)
        if there := frozenset(unknown) - gone:
            report(False, there)

    # ---- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("markers met a defect", exc_info=error)

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _exists(image: Image, partition: TopicPartition) -> bool:
    topic = image.topic(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)

"""Writes end markers of transactions: sends them to partition leaders, and handles such requests.

The coordinator passes the partitions; they are grouped by leader, and requests to one broker are
batched. Failures are reported to the coordinator, which retries with the current leader.

A request may be delayed until after its retry succeeded. By then the producer may be in its next
transaction, with the same epoch if its client is old, and the late marker would end that. So
requests are numbered, and leaders reject older ones.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from moldau.coordination.group_service import GroupService
from moldau.coordination.marker_request import MarkerRequest
from moldau.data.partitions import Partitions
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image, Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.records.control import TRANSACTIONS_V2, EndMarker

log = logging.getLogger(__name__)


_CALLS_PER_BROKER_MAX = 8
_REQUESTS_PER_CALL_MAX = 500
_CALL_SECONDS_MAX: Final = 6.0
_WRITE_SECONDS_MAX: Final = 3.0
_NUMBERS_REMEMBERED_MAX: Final = 50_000

_NO_COORDINATOR: Final = -1

MarkerCallback = Callable[[ErrorCode], None]
_ENDED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The transaction has ended in the partition: marked, or its producer has a later epoch, which it
gets only after the end. Not retriable. This relies on what raises the epoch beside an open
transaction: a marker, which ends it, or a batch that the coordinator has verified, never another
one (ProducerTable.check). Otherwise the transaction would stay open there."""
Report = Callable[[bool, frozenset[TopicPartition]], None]
"""(whether they are marked, partitions)"""


_decode = msgspec.msgpack.Decoder(list[MarkerRequest]).decode
_decode_codes = msgspec.msgpack.Decoder(list[list[int]]).decode


class MarkerWriter:
    """Writes markers into the partitions that this broker leads."""

    def __init__(self, partitions: Partitions, groups: GroupService) -> None:
        self._partitions = partitions
        self._groups = groups
        self._numbers: OrderedDict[tuple[TopicPartition, int], tuple[int, int]] = OrderedDict()
        """(partition, producer) -> coordinator epoch and number of the last request"""

    def write(
        self, request: MarkerRequest, partition: TopicPartition, settled: MarkerCallback
    ) -> None:
        """`settled` is called once with the result, maybe immediately."""
        try:
            self._check_number(request, partition)
            self._write(request, partition, settled)
        except RefusedError as error:
            if error.code in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            ):
                log.warning(
                    "%s rejected an end marker of producer %d: %s",
                    partition,
                    request.producer_id,
                    error,
                    extra=events.MARKER_REJECTED(producer=request.producer_id),
                )
            settled(error.code)

    def abort_hanging(
        self,
        partition: TopicPartition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        settled: MarkerCallback,
    ) -> None:
        """Abort a transaction that is open in a partition and unknown to any coordinator.

        Nothing else: a marker with an unused producer epoch or a later coordinator epoch would
        fence the real ones.
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
            request = MarkerRequest(
                coordinator=_NO_COORDINATOR,
                coordinator_epoch=max(state.coordinator_epoch, 0),
                number=0,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=False,
                transaction_version=0,
                partitions=(partition,),
            )
            self._write(request, partition, settled)
        except RefusedError as error:
            settled(error.code)

    def _check_number(self, request: MarkerRequest, partition: TopicPartition) -> None:
        key = (partition, request.producer_id)
        number = (request.coordinator_epoch, request.number)
        last = self._numbers.pop(key, None)
        self._numbers[key] = number if last is None else max(last, number)
        if len(self._numbers) > _NUMBERS_REMEMBERED_MAX:
            self._numbers.popitem(last=False)
        if last is not None and number <= last:
            raise RefusedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED, "a newer marker request was received"
            )

    def _write(
        self, request: MarkerRequest, partition: TopicPartition, settled: MarkerCallback
    ) -> None:
        topic, index = partition
        replica = self._partitions.lead(topic, index).replica
        groups_ended: Callable[[bool], None] | None = None
        if topic == CONSUMER_OFFSETS_TOPIC:
            bumps_epoch = request.transaction_version >= TRANSACTIONS_V2
            groups_ended = self._groups.transaction_ends(
                index, ProducerId(request.producer_id), request.producer_epoch + (not bumps_epoch)
            )

        def committed(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and groups_ended is not None:
                groups_ended(request.is_commit)
            settled(code)

        replica.write_marker(
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            EndMarker(request.is_commit, request.coordinator_epoch),
            committed,
            transaction_version=request.transaction_version,
        )

    # ---- for the peers

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """Error codes per request and partition, in their order. Raises RefusedError."""
        try:
            requests = _decode(payload)
        except MALFORMED as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None
        outcomes = _Outcomes([len(request.partitions) for request in requests])
        for row, request in enumerate(requests):
            for column, (topic, index) in enumerate(request.partitions):
                partition = TopicPartition(topic, PartitionIndex(index))
                self.write(request, partition, outcomes.place(row, column))
        # Missing ones may still be committed; the coordinator retries.
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_SECONDS_MAX):
                await outcomes.done
        return msgspec.msgpack.encode(outcomes.codes)


class _Outcomes:
    """Collects error codes; late ones are ignored."""

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
    request: MarkerRequest
    report: Report


class MarkerSender:
    """Sends markers to the leaders of their partitions, local or remote."""

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

    def send(self, request: MarkerRequest, report: Report) -> None:
        """Mark all partitions; `report` is called once for each, never from within this call."""
        image = self._image()
        by_leader: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
        unknown: list[TopicPartition] = []
        for name, index in request.partitions:
            partition = TopicPartition(name, PartitionIndex(index))
            topic = image.topic(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                unknown.append(partition)
            else:
                by_leader[self._leader_of(topic, index).broker].append(partition)
        if unknown:
            self._spawn(self._check_unknown(unknown, report))
        for leader, partitions in by_leader.items():
            if leader == NO_LEADER_ID:
                self._loop.call_soon(report, False, frozenset(partitions))
                continue
            part = request
            if len(partitions) < len(request.partitions):
                part = msgspec.structs.replace(request, partitions=tuple(partitions))
            if leader == self._me:
                for partition in partitions:
                    settled = partial(self._settled_here, partition, report)
                    self.writer.write(part, partition, settled)
            else:
                self._queues[leader].append(_Waiting(part, report))
                self._send_queue(leader)

    def _settled_here(self, partition: TopicPartition, report: Report, code: ErrorCode) -> None:
        self._loop.call_soon(report, code in _ENDED, frozenset((partition,)))

    # ---- to other brokers

    def _send_queue(self, leader: BrokerId) -> None:
        if self._calls[leader] < _CALLS_PER_BROKER_MAX and self._queues[leader]:
            queue = self._queues[leader]
            some = queue[:_REQUESTS_PER_CALL_MAX]
            del queue[: len(some)]
            self._calls[leader] += 1
            self._spawn(self._call(leader, some))

    async def _call(self, leader: BrokerId, requests: Sequence[_Waiting]) -> None:
        payload = msgspec.msgpack.encode([each.request for each in requests])
        try:
            reply = await self._caller.call(
                leader, PeerMethod.WRITE_MARKERS, payload, _CALL_SECONDS_MAX
            )
            rows = _decode_codes(reply)
        except RefusedError as error:
            log.debug("broker %d did not write transaction markers, retrying: %s", leader, error)
            rows = []
        except MALFORMED as mistake:
            log.warning(
                "broker %d sent a malformed WriteMarkers response: %s",
                leader,
                mistake,
                extra=events.PEER_MESSAGE_MALFORMED(peer=leader),
            )
            rows = []
        finally:
            self._calls[leader] -= 1
        for place, (request, report) in enumerate(requests):
            codes = rows[place] if place < len(rows) else []
            marked = {
                TopicPartition(topic, PartitionIndex(index))
                for (topic, index), code in zip(request.partitions, codes, strict=False)
                if code in _ENDED
            }
            others = {
                TopicPartition(topic, PartitionIndex(index)) for topic, index in request.partitions
            } - marked
            if marked:
                report(True, frozenset(marked))
            if others:
                report(False, frozenset(others))
        self._send_queue(leader)

    # ---- unknown partitions

    async def _check_unknown(self, unknown: list[TopicPartition], report: Report) -> None:
        """Deleted topics need no marker; a fresh image distinguishes them from new topics."""
        try:
            image = await self._fresh_image()
        except RefusedError:
            report(False, frozenset(unknown))
            return
        deleted = frozenset(each for each in unknown if not image.has_partition(*each))
        if deleted:
            report(True, deleted)
        if existing := frozenset(unknown) - deleted:
            report(False, existing)

    # ---- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "internal error while sending transaction markers",
                exc_info=error,
                extra=events.INTERNAL_ERROR(),
            )

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

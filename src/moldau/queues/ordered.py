"""Owns ordered groups where their partitions are led: polls that repeat, and acks that go forward.

A partition belongs to one member, by the group's coordinator, which also keeps the offset up to
which everything is acked. Here is a place per partition and group: how far it is acked, and until
when it pauses. It is asked for anew when another member comes, or this broker leads anew.
"""

import asyncio
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from moldau.data.fetch import FetchService, PartitionFetch, PartitionFetchResult
from moldau.data.partitions import Partitions
from moldau.data.record_reader import read_page
from moldau.metadata.image import Image, Topic
from moldau.model.clock import Clock
from moldau.model.delivery_tokens import (
    DeliveryToken,
    TokenKind,
    decode_delivery_token,
    encode_delivery_token,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import NO_OFFSET, OffsetCommitResult
from moldau.queues.types import DONE, Delivery, ErrorReason, QueueRefusedError, TokenResult
from moldau.records.record import Record
from moldau.replica.replica import Replica

ANSWER_BYTES_MAX: Final = 3 * 1024 * 1024 + 512 * 1024
"""Of the messages in one answer: less than the 4 MB that clients of gRPC take unless told. One
message may exceed it."""
PLACES_MAX: Final = 20_000
BACKOFF_MS: Final = 1_000
"""The pause after a Nack that does not say."""

_REST: Final = struct.Struct(">qI")
Led = tuple[Topic, PartitionIndex]
_NOT_ASSIGNED: Final = TokenResult(ErrorReason.NOT_ASSIGNED, ErrorReason.NOT_ASSIGNED.value)
_SETTLED: Final = TokenResult(ErrorReason.SETTLED, ErrorReason.SETTLED.value)


class _Place:
    """Where a group is in a partition."""

    __slots__ = ("acked", "epoch", "member", "paused_until", "position")

    def __init__(self, epoch: Epoch, member: str, acked: int) -> None:
        self.epoch = epoch
        self.member = member
        self.acked = acked
        """Everything before is done."""
        self.position = acked
        """There is nothing to deliver between `acked` and this."""
        self.paused_until = float("-inf")

    def advance(self, acked: int) -> None:
        self.acked = max(self.acked, acked)
        self.position = max(self.position, self.acked)


class _Token(NamedTuple):
    """What an ordered token says, in the topic of now."""

    topic: Topic
    partition: PartitionIndex
    offset: int


class OrderedGroups:
    """Ordered groups on this broker. Everything raises QueueRefusedError."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        image: Callable[[], Image],
        partitions: Partitions,
        fetch: FetchService,
        calls: GroupRpcClient,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._image = image
        self._partitions = partitions
        self._fetch = fetch
        self._calls = calls
        self._places: OrderedDict[tuple[str, TopicId, PartitionIndex], _Place] = OrderedDict()
        self._asking: dict[tuple[str, TopicId, PartitionIndex], list[_Place]] = {}
        """Places whose offset is being asked for: what is acked meanwhile may be missing in it."""
        self._turn = 0

    # ---- polls

    async def poll(
        self,
        group: str,
        member: str,
        led: Sequence[Led],
        count_max: int,
        *,
        starts_at_end: bool,
        wait_seconds: float,
        has: Callable[[TopicId, int], bool],
    ) -> list[Delivery]:
        """Messages from where the group is in these partitions, which are led here.

        `has` tells whether the member still has a partition: it may have changed during a wait.
        """
        self._turn += 1
        # Another one is first each time: one that is always full shall not hide the others.
        first = self._turn % len(led)
        places: list[tuple[Led, _Place]] = []
        for topic, index in (*led[first:], *led[:first]):
            place = await self._place(group, member, topic, index, starts_at_end=starts_at_end)
            places.append(((topic, index), place))
        deadline = self._clock.monotonic() + wait_seconds
        while True:
            found = await self._read(group, places, count_max, has)
            left = deadline - self._clock.monotonic()
            places = [
                (at, place)
                for at, place in places
                if has(at[0].topic_id, at[1]) and self._counts(group, *at, place)
            ]
            if found or left <= 0 or not places:
                return found
            await self._wait(places, left)

    async def _read(
        self,
        group: str,
        places: Sequence[tuple[Led, _Place]],
        count_max: int,
        has: Callable[[TopicId, int], bool],
    ) -> list[Delivery]:
        found: list[Delivery] = []
        failure: QueueRefusedError | None = None
        bytes_left = ANSWER_BYTES_MAX
        for (topic, index), place in places:
            if place.paused_until > self._clock.monotonic() or not has(topic.topic_id, index):
                continue
            try:
                records = await self._records(topic, index, place, count_max - len(found))
                if records:
                    await self._confirm(topic, index)
            except QueueRefusedError as error:
                # One that cannot be read shall not hide what is in the others.
                failure = error
                continue
            if not self._counts(group, topic, index, place):
                continue
            for record in records:
                if record.offset < place.acked:
                    # That came while it was read.
                    continue
                bytes_left -= _size(record)
                if bytes_left < 0 and found:
                    return found
                token = _token(group, topic, index, record.offset)
                found.append(Delivery(topic.name, index, record, token, 0, TimestampMs(0)))
            if len(found) >= count_max:
                break
        if failure is not None and not found:
            raise failure
        return found

    async def _records(
        self, topic: Topic, index: PartitionIndex, place: _Place, limit: int
    ) -> list[Record]:
        """From the place on. Raises NOT_LEADER, UNAVAILABLE."""
        while True:
            asked = place.position
            try:
                page = await read_page(self._fetch, topic.name, index, asked, limit=limit)
            except RefusedError as error:
                start = self._start_of(topic, index)
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and asked < start:
                    # What lay there was deleted, or is too old.
                    place.advance(start)
                    continue
                raise _refusal(error) from None
            if page.records or page.next_offset <= asked:
                return page.records
            # Markers, what was aborted, what compaction took: not to be looked at again.
            if place.position == asked:
                place.position = page.next_offset

    async def _confirm(self, topic: Topic, index: PartitionIndex) -> None:
        """A leader that stood still may be none any more, and others have taken acks since.

        Raises NOT_LEADER, UNAVAILABLE.
        """
        replica = self._replica(topic, index)
        if not replica.has_recent_majority():
            try:
                await replica.confirm_leadership()
            except RefusedError as error:
                raise _refusal(error) from None

    def _counts(self, group: str, topic: Topic, index: PartitionIndex, place: _Place) -> bool:
        """Whether it is still the place that acks come to: not if another member has come, or
        another leader, since it was asked for."""
        hosted = self._partitions.get(topic.name, index)
        return (
            hosted is not None
            and hosted.replica.epoch == place.epoch
            and self._places.get((group, topic.topic_id, index)) is place
        )

    async def _wait(self, places: Sequence[tuple[Led, _Place]], seconds: float) -> None:
        """Until one of them may have something, but not for longer."""
        now = self._clock.monotonic()
        resumed = [place.paused_until for _, place in places if place.paused_until > now]
        seconds = min([seconds, *(until - now for until in resumed)])
        requests = [
            PartitionFetch(topic.name, index, Offset(place.position), 1, -1, True)
            for (topic, index), place in places
            if place.paused_until <= now
        ]
        if not requests:
            await asyncio.sleep(max(seconds, 0.001))
            return
        ready: asyncio.Future[None] = self._loop.create_future()

        def on_ready(results: list[PartitionFetchResult]) -> None:
            if not ready.done():
                ready.set_result(None)

        parked = self._fetch.fetch(
            requests,
            bytes_min=1,
            bytes_max=1,
            wait_ms_max=max(1, int(seconds * 1000)),
            on_ready=on_ready,
        )
        try:
            await ready
        finally:
            if parked is not None:
                parked.cancel()

    # ---- places

    async def _place(
        self,
        group: str,
        member: str,
        topic: Topic,
        index: PartitionIndex,
        *,
        starts_at_end: bool = False,
    ) -> _Place:
        replica = self._replica(topic, index)
        key = (group, topic.topic_id, index)
        known = self._places.get(key)
        if known is not None and known.epoch == replica.epoch and known.member == member:
            self._places.move_to_end(key)
            return known
        place = _Place(replica.epoch, member, 0)
        asking = self._asking.setdefault(key, [])
        asking.append(place)
        try:
            acked = await self._acked(group, member, topic, index, starts_at_end=starts_at_end)
        finally:
            asking.remove(place)
            if not asking:
                del self._asking[key]
        place.advance(max(acked, replica.log.start_offset))
        if known is not None and known.epoch == place.epoch:
            place.paused_until = known.paused_until
        self._places[key] = place
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)
        return place

    async def _acked(
        self,
        group: str,
        member: str,
        topic: Topic,
        index: PartitionIndex,
        *,
        starts_at_end: bool,
    ) -> int:
        """Up to where the group is done, or -1."""
        partition = TopicPartition(topic.name, index)
        (acked,) = await self._calls.offsets(group, [partition])
        if acked == NO_OFFSET and starts_at_end:
            # Stored at once: whoever leads next shall not find a later end.
            end = self._replica(topic, index).last_stable_offset
            (told,) = await self._calls.commit(group, member, [(partition, end)])
            if told.is_stored:
                acked = max(end, told.before)
            else:
                raise QueueRefusedError(
                    ErrorReason.UNAVAILABLE, "the group's begin cannot be stored now"
                )
        return acked

    def _replica(self, topic: Topic, index: PartitionIndex) -> Replica:
        hosted = self._partitions.get(topic.name, index)
        if (
            hosted is None
            or hosted.replica.topic_id != topic.topic_id
            or not hosted.replica.is_leader
        ):
            raise QueueRefusedError(
                ErrorReason.NOT_LEADER, f"this broker does not lead {topic.name}-{index}"
            )
        if not hosted.replica.is_ready:
            raise QueueRefusedError(
                ErrorReason.UNAVAILABLE, f"{topic.name}-{index} was just taken over"
            )
        return hosted.replica

    def _start_of(self, topic: Topic, index: PartitionIndex) -> int:
        return self._replica(topic, index).log.start_offset

    # ---- settling

    async def ack(self, group: str, member: str, tokens: Sequence[bytes]) -> list[TokenResult]:
        """Of each token's partition everything up to it is done."""
        verdicts, read = self._read_tokens(group, tokens)
        highest: dict[TopicPartition, int] = {}
        for token in read.values():
            partition = TopicPartition(token.topic.name, token.partition)
            highest[partition] = max(highest.get(partition, 0), token.offset + 1)
        if highest:
            asked = list(highest.items())
            told = await self._calls.commit(group, member, asked)
            outcomes = dict(zip(highest, told, strict=True))
            for at, token in read.items():
                partition = TopicPartition(token.topic.name, token.partition)
                outcome = outcomes[partition]
                verdicts[at] = _verdict(outcome, token.offset)
                if outcome.is_stored:
                    key = (group, token.topic.topic_id, token.partition)
                    self._advance(key, max(highest[partition], outcome.before))
        return [verdicts[at] for at in range(len(tokens))]

    def _advance(self, key: tuple[str, TopicId, PartitionIndex], acked: int) -> None:
        known = self._places.get(key)
        for place in (*self._asking.get(key, ()), *(() if known is None else (known,))):
            place.advance(acked)

    async def nack(
        self,
        group: str,
        member: str,
        tokens: Sequence[bytes],
        delay_ms: int | None,
        has: Callable[[TopicId, int], bool],
    ) -> list[TokenResult]:
        """The partitions pause, and go on with what is not acked."""
        verdicts, read = self._read_tokens(group, tokens)
        until = self._clock.monotonic() + (BACKOFF_MS if delay_ms is None else delay_ms) / 1000
        for at, token in read.items():
            if not has(token.topic.topic_id, token.partition):
                verdicts[at] = _NOT_ASSIGNED
                continue
            try:
                place = await self._place(group, member, token.topic, token.partition)
            except QueueRefusedError as error:
                verdicts[at] = TokenResult(error.why, str(error))
                continue
            if token.offset < place.acked:
                verdicts[at] = _SETTLED
            else:
                place.paused_until = until
                verdicts[at] = DONE
        return [verdicts[at] for at in range(len(tokens))]

    def _read_tokens(
        self, group: str, tokens: Sequence[bytes]
    ) -> tuple[dict[int, TokenResult], dict[int, _Token]]:
        """Verdicts of those that are no good, by their place, and the others."""
        verdicts: dict[int, TokenResult] = {}
        read: dict[int, _Token] = {}
        for at, data in enumerate(tokens):
            ticket = decode_delivery_token(data)
            if ticket is None or (
                ticket.kind is TokenKind.ORDERED and len(ticket.rest) != _REST.size
            ):
                verdicts[at] = TokenResult(ErrorReason.BAD_TOKEN, ErrorReason.BAD_TOKEN.value)
                continue
            if ticket.kind is not TokenKind.ORDERED:
                verdicts[at] = TokenResult(ErrorReason.OTHER_GROUP, ErrorReason.OTHER_GROUP.value)
                continue
            offset, checked = _REST.unpack(ticket.rest)
            topic = self._image().topic_by_id(ticket.topic_id)
            if checked != zlib.crc32(group.encode()):
                verdicts[at] = TokenResult(ErrorReason.OTHER_GROUP, ErrorReason.OTHER_GROUP.value)
            elif topic is None or ticket.partition >= len(topic.partitions):
                verdicts[at] = TokenResult(
                    ErrorReason.UNKNOWN_TOPIC, "the topic of the message is gone"
                )
            else:
                try:
                    replica = self._replica(topic, ticket.partition)
                except QueueRefusedError as error:
                    verdicts[at] = TokenResult(error.why, str(error))
                    continue
                if not 0 <= offset < replica.high_watermark:
                    verdicts[at] = TokenResult(ErrorReason.BAD_TOKEN, ErrorReason.BAD_TOKEN.value)
                else:
                    read[at] = _Token(topic, ticket.partition, offset)
        return verdicts, read


def _token(group: str, topic: Topic, index: PartitionIndex, offset: int) -> bytes:
    rest = _REST.pack(offset, zlib.crc32(group.encode()))
    return encode_delivery_token(DeliveryToken(TokenKind.ORDERED, topic.topic_id, index, rest))


def _verdict(outcome: OffsetCommitResult, offset: int) -> TokenResult:
    match outcome.error:
        case ErrorCode.NONE:
            return _SETTLED if offset < outcome.before else DONE
        case ErrorCode.ILLEGAL_GENERATION | ErrorCode.STALE_MEMBER_EPOCH:
            return _NOT_ASSIGNED
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return TokenResult(ErrorReason.UNKNOWN_TOPIC, "the topic of the message is gone")
        case _:
            return TokenResult(
                ErrorReason.UNAVAILABLE, "the ack could not be stored now: try again"
            )


def _refusal(error: RefusedError) -> QueueRefusedError:
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return QueueRefusedError(ErrorReason.NOT_LEADER, error.message)
    return QueueRefusedError(ErrorReason.UNAVAILABLE, error.message)


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"") + 64
    for name, content in record.headers:
        size += len(name) + len(content or b"")
    return size

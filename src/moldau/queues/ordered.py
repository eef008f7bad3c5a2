"""Ordered groups on the leaders of their partitions: polls from the acked offset, cumulative acks.

The group's coordinator assigns a partition to one member, and stores the offset up to which it is
acked. The leader caches a position per partition and group: the acked offset, and until when
deliveries pause after a nack. It is fetched again for another member or in a new leader epoch.
"""

import asyncio
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from moldau.data.fetch import FetchService, PartitionFetch
from moldau.data.partitions import Partitions
from moldau.data.record_reader import await_fetch, read_page
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
from moldau.model.queue_limits import POLL_RESPONSE_BYTES_MAX
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import NO_OFFSET, OffsetCommitResult
from moldau.queues.reader import size_of
from moldau.queues.types import (
    DONE,
    Delivery,
    ErrorReason,
    PollResult,
    QueueRefusedError,
    TokenResult,
    not_leader,
    unavailable,
)
from moldau.records.record import Record
from moldau.replica.replica import Replica

POSITIONS_MAX: Final = 20_000
BACKOFF_MS: Final = 1_000
"""Pause after a nack without a delay."""

_REST: Final = struct.Struct(">qI")
LedPartition = tuple[Topic, PartitionIndex]
_NOT_ASSIGNED: Final = TokenResult(ErrorReason.NOT_ASSIGNED)
_SETTLED: Final = TokenResult(ErrorReason.SETTLED)


class _Position:
    __slots__ = ("acked", "epoch", "member", "next_offset", "paused_until")

    def __init__(self, epoch: Epoch, member: str, acked: int) -> None:
        self.epoch = epoch
        self.member = member
        self.acked = acked
        """Everything before it is acked."""
        self.next_offset = acked
        """Next offset to read: there are no messages between `acked` and this."""
        self.paused_until = float("-inf")

    def advance(self, acked: int) -> None:
        self.acked = max(self.acked, acked)
        self.next_offset = max(self.next_offset, self.acked)


class _Token(NamedTuple):
    topic: Topic
    partition: PartitionIndex
    offset: int


class OrderedGroups:
    """Ordered groups on this broker. Methods raise QueueRefusedError."""

    def __init__(
        self,
        *,
        clock: Clock,
        image: Callable[[], Image],
        partitions: Partitions,
        fetch: FetchService,
        calls: GroupRpcClient,
    ) -> None:
        self._clock = clock
        self._image = image
        self._partitions = partitions
        self._fetch = fetch
        self._calls = calls
        self._positions: OrderedDict[tuple[str, TopicId, PartitionIndex], _Position] = OrderedDict()
        self._fetching: dict[tuple[str, TopicId, PartitionIndex], list[_Position]] = {}
        """Positions whose offset is being fetched: it may lack acks of the meantime."""
        self._turn = 0

    # ---- polls

    async def poll(
        self,
        group: str,
        member: str,
        led: Sequence[LedPartition],
        count_max: int,
        *,
        starts_at_end: bool,
        wait_seconds: float,
        is_assigned: Callable[[TopicId, int], bool],
    ) -> PollResult:
        """Messages from the group's positions in these partitions, which this broker leads.

        `is_assigned` returns whether the member still has a partition: that may change meanwhile.
        """
        self._turn += 1
        # Start with another partition each time: a busy one must not starve the others.
        first = self._turn % len(led)
        positions: list[tuple[LedPartition, _Position]] = []
        for topic, index in (*led[first:], *led[:first]):
            position = await self._position(
                group, member, topic, index, starts_at_end=starts_at_end
            )
            positions.append(((topic, index), position))
        deadline = self._clock.monotonic() + wait_seconds
        while True:
            found = await self._read(group, positions, count_max, is_assigned)
            left = deadline - self._clock.monotonic()
            positions = [
                (at, position)
                for at, position in positions
                if is_assigned(at[0].topic_id, at[1]) and self._is_current(group, *at, position)
            ]
            if found or left <= 0 or not positions:
                return PollResult(deliveries=found)
            await self._wait(positions, left)

    async def _read(
        self,
        group: str,
        positions: Sequence[tuple[LedPartition, _Position]],
        count_max: int,
        is_assigned: Callable[[TopicId, int], bool],
    ) -> list[Delivery]:
        found: list[Delivery] = []
        failure: QueueRefusedError | None = None
        bytes_left = POLL_RESPONSE_BYTES_MAX
        for (topic, index), position in positions:
            if position.paused_until > self._clock.monotonic() or not is_assigned(
                topic.topic_id, index
            ):
                continue
            try:
                records = await self._records(topic, index, position, count_max - len(found))
                if records:
                    await self._confirm(topic, index)
            except QueueRefusedError as error:
                # A partition that cannot be read must not block the others.
                failure = error
                continue
            if not self._is_current(group, topic, index, position):
                continue
            for record in records:
                if record.offset < position.acked:
                    # It was acked during the read.
                    continue
                bytes_left -= size_of(record)
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
        self, topic: Topic, index: PartitionIndex, position: _Position, limit: int
    ) -> list[Record]:
        """Records from the position on. Raises NOT_LEADER, UNAVAILABLE."""
        while True:
            offset = position.next_offset
            try:
                page = await read_page(self._fetch, topic.name, index, offset, limit=limit)
            except RefusedError as error:
                start = self._replica(topic, index).log.start_offset
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and offset < start:
                    # Deleted by retention.
                    position.advance(start)
                    continue
                raise _error(error) from None
            if page.records or page.next_offset <= offset:
                return page.records
            # Only markers, aborted or compacted records: skip them next time.
            if position.next_offset == offset:
                position.next_offset = page.next_offset

    async def _confirm(self, topic: Topic, index: PartitionIndex) -> None:
        """A leader that was suspended may have been replaced, and another one accepted acks.

        Raises NOT_LEADER, UNAVAILABLE.
        """
        replica = self._replica(topic, index)
        if not replica.has_recent_majority():
            try:
                await replica.confirm_leadership()
            except RefusedError as error:
                raise _error(error) from None

    def _is_current(
        self, group: str, topic: Topic, index: PartitionIndex, position: _Position
    ) -> bool:
        """Whether acks still go to this position: not after a change of the member or leader."""
        hosted = self._partitions.get(topic.name, index)
        return (
            hosted is not None
            and hosted.replica.epoch == position.epoch
            and self._positions.get((group, topic.topic_id, index)) is position
        )

    async def _wait(
        self, positions: Sequence[tuple[LedPartition, _Position]], seconds: float
    ) -> None:
        """Until one of them may have messages, at most `seconds`."""
        now = self._clock.monotonic()
        resumed = [
            position.paused_until for _, position in positions if position.paused_until > now
        ]
        seconds = min([seconds, *(until - now for until in resumed)])
        requests = [
            PartitionFetch(topic.name, index, Offset(position.next_offset), 1, -1, True)
            for (topic, index), position in positions
            if position.paused_until <= now
        ]
        if not requests:
            await asyncio.sleep(max(seconds, 0.001))
            return
        await await_fetch(self._fetch, requests, 1, max(1, int(seconds * 1000)))

    # ---- positions

    async def _position(
        self,
        group: str,
        member: str,
        topic: Topic,
        index: PartitionIndex,
        *,
        starts_at_end: bool = False,
    ) -> _Position:
        replica = self._replica(topic, index)
        key = (group, topic.topic_id, index)
        known = self._positions.get(key)
        if known is not None and known.epoch == replica.epoch and known.member == member:
            self._positions.move_to_end(key)
            return known
        position = _Position(replica.epoch, member, 0)
        fetching = self._fetching.setdefault(key, [])
        fetching.append(position)
        try:
            acked = await self._fetch_acked(
                group, member, topic, index, starts_at_end=starts_at_end
            )
        finally:
            fetching.remove(position)
            if not fetching:
                del self._fetching[key]
        position.advance(max(acked, replica.log.start_offset))
        if known is not None and known.epoch == position.epoch:
            position.paused_until = known.paused_until
        self._positions[key] = position
        while len(self._positions) > POSITIONS_MAX:
            self._positions.popitem(last=False)
        return position

    async def _fetch_acked(
        self, group: str, member: str, topic: Topic, index: PartitionIndex, *, starts_at_end: bool
    ) -> int:
        """The acked offset of the group, or -1."""
        partition = TopicPartition(topic.name, index)
        (acked,) = await self._calls.offsets(group, [partition])
        if acked == NO_OFFSET and starts_at_end:
            # Committed at once: the next leader must not start at a later end.
            end = self._replica(topic, index).last_stable_offset
            (committed,) = await self._calls.commit(group, member, [(partition, end)])
            if committed.is_stored:
                acked = max(end, committed.before)
            else:
                raise unavailable("cannot commit the group's start offset: retry")
        return acked

    def _replica(self, topic: Topic, index: PartitionIndex) -> Replica:
        hosted = self._partitions.get(topic.name, index)
        if (
            hosted is None
            or hosted.replica.topic_id != topic.topic_id
            or not hosted.replica.is_leader
        ):
            raise not_leader(topic.name, index)
        if not hosted.replica.is_ready:
            raise unavailable(f"{topic.name}-{index} is not ready yet: retry")
        return hosted.replica

    # ---- settling

    async def ack(self, group: str, member: str, tokens: Sequence[bytes]) -> list[TokenResult]:
        """Acks everything up to the highest token of each partition."""
        results, read = self._read_tokens(group, tokens)
        highest: dict[TopicPartition, int] = {}
        for token in read.values():
            partition = TopicPartition(token.topic.name, token.partition)
            highest[partition] = max(highest.get(partition, 0), token.offset + 1)
        if highest:
            committed = await self._calls.commit(group, member, list(highest.items()))
            outcomes = dict(zip(highest, committed, strict=True))
            for at, token in read.items():
                partition = TopicPartition(token.topic.name, token.partition)
                outcome = outcomes[partition]
                results[at] = _result(outcome, token.offset)
                if outcome.is_stored:
                    key = (group, token.topic.topic_id, token.partition)
                    self._advance(key, max(highest[partition], outcome.before))
        return [results[at] for at in range(len(tokens))]

    def _advance(self, key: tuple[str, TopicId, PartitionIndex], acked: int) -> None:
        known = self._positions.get(key)
        for position in (*self._fetching.get(key, ()), *(() if known is None else (known,))):
            position.advance(acked)

    async def nack(
        self,
        group: str,
        member: str,
        tokens: Sequence[bytes],
        delay_ms: int | None,
        is_assigned: Callable[[TopicId, int], bool],
    ) -> list[TokenResult]:
        """Pauses the partitions; then unacked messages are delivered again."""
        results, read = self._read_tokens(group, tokens)
        until = self._clock.monotonic() + (BACKOFF_MS if delay_ms is None else delay_ms) / 1000
        for at, token in read.items():
            if not is_assigned(token.topic.topic_id, token.partition):
                results[at] = _NOT_ASSIGNED
                continue
            try:
                position = await self._position(group, member, token.topic, token.partition)
            except QueueRefusedError as error:
                results[at] = TokenResult(error.reason, str(error))
                continue
            if token.offset < position.acked:
                results[at] = _SETTLED
            else:
                position.paused_until = until
                results[at] = DONE
        return [results[at] for at in range(len(tokens))]

    def _read_tokens(
        self, group: str, tokens: Sequence[bytes]
    ) -> tuple[dict[int, TokenResult], dict[int, _Token]]:
        """Results of invalid tokens, and the decoded other ones, by index."""
        results: dict[int, TokenResult] = {}
        read: dict[int, _Token] = {}
        for at, data in enumerate(tokens):
            decoded = decode_delivery_token(data)
            if decoded is None or (
                decoded.kind is TokenKind.ORDERED and len(decoded.rest) != _REST.size
            ):
                results[at] = TokenResult(ErrorReason.BAD_TOKEN)
                continue
            if decoded.kind is not TokenKind.ORDERED:
                results[at] = TokenResult(ErrorReason.OTHER_GROUP)
                continue
            offset, checked = _REST.unpack(decoded.rest)
            topic = self._image().topic_by_id(decoded.topic_id)
            if checked != zlib.crc32(group.encode()):
                results[at] = TokenResult(ErrorReason.OTHER_GROUP)
            elif topic is None or decoded.partition >= len(topic.partitions):
                results[at] = TokenResult(
                    ErrorReason.UNKNOWN_TOPIC, "the topic of the message was deleted"
                )
            else:
                try:
                    replica = self._replica(topic, decoded.partition)
                except QueueRefusedError as error:
                    results[at] = TokenResult(error.reason, str(error))
                    continue
                if not 0 <= offset < replica.high_watermark:
                    results[at] = TokenResult(ErrorReason.BAD_TOKEN)
                else:
                    read[at] = _Token(topic, decoded.partition, offset)
        return results, read


def _token(group: str, topic: Topic, index: PartitionIndex, offset: int) -> bytes:
    rest = _REST.pack(offset, zlib.crc32(group.encode()))
    return encode_delivery_token(DeliveryToken(TokenKind.ORDERED, topic.topic_id, index, rest))


def _result(outcome: OffsetCommitResult, offset: int) -> TokenResult:
    match outcome.error:
        case ErrorCode.NONE:
            return _SETTLED if offset < outcome.before else DONE
        case ErrorCode.ILLEGAL_GENERATION | ErrorCode.STALE_MEMBER_EPOCH:
            return _NOT_ASSIGNED
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return TokenResult(ErrorReason.UNKNOWN_TOPIC, "the topic of the message was deleted")
        case _:
            return TokenResult(ErrorReason.UNAVAILABLE, "the ack could not be committed: retry")


def _error(error: RefusedError) -> QueueRefusedError:
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return QueueRefusedError(ErrorReason.NOT_LEADER, error.message)
    return unavailable(error.message)

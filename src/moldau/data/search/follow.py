"""Waits for new messages of the partitions that this broker leads, for live views of any broker.

A view takes a few messages at a time. What comes beyond that is only counted, by the headers of the
batches, so that no view falls behind.
"""

import asyncio
from collections import Counter
from itertools import count
from typing import Final

import msgspec
from msgspec import Struct

from moldau.data.fetch import PartitionFetchResult
from moldau.data.search.filters import Matcher, SearchFilter
from moldau.data.search.pieces import CHUNK_BYTES, SearchPieces, in_thread, stored_of
from moldau.data.search.scan import Scan
from moldau.data.search.types import Hit
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import decode_request
from moldau.replica.replica import Replica

PARTITIONS_MAX: Final = 256
"""Of one request, and of one view."""
WAIT_MS_MAX: Final = 2000
WAITS_MAX: Final = 24
"""Of one other broker at once; the others get an empty response, and ask again."""
REQUESTS_MAX: Final = 40
"""The same, with those that do not wait; the others are refused."""
_PARTITIONS_PER_TURN: Final = 64
ROUND_BYTES_MAX: Final = 64 * 1024 * 1024
"""Stored bytes that are passed in one response."""
_SCAN_SECONDS: Final = 0.05
"""For which one response looks for matches."""
_MESSAGES_MIN: Final = 20
"""Looked at however long it takes: on a busy machine a few messages are no reason to skip any."""
_TRIES_MAX: Final = 3
"""Of a read below the start of the log, which retention may move."""
_HITS_MAX: Final = 1000
_BYTES_MAX: Final = 2 * 1024 * 1024

_encode: Final = msgspec.msgpack.Encoder().encode


class FollowWanted(Struct, frozen=True, array_like=True):
    """Append fields only: it goes between brokers."""

    topic: str
    topic_id: bytes
    wanted: SearchFilter
    value_max: int
    limit: int
    bytes_max: int
    wait_ms: int
    positions: list[tuple[int, int | None]]
    """Partition and offset; None: from now on."""


class Followed(Struct, frozen=True, array_like=True):
    """What came in one partition."""

    partition: int
    position: int
    hits: list[Hit]
    skipped: int
    """Messages that were not looked at."""
    bytes_read: int = 0
    error: int = 0
    message: str = ""


_decode: Final = msgspec.msgpack.Decoder(FollowWanted).decode


class FollowPartitions:
    def __init__(self, *, clock: Clock, pieces: SearchPieces) -> None:
        self._clock = clock
        self._pieces = pieces
        self._requests: Counter[BrokerId] = Counter()

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """The RPC handler of the leader. Raises RefusedError."""
        wanted = decode_request(_decode, payload)
        if len(wanted.positions) > PARTITIONS_MAX:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{len(wanted.positions)} partitions; at most {PARTITIONS_MAX} can be followed",
            )
        count = self._requests[sender]
        if count >= REQUESTS_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The limit of {REQUESTS_MAX} requests of a broker for new messages is reached",
            )
        self._requests[sender] += 1
        try:
            return _encode(await self.follow(wanted, may_wait=count < WAITS_MAX))
        finally:
            self._requests[sender] -= 1

    async def follow(self, wanted: FollowWanted, *, may_wait: bool = True) -> list[Followed]:
        """What is new in any of the partitions; waits for it. Without those with nothing new."""
        found = await self._news(wanted, may_wait=may_wait)
        matcher = Matcher(wanted.wanted)
        deadline = self._clock.monotonic() + _SCAN_SECONDS
        moving = sum(not each.error and not each.hits for each in found) or 1
        limit = max(1, min(wanted.limit, _HITS_MAX) // moving)
        bytes_max = max(1, min(wanted.bytes_max, _BYTES_MAX) // moving)
        done: list[Followed] = []
        begins = dict(wanted.positions)
        for each in found:
            begin = begins[each.partition]
            if each.error or begin is None or each.position <= begin:
                done.append(each)
                continue
            try:
                read = self._read(
                    wanted, matcher, each.partition, begin, limit, bytes_max, deadline
                )
                done.append(await read)
            except RefusedError as error:
                done.append(_failed(each.partition, begin, error))
        return done

    async def _news(self, wanted: FollowWanted, *, may_wait: bool) -> list[Followed]:
        """The partitions that have something new, or an error."""
        wakeup = _Wakeup()
        found = []
        try:
            for number, (partition, position) in enumerate(wanted.positions):
                if number and number % _PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if (news := self._look(wanted, partition, position, wakeup)) is not None:
                    found.append(news)
            if not found and may_wait:
                # Only what has changed is looked at again.
                changed = await wakeup.wait(min(wanted.wait_ms, WAIT_MS_MAX) / 1000)
                for partition, position in wanted.positions:
                    if partition in changed:
                        news = self._look(wanted, partition, position, wakeup)
                        found += [] if news is None else [news]
        finally:
            wakeup.cancel()
        return found

    def _look(
        self, wanted: FollowWanted, partition: int, position: int | None, wakeup: "_Wakeup"
    ) -> Followed | None:
        """What is new, or an error; None: nothing, and it is watched."""
        try:
            replica = self._pieces.lead(wanted.topic, wanted.topic_id, partition).replica
        except RefusedError as error:
            return _failed(partition, position or 0, error)
        end = replica.last_stable_offset
        # Beyond the end of the log: messages were lost by force, it goes on with what comes.
        is_lost = (
            position is not None
            and position > replica.log.end_offset
            and replica.has_recent_majority()
        )
        if position is None or position < end or is_lost:
            return Followed(partition, end, [], 0)
        wakeup.watch(replica, position)
        return None

    async def _read(
        self,
        wanted: FollowWanted,
        matcher: Matcher,
        partition: int,
        position: int,
        limit: int,
        bytes_max: int,
        deadline: float,
    ) -> Followed:
        """Raises RefusedError."""
        skipped = passed = tries = 0
        scan: Scan | None = None
        looked_at = count(1)

        def is_over() -> bool:
            return next(looked_at) > _MESSAGES_MIN and self._clock.monotonic() >= deadline

        while True:
            replica = self._pieces.lead(wanted.topic, wanted.topic_id, partition).replica
            start, end = replica.log.start_offset, replica.last_stable_offset
            if position < start:
                # Retention was faster.
                skipped += start - position
                position = start
            if position >= end or passed >= ROUND_BYTES_MAX:
                break
            if scan is None:
                scan = Scan(
                    matcher,
                    newest=False,
                    position=position,
                    stop=end,
                    reached=None,
                    limit=limit,
                    bytes_max=bytes_max,
                    value_max=wanted.value_max,
                    is_over=is_over,
                )
            scan.position, scan.stop = position, end
            try:
                result = await self._pieces.read(wanted.topic, partition, position, CHUNK_BYTES)
            except RefusedError as error:
                tries += 1
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and tries < _TRIES_MAX:
                    continue
                if passed or skipped:
                    # What was read is good; the next request gets the error.
                    break
                raise
            if not result.size or result.record_count <= 0:
                break
            skipped += await in_thread(_scan_or_count, scan, result)
            position = scan.position = max(scan.position, position + result.record_count)
            passed += result.size
        if scan is None:
            return Followed(partition, position, [], skipped)
        skipped += sum(each.last + 1 - each.first for each in scan.unreadable)
        return Followed(partition, position, scan.hits, skipped, scan.bytes_read)


class _Wakeup:
    """Ends a wait when one of the partitions has something new, or is not led here any more."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._positions: dict[Replica, int] = {}
        self._changed: set[int] = set()

    def watch(self, replica: Replica, position: int) -> None:
        self._positions[replica] = position
        replica.watchers[self] = None

    def on_progress(self, replica: Replica) -> None:
        if replica.last_stable_offset > self._positions.get(replica, -1):
            self.on_unavailable(replica)

    def on_unavailable(self, replica: Replica) -> None:
        self._changed.add(replica.partition.partition)
        self._event.set()

    async def wait(self, seconds_max: float) -> set[int]:
        """The partitions that changed since they were looked at."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._event.wait()
        except TimeoutError:
            pass
        return self._changed

    def cancel(self) -> None:
        for replica in self._positions:
            replica.watchers.pop(self, None)


def _scan_or_count(scan: Scan, result: PartitionFetchResult) -> int:
    """In the thread: the messages that were not looked at. Raises RefusedError."""
    stored = stored_of(result)
    return 0 if scan.run(stored) else scan.count(stored)


def _failed(partition: int, position: int, error: RefusedError) -> Followed:
    return Followed(partition, position, [], 0, 0, int(error.code), str(error))

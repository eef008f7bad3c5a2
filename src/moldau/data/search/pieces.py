"""Searches pieces of the partitions that this broker leads, for itself and for other brokers.

The event loop only finds out where to read. One thread for the whole broker reads, decompresses and
decodes, so that searches share what they may take from everything else.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from moldau.data.fetch import FetchService, PartitionFetch, PartitionFetchResult
from moldau.data.offsets import OffsetService
from moldau.data.partitions import HostedPartition, Partitions
from moldau.data.record_reader import await_fetch, offset_at
from moldau.data.search.filters import Matcher
from moldau.data.search.scan import Scan, Stored
from moldau.data.search.types import Piece, PieceWanted, SearchWanted
from moldau.data.stored_batches import bytes_of
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset
from moldau.model.polite_thread import politely
from moldau.net.peers.caller import decode_request
from moldau.records.batch import BatchFormatError
from moldau.replica.replica import Replica

CHUNK_BYTES: Final = 1024 * 1024
FIRST_CHUNK_BYTES: Final = 128 * 1024
"""Without a filter, the first messages are in the first chunk."""
PIECE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Stored bytes; then it is the turn of the next partition."""
BUDGET_MS_MAX: Final = 1000
SEARCHES_MAX: Final = 32
"""Requests that are worked on at once: those of this broker and of others."""
HITS_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of one request; the last hit may exceed it."""
_LIMIT_MAX: Final = 10_000
_TRIES_MAX: Final = 3
"""Of a read below the start of the log, which retention may move."""

_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="search")
T = TypeVar("T")

_decode: Final = msgspec.msgpack.Decoder(SearchWanted).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class SearchPieces:
    def __init__(
        self, *, clock: Clock, partitions: Partitions, fetch: FetchService, offsets: OffsetService
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._fetch = fetch
        self._offsets = offsets
        self.running = 0

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """The RPC handler of the leader. Raises RefusedError."""
        return _encode(await self.search(decode_request(_decode, payload)))

    async def search(self, wanted: SearchWanted) -> list[Piece]:
        """The pieces for which there was time, at least one; of the others only where they begin,
        unless that is known. Raises RefusedError."""
        if self.running >= SEARCHES_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The limit of {SEARCHES_MAX} concurrent searches is reached",
            )
        self.running += 1
        try:
            return await self._search(wanted)
        finally:
            self.running -= 1

    async def _search(self, wanted: SearchWanted) -> list[Piece]:
        matcher = Matcher(wanted.wanted)
        budget_ms = max(0, min(wanted.budget_ms, BUDGET_MS_MAX))
        deadline = self._clock.monotonic() + budget_ms / 1000
        bytes_left = min(wanted.bytes_max, HITS_BYTES_MAX)
        found: list[Piece] = []
        is_over = False
        for each in wanted.pieces:
            if is_over and each.position is not None:
                continue
            try:
                if is_over:
                    # Other work of the loop comes between lookups.
                    await asyncio.sleep(0)
                    piece = self._begin(wanted, each)
                else:
                    piece = await self._piece(wanted, each, matcher, deadline, bytes_left)
            except RefusedError as error:
                piece = _failed(each, error)
            found.append(piece)
            bytes_left -= sum(hit.size for hit in piece.hits)
            is_over = is_over or bytes_left <= 0 or self._clock.monotonic() >= deadline
        return found

    # ---- where it is

    def lead(self, topic: str, topic_id: bytes, partition: int) -> HostedPartition:
        """The partition, if this broker leads it and knows what is committed. Raises
        RefusedError."""
        hosted = self._partitions.lead(topic, partition)
        replica = hosted.replica
        if replica.topic_id != topic_id:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' was deleted")
        if not replica.is_ready:
            raise RefusedError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{topic}-{partition}: its leader was just elected",
            )
        return hosted

    def _begin(self, wanted: SearchWanted, each: PieceWanted) -> Piece:
        """Where it begins and ends by now. Raises RefusedError."""
        replica = self.lead(wanted.topic, wanted.topic_id, each.partition).replica
        start, end = replica.log.start_offset, replica.last_stable_offset
        position, stop = each.position, each.stop
        if position is None:
            position, stop = self._found(wanted, each.partition, start, end)
        if max(position, stop) > end and not replica.has_recent_majority():
            # A newer leader may have them.
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{wanted.topic}-{each.partition} may have moved"
            )
        gone = 0
        if wanted.newest:
            position = min(position, end)
            gone = max(0, min(start, position) - stop)
            stop = max(stop, start)
        else:
            stop = min(stop, end)
            gone = max(0, min(start, stop) - position)
            position = max(position, start)
        return Piece(
            partition=each.partition,
            begin=position,
            position=position,
            start=start,
            stop=stop,
            reached=each.reached,
            hits=[],
            bytes_searched=0,
            bytes_read=0,
            unreadable=[],
            gone=gone,
        )

    def _found(self, wanted: SearchWanted, partition: int, start: int, end: int) -> tuple[int, int]:
        """Position and stop of a search that begins."""
        from_offset, from_time = wanted.start.offset, wanted.start.time
        if not wanted.newest:
            position = start
            if from_offset is not None:
                position = min(max(from_offset, start), end)
            elif from_time is not None:
                position = offset_at(self._offsets, wanted.topic, partition, from_time)
            return position, end
        position = end
        if from_offset is not None:
            position = max(start, min(from_offset + 1, end))
        elif from_time is not None:
            # All before the first that is later.
            position = offset_at(self._offsets, wanted.topic, partition, from_time + 1)
        return position, start

    # ---- the search

    async def _piece(
        self,
        wanted: SearchWanted,
        each: PieceWanted,
        matcher: Matcher,
        deadline: float,
        bytes_left: int,
    ) -> Piece:
        """Raises RefusedError."""
        begun = self._begin(wanted, each)
        scan = Scan(
            matcher,
            newest=wanted.newest,
            position=begun.position,
            stop=begun.stop,
            reached=begun.reached,
            limit=max(1, min(each.limit, _LIMIT_MAX)),
            bytes_max=bytes_left,
            value_max=wanted.value_max,
            is_over=lambda: self._clock.monotonic() >= deadline,
        )
        start, stop, gone = begun.start, begun.stop, begun.gone
        chunk_bytes = FIRST_CHUNK_BYTES if matcher.wanted.is_empty else CHUNK_BYTES
        tries = 0
        while not scan.is_full and scan.bytes_searched < PIECE_BYTES_MAX:
            if scan.batches and self._clock.monotonic() >= deadline:
                break
            hosted = self.lead(wanted.topic, wanted.topic_id, each.partition)
            start = hosted.replica.log.start_offset
            if wanted.newest:
                gone += max(0, min(start, scan.position) - stop)
                stop = scan.stop = max(stop, start)
                is_done = scan.position <= stop
            else:
                gone += max(0, min(start, stop) - scan.position)
                scan.position = max(scan.position, start)
                is_done = scan.position >= stop
            if is_done:
                break
            try:
                goes_on = await self._read_and_scan(wanted, hosted, scan, chunk_bytes)
            except RefusedError as error:
                tries += 1
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or tries >= _TRIES_MAX:
                    if scan.batches:
                        # What was searched is good; the next request gets the error.
                        break
                    raise
                continue
            if not goes_on:
                break
            chunk_bytes = CHUNK_BYTES
        if wanted.newest:
            scan.position = max(scan.position, stop)
        return Piece(
            partition=each.partition,
            begin=begun.begin,
            position=scan.position,
            start=start,
            stop=stop,
            reached=scan.reached,
            hits=scan.hits,
            bytes_searched=scan.bytes_searched,
            bytes_read=scan.bytes_read,
            unreadable=scan.unreadable,
            gone=gone,
        )

    async def _read_and_scan(
        self, wanted: SearchWanted, hosted: HostedPartition, scan: Scan, chunk_bytes: int
    ) -> bool:
        """False: it ended before the end of the chunk. Raises RefusedError."""
        index = hosted.replica.partition.partition
        if wanted.newest:
            first = self._chunk_before(hosted, scan.position, chunk_bytes)
            end = scan.position
        else:
            first, end = scan.position, scan.position + 1
        reads: list[PartitionFetchResult] = []
        offset = first
        while offset < end:
            result = await self.read(wanted.topic, index, offset, chunk_bytes)
            if not result.size or result.record_count <= 0:
                break
            reads.append(result)
            offset += result.record_count
        if not reads:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{wanted.topic}-{index} is temporarily unavailable on this broker",
            )
        goes_on = await in_thread(_scan_all, scan, reads[::-1] if wanted.newest else reads)
        if goes_on:
            # Also past batches in which there was nothing to look at.
            if wanted.newest:
                scan.position = min(scan.position, first)
            else:
                scan.position = max(scan.position, min(offset, scan.stop))
        return goes_on

    def _chunk_before(self, hosted: HostedPartition, position: int, chunk_bytes: int) -> int:
        replica: Replica = hosted.replica
        try:
            return replica.log.chunk_before(Offset(position), chunk_bytes)[0]
        except CorruptionError as error:
            self._partitions.take_offline(hosted, error)
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    async def read(
        self, topic: str, partition: int, offset: int, bytes_max: int
    ) -> PartitionFetchResult:
        """Raises RefusedError."""
        request = PartitionFetch(topic, partition, Offset(offset), bytes_max, -1, True)
        (result,) = await await_fetch(self._fetch, [request], bytes_max, 0)
        if result.error is not ErrorCode.NONE:
            raise RefusedError(
                result.error, f"{topic}-{partition} is temporarily unavailable on this broker"
            )
        return result


def _scan_all(scan: Scan, reads: Iterable[PartitionFetchResult]) -> bool:
    """In the thread. Raises RefusedError."""
    return all(scan.run(stored_of(result)) for result in reads)


def stored_of(result: PartitionFetchResult) -> Stored:
    """In the thread: its bytes. Raises RefusedError."""
    return Stored(bytes_of(result.data if result.data is not None else b""), result.aborted or ())


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work`, done by the thread of searches. Raises RefusedError."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, partial(_refusing, work, *arguments))


def _refusing(work: Callable[..., T], *arguments: Any) -> T:
    try:
        return politely(partial(work, *arguments))
    except BatchFormatError as error:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None


def _failed(each: PieceWanted, error: RefusedError) -> Piece:
    position = each.position or 0
    return Piece(
        partition=each.partition,
        begin=position,
        position=position,
        start=0,
        stop=each.stop,
        reached=each.reached,
        hits=[],
        bytes_searched=0,
        bytes_read=0,
        unreadable=[],
        error=int(error.code),
        message=str(error),
    )

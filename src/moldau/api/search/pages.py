"""Searches a topic page by page: asks the leaders for pieces, and merges what they find."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.api.search.cursor import PARTITIONS_MAX, decode_cursor, encode_cursor, hash_of
from moldau.api.search.leaders import SearchLeaders
from moldau.api.search.merge import Merge, Part, Range, ranges_of
from moldau.data.search.filters import SearchFilter
from moldau.data.search.types import Hit, Piece, PieceWanted, SearchWanted, Start, Unreadable
from moldau.metadata.image import Topic
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError

PAGE_MS: Final = 250
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the messages of a page; the last one may exceed it."""
SEARCHES_MAX: Final = 4
"""Pages that one broker works on at once; others wait."""
WAITING_MAX: Final = 32
WAIT_SECONDS_MAX: Final = 10.0
_ROUND_MS: Final = 60
"""For which leaders search before the next hits are merged."""
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of hits that wait for slower partitions."""
_PIECE_BYTES: Final = 1024 * 1024
_PAUSE_SECONDS: Final = 0.02
_FATAL: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Search(Struct, frozen=True, kw_only=True):
    """What a client searches for."""

    newest: bool
    start: Start
    wanted: SearchFilter
    partitions: list[int] | None
    """None: all."""
    limit: int
    value_max: int
    cursor: str | None


class SearchFound(Struct, frozen=True, kw_only=True):
    """One page."""

    hits: list[tuple[int, Hit]]
    """With their partitions."""
    records: int
    """By offsets."""
    bytes_searched: int
    bytes_read: int
    ranges: list[Range]
    left: int
    gone: int
    unreadable: list[tuple[int, Unreadable]]
    cursor: str | None


IsDisconnected = Callable[[], Awaitable[bool]]


class TopicSearch:
    def __init__(self, *, clock: Clock, leaders: SearchLeaders) -> None:
        self._clock = clock
        self._leaders = leaders
        self._turns = asyncio.Semaphore(SEARCHES_MAX)
        self.waiting = 0

    async def page(
        self, topic: Topic, search: Search, is_disconnected: IsDisconnected
    ) -> SearchFound:
        """The next page. Raises RefusedError."""
        if self.waiting >= WAITING_MAX:
            raise _too_many()
        self.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._turns.acquire()
        except TimeoutError:
            raise _too_many() from None
        finally:
            self.waiting -= 1
        try:
            return await _Page(self._clock, self._leaders, topic, search).run(is_disconnected)
        finally:
            self._turns.release()


def _too_many() -> RefusedError:
    error = RefusedError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"The limit of {SEARCHES_MAX} concurrent searches per broker is reached",
    )
    error.hint = "retry in a moment, or ask another broker"
    return error


class _Page:
    def __init__(self, clock: Clock, leaders: SearchLeaders, topic: Topic, search: Search) -> None:
        """Raises RefusedError."""
        self._clock = clock
        self._leaders = leaders
        self._topic = topic
        self._search = search
        self._wanted = SearchWanted(
            topic=topic.name,
            topic_id=topic.topic_id,
            newest=search.newest,
            start=search.start,
            wanted=search.wanted,
            value_max=search.value_max,
            bytes_max=_PIECE_BYTES,
            budget_ms=_ROUND_MS,
            pieces=[],
        )
        self._asked = hash_of(self._wanted, search.partitions)
        self._merge = Merge(self._parts())
        self._hits: list[tuple[int, Hit]] = []
        self._bytes_left = PAGE_BYTES_MAX
        self._bytes_searched = 0
        self._bytes_read = 0
        self._refused: RefusedError | None = None

    def _parts(self) -> list[Part]:
        search, count = self._search, len(self._topic.partitions)
        if search.cursor is not None:
            rows = decode_cursor(
                search.cursor, self._topic.topic_id, self._asked, count, newest=search.newest
            )
            return [Part(row.partition, row, newest=search.newest) for row in rows]
        partitions: Sequence[int] = search.partitions or range(count)
        for index in partitions:
            if index >= count:
                raise RefusedError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic '{self._topic.name}' has no partition {index}",
                )
        if len(partitions) > PARTITIONS_MAX:
            error = RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{len(partitions)} partitions; a search is in at most {PARTITIONS_MAX} of them",
            )
            error.hint = "name some with partition=0&partition=1…"
            raise error
        return [Part(index, None, newest=search.newest) for index in sorted(partitions)]

    async def run(self, is_disconnected: IsDisconnected) -> SearchFound:
        """Raises RefusedError."""
        deadline = self._clock.monotonic() + PAGE_MS / 1000
        is_first = True
        while True:
            self._take()
            left_ms = int((deadline - self._clock.monotonic()) * 1000)
            if (
                len(self._hits) >= self._search.limit
                or self._bytes_left <= 0
                or self._merge.is_done
                or self._merge.held_bytes() >= _HELD_BYTES_MAX
                or (left_ms <= 0 and not is_first)
                or await is_disconnected()
            ):
                break
            await self._round(max(1, min(_ROUND_MS, left_ms)))
            is_first = False
        self._check_progress()
        return self._found()

    def _take(self) -> None:
        taken = self._merge.take(self._search.limit - len(self._hits), self._bytes_left)
        self._hits += taken
        self._bytes_left -= sum(hit.size for _, hit in taken)

    async def _round(self, budget_ms: int) -> None:
        """Raises RefusedError."""
        waiting = self._merge.waiting()
        left = self._search.limit - len(self._hits)
        # Of many partitions, few messages each are next.
        limit = left if len(waiting) <= 1 else min(left, max(10, 2 * left // len(waiting) + 1))
        asked = [
            PieceWanted(part.partition, part.position, part.stop, part.reached, limit)
            for part in waiting
        ]
        wanted = replace(self._wanted, budget_ms=budget_ms)
        by_partition = {part.partition: part for part in waiting}
        self._refused = None
        found = await self._leaders.search(self._topic, wanted, asked)
        for piece in found:
            part = by_partition.get(piece.partition)
            if piece.error:
                self._refused = _refusal(piece)
                if self._refused.code in _FATAL:
                    raise self._refused
            elif part is not None:
                part.add(piece)
                self._bytes_searched += piece.bytes_searched
                self._bytes_read += piece.bytes_read
        if self._refused is not None:
            # A leader may be elected meanwhile.
            await asyncio.sleep(_PAUSE_SECONDS)

    def _check_progress(self) -> None:
        """Raises RefusedError."""
        parts = self._merge.parts
        if self._refused is None:
            return
        if any(part.position is None for part in parts) or not (self._hits or ranges_of(parts)):
            refused = self._refused
            refused.hint = (
                "repeat the request; or search the other partitions alone: partition=0&partition=1…"
            )
            raise refused

    def _found(self) -> SearchFound:
        parts = self._merge.parts
        ranges = ranges_of(parts)
        rows = self._merge.rows()
        if any(part.position is None for part in parts):
            # The client went before it began everywhere: nobody reads this.
            rows = []
        return SearchFound(
            hits=self._hits,
            records=sum(each.end - each.first for each in ranges),
            bytes_searched=self._bytes_searched,
            bytes_read=self._bytes_read,
            ranges=ranges,
            left=sum(part.left() for part in parts),
            gone=sum(part.gone for part in parts),
            unreadable=[(part.partition, one) for part in parts for one in part.skipped()],
            cursor=encode_cursor(self._topic.topic_id, self._asked, rows) if rows else None,
        )


def _refusal(piece: Piece) -> RefusedError:
    try:
        code = ErrorCode(piece.error)
    except ValueError:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return RefusedError(code, piece.message)

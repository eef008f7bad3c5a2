"""Owns GET /api/v1/topics/{topic}/tail: records as they come, by Server-Sent Events.

The id of an event is the record's offset, so a client that lost its connection says where it was
and misses nothing; browsers do that by themselves.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moldau.api.broker import Broker
from moldau.api.lookup import find_topic, remote_leader
from moldau.data.offsets import LATEST
from moldau.data.record_reader import ReadPage, read_page
from moldau.edge.http.query_parameters import parse_int
from moldau.edge.http.record_json import RecordSelection, show_all
from moldau.edge.http.records import CHOICE, PLACE, read_choice, read_offset, read_partition
from moldau.edge.http.redirect import redirect_to
from moldau.edge.http.responses import HEADERS, RETRY_SECONDS, check_query, problem, status_of
from moldau.metadata.config_types import LONG_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId

MEDIA_TYPE: Final = "text/event-stream"
TAILS_MAX: Final = 64
QUIET_MS_MAX: Final = 10_000
"""After so long without a record a comment is sent: so that proxies stay patient."""

_RECORDS_PER_READ: Final = 1000
_encode: Final = msgspec.json.Encoder().encode


class _Followed(NamedTuple):
    """What a client follows."""

    topic: str
    topic_id: TopicId
    partition: int
    chosen: RecordSelection


class Tails:
    """All who follow a partition at this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_stopping = False
        self.count = 0

    def stop(self) -> None:
        """End them all: the clients go on elsewhere, and the broker need not wait for them."""
        self._is_stopping = True
        # Among them are those who wait here for records. No Kafka client is left by then.
        self._broker.fetch.complete_all()

    async def follow(self, request: Request) -> Response:
        check_query(request, *PLACE, *CHOICE)
        chosen = read_choice(request)
        topic = find_topic(self._broker, request.path_params["topic"])
        partition = read_partition(request, topic)
        leader = remote_leader(self._broker, topic, partition)
        if leader is not None:
            return redirect_to(self._broker, leader, request)
        if self.count >= TAILS_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{TAILS_MAX} follow at this broker (the limit)",
            )
        offset = _resumed(request)
        if offset is None:
            offset = read_offset(self._broker, request, topic, partition, by_default=LATEST)
        place = _Followed(topic.name, topic.topic_id, partition, chosen)
        # Counted before the first wait: else any number could come while one of them waits.
        self.count += 1
        try:
            # Before the answer begins: a place that does not exist is an error like any other.
            first = await self._read(place, offset, wait_ms_max=0)
        except BaseException:
            self._ended()
            raise
        if request.method == "HEAD":
            self._ended()
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        return _TailResponse(self._events(place, first), on_end=self._ended)

    def _ended(self) -> None:
        self.count -= 1

    async def _read(self, place: _Followed, offset: int, *, wait_ms_max: int) -> ReadPage:
        topic = self._broker.image.topic(place.topic)
        if topic is None or topic.topic_id != place.topic_id:
            # Another of the same name has other records behind the same offsets.
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{place.topic}' was deleted"
            )
        return await read_page(
            self._broker.fetch,
            place.topic,
            place.partition,
            offset,
            limit=_RECORDS_PER_READ,
            wants=place.chosen.wants,
            wait_ms_max=wait_ms_max,
        )

    async def _events(self, place: _Followed, page: ReadPage) -> AsyncIterator[bytes]:
        """Until the client goes, or the partition does."""
        clock = self._broker.clock.monotonic
        try:
            yield b"retry: %d\n\n" % (RETRY_SECONDS * 1000)
            told_at = clock()
            while True:
                if page.records:
                    shown = await show_all(page.records, place.chosen)
                    yield b"".join(
                        b"id: %d\ndata: %b\n\n" % (record.offset, _encode(record))
                        for record in shown
                    )
                    told_at = clock()
                page = await self._read(place, page.next_offset, wait_ms_max=QUIET_MS_MAX)
                if self._is_stopping:
                    raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")
                # Also while a filter leaves out all that comes. The wait may end a little early.
                if not page.records and clock() - told_at >= QUIET_MS_MAX / 1000 * 0.9:
                    yield b":\n\n"
                    told_at = clock()
        except RefusedError as error:
            details = problem(status_of(error.code), error.code, str(error), error.hint)
            yield b"event: error\ndata: %b\n\n" % _encode(details)


class _TailResponse(StreamingResponse):
    """Says when it is over, however it ends."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None]) -> None:
        super().__init__(events, headers=HEADERS, media_type=MEDIA_TYPE)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _resumed(request: Request) -> int | None:
    """After the last event that the client has, if it says so. Raises RefusedError."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    last = parse_int(text)
    if last is None or not 0 <= last < LONG_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Last-Event-ID must be an offset")
    return last + 1


def routes(tails: Tails) -> list[Route]:
    return [Route("/api/v1/topics/{topic}/tail", tails.follow, methods=["GET"])]

"""GET /api/v1/topics/{topic}/tail: new records as Server-Sent Events.

The id of an event is the record's offset, so that a client can resume after a disconnect with
Last-Event-ID and miss nothing, as browsers do.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Visit
from moldau.api.types import LATEST, LONG_MAX, ReadPage
from moldau.edge.http.event_streams import MEDIA_TYPE, EventStream
from moldau.edge.http.query_parameters import parse_int
from moldau.edge.http.record_json import RecordSelection, show_all
from moldau.edge.http.records import (
    FILTER_PARAMETERS,
    POSITION_PARAMETERS,
    read_offset,
    read_partition,
    read_selection,
)
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.responses import HEADERS, RETRY_SECONDS, check_query, error_event
from moldau.edge.http.visits import check_login, visit_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId

TAILS_MAX: Final = 64
QUIET_MS_MAX: Final = 10_000
"""After this long without a record, a comment is sent, so that proxies keep the connection open."""

_RECORDS_PER_READ: Final = 1000
_encode: Final = msgspec.json.Encoder().encode


class _Subscription(NamedTuple):
    visit: Visit
    topic: str
    topic_id: TopicId
    partition: int
    selection: RecordSelection


class Tails:
    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` ends the waits for records."""
        self._wake = wake
        self.is_stopping = False
        self.count = 0
        """Of the streams of this module and of live views."""
        self.on_stop: dict[Callable[[], None], None] = {}
        """Called when the broker stops."""

    def stop(self) -> None:
        """End all streams; their clients reconnect to another broker."""
        self.is_stopping = True
        # Wakes the streams that wait for records. No Kafka client is connected by then.
        self._wake()
        for wake in list(self.on_stop):
            wake()

    async def follow(self, request: Request) -> Response:
        check_query(request, *POSITION_PARAMETERS, *FILTER_PARAMETERS)
        selection = read_selection(request)
        visit = visit_of(request)
        session = visit.session
        topic = session.topics.get(request.path_params["topic"])
        partition = read_partition(request, topic)
        leader = session.cluster.remote_leader(topic, partition)
        if leader is not None:
            return relay_to(request, leader)
        self.check_count()
        offset = _resumed(request)
        if offset is None:
            offset = read_offset(session, request, topic, partition, by_default=LATEST)
        subscription = _Subscription(visit, topic.name, topic.topic_id, partition, selection)
        # Counted before the first await, so that concurrent requests cannot exceed the limit.
        self.count += 1
        try:
            # Before the response starts, so that a bad offset gets a normal error response.
            first = await self._read(subscription, offset)
        except BaseException:
            self.ended()
            raise
        if request.method == "HEAD":
            self.ended()
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        return EventStream(self._events(subscription, first), on_end=self.ended)

    def check_count(self) -> None:
        """Raises RefusedError if there are too many streams."""
        if self.count >= TAILS_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The limit of {TAILS_MAX} tail streams per broker is reached",
            )

    def ended(self) -> None:
        self.count -= 1

    async def _read(
        self,
        subscription: _Subscription,
        offset: int,
        *,
        wait_ms_max: int = 0,
        is_stream: bool = False,
    ) -> ReadPage:
        session, expires_at_ms = subscription.visit.session, subscription.visit.expires_at_ms
        if expires_at_ms is not None:
            wait_ms_max = max(0, min(wait_ms_max, expires_at_ms - session.clock.wall_ms()))
        check_login(subscription.visit)
        topic = session.topics.find(subscription.topic)
        if topic is None or topic.topic_id != subscription.topic_id:
            # A new topic of the same name has other records at the same offsets.
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{subscription.topic}' was deleted"
            )
        page = await session.fetch.read_page(
            subscription.topic,
            subscription.partition,
            offset,
            limit=_RECORDS_PER_READ,
            wants=subscription.selection.matches,
            wait_ms_max=wait_ms_max,
            is_stream=is_stream,
        )
        if page.records:
            check_login(subscription.visit)
        return page

    async def _events(self, subscription: _Subscription, page: ReadPage) -> AsyncIterator[bytes]:
        """Runs until the client disconnects or the partition cannot be read."""
        clock = subscription.visit.session.clock.monotonic
        try:
            yield b"retry: %d\n\n" % (RETRY_SECONDS * 1000)
            sent_at = clock()
            while True:
                if page.records:
                    shown = await show_all(page.records, subscription.selection)
                    yield b"".join(
                        b"id: %d\ndata: %b\n\n" % (record.offset, _encode(record))
                        for record in shown
                    )
                    sent_at = clock()
                page = await self._read(
                    subscription, page.next_offset, wait_ms_max=QUIET_MS_MAX, is_stream=True
                )
                if self.is_stopping:
                    raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")
                # Also while a filter skips everything. The wait may end slightly early.
                if not page.records and clock() - sent_at >= QUIET_MS_MAX / 1000 * 0.9:
                    yield b":\n\n"
                    sent_at = clock()
        except RefusedError as error:
            yield error_event(error)


def _resumed(request: Request) -> int | None:
    """The offset after Last-Event-ID; None without that header. Raises RefusedError."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    last = parse_int(text)
    if last is None or not 0 <= last < LONG_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Last-Event-ID must be an offset")
    return last + 1


def routes(tails: Tails) -> list[Route]:
    return [Route("/api/v1/topics/{topic}/tail", tails.follow, methods=["GET"])]

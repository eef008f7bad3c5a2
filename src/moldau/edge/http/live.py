"""GET /api/v1/topics/{topic}/live: new messages of all partitions as Server-Sent Events.

An event has the messages of a moment, and how many were skipped: a view for people, who cannot read
more. Who needs every message reads partitions by `/tail` or `/records`, or is a Kafka client.
"""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Visit
from moldau.api.search.types import LiveBatch, LiveFeed, LiveWanted
from moldau.api.types import NO_LEADER_ID, Topic
from moldau.edge.http.event_streams import MEDIA_TYPE, EventStream
from moldau.edge.http.message_json import Message, show_hits
from moldau.edge.http.record_json import RecordSelection
from moldau.edge.http.responses import HEADERS, RETRY_SECONDS, check_query, error_event
from moldau.edge.http.search import (
    MESSAGE_FILTERS,
    read_filter,
    read_partitions,
    read_value_max,
)
from moldau.edge.http.tail import QUIET_MS_MAX, Tails
from moldau.edge.http.visits import check_login, visit_of
from moldau.model.errors import ErrorCode, RefusedError

_WAIT_SECONDS_MAX: Final = 1.0
"""After which it is checked whether the client may still read."""

_encode: Final = msgspec.json.Encoder().encode


class SilentPartitions(Struct, frozen=True, kw_only=True):
    broker: int | None
    """Their leader; null: they have none."""
    partitions: list[int]
    reason: str


class LiveEvent(Struct, frozen=True, kw_only=True):
    records: list[Message]
    skipped: int
    """Messages that were left out since the event before."""
    silent: list[SilentPartitions] | UnsetType = UNSET
    """Partitions that are not followed at the moment; absent: the same as before."""


def routes(tails: Tails) -> list[Route]:
    async def live(request: Request) -> Response:
        check_query(request, *MESSAGE_FILTERS)
        filters, selection = read_filter(request)
        wanted = LiveWanted(
            wanted=filters,
            partitions=read_partitions(request),
            value_max=read_value_max(request),
        )
        visit = visit_of(request)
        topic = visit.session.topics.get(request.path_params["topic"])
        tails.check_count()
        feed = visit.session.search.live(topic, wanted)
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        # Counted before the first await, so that concurrent requests cannot exceed the limit.
        tails.count += 1
        tails.on_stop[feed.wake] = None

        def end() -> None:
            feed.close()
            tails.on_stop.pop(feed.wake, None)
            tails.ended()

        try:
            await feed.begin()
        except BaseException:
            end()
            raise
        return EventStream(_events(tails, visit, topic, feed, selection), on_end=end)

    return [Route("/api/v1/topics/{topic}/live", live, methods=["GET"])]


async def _events(
    tails: Tails, visit: Visit, topic: Topic, feed: LiveFeed, selection: RecordSelection
) -> AsyncIterator[bytes]:
    """Runs until the client disconnects, or may not read the topic any more."""
    session = visit.session
    clock = session.clock.monotonic
    try:
        yield b"retry: %d\n\n" % (RETRY_SECONDS * 1000)
        sent_at = clock()
        while True:
            check_login(visit)
            batch = await session.search.next_live(topic, feed, _wait_seconds(visit))
            if tails.is_stopping:
                raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")
            check_login(visit)
            if batch is not None:
                yield await _event(batch, selection)
                sent_at = clock()
            elif clock() - sent_at >= QUIET_MS_MAX / 1000:
                yield b":\n\n"
                sent_at = clock()
    except RefusedError as error:
        yield error_event(error)


def _wait_seconds(visit: Visit) -> float:
    if visit.expires_at_ms is None:
        return _WAIT_SECONDS_MAX
    left = (visit.expires_at_ms - visit.session.clock.wall_ms()) / 1000
    return max(0.0, min(_WAIT_SECONDS_MAX, left))


async def _event(batch: LiveBatch, selection: RecordSelection) -> bytes:
    records = await show_hits(batch.hits, selection)
    silent: list[SilentPartitions] | UnsetType = UNSET
    if batch.silent is not None:
        silent = [
            SilentPartitions(
                broker=None if each.broker == NO_LEADER_ID else each.broker,
                partitions=list(each.partitions),
                reason=each.reason,
            )
            for each in batch.silent
        ]
    event = LiveEvent(records=records, skipped=batch.skipped, silent=silent)
    return b"data: %b\n\n" % _encode(event)

"""Owns GET /api/v1/topics/{topic}/tail: records as they come, by Server-Sent Events.

The id of an event is the record's offset, so a client that lost its connection says where it was
and misses nothing; browsers do that by themselves.
"""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moldau.edge.http.answers import HEADERS, RETRY_SECONDS, check_query, problem, status_of
from moldau.edge.http.elsewhere import send_to
from moldau.edge.http.paging import parse_int
from moldau.edge.http.reading import Chosen, show
from moldau.edge.http.records import CHOICE, PLACE, read_choice, read_offset, read_partition
from moldau.metadata.config_types import LONG_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.service.broker import Broker
from moldau.service.finding import find_topic, leader_elsewhere
from moldau.service.offsets import LATEST
from moldau.service.reading import ReadPage, read_page

MEDIA_TYPE: Final = "text/event-stream"
TAILS_MAX: Final = 64
QUIET_MS_MAX: Final = 10_000
"""After so long without a record a comment is sent: so that proxies stay patient."""

_RECORDS_PER_READ: Final = 100
_encode: Final = msgspec.json.Encoder().encode


class Tails:
    """All who follow a partition at this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.count = 0

    async def follow(self, request: Request) -> Response:
        check_query(request, *PLACE, *CHOICE)
        chosen = read_choice(request)
        topic = find_topic(self._broker, request.path_params["topic"])
        partition = read_partition(request, topic)
        leader = leader_elsewhere(self._broker, topic, partition)
        if leader is not None:
            return send_to(self._broker, leader, request)
        if self.count >= TAILS_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{TAILS_MAX} follow at this broker (the limit)",
            )
        offset = _resumed(request)
        if offset is None:
            offset = read_offset(self._broker, request, topic, partition, by_default=LATEST)
        # Before the answer begins: a place that does not exist is an error like any other.
        first = await self._read(topic.name, partition, offset, chosen, wait_ms_max=0)
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        return StreamingResponse(
            self._events(topic.name, partition, first, chosen),
            headers=HEADERS,
            media_type=MEDIA_TYPE,
        )

    async def _read(
        self, topic: str, partition: int, offset: int, chosen: Chosen, *, wait_ms_max: int
    ) -> ReadPage:
        return await read_page(
            self._broker.fetch,
            topic,
            partition,
            offset,
            limit=_RECORDS_PER_READ,
            wants=chosen.wants,
            wait_ms_max=wait_ms_max,
        )

    async def _events(
        self, topic: str, partition: int, page: ReadPage, chosen: Chosen
    ) -> AsyncIterator[bytes]:
        """Until the client goes, or the partition does."""
        self.count += 1
        try:
            yield b"retry: %d\n\n" % (RETRY_SECONDS * 1000)
            while True:
                if page.records:
                    yield b"".join(
                        b"id: %d\ndata: %b\n\n" % (record.offset, _encode(show(record, chosen)))
                        for record in page.records
                    )
                before = page.next_offset
                page = await self._read(topic, partition, before, chosen, wait_ms_max=QUIET_MS_MAX)
                if page.next_offset == before:
                    yield b":\n\n"
        except RefusedError as error:
            details = problem(status_of(error.code), error.code, str(error), error.hint)
            yield b"event: error\ndata: %b\n\n" % _encode(details)
        finally:
            self.count -= 1


def _resumed(request: Request) -> int | None:
    """After the last event that the client has, if it says so. Raises RefusedError."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    last = parse_int(text)
    if last is None or not 0 <= last < LONG_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Last-Event-ID must be an offset")
    return last + 1


def routes(broker: Broker) -> list[Route]:
    return [Route("/api/v1/topics/{topic}/tail", Tails(broker).follow, methods=["GET"])]

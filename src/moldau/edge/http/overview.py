"""GET /api/v1/overview and /api/v1/overview/stream: the whole cluster, live."""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Visit
from moldau.api.overview.sampler import Shown
from moldau.edge.http.event_streams import MEDIA_TYPE, EventStream
from moldau.edge.http.responses import HEADERS, RETRY_SECONDS, check_query, error_event
from moldau.edge.http.visits import check_login, session_of, visit_of
from moldau.model.errors import ErrorCode, RefusedError

STREAMS_MAX: Final = 64


class OverviewStreams:
    """The watchers of this broker. They end when the broker stops: then there is no next one."""

    def __init__(self) -> None:
        self.count = 0

    async def follow(self, request: Request) -> Response:
        check_query(request)
        visit = visit_of(request)
        if self.count >= STREAMS_MAX:
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The limit of {STREAMS_MAX} overview streams per broker is reached",
            )
        # Counted before the first await, so that concurrent requests cannot exceed the limit.
        self.count += 1
        try:
            # Before the response starts, so that a refusal is a normal error response.
            first = await visit.session.cluster.overview()
        except BaseException:
            self._ended()
            raise
        if request.method == "HEAD":
            self._ended()
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        return EventStream(_events(visit, first), on_end=self._ended)

    def _ended(self) -> None:
        self.count -= 1


async def _events(visit: Visit, shown: Shown) -> AsyncIterator[bytes]:
    """Runs until the client disconnects, its login expires, or the broker stops."""
    try:
        yield b"retry: %d\n\n" % (RETRY_SECONDS * 1000)
        while True:
            yield b"id: %d\ndata: %b\n\n" % (shown.tick, shown.json)
            # By the rights of now: they may change while somebody watches.
            shown = await visit.session.cluster.overview(shown)
            check_login(visit)
    except RefusedError as error:
        yield error_event(error)


async def _show(request: Request) -> Response:
    check_query(request)
    shown = await session_of(request).cluster.overview()
    return Response(shown.json, headers=HEADERS, media_type="application/json")


def routes(streams: OverviewStreams) -> list[Route]:
    return [
        Route("/api/v1/overview", _show, methods=["GET"]),
        Route("/api/v1/overview/stream", streams.follow, methods=["GET"]),
    ]

"""Responses of Server-Sent Events, which go on until client or broker end them."""

from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from moldau.api.quotas import charged
from moldau.edge.http.responses import HEADERS

MEDIA_TYPE: Final = "text/event-stream"
_UNBUFFERED: Final = {"x-accel-buffering": "no"}
"""Without it proxies like nginx hold back small events."""


class EventStream(StreamingResponse):
    """Calls `on_end` when the stream ends for any reason."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None]) -> None:
        headers = {**HEADERS, **_UNBUFFERED}
        super().__init__(events, headers=headers, media_type=MEDIA_TYPE)
        self._on_end = on_end

    async def stream_response(self, send: Send) -> None:
        # Starlette runs this in a task of its own, beside the one that waits for a disconnect.
        await charged(super().stream_response(send))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()

"""Owns the shape of a handler: Api says what is served, Call is one request being served.

A handler is a function `handle(call, request)`:

- plain: returns the response, or None after `call.defer()` (it will call `call.reply`) or after
  `call.no_reply()`;
- returning a coroutine (or `async def`): its result is the response. It runs as a task of the
  dispatcher; the reply keeps its place in the connection's order.
"""

from bisect import bisect_left
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from msgspec import Struct

from moldau.api.broker import Broker
from moldau.edge.kafka.deadlines import Deadlines
from moldau.model.histogram import SECONDS, Histogram
from moldau.net.connection import Connection, DeferredReply
from moldau.wire.framing import frame_response
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request, Response


class Call:
    """One request: who asked, in which version, and how to answer."""

    __slots__ = (
        "api_key",
        "began",
        "broker",
        "client_id",
        "connection",
        "correlation_id",
        "deadlines",
        "reply_later",
        "seconds",
        "version",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        deadlines: Deadlines,
        seconds: Histogram,
    ) -> None:
        self.began = perf_counter()
        self.broker = broker
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.deadlines = deadlines
        self.seconds = seconds
        """Of all calls of this API."""
        self.reply_later: DeferredReply | None = None

    @property
    def client_host(self) -> str:
        return self.connection.address.rpartition(":")[0]

    def defer(self) -> DeferredReply:
        """The answer comes later, through `reply`."""
        self.reply_later = self.connection.defer()
        return self.reply_later

    def no_reply(self) -> None:
        self.connection.no_reply()
        self.note()

    def note(self) -> None:
        """It is answered: for those who answer past this object."""
        # What Histogram.add does, without its call.
        seconds = perf_counter() - self.began
        self.seconds.counts[bisect_left(SECONDS, seconds)] += 1
        self.seconds.sum += seconds

    def reply(self, response: Response) -> None:
        chunks = frame_response(
            self.api_key, self.version, self.correlation_id, response.encode(self.version)
        )
        if self.reply_later is None:
            self.connection.reply(chunks)
        else:
            self.reply_later.complete(chunks)
        self.note()


class Api(Struct, frozen=True, kw_only=True):
    """One served API."""

    key: ApiKey
    request: type[Request]
    versions: tuple[int, int]
    """First and last version served."""
    handle: Callable[[Call, Any], Response | Coroutine[Any, Any, Response] | None]
    advertised_from: int | None = None
    """First version told to clients, where that must differ from the first served."""
    note: str = ""
    """For the compatibility table: what is not as in Kafka."""

"""The handler interface: `Api` declares a served API, `Call` is one request being served.

A handler is a function `handle(call, request)`:

- plain: returns the response, or None after `call.defer()` (it calls `call.reply` later) or after
  `call.no_reply()`;
- `async def`, or one that returns a coroutine: its result is the response. It runs as a task of the
  dispatcher; the reply keeps its position in the order of the connection.
"""

from bisect import bisect_left
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Final, NamedTuple

from moldau.api.session import Session
from moldau.edge.kafka.deadlines import Deadlines
from moldau.edge.kafka.throttle import Throttle
from moldau.model.histogram import SECONDS, SHORTEST, Histogram
from moldau.model.slices import Chunk
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply
from moldau.wire.framing import frame_response
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request, Response

_now: Final = perf_counter


class Call:
    __slots__ = (
        "api_key",
        "began",
        "client_id",
        "connection",
        "correlation_id",
        "deadlines",
        "reply_later",
        "seconds",
        "session",
        "throttle",
        "version",
    )

    def __init__(
        self,
        session: Session,
        connection: Connection,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        deadlines: Deadlines,
        seconds: Histogram,
    ) -> None:
        self.began = _now()
        self.session = session
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.deadlines = deadlines
        self.seconds = seconds
        """The histogram of this API."""
        self.reply_later: DeferredReply | None = None
        self.throttle: Throttle | None = None
        """None: the client has no quota."""

    @property
    def client_host(self) -> str:
        return host_of(self.connection)

    def topic_name(self, topic_id: bytes) -> str | None:
        """None if there is no topic with this id that the client may know of."""
        return self.session.topics.name_of(topic_id)

    def defer(self) -> DeferredReply:
        """Announces that `reply` will be called later."""
        self.reply_later = self.connection.defer()
        return self.reply_later

    def failed(self) -> None:
        """It is answered with an error, of the whole or of a part."""
        self.connection.traffic.errors += 1

    def no_reply(self) -> None:
        if self.reply_later is None:
            self.connection.no_reply()
        else:
            self.reply_later.complete(())
        self.record_duration()

    def record_duration(self) -> None:
        """For handlers that reply directly on the connection."""
        # Histogram.add, inlined.
        histogram = self.seconds
        seconds = _now() - self.began
        if seconds <= SHORTEST:
            histogram.counts[0] += 1
        else:
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
        histogram.sum += seconds

    def reply(self, response: Response) -> None:
        if getattr(response, "error_code", 0):
            self.failed()
        body = response.encode(self.version)
        if self.throttle is not None:
            body = self.throttle.answered(response, self.api_key, self.version, body)
        self.send(body)

    def send(self, body: list[Chunk]) -> None:
        """An encoded response."""
        chunks = frame_response(self.api_key, self.version, self.correlation_id, body)
        if self.reply_later is None:
            self.connection.reply(chunks)
        else:
            self.reply_later.complete(chunks)
        self.record_duration()


def host_of(connection: Connection) -> str:
    """The address of the client, without its port."""
    return connection.address.rpartition(":")[0]


Handle = Callable[[Call, Any], Response | Coroutine[Any, Any, Response | None] | None]

Shortcut = Callable[[memoryview, int, int], object | None]
"""Reads a request that is often sent from its frame, version and position: for the handler, as what
it likes. None: the request has to be decoded. Not called for clients with a quota."""


class Api(NamedTuple):
    request: type[Request]
    versions: tuple[int, int]
    """First and last version served."""
    handle: Handle
    advertised_from: int | None = None
    """First advertised version, where it must differ from the first served."""
    shortcut: Shortcut | None = None
    note: str = ""
    """For the compatibility table: differences from Kafka."""

    @property
    def key(self) -> ApiKey:
        return ApiKey(self.request.API_KEY)

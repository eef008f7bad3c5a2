"""Charges Kafka requests to the quotas of their clients: throttle times, and muted connections.

Produce requests are charged by their size when they arrive, fetches by the size of the response,
and all by the time in which they hold the event loop. A client over a quota is answered, its
response says how long to wait, and nothing more is read of its connection until then.
"""

from collections.abc import Iterable
from functools import partial
from math import ceil
from time import perf_counter
from typing import Final

from moldau.api.quotas import Meter
from moldau.api.types import QuotaKey
from moldau.model.slices import Chunk
from moldau.net.connection import Connection
from moldau.security.quotas import WAIT_SECONDS_MAX
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Response

_THROTTLE_TIME: Final = "throttle_time_ms"
_MUTATIONS: Final = frozenset(
    {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS}
)
_AFTER_LOGIN: Final = (QuotaKey.PRODUCE, QuotaKey.REQUEST)
"""What is charged after it was served. Fetches and changes of a client in debt are refused."""
_FETCH_SECONDS: Final = 10
"""A fetch returns at most this long of the quota: the client waits no longer for the next one."""


class Throttle:
    """What one request takes. Clients without quotas have none."""

    __slots__ = ("_began", "_connection", "_exceeded", "_meter", "_seconds")

    def __init__(self, meter: Meter, connection: Connection, began: float) -> None:
        self._meter = meter
        self._connection = connection
        self._began: float | None = began
        """When the current step of the handler began; None between steps."""
        self._seconds = 0.0
        """How long the client has to wait."""
        self._exceeded: set[QuotaKey] = set()

    # ---- the request

    def received(self, size: int) -> None:
        """A Produce request."""
        self._wait(QuotaKey.PRODUCE, self._meter.take(QuotaKey.PRODUCE, size))

    @property
    def refuses_fetch(self) -> bool:
        """Whether the client has to wait before it gets more, as after another connection's fetch;
        then the response is empty."""
        seconds = self._meter.wait(QuotaKey.FETCH)
        self._wait(QuotaKey.FETCH, seconds)
        return seconds > 0

    def fetch_bytes(self, wanted: int) -> int:
        """What a fetch may return: one that takes minutes to pay back would never be paid back."""
        rate = self._meter.rate(QuotaKey.FETCH)
        return wanted if rate is None else max(1, min(wanted, int(rate * _FETCH_SECONDS)))

    # ---- the time it takes

    def resume(self) -> None:
        """A handler that waited goes on."""
        if self._began is None:
            self._began = perf_counter()

    def pause(self) -> None:
        """It waits, or it is done."""
        if self._began is not None:
            self.spent(perf_counter() - self._began)
            self._began = None

    def spent(self, seconds: float) -> None:
        self._wait(QuotaKey.REQUEST, self._meter.take(QuotaKey.REQUEST, seconds))

    # ---- the response

    def answered(
        self, response: Response, api_key: int, version: int, body: list[Chunk]
    ) -> list[Chunk]:
        """The encoded response, with the time that the client has to wait."""
        self.pause()
        if api_key == ApiKey.FETCH:
            size = sum(len(chunk) for chunk in body)
            self._wait(QuotaKey.FETCH, self._meter.take(QuotaKey.FETCH, size))
        return response.encode(version) if self.announce(response, api_key) else body

    def announce(self, response: Response, api_key: int) -> bool:
        """Whether the response now says that the client has to wait."""
        if api_key in _MUTATIONS:
            self._wait(QuotaKey.MUTATION, self._meter.wait(QuotaKey.MUTATION))
        if not self._seconds or _THROTTLE_TIME not in response.FIELDS:
            return False
        setattr(response, _THROTTLE_TIME, ceil(self._seconds * 1000))
        return True

    def _wait(self, key: QuotaKey, seconds: float) -> None:
        if seconds <= 0:
            return
        self._seconds = max(self._seconds, seconds)
        if key not in self._exceeded:
            self._exceeded.add(key)
            self._meter.count(key, seconds)
        _mute(self._connection, self._meter, self._exceeded)


def mute_debtor(meter: Meter, connection: Connection) -> None:
    """For a client that has just logged in. Otherwise one that closes its muted connections and
    opens others would be served one request by each, and those that wait would wait for it."""
    _mute(connection, meter, _AFTER_LOGIN)


def _mute(connection: Connection, meter: Meter, keys: Iterable[QuotaKey]) -> None:
    connection.mute(partial(_seconds_left, meter, keys, meter.now + WAIT_SECONDS_MAX))


def _seconds_left(meter: Meter, keys: Iterable[QuotaKey], ends: float) -> float:
    """Other connections of the client may take more meanwhile, and its quotas may change; but a
    mute has an end, whatever others take."""
    current = meter.current()
    if current is None:
        return 0.0
    return min(max(current.wait(key) for key in keys), ends - meter.now)

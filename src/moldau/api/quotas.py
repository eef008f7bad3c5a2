"""What clients take of their quotas, over all protocols, and how long they wait for it.

The server of the Kafka protocol charges by the bytes of requests and responses, and mutes the
connection of a client that has to wait. Services that other protocols use are charged by the
records that they store or return, and refuse a client that has to wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextvars import ContextVar
from math import ceil
from time import perf_counter
from types import coroutine
from typing import Any, Final, TypeVar

from moldau.model.clock import Clock
from moldau.model.errors import QuotaExceededError
from moldau.records.record import Record
from moldau.security.principal import LOCAL_ADMIN, Principal
from moldau.security.quotas import ClientBuckets, QuotaBuckets, QuotaKey
from moldau.security.quotas import Quotas as StoredQuotas

T = TypeVar("T")

_STEP_SECONDS_MIN: Final = 0.001
_STEP_SECONDS_MAX: Final = 1.0

CLIENT_ID: Final[ContextVar[str]] = ContextVar("client_id", default="")
"""The client id of the request that is being handled; only Kafka requests have one."""


class Quotas:
    """The quotas of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.active: QuotaBuckets | None = None
        """None: there are no quotas."""
        self.throttled = dict.fromkeys(QuotaKey, 0)
        """How often a client was made to wait, or refused, since the start."""
        self.throttled_seconds = dict.fromkeys(QuotaKey, 0.0)

    def replace(self, stored: StoredQuotas) -> None:
        """Those of the current image."""
        if not stored:
            self.active = None
        elif self.active is None:
            self.active = QuotaBuckets(stored)
        else:
            self.active.replace(stored)

    def meter(self, principal: Principal, client_id: str | None) -> "Meter | None":
        """None if the client has no quota. The local administrator has none, so that any quota can
        be changed."""
        if self.active is None or principal == LOCAL_ADMIN:
            return None
        buckets = self.active.of(principal.name, client_id or "", self._clock.monotonic())
        return Meter(self, buckets, self._clock) if buckets else None


class Meter:
    """Charges one client."""

    __slots__ = ("_buckets", "_clock", "_quotas")

    def __init__(self, quotas: Quotas, buckets: ClientBuckets, clock: Clock) -> None:
        self._quotas = quotas
        self._buckets = buckets
        self._clock = clock

    def rate(self, key: QuotaKey) -> float | None:
        """None: no quota of this kind."""
        bucket = self._buckets.get(key)
        return None if bucket is None else bucket.rate

    def take(self, key: QuotaKey, amount: float) -> float:
        """Returns the seconds that the client has to wait."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.take(amount, self._now)

    def wait(self, key: QuotaKey) -> float:
        """The seconds that the client has to wait by now."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.wait(self._now)

    def check(self, key: QuotaKey) -> None:
        """Raises QuotaExceededError if the client has to wait."""
        if seconds := self.wait(key):
            self.count(key, seconds)
            raise QuotaExceededError(
                f"The quota {key} of this client is exceeded: retry in {ceil(seconds)} s", seconds
            )

    async def admitted(self, key: QuotaKey) -> None:
        """Returns when the client need not wait any more."""
        if seconds := self.wait(key):
            self.count(key, seconds)
        while seconds:
            # In short steps, since quotas may change meanwhile; none so short that it is no time.
            await asyncio.sleep(max(_STEP_SECONDS_MIN, min(seconds, _STEP_SECONDS_MAX)))
            seconds = self.wait(key)

    def count(self, key: QuotaKey, seconds: float) -> None:
        """The client was told to wait, for a request."""
        self._quotas.throttled[key] += 1
        self._quotas.throttled_seconds[key] += seconds

    @property
    def _now(self) -> float:
        return self._clock.monotonic()


def bytes_of(records: Iterable[Record]) -> int:
    """What clients of HTTP and gRPC are charged for records."""
    size = 0
    for _, _, key, value, headers in records:
        size += len(key or b"") + len(value or b"")
        for name, content in headers:
            size += len(name) + len(content or b"")
    return size


@coroutine
def timed(work: Awaitable[T], on_step: Callable[[float], object]) -> Generator[Any, Any, T]:
    """Runs `work`, and passes on how long each of its steps held the event loop."""
    steps = work.__await__()
    error: BaseException | None = None
    while True:
        began = perf_counter()
        try:
            waits_for = steps.send(None) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            on_step(perf_counter() - began)
        error = None
        try:
            yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as thrown:
            error = thrown

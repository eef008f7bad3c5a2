"""What clients take of their quotas, over all protocols, and how long they wait for it.

The server of the Kafka protocol charges by the bytes of requests and responses, and mutes the
connection of a client that has to wait. Services that other protocols use are charged by the
records that they store or return, and refuse a client that has to wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
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
_CLIENT_ID_CHARACTERS_MAX: Final = 256
"""Of what is remembered: one more than a stored quota may name, so that no longer id matches one.
Clients may send ids of 32 KB, and thousands of them."""

OnStep = Callable[[float], object]
"""Called with the seconds in which a step of a request held the event loop."""

ON_STEP: Final[ContextVar[OnStep | None]] = ContextVar("on_step", default=None)
"""Charges the time of the request that is being handled; None: its client has no quota."""
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
        if principal == LOCAL_ADMIN:
            return None
        return self.meter_of(principal.name, (client_id or "")[:_CLIENT_ID_CHARACTERS_MAX])

    def meter_of(self, user: str, client_id: str) -> "Meter | None":
        if self.active is None:
            return None
        buckets = self.active.of(user, client_id, self._clock.monotonic())
        return Meter(self, user, client_id, buckets, self._clock) if buckets else None


class Meter:
    """Charges one client."""

    __slots__ = ("_buckets", "_client_id", "_clock", "_quotas", "_user")

    def __init__(
        self, quotas: Quotas, user: str, client_id: str, buckets: ClientBuckets, clock: Clock
    ) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._buckets = buckets
        self._clock = clock

    def current(self) -> "Meter | None":
        """That of the same client by the quotas of now."""
        return self._quotas.meter_of(self._user, self._client_id)

    def rate(self, key: QuotaKey) -> float | None:
        """None: no quota of this kind."""
        bucket = self._buckets.get(key)
        return None if bucket is None else bucket.rate

    def take(self, key: QuotaKey, amount: float) -> float:
        """Returns the seconds that the client has to wait."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.take(amount, self.now)

    def wait(self, key: QuotaKey) -> float:
        """The seconds that the client has to wait by now."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.wait(self.now)

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
            # In short steps: quotas may change meanwhile. But some time must pass.
            await asyncio.sleep(max(_STEP_SECONDS_MIN, min(seconds, _STEP_SECONDS_MAX)))
            meter = self.current()
            seconds = 0.0 if meter is None else meter.wait(key)

    def count(self, key: QuotaKey, seconds: float) -> None:
        """A request made the client wait."""
        self._quotas.throttled[key] += 1
        self._quotas.throttled_seconds[key] += seconds

    @property
    def now(self) -> float:
        """By the clock of its waits."""
        return self._clock.monotonic()


def bytes_of(records: Iterable[Record]) -> int:
    """What clients of HTTP and gRPC are charged for records."""
    size = 0
    for _, _, key, value, headers in records:
        size += len(key or b"") + len(value or b"")
        for name, content in headers:
            size += len(name) + len(content or b"")
    return size


def charged(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Work of the current request that runs in a task of its own: its time is charged, too."""
    on_step = ON_STEP.get()
    return work if on_step is None else _timed(work, on_step)


async def _timed(work: Awaitable[T], on_step: OnStep) -> T:
    return await timed(work, on_step)


@coroutine
def timed(work: Awaitable[T], on_step: OnStep) -> Generator[Any, Any, T]:
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

"""AsyncDelivery: the awaitable result of a send.

Deliveries are completed in the thread that polls librdkafka, thousands at a time. They are queued
in DeliveryWaiters, which wakes the event loop once for all that have completed since.
"""

import asyncio
from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, ClassVar

from moldau.client.errors import ClientError
from moldau.client.kafka.deliveries import Delivery, Receipt

Waiter = asyncio.Future[None]


class DeliveryWaiters:
    """Wakes the coroutines of one event loop whose deliveries are done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiters: set[Waiter] = set()
        self._settled: deque[Waiter] = deque()
        self._is_scheduled = False

    def waiter(self) -> Waiter:
        """A future for a coroutine to await."""
        if asyncio.get_running_loop() is not self.loop:
            raise ClientError(
                "a delivery must be awaited in the event loop of its producer",
                hint="create a producer in each loop",
            )
        waiter: Waiter = self.loop.create_future()
        self._waiters.add(waiter)
        return waiter

    def put(self, waiter: Waiter, _: Delivery) -> None:
        """Thread-safe: wake this waiter soon."""
        self._settled.append(waiter)
        if not self._is_scheduled:
            # Set before the loop is notified, which may run at once. An extra wake-up is harmless.
            self._is_scheduled = True
            self._notify(self._wake_waiters)

    def fail(self, error: ClientError) -> None:
        """Thread-safe: no delivery will be completed any more."""
        self._notify(partial(self._fail_all, error))

    def forget(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def _notify(self, what: "partial[None] | Any") -> None:
        # A closed loop has no waiters.
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(what)

    def _wake_waiters(self) -> None:
        self._is_scheduled = False
        while self._settled:
            waiter = self._settled.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _fail_all(self, error: ClientError) -> None:
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(error)


class AsyncDelivery(Delivery):
    """The future result of a send: `await` it for the Receipt, any number of times."""

    _waiters: ClassVar[DeliveryWaiters]

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._message is None:
            yield from self._wait()
        return self.result()

    def result(self, timeout: float | None = None) -> Receipt:
        """The Receipt of a delivery that is done. Raises the error of the message; never waits."""
        return super().result()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """The error of a delivery that is done, or None; never waits."""
        if self._message is None:
            raise ClientError("the delivery is not done yet", hint="await it first")
        return super().exception()

    def _wait(self) -> Generator[Any, None, None]:
        waiter = self._waiters.waiter()
        self.add_done_callback(partial(self._waiters.put, waiter))
        try:
            yield from waiter
        except asyncio.CancelledError:
            # A cancelled waiter does not see the result: if it is an error, flush raises it.
            self._seen = False
            raise
        finally:
            self._waiters.forget(waiter)

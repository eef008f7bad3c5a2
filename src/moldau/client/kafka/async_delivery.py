"""Owns AsyncDelivery: what became of a message, for coroutines; and how they are told.

Deliveries are settled in whichever thread polls librdkafka, thousands at a time. They are put into
a Mailbox, and the event loop is woken once for all that have come since it looked last.
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
    """Wakes those coroutines of one event loop whose deliveries are settled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiters: set[Waiter] = set()
        self._settled: deque[Waiter] = deque()
        self._on_its_way = False

    def waiter(self) -> Waiter:
        """For a coroutine to await."""
        if asyncio.get_running_loop() is not self.loop:
            raise ClientError(
                "a delivery is awaited in another event loop than its producer's",
                hint="make a producer in each loop",
            )
        waiter: Waiter = self.loop.create_future()
        self._waiters.add(waiter)
        return waiter

    def put(self, waiter: Waiter, _: Delivery) -> None:
        """From any thread: wake this one soon."""
        self._settled.append(waiter)
        if not self._on_its_way:
            # Set before the loop is told: it may look at once. One wake-up too many is no harm.
            self._on_its_way = True
            self._tell(self._hand_out)

    def fail(self, error: ClientError) -> None:
        """From any thread: nothing will be settled any more."""
        self._tell(partial(self._fail_all, error))

    def forget(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def _tell(self, what: "partial[None] | Any") -> None:
        # A loop that is over has nobody in it who waits.
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(what)

    def _hand_out(self) -> None:
        self._on_its_way = False
        while self._settled:
            waiter = self._settled.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _fail_all(self, error: ClientError) -> None:
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(error)


class AsyncDelivery(Delivery):
    """The result of a send, to come: `await` it for the Receipt, any number of times."""

    _mailbox: ClassVar[DeliveryWaiters]

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._message is None:
            yield from self._wait()
        return self.result()

    def result(self, timeout: float | None = None) -> Receipt:
        """Where the message is, once it is decided. Raises why it failed; never waits."""
        return super().result()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Why the message failed, once it is decided, or None if it did not; never waits."""
        if self._message is None:
            raise ClientError("the delivery is not decided", hint="await it first")
        return super().exception()

    def _wait(self) -> Generator[Any, None, None]:
        waiter = self._mailbox.waiter()
        self.add_done_callback(partial(self._mailbox.put, waiter))
        try:
            yield from waiter
        except asyncio.CancelledError:
            # Whoever does not wait any more has not seen how it ends: if it fails, flush says so.
            self._seen = False
            raise
        finally:
            self._mailbox.forget(waiter)

"""AsyncProducer: a Producer for coroutines that never blocks their event loop.

A send that finds room in the buffer runs in the loop itself: it takes microseconds, and a thread
would cost more. Slow calls run in threads: connecting, flush, close, transactions. librdkafka is
polled by the loop every few sends and by the outbox thread in between, which measured faster than
either alone.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from confluent_kafka import Producer as Client

from moldau.client.config import Brokers, config_from
from moldau.client.encoding import Headers, Key, Value
from moldau.client.errors import ClientError
from moldau.client.kafka.async_delivery import AsyncDelivery, DeliveryWaiters
from moldau.client.kafka.deliveries import Delivery, Outbox
from moldau.client.kafka.producer import Producer, UnbufferedMessage, keys_and_values
from moldau.client.kafka.producer_config import Acks, ProducerConfig, ProducerSettings, ack_mode
from moldau.client.kafka.thread_calls import in_thread, to_its_end
from moldau.client.kafka.transaction import Transaction

if TYPE_CHECKING:
    from moldau.client.kafka.async_consumer import AsyncConsumer

_ROOM_SECONDS_MIN = 0.001
_ROOM_SECONDS_MAX = 0.05
_YIELD_EVERY_SENDS = 256
"""How often a coroutine that only sends lets others run."""


class AsyncProducer:
    """Sends messages. For any number of tasks of one event loop.

    Connects on `async with`, start or first use.
    """

    def __init__(
        self,
        config: ProducerConfig | Brokers | None = None,
        /,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.config = config_from(ProducerConfig, config, settings)
        self._sender: _Sender | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._sends = 0

    async def start(self) -> Self:
        """Connect. Raises UnreachableError."""
        await self._ready()
        return self

    async def send(
        self,
        topic: str,
        value: Value = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        acks: Acks | None = None,
    ) -> AsyncDelivery:
        """Put a message into the buffer. Await the returned delivery for the acknowledgement.

        Waits up to max_block_ms while the buffer is full, then raises BufferFullError. If it is
        cancelled, the message was not sent.
        """
        sender = self._sender
        if sender is None or self._closed or not sender.connected(acks):
            sender = await self._ready(topic, acks)
        self._sends = sends = self._sends + 1
        if not sends % _YIELD_EVERY_SENDS:
            await asyncio.sleep(0)
        try:
            if headers is None and partition is None and timestamp is None and acks is None:
                # The common case: keyword arguments would cost time.
                return sender.send(topic, value, key=key)  # type: ignore[return-value]
            delivery = sender.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                acks=acks,
            )
        except _BufferFullSignal as full:
            delivery = await self._send_when_not_full(sender, full.message)
        return cast(AsyncDelivery, delivery)

    async def send_many(
        self, topic: str, messages: Iterable[Value | tuple[Key, Value]], *, acks: Acks | None = None
    ) -> list[AsyncDelivery]:
        """Send values, or pairs of key and value, in order.

        If it is cancelled or fails, the first ones may have been sent; flush waits for them.
        """
        return [
            await self.send(topic, value, key=key, acks=acks)
            for key, value in keys_and_values(messages)
        ]

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message sent so far is acknowledged.

        Raises TimedOutError if some are not yet (they are still retried), and DeliveryFailedError
        if some failed whose delivery was not awaited.
        """
        sender = await self._ready()
        await in_thread(lambda: sender.flush(timeout), "moldau-flush")

    async def close(self, timeout: float | None = None) -> None:
        """Flush and close. Raises TimedOutError if messages were given up after `timeout`.

        If it is cancelled, it continues in the background, and logs what is lost.
        """
        await self._close(lambda sender: sender.close(timeout))

    def transaction(self) -> "AsyncTransaction":
        """`async with producer.transaction():` messages sent inside are committed atomically."""
        return AsyncTransaction(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} messages not acknowledged"
        return f"<AsyncProducer at {self.config.brokers}, {state}>"

    def __len__(self) -> int:
        """The number of messages not acknowledged yet."""
        return 0 if self._sender is None else len(self._sender)

    def __bool__(self) -> bool:
        """True, also if no messages are pending."""
        return True

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(lambda sender: sender.__exit__(kind, error, trace))

    async def _close(self, close: "Callable[[_Sender], None]") -> None:
        self._closed = True
        async with self._connecting:
            sender = self._sender
        if sender is not None:
            await in_thread(lambda: close(sender), "moldau-close")

    async def _ready(self, topic: str | None = None, acks: Acks | None = None) -> "_Sender":
        """Connect, if necessary also the handle for `acks`."""
        self._check_open()
        # A separate task: a cancelled caller returns at once, and the next one finds it done.
        return await asyncio.shield(asyncio.ensure_future(self._connect(topic, acks)))

    async def _connect(self, topic: str | None, acks: Acks | None) -> "_Sender":
        async with self._connecting:
            self._check_open()
            sender = self._sender
            if sender is None:
                waiters = DeliveryWaiters(asyncio.get_running_loop())
                sender = await in_thread(lambda: _Sender(self.config, waiters), "moldau-connect")
                self._sender = sender
            if topic is not None and not sender.connected(acks):
                connect = sender.connect
                await in_thread(lambda: connect(topic, acks), "moldau-connect")
        return sender

    async def _send_when_not_full(self, sender: "_Sender", message: UnbufferedMessage) -> Delivery:
        """Wait until acknowledgements make room: backpressure for the sender."""
        wait_seconds = self.config.max_block_ms / 1000
        deadline = time.monotonic() + wait_seconds
        pause = _ROOM_SECONDS_MIN
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, pause))
            pause = min(2 * pause, _ROOM_SECONDS_MAX)
            self._check_open()
            if sender._try_to_put(message, 0):
                return message.delivery
        raise sender._buffer_full(message, wait_seconds)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("the producer is closed", hint="create a new one")


class AsyncTransaction:
    """Created by AsyncProducer.transaction(). Leaving the block commits; an error aborts."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self._transaction: Transaction | None = None

    async def commit_offsets(self, consumer: "AsyncConsumer") -> None:
        """Commit in this transaction what the consumer has returned so far."""
        transaction = self._transaction
        if transaction is None:
            raise ClientError("the transaction is not open", hint="use `async with`")
        offsets, member = await consumer.transaction_offsets()
        await to_its_end(lambda: transaction.add_offsets(offsets, member), "moldau-transaction")

    async def __aenter__(self) -> Self:
        sender = await self._producer._ready()

        def begin() -> None:
            self._transaction = sender.transaction().__enter__()

        try:
            await to_its_end(begin, "moldau-transaction")
        except asyncio.CancelledError as error:
            # The block is not entered, so __aexit__ would not be called.
            if self._transaction is not None:
                await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            # Not interrupted by cancellation: the outcome of half a commit would be unknown.
            await to_its_end(lambda: transaction.__exit__(kind, error, trace), "moldau-transaction")


class _BufferFullSignal(Exception):
    """The buffer is full."""

    def __init__(self, message: UnbufferedMessage) -> None:
        self.message = message


class _Sender(Producer):
    """A Producer with awaitable deliveries, which raises instead of waiting for room."""

    def __init__(self, config: ProducerConfig, waiters: DeliveryWaiters) -> None:
        super().__init__(config)
        self._waiters = waiters
        self._kind = type("AsyncDelivery", (AsyncDelivery,), {"_waiters": waiters})

    def connected(self, acks: Acks | None) -> bool:
        """Whether the handle for this ack mode is connected."""
        if acks is None:
            return self._usual is not None
        return ack_mode(acks) in self._outboxes

    def connect(self, topic: str, acks: Acks | None) -> None:
        self._outbox(topic, self._mode if acks is None else ack_mode(acks))

    def _send_when_not_full(self, message: UnbufferedMessage) -> None:
        if not self._try_to_put(message, 0):
            raise _BufferFullSignal(message)

    def _new_outbox(self, client: Client) -> Outbox:
        return Outbox(client, self._brokers, self._kind, on_fatal=self._waiters.fail)

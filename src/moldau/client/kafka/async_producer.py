"""Owns AsyncProducer: a Producer for coroutines, which never makes their event loop wait.

A send that finds room is done at once, in the loop: that costs microseconds, and a thread would
cost more. What takes time happens in threads: the first contact, flush, close, transactions. The
loop itself polls librdkafka with every few sends, and the thread of the outbox in between, which
was faster and told results earlier than either of them alone.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from confluent_kafka import Producer as Client

from moldau.client.config import Brokers, config_from
from moldau.client.encoding import Headers, Key, Value
from moldau.client.errors import BufferFullError, ClientError
from moldau.client.kafka.async_delivery import AsyncDelivery, DeliveryWaiters
from moldau.client.kafka.deliveries import Delivery, Outbox
from moldau.client.kafka.producer import Producer, close_seconds, keys_and_values, log
from moldau.client.kafka.producer_config import Acks, ProducerConfig, ack_mode
from moldau.client.kafka.thread_calls import in_thread, to_its_end
from moldau.client.kafka.transaction import Transaction

if TYPE_CHECKING:
    from moldau.client.kafka.async_consumer import AsyncConsumer

_ROOM_SECONDS_MIN = 0.001
_ROOM_SECONDS_MAX = 0.05
_YIELD_EVERY_SENDS = 256
"""A coroutine that does nothing but send lets others run this often."""


class AsyncProducer:
    """Sends messages. For any number of tasks of one event loop.

    Connects when it is entered, started, or used first.
    """

    def __init__(self, config: ProducerConfig | Brokers | None = None, /, **settings: Any) -> None:
        self.config = config_from(ProducerConfig, config, settings)
        self._sender: _Sender | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._sends = 0

    async def start(self) -> Self:
        """Connect. Raises UnreachableError if nobody is there."""
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
        """Put a message into the buffer. Await what is returned to know where the message is.

        Waits up to max_block_ms for room in the buffer, then raises BufferFullError. If it is
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
                # Most messages are of this kind, and names of arguments cost.
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
        except _NoRoomError as full:
            delivery = await self._send_when_there_is_room(full)
        return cast(AsyncDelivery, delivery)

    async def send_many(
        self, topic: str, messages: Iterable[Value | tuple[Key, Value]], *, acks: Acks | None = None
    ) -> list[AsyncDelivery]:
        """Send values, or pairs of key and value, in their order.

        If it is cancelled, or fails, the first of them may have been sent; flush waits for those.
        """
        return [
            await self.send(topic, value, key=key, acks=acks)
            for key, value in keys_and_values(messages)
        ]

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message sent so far is acknowledged.

        Raises TimedOutError if some are not yet (they are still tried), and DeliveryFailedError if
        some failed whose delivery nobody has awaited.
        """
        sender = await self._ready()
        await in_thread(lambda: sender.flush(timeout), "moldau-flush")

    async def close(self, timeout: float | None = None) -> None:
        """Flush and end. What is not acknowledged in time is given up, and the error says so.

        If it is cancelled, this goes on in the background, and the log says what is lost.
        """
        self._closed = True
        async with self._connecting:
            sender = self._sender
        if sender is not None:
            await in_thread(lambda: sender.close(timeout), "moldau-close")

    def transaction(self) -> "AsyncTransaction":
        """`async with producer.transaction():` what is sent inside is seen as a whole, or not."""
        return AsyncTransaction(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} messages not acknowledged"
        return f"<AsyncProducer at {self.config.brokers}, {state}>"

    def __len__(self) -> int:
        """Messages that nobody has acknowledged yet."""
        return 0 if self._sender is None else len(self._sender)

    def __bool__(self) -> bool:
        """A producer is true even when it has nothing to send."""
        return True

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close(close_seconds(error))
        except ClientError as failure:
            if error is None:
                raise
            # The error that is on its way says more; this one must not be lost with it.
            log.error("%s", failure)

    async def _ready(self, topic: str | None = None, acks: Acks | None = None) -> "_Sender":
        """Connected, and able to send to a topic at a level of acknowledgement, if one is named."""
        self._check_open()
        # A task of its own: a caller that is cancelled leaves at once, and the next finds it done.
        return await asyncio.shield(asyncio.ensure_future(self._connect(topic, acks)))

    async def _connect(self, topic: str | None, acks: Acks | None) -> "_Sender":
        async with self._connecting:
            self._check_open()
            sender = self._sender
            if sender is None:
                mailbox = DeliveryWaiters(asyncio.get_running_loop())
                sender = await in_thread(lambda: _Sender(self.config, mailbox), "moldau-connect")
                self._sender = sender
            if topic is not None and not sender.connected(acks):
                connect = sender.connect
                await in_thread(lambda: connect(topic, acks), "moldau-connect")
        return sender

    async def _send_when_there_is_room(self, full: "_NoRoomError") -> Delivery:
        """Acknowledgements make room: the brokers' speed becomes the sender's."""
        wait_seconds = self.config.max_block_ms / 1000
        deadline = time.monotonic() + wait_seconds
        pause = _ROOM_SECONDS_MIN
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, pause))
            pause = min(2 * pause, _ROOM_SECONDS_MAX)
            self._check_open()
            if full.try_again():
                return full.delivery
        raise full.sender.buffer_full(full.outbox, full.topic, wait_seconds)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("the producer is closed", hint="make a new one")


class AsyncTransaction:
    """Made by AsyncProducer.transaction(). Leaving the block commits, an error in it aborts."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self._transaction: Transaction | None = None

    async def commit_offsets(self, consumer: "AsyncConsumer") -> None:
        """Commit with this transaction what the consumer has handed out so far."""
        transaction = self._transaction
        if transaction is None:
            raise ClientError("the transaction is not open", hint="use `async with`")
        offsets, member = await consumer.handed_out()
        await to_its_end(lambda: transaction.add_offsets(offsets, member), "moldau-transaction")

    async def __aenter__(self) -> Self:
        sender = await self._producer._ready()

        def begin() -> None:
            self._transaction = sender.transaction().__enter__()

        try:
            await to_its_end(begin, "moldau-transaction")
        except asyncio.CancelledError as error:
            # Nobody enters the block, so nobody would leave it.
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
            # To its end even if cancelled: half a commit would leave its fate unknown.
            await to_its_end(lambda: transaction.__exit__(kind, error, trace), "moldau-transaction")


class _NoRoomError(Exception):
    """The buffer is full. Holds what is needed to try again."""

    def __init__(
        self, sender: "_Sender", outbox: Outbox, delivery: Delivery, arguments: tuple[Any, ...]
    ) -> None:
        self.sender = sender
        self.outbox = outbox
        self.delivery = delivery
        self.topic: str = arguments[0]
        self._arguments = arguments

    def try_again(self) -> bool:
        return self.sender.try_to_put(self.outbox, self.delivery, *self._arguments)


class _Sender(Producer):
    """A Producer whose deliveries are awaited, and that says so instead of waiting for room."""

    def __init__(self, config: ProducerConfig, mailbox: DeliveryWaiters) -> None:
        super().__init__(config)
        self._mailbox = mailbox
        self._kind = type("AsyncDelivery", (AsyncDelivery,), {"_mailbox": mailbox})

    def connected(self, acks: Acks | None) -> bool:
        """Whether a send at this level need not connect."""
        if acks is None:
            return self._usual is not None
        return ack_mode(acks) in self._outboxes

    def connect(self, topic: str, acks: Acks | None) -> None:
        self._outbox(topic, self._mode if acks is None else ack_mode(acks))

    def buffer_full(self, outbox: Outbox, topic: str, wait_seconds: float) -> BufferFullError:
        return self._buffer_full(outbox, topic, wait_seconds)

    def try_to_put(
        self,
        outbox: Outbox,
        delivery: Delivery,
        topic: str,
        value: object,
        key: object,
        extra: Mapping[str, Any],
    ) -> bool:
        """Whether there was room."""
        outbox.poll(0)
        return self._put(outbox, delivery, topic, value, key, extra)

    def _send_when_there_is_room(
        self,
        outbox: Outbox,
        delivery: Delivery,
        topic: str,
        value: object,
        key: object,
        extra: Mapping[str, Any],
    ) -> None:
        if not self.try_to_put(outbox, delivery, topic, value, key, extra):
            raise _NoRoomError(self, outbox, delivery, (topic, value, key, extra))

    def _new_outbox(self, client: Client) -> Outbox:
        return Outbox(client, self._brokers, self._kind, on_fatal=self._mailbox.fail)

"""Owns AsyncConsumer: a Consumer for coroutines, with a thread of its own behind it.

The thread fetches into a buffer, and a message counts as handed out only when a coroutine takes it
from there. So whoever is cancelled in the middle of a poll leaves the messages in the buffer, and
the next poll has them. The thread is away for a tenth of a second at most, so that a commit or a
seek of another task gets its turn in the middle of a long poll.
"""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import TopicPartition

from moldau.client.config import Brokers, config_from
from moldau.client.errors import ClientError
from moldau.client.kafka.consumer import JOIN_SECONDS_MAX, POLL_SECONDS, Consumer
from moldau.client.kafka.consumer_arguments import Partition, described, partition_keys, topic_names
from moldau.client.kafka.consumer_config import ConsumerConfig
from moldau.client.kafka.message import Message
from moldau.client.kafka.thread_calls import CallThread, in_thread

T = TypeVar("T")

OnPartitions = Callable[[list[Partition]], object | Awaitable[object]]

_SLICE_SECONDS = 0.1


class AsyncConsumer:
    """Reads messages. For any number of tasks of one event loop.

    Connects when it is entered, started, or used first.
    """

    def __init__(self, config: ConsumerConfig | Brokers | None = None, /, **settings: Any) -> None:
        self.config = config_from(ConsumerConfig, config, settings)
        self._reader: _Reader | None = None
        self._worker = CallThread("moldau-consumer")
        self._connecting = asyncio.Lock()
        self._closed = False
        # Not a method: it would keep the consumer alive.
        self._abandon = weakref.finalize(self, self._worker.stop)

    def __repr__(self) -> str:
        return described("AsyncConsumer", self.config, is_closed=self._closed)

    async def start(self) -> Self:
        """Connect. Raises UnreachableError if nobody is there."""
        await self._ready()
        return self

    async def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics, instead of those before. A name that begins with ^ is a pattern.

        The callbacks are those of Consumer.subscribe. They run in the event loop, and may be
        coroutine functions that use this consumer.
        """
        names = topic_names(topics)
        loop = asyncio.get_running_loop()
        worker = self._worker

        def in_loop(callback: OnPartitions | None) -> Callable[[list[Partition]], None] | None:
            if callback is None:
                return None
            return lambda partitions: worker.call_back(loop, partial(callback, partitions))

        assigned, revoked, lost = in_loop(on_assign), in_loop(on_revoke), in_loop(on_lost)
        await self._run(
            lambda reader: reader.subscribe(
                names, on_assign=assigned, on_revoke=revoked, on_lost=lost
            )
        )

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, as no member of a group."""
        keys = partition_keys(partitions)
        await self._run(lambda reader: reader.assign(keys))

    async def assignment(self) -> list[Partition]:
        """The partitions that this consumer reads at the moment."""
        return await self._run(Consumer.assignment)

    async def poll(self, timeout: float | None = None) -> list[Message]:
        """Messages that are there, at most max_poll_records; waits for the first up to timeout.

        Without a timeout it waits a second, and before that as long as the group needs to let this
        consumer in. What polls before this one handed out counts as done. If it is cancelled, what
        it would have returned is returned by the next.
        """
        await self._load(timeout)
        async with self._worker.turn:
            return self._opened().take()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages without end, one by one. What comes before the current one counts as done."""
        return _Iteration(self)

    async def commit(self, what: Message | Mapping[Partition, int] | None = None) -> None:
        """Commit, and wait until the group has it: after a restart it goes on behind this.

        A message, or {(topic, partition): offset}, means: done through here. Without either, all
        that was handed out is done.
        """
        await self._run(lambda reader: reader.commit(what))

    async def committed(self) -> dict[Partition, int]:
        """The last offset that is done by the group, for each partition read here that has one."""
        return await self._run(Consumer.committed)

    async def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Go on from this offset, or from "earliest" or "latest"."""
        await self._run(lambda reader: reader.seek(topic, partition, offset))

    async def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing of these until they are resumed; the group keeps them here."""
        keys = partition_keys(partitions)
        await self._run(lambda reader: reader.pause(keys))

    async def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out messages of these again."""
        keys = partition_keys(partitions)
        await self._run(lambda reader: reader.resume(keys))

    async def lag(self) -> dict[Partition, int]:
        """How many messages of each partition are not handed out yet. Asks the brokers."""
        return await self._run(Consumer.lag)

    async def handed_out(self) -> tuple[list[TopicPartition], Any]:
        """For a transaction: the offsets behind what was handed out, and the member who has it."""
        return await self._run(lambda reader: (reader.handed_out(), reader.group_metadata()))

    async def close(self) -> None:
        """Leave the group. With enable_auto_commit, what was handed out is committed."""
        await self._close(Consumer.close)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(lambda reader: reader.__exit__(kind, error, trace))

    async def _close(self, close: "Callable[[_Reader], None]") -> None:
        self._closed = True
        async with self._connecting:
            reader = self._reader
            if reader is not None and self._abandon.alive:
                await self._worker.run(lambda: close(reader))
            self._abandon()

    async def _load(self, timeout: float | None) -> None:
        """Have something in the buffer, or wait for it in vain."""
        if self._worker.is_called_back:
            raise ClientError(
                "cannot read in the middle of on_assign or on_revoke",
                hint="commit or seek there, and poll afterwards",
            )
        reader = await self._ready()
        began = time.monotonic()
        deadline = began + (POLL_SECONDS if timeout is None else timeout)
        # What was handed out counts as done once, not with every slice.
        await self._worker.run(partial(reader.load, min(_SLICE_SECONDS, deadline - began), True))
        while not reader.has_messages:
            now = time.monotonic()
            if timeout is None and not reader.has_joined:
                # The second counts from when there is something to read from.
                deadline = min(now, began + JOIN_SECONDS_MAX) + POLL_SECONDS
            if now >= deadline:
                return
            await self._run(partial(_Reader.load, seconds=min(_SLICE_SECONDS, deadline - now)))

    async def _run(self, call: "Callable[[_Reader], T]") -> T:
        reader = await self._ready()
        return await self._worker.run(lambda: call(reader))

    async def _ready(self) -> "_Reader":
        self._check_open()
        if self._reader is None:
            # A task of its own: a caller that is cancelled leaves at once, the next finds it done.
            await asyncio.shield(asyncio.ensure_future(self._connect()))
        return self._opened()

    async def _connect(self) -> None:
        async with self._connecting:
            self._check_open()
            if self._reader is None:
                self._reader = await in_thread(lambda: _Reader(self.config), "moldau-connect")

    def _opened(self) -> "_Reader":
        self._check_open()
        if self._reader is None:
            raise ClientError("the consumer is not connected", hint="await its start()")
        self._reader.check_usable()
        return self._reader

    def _check_open(self) -> None:
        # Leaving the group takes its partitions away, and on_revoke may commit then.
        if self._closed and not self._worker.is_called_back:
            raise ClientError("the consumer is closed", hint="make a new one")


class _Iteration(AsyncIterator[Message]):
    """The loop over a consumer. May be left and begun again: it has no state of its own."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer

    async def __anext__(self) -> Message:
        consumer = self._consumer
        while not consumer._closed:
            reader = consumer._reader
            if reader is not None and reader.has_messages:
                # A lock that is free is taken without a pause.
                async with consumer._worker.turn:
                    if (message := reader.take_one()) is not None:
                        return message
            else:
                try:
                    await consumer._load(POLL_SECONDS)
                except ClientError:
                    if not consumer._closed:
                        raise
        raise StopAsyncIteration


class _Reader(Consumer):
    """A Consumer that fetches and hands out in two steps. In the thread, or in its turn."""

    def check_usable(self) -> None:
        self._check_open()

    @property
    def has_messages(self) -> bool:
        return bool(self._buffer)

    @property
    def has_joined(self) -> bool:
        return self._joined

    def load(self, seconds: float, asked: bool = False) -> None:
        """Fetch into an empty buffer. `asked` for more: what was handed out before is done."""
        self._check_open()
        if asked:
            self._store()
        if not self._buffer:
            self._buffer.extend(self._fetch(seconds))

    def take(self) -> list[Message]:
        """Hand out what is in the buffer."""
        batch = list(self._buffer)
        self._buffer.clear()
        self._unstored = self._unstored or bool(batch)
        return batch

    def take_one(self) -> Message | None:
        if not self._buffer:
            return None
        self._unstored = True
        return self._buffer.popleft()

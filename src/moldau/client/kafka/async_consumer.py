"""AsyncConsumer: a Consumer for coroutines, run by one thread.

The thread fetches into a buffer, and a message counts as returned only when a coroutine takes it
from there. So a cancelled poll leaves its messages in the buffer for the next one. The thread
blocks for at most 0.1 s, so that a commit or seek of another task can run during a long poll.
"""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from confluent_kafka import TopicPartition

from moldau.client.config import Brokers, config_from
from moldau.client.errors import ClientError
from moldau.client.kafka.consumer import JOIN_SECONDS_MAX, POLL_SECONDS, Consumer
from moldau.client.kafka.consumer_arguments import Partition, described, topic_names
from moldau.client.kafka.consumer_config import ConsumerConfig, ConsumerSettings
from moldau.client.kafka.message import Message
from moldau.client.kafka.thread_calls import CallThread, in_thread

T = TypeVar("T")
P = ParamSpec("P")

OnPartitions = Callable[[list[Partition]], object | Awaitable[object]]

_SLICE_SECONDS = 0.1


def _in_thread(
    method: Callable[Concatenate[Consumer, P], T],
) -> Callable[Concatenate["AsyncConsumer", P], Coroutine[Any, Any, T]]:
    """The same call for coroutines."""

    @wraps(method)
    async def call(self: "AsyncConsumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda reader: method(reader, *args, **kwargs))

    return call


class AsyncConsumer:
    """Reads messages. For any number of tasks of one event loop.

    Connects on `async with`, start or first use.
    """

    def __init__(
        self,
        config: ConsumerConfig | Brokers | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.config = config_from(ConsumerConfig, config, settings)
        self._reader: _Reader | None = None
        self._worker = CallThread("moldau-consumer")
        self._connecting = asyncio.Lock()
        self._closed = False
        # Not a bound method, which would keep the consumer alive.
        self._abandon = weakref.finalize(self, self._worker.stop)

    def __repr__(self) -> str:
        return described("AsyncConsumer", self.config, is_closed=self._closed)

    async def start(self) -> Self:
        """Connect. Raises UnreachableError."""
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
        """Read these topics, instead of earlier ones. A name that begins with ^ is a pattern.

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

    assign = _in_thread(Consumer.assign)
    assignment = _in_thread(Consumer.assignment)

    async def poll(self, timeout: float | None = None) -> list[Message]:
        """Up to max_poll_records messages; waits up to `timeout` seconds for the first.

        By default it waits one second, after it has waited for the group to assign partitions. The
        messages of earlier polls count as done. If it is cancelled, its messages are returned by
        the next poll.
        """
        await self._load(timeout)
        async with self._worker.turn:
            return self._opened().take()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yields messages forever. Those before the current one count as done."""
        return _Iteration(self)

    commit = _in_thread(Consumer.commit)
    committed = _in_thread(Consumer.committed)
    seek = _in_thread(Consumer.seek)
    pause = _in_thread(Consumer.pause)
    resume = _in_thread(Consumer.resume)
    lag = _in_thread(Consumer.lag)

    async def transaction_offsets(self) -> tuple[list[TopicPartition], Any]:
        """For a transaction: the next offsets, and the metadata of the group member."""
        return await self._run(lambda reader: (reader.positions(), reader.group_metadata()))

    async def close(self) -> None:
        """Leave the group. With enable_auto_commit, commits the messages that were returned."""
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
        """Wait until the buffer has messages, or `timeout` has passed."""
        if self._worker.is_called_back:
            raise ClientError(
                "cannot poll in on_assign or on_revoke",
                hint="commit or seek there, and poll afterwards",
            )
        reader = await self._ready()
        began = time.monotonic()
        deadline = began + (POLL_SECONDS if timeout is None else timeout)
        # Earlier messages count as done once, not with every slice.
        await self._worker.run(partial(reader.load, min(_SLICE_SECONDS, deadline - began), True))
        while not reader._buffer:
            now = time.monotonic()
            if timeout is None and not reader._joined:
                # The default timeout starts when partitions are assigned.
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
            # A separate task: a cancelled caller returns at once, the next one finds it done.
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
        self._reader._check_open()
        return self._reader

    def _check_open(self) -> None:
        # Leaving the group revokes its partitions, and on_revoke may commit then.
        if self._closed and not self._worker.is_called_back:
            raise ClientError("the consumer is closed", hint="create a new one")


class _Iteration(AsyncIterator[Message]):
    """The iterator of a consumer. It has no state of its own."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer

    async def __anext__(self) -> Message:
        consumer = self._consumer
        while not consumer._closed:
            reader = consumer._reader
            if reader is not None and reader._buffer:
                # A free lock is acquired without a pause.
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
    """A Consumer that fetches and returns messages in two steps, in its thread or turn."""

    def load(self, seconds: float, is_new_poll: bool = False) -> None:
        """Fetch into an empty buffer. `is_new_poll`: earlier messages count as done."""
        self._check_open()
        if is_new_poll:
            self._store()
        if not self._buffer:
            self._buffer.extend(self._fetch(seconds))

    def take(self) -> list[Message]:
        """Return what is in the buffer."""
        batch = list(self._buffer)
        self._buffer.clear()
        self._unstored = self._unstored or bool(batch)
        return batch

    def take_one(self) -> Message | None:
        if not self._buffer:
            return None
        self._unstored = True
        return self._buffer.popleft()

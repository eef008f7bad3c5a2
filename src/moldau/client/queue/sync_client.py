"""QueueClient: the blocking form of AsyncQueueClient."""

import asyncio
import contextvars
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, TypeVar, Unpack

from moldau.client.config import Brokers
from moldau.client.encoding import Key, Value
from moldau.client.errors import InvalidArgumentError, SendFailedError
from moldau.client.queue.client import TIMEOUT_SECONDS, AsyncQueueClient, Topics
from moldau.client.queue.group_settings import GroupSettings
from moldau.client.queue.handler_loop import (
    HandlerLoop,
    HasIsSet,
    WorkResult,
    check_work,
    stop_on_sigterm,
)
from moldau.client.queue.loop_thread import Blocking, blocking, shared_loop
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.outgoing import Outgoing, QueueAcks, Sent, checked_many
from moldau.client.queue.partition_reader import read, read_request
from moldau.client.queue.redrive import IDLE_SECONDS, RedriveProgress
from moldau.client.queue.resolver import REFRESH_SECONDS
from moldau.client.queue.sender import IN_FLIGHT_MAX
from moldau.client.queue.sync_worker import QueueMessage, Worker
from moldau.client.queue.worker import AsyncQueueMessage
from moldau.client.security import PLAIN_TEXT, Security

_SLICE_MESSAGES: Final = 10_000
"""How many messages send_many takes at a time from an iterable."""
_STOP_SECONDS_MAX: Final = 60.0
_ASYNC_HINT: Final = "pass a plain function, or use AsyncQueueClient"

T = TypeVar("T")


class QueueClient(Blocking[AsyncQueueClient]):
    """Sends messages, and connects workers to groups. Thread-safe.

    `addresses`: gRPC addresses (HOST:PORT) of brokers or of a `moldau proxy`, as a list or with
    commas; http://HOST:PORT is the HTTP address of a broker, from which the others are discovered.
    Default: MOLDAU_GRPC, else localhost:8000. `timeout`: seconds for a call with all its retries.
    `security`: properties of Kafka clients, as sasl.username; see AsyncQueueClient.
    Connects when constructed, and raises UnreachableError.
    """

    def __init__(
        self,
        addresses: Brokers | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        refresh: float = REFRESH_SECONDS,
        client_id: str = "moldau",
        security: Mapping[str, str] | Security = PLAIN_TEXT,
    ) -> None:
        client = AsyncQueueClient(
            addresses, timeout=timeout, refresh=refresh, client_id=client_id, security=security
        )
        super().__init__(client, shared_loop())
        self._loop.run(client.start())

    close = blocking(AsyncQueueClient.close)

    # ---- topics and sending

    create_topic = blocking(AsyncQueueClient.create_topic)
    send = blocking(AsyncQueueClient.send)

    def send_many(
        self,
        topic: str,
        messages: Iterable[Value | tuple[Key, Value] | Outgoing],
        *,
        acks: QueueAcks = "all",
        in_flight: int = IN_FLIGHT_MAX,
    ) -> list[Sent]:
        """Send values, pairs of key and value, or Outgoing(…), in batches.

        Up to `in_flight` batches per broker are in flight. Messages keep their partition's order,
        unless some are retried and `in_flight` is more than 1. Raises SendFailedError with the
        result of each message; later messages are not sent.
        """
        sent: list[Sent] = []
        iterator = iter(checked_many(messages))
        # In slices, so that the application's iterator runs in its own thread.
        while part := list(itertools.islice(iterator, _SLICE_MESSAGES)):
            try:
                sent += self._loop.run(
                    self._asynchronous.send_many(topic, part, acks=acks, in_flight=in_flight)
                )
            except SendFailedError as error:
                raise SendFailedError(
                    str(error),
                    {index + len(sent): each for index, each in error.failures.items()},
                    [*sent, *error.sent],
                    is_uncertain=error.is_uncertain,
                    hint=error.hint,
                ) from error
        return sent

    # ---- groups

    def connect(self, group: str, topics: Topics, **settings: Unpack[GroupSettings]) -> Worker:
        """Become a consumer of a group. The settings are described in GroupSettings."""
        worker = self._loop.run(self._asynchronous.connect(group, topics, **settings))
        return Worker(worker, self._loop)

    def work(
        self,
        group: str,
        topics: Topics,
        handler: Callable[[QueueMessage], object],
        *,
        concurrency: int = 1,
        stop: HasIsSet | None = None,
        idle: float | None = None,
        limit: int | None = None,
        **settings: Unpack[GroupSettings],
    ) -> WorkResult:
        """Call `handler(message)` for each: if it returns, ack; if it raises, nack with the error.

        Handlers run in `concurrency` threads. Returns if `stop` is set, after `limit` messages, or
        after `idle` seconds without any. Ctrl-C and SIGTERM stop it after the running handlers, if
        it runs in the main thread.
        """
        check_work(handler, concurrency)
        if inspect.iscoroutinefunction(handler):
            raise InvalidArgumentError("the handler is a coroutine function", hint=_ASYNC_HINT)
        worker = self.connect(group, topics, **settings)
        with worker, ThreadPoolExecutor(concurrency, "moldau-work") as pool:

            async def handle(message: AsyncQueueMessage) -> None:
                own = worker.wrap(message)
                running = asyncio.get_running_loop()
                # With the context of the message: its trace, for one.
                call = functools.partial(contextvars.copy_context().run, handler, own)
                found = await running.run_in_executor(pool, call)
                if inspect.iscoroutine(found):
                    # It would never run, and the message would count as done.
                    found.close()
                    raise InvalidArgumentError("the handler returned a coroutine", hint=_ASYNC_HINT)
                message._is_settled |= own.is_settled

            loop = HandlerLoop(
                worker._asynchronous,
                handle,
                concurrency=concurrency,
                stop=stop,
                idle=idle,
                limit=limit,
            )
            future = self._loop.submit(loop.run())
            with stop_on_sigterm(loop.request_stop):
                try:
                    return future.result()
                except (KeyboardInterrupt, SystemExit):
                    loop.request_stop()
                    future.result(_STOP_SECONDS_MAX)
                    raise

    groups = blocking(AsyncQueueClient.groups)
    stats = blocking(AsyncQueueClient.stats)
    peek = blocking(AsyncQueueClient.peek)
    delete_group = blocking(AsyncQueueClient.delete_group)

    def redrive(
        self,
        group: str,
        *,
        topic: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        idle: float = IDLE_SECONDS,
    ) -> Iterator[RedriveProgress]:
        """Send the dead letters of a group back to their topics; yields its progress.

        `topic`: the dead-letter topic, if the group was deleted. `to`: send all to this topic.
        Ends after `idle` seconds without a dead letter.
        """
        sums = self._asynchronous.redrive(group, topic=topic, to=to, limit=limit, idle=idle)
        return self._iterate(sums)

    # ---- log and cluster

    def read_from(
        self,
        topic: str,
        partition: int = 0,
        *,
        offset: int | str | None = None,
        timestamp: int | datetime | None = None,
        max_messages: int | None = None,
        follow: bool = False,
    ) -> Iterator[StoredMessage]:
        """Read a partition without a group, from an offset, "earliest", "latest" or a timestamp.

        Ends at the end of the partition, unless `follow`.
        """
        request = read_request(
            topic,
            partition,
            offset=offset,
            timestamp=timestamp,
            max_messages=max_messages,
            follow=follow,
        )
        # In the batches in which they arrive: each step changes the thread.
        batches = read(self._asynchronous._rpc, request)
        return itertools.chain.from_iterable(self._iterate(batches))

    topology = blocking(AsyncQueueClient.topology)

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Run each step on the loop's thread; closes the source when the iteration ends."""
        try:
            while True:
                step = self._loop.run(_step(source))
                if not step:
                    return
                yield from step
        finally:
            self._loop.run(_close(source))


async def _step(source: AsyncIterator[T]) -> list[T]:
    async for item in source:
        return [item]
    return []


async def _close(source: Any) -> None:
    await source.aclose()

"""Owns QueueClient: the AsyncQueueClient for programs with threads."""

import asyncio
import functools
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from moldau.client.config import Brokers
from moldau.client.encoding import Headers, Key, Value
from moldau.client.errors import InvalidArgumentError, SendFailedError
from moldau.client.queue.client import TIMEOUT_SECONDS, AsyncQueueClient, Topics
from moldau.client.queue.groups import PEEK_MESSAGES, GroupInfo, GroupStats, PeekedMessage
from moldau.client.queue.handler_loop import HandlerLoop, HasIsSet, WorkResult, check_work
from moldau.client.queue.loop_thread import shared_loop
from moldau.client.queue.message import AsyncQueueMessage, QueueMessage, StoredMessage
from moldau.client.queue.outgoing import Outgoing, Sent, checked_many
from moldau.client.queue.redrive import IDLE_SECONDS, RedriveProgress
from moldau.client.queue.resolver import REFRESH_SECONDS
from moldau.client.queue.sender import IN_FLIGHT_MAX
from moldau.client.queue.sync_worker import Worker
from moldau.proto.v1 import queue_pb2 as pb

_SLICE_MESSAGES: Final = 10_000
"""What send_many takes at a time from an iterable that may have no end in sight."""
_STOP_SECONDS_MAX: Final = 60.0
_ASYNC_HINT: Final = "give a plain function, or use AsyncQueueClient"

T = TypeVar("T")


class QueueClient:
    """Sends messages, and connects workers to groups. For any number of threads.

    `addresses`: HOST:PORT of brokers' gRPC (or of a `moldau proxy`), several with commas or as a
    list; http://HOST:PORT is the HTTP address of a broker, from which the others are learnt.
    Without any: MOLDAU_GRPC, else localhost:8000. `timeout`: how many seconds a call may take, with
    all its tries. Making one connects, and raises UnreachableError if nobody is there.
    """

    def __init__(
        self,
        addresses: Brokers | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        refresh: float = REFRESH_SECONDS,
        client_id: str = "moldau",
    ) -> None:
        self._client = AsyncQueueClient(
            addresses, timeout=timeout, refresh=refresh, client_id=client_id
        )
        self._loop = shared_loop()
        self._loop.run(self._client.start())

    def close(self) -> None:
        """Close all workers, and end."""
        self._loop.run(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- topics and sending

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Create a topic; 0 is the broker's default. False if it is there and that is fine."""
        return self._loop.run(
            self._client.create_topic(
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                exist_ok=exist_ok,
            )
        )

    def send(
        self,
        topic: str,
        value: Value = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        deliver_at: int | datetime | None = None,
        delay: float | None = None,
        acks: str | int = "all",
    ) -> Sent:
        """Send one message, and say where it is when it is safe. For more than a few: send_many.

        `deliver_at` (or `delay` seconds from now): queue groups do not deliver it before. Raises
        SendFailedError if it may be there all the same.
        """
        return self._loop.run(
            self._client.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                deliver_at=deliver_at,
                delay=delay,
                acks=acks,
            )
        )

    def send_many(
        self,
        topic: str,
        messages: Iterable[Value | tuple[Key, Value] | Outgoing],
        *,
        acks: str | int = "all",
        in_flight: int = IN_FLIGHT_MAX,
    ) -> list[Sent]:
        """Send values, pairs of key and value, or Outgoing(…), in batches.

        Up to `in_flight` batches per broker are not answered yet; messages keep their order in a
        partition, unless some must be tried again and `in_flight` is more than 1. Raises
        SendFailedError, which tells of each message; what comes after it is not taken.
        """
        sent: list[Sent] = []
        iterator = iter(checked_many(messages))
        # In slices, so that the application's own iterator runs on its own thread.
        while part := list(itertools.islice(iterator, _SLICE_MESSAGES)):
            try:
                sent += self._loop.run(
                    self._client.send_many(topic, part, acks=acks, in_flight=in_flight)
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

    def connect(
        self,
        group: str,
        topics: Topics,
        *,
        mode: str | None = "queue",
        visibility: float | None = None,
        attempts: int | None = None,
        backoff: float | None = None,
        backoff_max: float | None = None,
        dead_letter: str | None = None,
        start: str | None = None,
        session_timeout: float | None = None,
        client_id: str | None = None,
    ) -> Worker:
        """Become a consumer of a group. The settings are the group's; None leaves them as they are.

        `visibility`: seconds that a message is leased. `attempts`: deliveries before it goes to
        `dead_letter`. `start`: "earliest" or "latest", where a new group begins.
        """
        worker = self._loop.run(
            self._client.connect(
                group,
                topics,
                mode=mode,
                visibility=visibility,
                attempts=attempts,
                backoff=backoff,
                backoff_max=backoff_max,
                dead_letter=dead_letter,
                start=start,
                session_timeout=session_timeout,
                client_id=client_id,
            )
        )
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
        mode: str | None = "queue",
        visibility: float | None = None,
        attempts: int | None = None,
        backoff: float | None = None,
        backoff_max: float | None = None,
        dead_letter: str | None = None,
        start: str | None = None,
    ) -> WorkResult:
        """Call `handler(message)` for each: if it returns, ack; if it raises, nack with the error.

        Handlers run on `concurrency` threads. Ends when `stop` is set, after `limit` messages, or
        when none came for `idle` seconds; else with Ctrl-C, after which those that run are waited
        for.
        """
        check_work(handler, concurrency)
        if inspect.iscoroutinefunction(handler):
            raise InvalidArgumentError("the handler is a coroutine function", hint=_ASYNC_HINT)
        worker = self.connect(
            group,
            topics,
            mode=mode,
            visibility=visibility,
            attempts=attempts,
            backoff=backoff,
            backoff_max=backoff_max,
            dead_letter=dead_letter,
            start=start,
        )
        interrupted = threading.Event()
        with worker, ThreadPoolExecutor(concurrency, "moldau-work") as pool:

            async def handle(message: AsyncQueueMessage) -> None:
                own = worker.wrap(message)
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(pool, functools.partial(handler, own))
                if inspect.iscoroutine(found):
                    # Nobody would run it, and the message would count as done.
                    found.close()
                    raise InvalidArgumentError("the handler made a coroutine", hint=_ASYNC_HINT)
                message._is_settled |= own.is_settled

            async def run() -> WorkResult:
                work = HandlerLoop(
                    worker.asynchronous,
                    handle,
                    concurrency=concurrency,
                    stop=_Either(stop, interrupted),
                    idle=idle,
                    limit=limit,
                )
                return await work.run()

            future = self._loop.submit(run())
            try:
                return future.result()
            except KeyboardInterrupt:
                interrupted.set()
                future.result(_STOP_SECONDS_MAX)
                raise

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """The queue groups that there are, by name; of a topic, those that take from it."""
        return self._loop.run(self._client.groups(topic))

    def stats(self, group: str) -> GroupStats:
        """What a queue group has before it."""
        return self._loop.run(self._client.stats(group))

    def peek(
        self, group: str, topic: str, max_messages: int = PEEK_MESSAGES
    ) -> list[PeekedMessage]:
        """Look at messages without taking them."""
        return self._loop.run(self._client.peek(group, topic, max_messages))

    def delete_group(self, group: str) -> None:
        """Forget a queue group: its settings, and which messages it has settled."""
        self._loop.run(self._client.delete_group(group))

    def redrive(
        self,
        group: str,
        *,
        topic: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        idle: float = IDLE_SECONDS,
    ) -> Iterator[RedriveProgress]:
        """Send the dead letters of a group back to where they came from; yields sums as it goes.

        `topic`: the dead-letter topic, if the group is gone. `to`: send all there instead. Ends
        when none comes for `idle` s.
        """
        sums = self._client.redrive(group, topic=topic, to=to, limit=limit, idle=idle)
        return self._iterate(sums)

    # ---- the log and the cluster

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
        """Read a partition in no group, from an offset, "earliest", "latest" or a time on.

        Ends at the end of the partition, unless `follow`.
        """
        batches = self._client.read_batches(
            topic,
            partition,
            offset=offset,
            timestamp=timestamp,
            max_messages=max_messages,
            follow=follow,
        )
        return itertools.chain.from_iterable(self._iterate(batches))

    def topology(self, topics: Sequence[str] = ()) -> pb.TopologyResponse:
        """Brokers, topics, and who leads what, as the API tells it."""
        return self._loop.run(self._client.topology(topics))

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Step by step on the loop's thread; closed when whoever iterates stops."""
        try:
            while True:
                step = self._loop.run(_step(source))
                if not step:
                    return
                yield from step
        finally:
            self._loop.run(_close(source))


class _Either:
    """Set when one of two events is."""

    def __init__(self, one: HasIsSet | None, other: HasIsSet) -> None:
        self._one = one
        self._other = other

    def is_set(self) -> bool:
        return self._other.is_set() or (self._one is not None and self._one.is_set())


async def _step(source: AsyncIterator[T]) -> list[T]:
    async for item in source:
        return [item]
    return []


async def _close(source: Any) -> None:
    await source.aclose()

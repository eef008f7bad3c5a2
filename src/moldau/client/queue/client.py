"""Owns AsyncQueueClient: topics as work queues, over gRPC, for programs on asyncio."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeVar

from moldau.client.config import Brokers
from moldau.client.encoding import Headers, Key, Value
from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError
from moldau.client.queue.channels import (
    CREATE_TOPIC,
    DELETE_GROUP,
    LIST_GROUPS,
    TOPOLOGY,
    Channels,
)
from moldau.client.queue.groups import (
    PEEK_MESSAGES,
    GroupInfo,
    GroupStats,
    PeekedMessage,
    checked_count,
    fetch_peeked,
    fetch_stats,
    groups_of,
    peeked_of,
    stats_of,
)
from moldau.client.queue.handler_loop import Handler, HandlerLoop, HasIsSet, WorkResult, check_work
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.outgoing import (
    Outgoing,
    Sent,
    checked_many,
    encode,
    encode_acks,
    encode_any,
    milliseconds,
)
from moldau.client.queue.partition_reader import read, read_request
from moldau.client.queue.redrive import IDLE_SECONDS, REDRIVE_SUFFIX, RedriveProgress, redrive
from moldau.client.queue.resolver import REFRESH_SECONDS, Resolver
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.sender import IN_FLIGHT_MAX, QueueSender
from moldau.client.queue.settler import Settler
from moldau.client.queue.worker import AsyncWorker
from moldau.proto.v1 import queue_pb2 as pb

GRPC_VARIABLE: Final = "MOLDAU_GRPC"
GRPC_DEFAULT: Final = "localhost:8000"
TIMEOUT_SECONDS: Final = 30.0
DEAD_LETTER_SUFFIX: Final = ".dead"

_MODES: Final = {None: pb.MODE_UNSPECIFIED, "queue": pb.QUEUE, "ordered": pb.ORDERED}
_STARTS: Final = {
    None: pb.START_UNSPECIFIED,
    "earliest": pb.EARLIEST,
    "latest": pb.LATEST,
}

Topics = str | Sequence[str]
T = TypeVar("T")


class AsyncQueueClient:
    """Sends messages, and connects workers to groups. For any number of tasks of one loop.

    `addresses`: HOST:PORT of brokers' gRPC (or of a `moldau proxy`), several with commas or as a
    list; http://HOST:PORT is the HTTP address of a broker, from which the others are learnt.
    Without any: MOLDAU_GRPC, else localhost:8000. `timeout`: how many seconds a call may take, with
    all its tries.
    """

    def __init__(
        self,
        addresses: Brokers | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        refresh: float = REFRESH_SECONDS,
        client_id: str = "moldau",
    ) -> None:
        self._seeds = seeds_of(addresses)
        self._timeout = max(0.001, milliseconds(timeout, "a timeout") / 1000)
        self._refresh = max(0.1, milliseconds(refresh, "a refresh") / 1000)
        self._client_id = client_id
        self._caller_: RpcClient | None = None
        self._workers: set[AsyncWorker] = set()
        self._closed = False

    async def start(self) -> Self:
        """Find the cluster. Raises UnreachableError if nobody answers within `timeout`."""
        if self._closed:
            raise ClientError("the client is closed", hint="make a new one")
        if self._caller_ is None:
            channels = Channels()
            resolver = Resolver(self._seeds, channels, refresh_seconds=self._refresh)
            try:
                await resolver.start(self._timeout)
            except BaseException:
                await resolver.close()
                await channels.close()
                raise
            self._caller_ = RpcClient(channels, resolver, seconds_max=self._timeout)
            self._sender = QueueSender(self._caller_)
            self._settler = Settler(self._caller_)
        return self

    async def close(self) -> None:
        """Close all workers, and end."""
        self._closed = True
        for worker in list(self._workers):
            await worker.close()
        self._workers.clear()
        caller, self._caller_ = self._caller_, None
        if caller is not None:
            await caller.resolver.close()
            await caller.channels.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- topics and sending

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Create a topic; 0 is the broker's default. False if it is there and that is fine."""
        request = pb.CreateTopicRequest(
            topic=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs={name: str(value) for name, value in (configs or {}).items()},
        )
        caller = self._caller
        try:
            # Not twice: the second try would say that it is there.
            await caller.call(CREATE_TOPIC, request, repeats=False)
        except CallFailed as failed:
            if failed.failure.reason == "TOPIC_EXISTS" and exist_ok:
                return False
            raise failed.error(f"create topic {topic}") from failed.__cause__
        await caller.resolver.refresh()
        return True

    async def send(
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
        message = encode(
            Outgoing(
                value=value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                deliver_at=deliver_at,
                delay=delay,
            )
        )
        caller = self._caller
        return await self._sender.send(topic, message, encode_acks(acks), caller.seconds_max)

    async def send_many(
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
        SendFailedError, which tells of each message.
        """
        if in_flight < 1:
            raise InvalidArgumentError(f"in_flight of {in_flight}", hint="1 or more")
        encoded = (encode_any(message) for message in checked_many(messages))
        return await self._send_many(topic, encoded, encode_acks(acks), in_flight)

    # ---- groups

    async def connect(
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
    ) -> AsyncWorker:
        """Become a consumer of a group. The settings are the group's; None leaves them as they are.

        `visibility`: seconds that a message is leased. `attempts`: deliveries before it goes to
        `dead_letter`. `start`: "earliest" or "latest", where a new group begins.
        """
        request = pb.ConnectRequest(
            group=group,
            topics=[topics] if isinstance(topics, str) else list(topics),
            mode=_choice(_MODES, mode, "mode"),
            client_id=self._client_id if client_id is None else client_id,
            session_timeout_ms=_ms(session_timeout, "a session timeout"),
            settings=pb.QueueSettings(
                visibility_ms=_ms(visibility, "visibility"),
                attempts_max=_attempts(attempts),
                backoff_ms=_ms(backoff, "a backoff"),
                backoff_ms_max=_ms(backoff_max, "a backoff"),
                dead_letter_topic=dead_letter or "",
            ),
            start=_choice(_STARTS, start, "start"),
        )
        worker = await AsyncWorker(self._caller, self._settler, request).start()
        self._workers = {each for each in self._workers if not each.is_closed} | {worker}
        return worker

    async def work(
        self,
        group: str,
        topics: Topics,
        handler: Handler,
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

        Ends when `stop` is set, after `limit` messages, or when none came for `idle` seconds; else
        never. The handler may be a coroutine function.
        """
        check_work(handler, concurrency)
        worker = await self.connect(
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
        async with worker:
            work = HandlerLoop(
                worker, handler, concurrency=concurrency, stop=stop, idle=idle, limit=limit
            )
            return await work.run()

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """The queue groups that there are, by name; of a topic, those that take from it."""
        request = pb.ListGroupsRequest(topic=topic or "")
        return groups_of(await self._caller.ask(LIST_GROUPS, request, doing="list queue groups"))

    async def stats(self, group: str) -> GroupStats:
        """What a queue group has before it."""
        try:
            return stats_of(await fetch_stats(self._caller, group))
        except CallFailed as failed:
            raise failed.error(f"tell the stats of {group}") from failed.__cause__

    async def peek(
        self, group: str, topic: str, max_messages: int = PEEK_MESSAGES
    ) -> list[PeekedMessage]:
        """Look at messages without taking them."""
        count = checked_count(max_messages)
        try:
            return peeked_of(await fetch_peeked(self._caller, group, topic, count))
        except CallFailed as failed:
            raise failed.error(f"peek at {topic} for {group}") from failed.__cause__

    async def delete_group(self, group: str) -> None:
        """Forget a queue group: its settings, and which messages it has settled."""
        request = pb.DeleteGroupRequest(group=group)
        await self._caller.ask(DELETE_GROUP, request, doing=f"delete {group}")

    async def redrive(
        self,
        group: str,
        *,
        topic: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        idle: float = IDLE_SECONDS,
    ) -> AsyncIterator[RedriveProgress]:
        """Send the dead letters of a group back to where they came from; yields sums as it goes.

        `topic`: the dead-letter topic, if the group is gone. `to`: send all there instead. Ends
        when none comes for `idle` s.
        """
        if topic is None:
            topic = await self._dead_letter_topic(group)
            await self._caller.resolver.refresh()
            if topic not in self._caller.view.topics:
                # It is made for the first dead letter: there is none.
                return
        worker = await self.connect(group + REDRIVE_SUFFIX, topic)

        async def send_many(back: str, messages: list[pb.OutgoingMessage]) -> list[Sent]:
            return await self._send_many(back, messages, pb.ACKS_ALL, IN_FLIGHT_MAX)

        async with worker:
            async for sums in redrive(
                worker, send_many, group=group, limit=limit, idle=idle, to=to
            ):
                yield sums

    # ---- the log and the cluster

    async def read_from(
        self,
        topic: str,
        partition: int = 0,
        *,
        offset: int | str | None = None,
        timestamp: int | datetime | None = None,
        max_messages: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[StoredMessage]:
        """Read a partition in no group, from an offset, "earliest", "latest" or a time on.

        Ends at the end of the partition, unless `follow`.
        """
        batches = self.read_batches(
            topic,
            partition,
            offset=offset,
            timestamp=timestamp,
            max_messages=max_messages,
            follow=follow,
        )
        async for batch in batches:
            for message in batch:
                yield message

    def read_batches(
        self,
        topic: str,
        partition: int = 0,
        *,
        offset: int | str | None = None,
        timestamp: int | datetime | None = None,
        max_messages: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[list[StoredMessage]]:
        """The same, with as many messages at a time as came together."""
        request = read_request(
            topic,
            partition,
            offset=offset,
            timestamp=timestamp,
            max_messages=max_messages,
            follow=follow,
        )
        return read(self._caller, request)

    async def topology(self, topics: Sequence[str] = ()) -> pb.TopologyResponse:
        """Brokers, topics, and who leads what, as the API tells it."""
        request = pb.TopologyRequest(topics=topics)
        return await self._caller.ask(TOPOLOGY, request, doing="tell the topology")

    # ---- how

    @property
    def _caller(self) -> RpcClient:
        if self._caller_ is None:
            what = "closed" if self._closed else "not started"
            hint = "make a new one" if self._closed else "async with AsyncQueueClient(…) as client:"
            raise ClientError(f"the client is {what}", hint=hint)
        return self._caller_

    async def _send_many(
        self,
        topic: str,
        messages: Iterable[pb.OutgoingMessage],
        acks: "pb.Acks.ValueType",
        in_flight: int,
    ) -> list[Sent]:
        seconds = self._caller.seconds_max
        return await self._sender.send_many(topic, messages, acks, seconds, in_flight_max=in_flight)

    async def _dead_letter_topic(self, group: str) -> str:
        try:
            return (await self.stats(group)).dead_letter_topic or group + DEAD_LETTER_SUFFIX
        except NotFoundError as error:
            topic = group + DEAD_LETTER_SUFFIX
            if topic not in self._caller.view.topics:
                raise NotFoundError(
                    f"there is no queue group {group}, and no topic {topic}",
                    hint="name the dead-letter topic: topic=…",
                ) from error
            return topic


def seeds_of(addresses: Brokers | None) -> list[str]:
    """What was given, else MOLDAU_GRPC, else localhost:8000."""
    if addresses is None:
        addresses = os.environ.get(GRPC_VARIABLE) or GRPC_DEFAULT
    listed = addresses.split(",") if isinstance(addresses, str) else addresses
    if not isinstance(listed, Iterable) or not all(isinstance(each, str) for each in listed):
        raise InvalidArgumentError(
            f"{addresses!r} is no list of addresses", hint='write "HOST:PORT", or ["HOST:PORT", …]'
        )
    seeds = [each.strip() for each in listed if each.strip()]
    if not seeds:
        raise InvalidArgumentError(
            "no address given", hint=f"write HOST:PORT, or set {GRPC_VARIABLE}"
        )
    if secure := [each for each in seeds if each.startswith("https://")]:
        raise InvalidArgumentError(
            f"{secure[0]!r} cannot be reached: brokers speak no TLS", hint="write http://HOST:PORT"
        )
    return seeds


def _choice(choices: Mapping[str | None, T], given: str | None, what: str) -> T:
    found = choices.get(given if given is None else str(given).lower())
    if found is None:
        names = ", ".join(f'"{name}"' for name in choices if name)
        raise InvalidArgumentError(f"{what} of {given!r}", hint=f"one of {names}")
    return found


def _ms(seconds: float | None, what: str) -> int:
    if seconds is None:
        return 0
    # To the broker 0 is what is not set.
    if (found := milliseconds(seconds, what)) == 0:
        raise InvalidArgumentError(f"{what} of {seconds!r}", hint="seconds, 0.001 or more")
    return found


def _attempts(attempts: int | None) -> int:
    if attempts is None:
        return 0
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise InvalidArgumentError(f"{attempts!r} attempts", hint="1 or more")
    return attempts

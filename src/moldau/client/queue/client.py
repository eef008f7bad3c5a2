"""AsyncQueueClient: topics as work queues, over gRPC, for asyncio programs."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self, Unpack

from moldau import tracing
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
from moldau.client.queue.group_settings import GroupSettings, connect_request
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
from moldau.client.queue.handler_loop import (
    Handler,
    HandlerLoop,
    HasIsSet,
    WorkResult,
    check_work,
    stop_on_sigterm,
)
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.outgoing import (
    Outgoing,
    QueueAcks,
    Sent,
    checked_many,
    encode,
    encode_acks,
    encode_any,
    milliseconds,
    traced,
    traced_many,
)
from moldau.client.queue.partition_reader import read, read_request
from moldau.client.queue.redrive import IDLE_SECONDS, REDRIVE_SUFFIX, RedriveProgress, redrive
from moldau.client.queue.resolver import REFRESH_SECONDS, Resolver
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.sender import IN_FLIGHT_MAX, QueueSender
from moldau.client.queue.settler import Settler
from moldau.client.queue.worker import AsyncWorker
from moldau.client.security import PLAIN_TEXT, Security, parse_security
from moldau.proto.v1 import queue_pb2 as pb

if TYPE_CHECKING:
    from moldau.tracing.otel import OtelTracer

GRPC_VARIABLE: Final = "MOLDAU_GRPC"
GRPC_DEFAULT: Final = "localhost:8000"
TIMEOUT_SECONDS: Final = 30.0
DEAD_LETTER_SUFFIX: Final = ".dead"

Topics = str | Sequence[str]


class AsyncQueueClient:
    """Sends messages, and connects workers to groups. For any number of tasks of one loop.

    `addresses`: gRPC addresses (HOST:PORT) of brokers or of a `moldau proxy`, as a list or with
    commas; http://HOST:PORT is the HTTP address of a broker, from which the others are discovered.
    Default: MOLDAU_GRPC, else localhost:8000. `timeout`: seconds for a call with all its retries.
    `security`: properties of Kafka clients, as {"security.protocol": "SASL_SSL", "sasl.mechanism":
    "PLAIN", "sasl.username": …, "sasl.password": …, "ssl.ca.location": …}, or parsed ones.
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
        self._seeds = seeds_of(addresses)
        self._security = (
            security if isinstance(security, Security) else parse_security(dict(security))
        )
        self._timeout = max(0.001, milliseconds(timeout, "timeout") / 1000)
        self._refresh = max(0.1, milliseconds(refresh, "refresh") / 1000)
        self._client_id = client_id
        self._rpc_or_none: RpcClient | None = None
        self._workers: set[AsyncWorker] = set()
        self._closed = False

    async def start(self) -> Self:
        """Connect to the cluster. Raises UnreachableError."""
        if self._closed:
            raise ClientError("the client is closed", hint="create a new one")
        if self._rpc_or_none is None:
            channels = Channels(self._security)
            resolver = Resolver(
                self._seeds, channels, refresh_seconds=self._refresh, security=self._security
            )
            try:
                await resolver.start(self._timeout)
            except BaseException:
                await resolver.close()
                await channels.close()
                raise
            self._rpc_or_none = RpcClient(channels, resolver, seconds_max=self._timeout)
            self._sender = QueueSender(self._rpc_or_none)
            self._settler = Settler(self._rpc_or_none)
        return self

    async def close(self) -> None:
        """Close all workers and connections."""
        self._closed = True
        for worker in list(self._workers):
            await worker.close()
        self._workers.clear()
        rpc, self._rpc_or_none = self._rpc_or_none, None
        if rpc is not None:
            self._sender.close()
            await rpc.resolver.close()
            await rpc.channels.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
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
        """Create a topic; 0 is the broker's default. False if it exists and `exist_ok` is set."""
        request = pb.CreateTopicRequest(
            topic=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs={name: str(value) for name, value in (configs or {}).items()},
        )
        rpc = self._rpc
        try:
            # Not idempotent: a retry would fail with TOPIC_EXISTS.
            await rpc.call(CREATE_TOPIC, request, idempotent=False)
        except CallFailed as failed:
            if failed.failure.reason == "TOPIC_EXISTS" and exist_ok:
                return False
            raise failed.error(f"create topic {topic}") from failed.__cause__
        await rpc.resolver.refresh()
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
        acks: QueueAcks = "all",
    ) -> Sent:
        """Send one message; returns where it was written. For many messages: send_many.

        `deliver_at` (or `delay` seconds from now): queue groups do not deliver it before. Raises
        SendFailedError if it may have been written.
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
        rpc, level = self._rpc, encode_acks(acks)
        if tracing.active is not None:
            return await self._send_traced(tracing.active, topic, message, level)
        return await self._sender.send(topic, message, level, rpc.seconds_max)

    async def _send_traced(
        self,
        tracer: "OtelTracer",
        topic: str,
        message: pb.OutgoingMessage,
        acks: "pb.Acks.ValueType",
    ) -> Sent:
        sending = traced(tracer, topic, message)
        try:
            with sending.current():
                sent = await self._sender.send(topic, message, acks, self._rpc.seconds_max)
        except BaseException as error:
            sending.fail(error)
            raise
        sending.end(sent.partition, sent.offset)
        return sent

    async def send_many(
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
        result of each message.
        """
        if in_flight < 1:
            raise InvalidArgumentError(f"in_flight must be 1 or more, not {in_flight}")
        encoded: Iterable[pb.OutgoingMessage] = map(encode_any, checked_many(messages))
        if (tracer := tracing.active) is not None:
            encoded = traced_many(tracer, topic, encoded)
        return await self._send_many(topic, encoded, encode_acks(acks), in_flight)

    # ---- groups

    async def connect(
        self, group: str, topics: Topics, **settings: Unpack[GroupSettings]
    ) -> AsyncWorker:
        """Become a consumer of a group. The settings are described in GroupSettings."""
        request = connect_request(group, topics, self._client_id, settings)
        worker = await AsyncWorker(self._rpc, self._settler, request).start()
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
        **settings: Unpack[GroupSettings],
    ) -> WorkResult:
        """Call `handler(message)` for each: if it returns, ack; if it raises, nack with the error.

        Returns when `stop` is set, after `limit` messages, or after `idle` seconds without any. In
        the main thread, SIGTERM stops it after the running handlers. The handler may be a coroutine
        function.
        """
        check_work(handler, concurrency)
        worker = await self.connect(group, topics, **settings)
        async with worker:
            loop = HandlerLoop(
                worker, handler, concurrency=concurrency, stop=stop, idle=idle, limit=limit
            )
            with stop_on_sigterm(loop.request_stop):
                return await loop.run()

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All queue groups, by name; with `topic`, only those that consume it."""
        request = pb.ListGroupsRequest(topic=topic or "")
        return groups_of(await self._rpc.request(LIST_GROUPS, request, doing="list queue groups"))

    async def stats(self, group: str) -> GroupStats:
        """The backlog and settings of a queue group."""
        try:
            return stats_of(await fetch_stats(self._rpc, group))
        except CallFailed as failed:
            raise failed.error(f"get the stats of {group}") from failed.__cause__

    async def peek(
        self, group: str, topic: str, max_messages: int = PEEK_MESSAGES
    ) -> list[PeekedMessage]:
        """Read messages without leasing them."""
        count = checked_count(max_messages)
        try:
            return peeked_of(await fetch_peeked(self._rpc, group, topic, count))
        except CallFailed as failed:
            raise failed.error(f"peek at {topic} for {group}") from failed.__cause__

    async def delete_group(self, group: str) -> None:
        """Delete a queue group: its settings, and which messages it has settled."""
        request = pb.DeleteGroupRequest(group=group)
        await self._rpc.request(DELETE_GROUP, request, doing=f"delete {group}")

    async def redrive(
        self,
        group: str,
        *,
        topic: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        idle: float = IDLE_SECONDS,
    ) -> AsyncIterator[RedriveProgress]:
        """Send the dead letters of a group back to their topics; yields its progress.

        `to`: send all to this topic. Dead letters that say that they are of a topic which the group
        does not have are skipped. A deleted group has no topics: it needs `to`, and `topic`, the
        dead-letter topic, if that is not the default one.
        Ends after `idle` seconds without a dead letter.
        """
        if topic is None:
            topic = await self._dead_letter_topic(group)
            await self._rpc.resolver.refresh()
            if topic not in self._rpc.view.topics:
                # It is created for the first dead letter: there is none yet.
                return
        topics: tuple[str, ...] = ()
        if to is None:
            known = {each.group: each.topics for each in await self.groups()}
            if group not in known:
                raise NotFoundError(
                    f"there is no queue group {group}: its topics are unknown",
                    hint="create the group again, or choose where the messages go: to=…",
                )
            topics = known[group]
        worker = await self.connect(group + REDRIVE_SUFFIX, topic)

        async def send_many(back: str, messages: list[pb.OutgoingMessage]) -> list[Sent]:
            return await self._send_many(back, messages, pb.ACKS_ALL, IN_FLIGHT_MAX)

        async with worker:
            async for sums in redrive(
                worker, send_many, group=group, limit=limit, idle=idle, to=to, topics=topics
            ):
                yield sums

    # ---- log and cluster

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
        async for batch in read(self._rpc, request):
            for message in batch:
                yield message

    async def topology(self, topics: Sequence[str] = ()) -> pb.TopologyResponse:
        """Brokers, topics and leaders, as the API returns them."""
        request = pb.TopologyRequest(topics=topics)
        return await self._rpc.request(TOPOLOGY, request, doing="get the topology")

    @property
    def _rpc(self) -> RpcClient:
        if self._rpc_or_none is None:
            what = "closed" if self._closed else "not started"
            hint = (
                "create a new one" if self._closed else "async with AsyncQueueClient(…) as client:"
            )
            raise ClientError(f"the client is {what}", hint=hint)
        return self._rpc_or_none

    async def _send_many(
        self,
        topic: str,
        messages: Iterable[pb.OutgoingMessage],
        acks: "pb.Acks.ValueType",
        in_flight: int,
    ) -> list[Sent]:
        seconds = self._rpc.seconds_max
        return await self._sender.send_many(topic, messages, acks, seconds, in_flight_max=in_flight)

    async def _dead_letter_topic(self, group: str) -> str:
        try:
            return (await self.stats(group)).dead_letter_topic or group + DEAD_LETTER_SUFFIX
        except NotFoundError as error:
            topic = group + DEAD_LETTER_SUFFIX
            if topic not in self._rpc.view.topics:
                raise NotFoundError(
                    f"there is no queue group {group}, and no topic {topic}",
                    hint="pass the dead-letter topic: topic=…",
                ) from error
            return topic


def seeds_of(addresses: Brokers | None) -> list[str]:
    """`addresses`, else MOLDAU_GRPC, else localhost:8000."""
    if addresses is None:
        addresses = os.environ.get(GRPC_VARIABLE) or GRPC_DEFAULT
    listed = addresses.split(",") if isinstance(addresses, str) else addresses
    if not isinstance(listed, Iterable) or not all(isinstance(each, str) for each in listed):
        raise InvalidArgumentError(
            f"addresses must be a list of strings, not {addresses!r}",
            hint='write "HOST:PORT", or ["HOST:PORT", …]',
        )
    seeds = [each.strip() for each in listed if each.strip()]
    if not seeds:
        raise InvalidArgumentError(
            "no address given", hint=f"write HOST:PORT, or set {GRPC_VARIABLE}"
        )
    for each in seeds:
        if "://" in each and not each.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                f"cannot use {each!r}", hint="write HOST:PORT, or http:// or https://HOST:PORT"
            )
    return seeds

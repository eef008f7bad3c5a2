"""Two brokers in one process that speak the queue API over sockets, with a switch for each fault.

They keep the contract of proto/moldau/v1/queue.proto in memory: leases, tokens, NOT_LEADER,
sessions. What brokers really do is tested with real ones; here it is what clients make of it.
"""

# ruff: noqa: N802

import asyncio
import contextlib
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from grpc import aio
from quota_waits import QuotaWaits

from moldau.client.queue.loop_thread import shared_loop
from moldau.model.delivery_tokens import (
    DeliveryToken,
    TokenKind,
    decode_delivery_token,
    encode_delivery_token,
)
from moldau.model.ids import PartitionIndex, TopicId
from moldau.proto.trailers import HINT_TRAILER, REASON_TRAILER, RETRY_TRAILER, UNCERTAIN_TRAILER
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc
from moldau.records.murmur2 import partition_of
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

T = TypeVar("T")
STATUS = {
    pb.NOT_LEADER: grpc.StatusCode.FAILED_PRECONDITION,
    pb.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    pb.UNKNOWN_CONSUMER: grpc.StatusCode.NOT_FOUND,
    pb.UNKNOWN_TOPIC: grpc.StatusCode.NOT_FOUND,
    pb.UNKNOWN_GROUP: grpc.StatusCode.NOT_FOUND,
    pb.TOPIC_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    pb.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass
class Partition:
    topic: str
    number: int
    leader: int
    log: list[pb.Message] = field(default_factory=list)


@dataclass
class Lease:
    offset: int
    consumer: str
    until: float


@dataclass
class Queue:
    """What one group has of one partition."""

    next: int = 0
    leases: dict[bytes, Lease] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    settled: set[int] = field(default_factory=set)


@dataclass
class Group:
    name: str
    topics: list[str]
    settings: pb.QueueSettings
    consumers: set[str] = field(default_factory=set)
    epoch: int = 1
    queues: dict[tuple[str, int], Queue] = field(default_factory=dict)


class FakeBroker(queue_pb2_grpc.QueueServicer):
    """One broker; `calls` counts what it was asked, `refusals` is what it answers first."""

    def __init__(self, cluster: "FakeCluster", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.calls: Counter[str] = Counter()
        self.refusals: dict[str, list[tuple[pb.Reason.ValueType, bool]]] = {}
        self.quota = QuotaWaits()
        self.batches: list[int] = []
        self.polls: list[pb.PollRequest] = []
        self.hides_addresses = False
        self._server: aio.Server | None = None
        # One that nobody else gets while this broker is down.
        (self.port,) = free_ports(1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = aio.server(options=[("grpc.so_reuseport", 0)])
        queue_pb2_grpc.add_QueueServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def _enter(self, name: str, context: Any) -> None:
        self.calls[name] += 1
        waiting = self.refusals.get(name)
        if waiting:
            reason, uncertain = waiting.pop(0)
            await self._refuse(context, reason, uncertain=uncertain)
        if retry_ms := self.quota.left_ms(name):
            trailers = ((REASON_TRAILER, "BUSY"), (RETRY_TRAILER, str(retry_ms)))
            await context.abort(STATUS[pb.BUSY], "over the quota", trailers)

    async def _refuse(
        self, context: Any, reason: pb.Reason.ValueType, text: str = "", *, uncertain: bool = False
    ) -> None:
        trailers = [(REASON_TRAILER, pb.Reason.Name(reason)), (HINT_TRAILER, "do%20as told")]
        if uncertain:
            trailers.append((UNCERTAIN_TRAILER, "true"))
        status = STATUS.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(status, text or pb.Reason.Name(reason).lower(), tuple(trailers))

    # ---- topics and sending

    async def CreateTopic(self, request: Any, context: Any) -> Any:
        await self._enter("CreateTopic", context)
        if request.topic in self.cluster.topics:
            await self._refuse(context, pb.TOPIC_EXISTS)
        self.cluster.create(request.topic, request.partitions or 1)
        return pb.CreateTopicResponse(topic=request.topic, partitions=request.partitions or 1)

    async def Send(self, request: Any, context: Any) -> Any:
        await self._enter("Send", context)
        if request.topic not in self.cluster.topics:
            await self._refuse(context, pb.UNKNOWN_TOPIC, f"there is no topic {request.topic}")
        partition, offset = self.cluster.append(request.topic, request.message)
        return pb.SendResponse(partition=partition, offset=offset)

    async def SendBatch(self, requests: Any, context: Any) -> Any:
        is_open = False
        async for request in requests:
            if not is_open:
                await self._enter("SendBatch", context)
                is_open = True
            self.batches.append(len(request.messages))
            waiting = self.refusals.get("batch")
            if waiting:
                reason, uncertain = waiting.pop(0)
                count = len(request.messages)
                answer = pb.SendBatchResponse(partitions=[-1] * count, offsets=[-1] * count)
                answer.failures.add(
                    indexes=range(count), reason=reason, message="no", is_uncertain=uncertain
                )
                yield answer
                continue
            if self.cluster.dies_in_batch == self.number:
                self.cluster.dies_in_batch = 0
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            answer = pb.SendBatchResponse()
            for message in request.messages:
                partition, offset = self.cluster.append(request.topic, message)
                answer.partitions.append(partition)
                answer.offsets.append(offset)
            yield answer

    # ---- consumers

    async def Connect(self, request: Any, context: Any) -> Any:
        await self._enter("Connect", context)
        group = self.cluster.groups.get(request.group)
        if group is None:
            settings = pb.QueueSettings(
                visibility_ms=30_000,
                attempts_max=5,
                backoff_ms=1_000,
                backoff_ms_max=60_000,
                dead_letter_topic=f"{request.group}.dead",
            )
            group = self.cluster.groups[request.group] = Group(
                request.group, list(request.topics), settings
            )
        # What is not set stays as it is.
        group.settings.MergeFrom(request.settings)
        consumer = f"{request.client_id}-{next(self.cluster.numbers)}"
        group.consumers.add(consumer)
        return pb.ConnectResponse(
            consumer_id=consumer,
            mode=request.mode or pb.ORDERED,
            heartbeat_interval_ms=50,
            session_timeout_ms=10_000,
            settings=group.settings,
            assignment=self._assignment(group),
        )

    def _assignment(self, group: Group) -> pb.Assignment:
        assignment = pb.Assignment(epoch=group.epoch)
        for name in group.topics:
            for each in self.cluster.topics.get(name, []):
                assignment.partitions.add(
                    topic=name,
                    partition=each.number,
                    leader=each.leader,
                    leader_address=self.cluster.brokers[each.leader].address,
                )
        return assignment

    async def Disconnect(self, request: Any, context: Any) -> Any:
        await self._enter("Disconnect", context)
        group = self.cluster.groups[request.group]
        group.consumers.discard(request.consumer_id)
        self.cluster.release(group, request.consumer_id)
        return pb.DisconnectResponse()

    async def Heartbeat(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            await self._enter("Heartbeat", context)
            group = await self._group(request, context)
            answer = pb.HeartbeatResponse(heartbeat_interval_ms=50)
            if request.epoch != group.epoch:
                answer.assignment.CopyFrom(self._assignment(group))
            yield answer

    async def _group(self, request: Any, context: Any) -> Group:
        group = self.cluster.groups.get(request.group)
        if group is None:
            await self._refuse(context, pb.UNKNOWN_GROUP)
            raise AssertionError
        if request.consumer_id not in group.consumers:
            await self._refuse(context, pb.UNKNOWN_CONSUMER, "evicted")
        return group

    async def Poll(self, request: Any, context: Any) -> Any:
        await self._enter("Poll", context)
        self.polls.append(request)
        group = await self._group(request, context)
        deadline = time.monotonic() + request.wait_ms / 1000
        while True:
            found = self.cluster.take(group, self.number, request)
            if found or time.monotonic() >= deadline:
                if self.cluster.answer_delay:
                    await asyncio.sleep(self.cluster.answer_delay)
                return pb.PollResponse(messages=found)
            await asyncio.sleep(0.005)
            if request.consumer_id not in group.consumers:
                await self._refuse(context, pb.UNKNOWN_CONSUMER, "evicted")

    # ---- settling

    async def Ack(self, request: Any, context: Any) -> Any:
        await self._enter("Ack", context)
        return await self._settle(request, context, "ack")

    async def Nack(self, request: Any, context: Any) -> Any:
        await self._enter("Nack", context)
        return await self._settle(request, context, "nack")

    async def Extend(self, request: Any, context: Any) -> Any:
        await self._enter("Extend", context)
        return await self._settle(request, context, "extend")

    async def _settle(self, request: Any, context: Any, what: str) -> Any:
        group = await self._group(request, context)
        answer = pb.SettleResponse()
        for index, token in enumerate(request.tokens):
            reason = self.cluster.settle(group, self.number, request, token, what)
            if reason:
                answer.refused.add(index=index, reason=reason, message=pb.Reason.Name(reason))
            else:
                answer.done += 1
        return answer

    # ---- groups, reading, the cluster

    async def Stats(self, request: Any, context: Any) -> Any:
        await self._enter("Stats", context)
        group = self.cluster.groups.get(request.group)
        if group is None:
            await self._refuse(context, pb.UNKNOWN_GROUP, f"no queue group {request.group}")
            raise AssertionError
        answer = pb.StatsResponse(
            group=group.name, settings=group.settings, consumers=len(group.consumers)
        )
        for name in group.topics:
            for each in self.cluster.topics[name]:
                here = each.leader == self.number
                queue = group.queues.setdefault((name, each.number), Queue())
                added = answer.partitions.add(
                    topic=name, partition=each.number, leader=each.leader, is_here=here
                )
                if here:
                    added.ready = len(each.log) - queue.next
                    added.leased = len(queue.leases)
                    added.end = len(each.log)
        return answer

    async def ListGroups(self, request: Any, context: Any) -> Any:
        await self._enter("ListGroups", context)
        answer = pb.ListGroupsResponse()
        for name, group in sorted(self.cluster.groups.items()):
            if not request.topic or request.topic in group.topics:
                answer.groups.add(group=name, topics=group.topics, settings=group.settings)
        return answer

    async def Peek(self, request: Any, context: Any) -> Any:
        await self._enter("Peek", context)
        answer = pb.PeekResponse()
        for each in self.cluster.topics.get(request.topic, []):
            if each.leader == self.number:
                for message in each.log[: request.max_messages]:
                    answer.messages.add(message=message, state=pb.PeekedMessage.READY)
        return answer

    async def DeleteGroup(self, request: Any, context: Any) -> Any:
        await self._enter("DeleteGroup", context)
        if self.cluster.groups.pop(request.group, None) is None:
            await self._refuse(context, pb.UNKNOWN_GROUP)
        return pb.DeleteGroupResponse()

    async def ReadFrom(self, request: Any, context: Any) -> Any:
        await self._enter("ReadFrom", context)
        partitions = self.cluster.topics.get(request.topic)
        if partitions is None:
            await self._refuse(context, pb.UNKNOWN_TOPIC, f"there is no topic {request.topic}")
            raise AssertionError
        partition = partitions[request.partition]
        if partition.leader != self.number:
            await self._refuse(context, pb.NOT_LEADER)
        log, at = partition.log, request.offset
        end = len(log) if not request.max_messages else min(len(log), at + request.max_messages)
        while at < end:
            step = min(end, at + 10)
            yield pb.ReadFromResponse(messages=log[at:step], next_offset=step)
            at = step
            if partition.leader != self.number:
                await self._refuse(context, pb.NOT_LEADER)

    async def Topology(self, request: Any, context: Any) -> Any:
        await self._enter("Topology", context)
        answer = pb.TopologyResponse(cluster_id="fake", controller=1, version=self.cluster.version)
        for broker in self.cluster.brokers.values():
            answer.brokers.add(
                id=broker.number,
                grpc_address="" if self.hides_addresses else broker.address,
                is_alive=broker.is_running,
            )
        for name, partitions in self.cluster.topics.items():
            topic = answer.topics.add(name=name, topic_id=self.cluster.ids[name])
            for each in partitions:
                topic.partitions.add(
                    partition=each.number, leader=each.leader, replicas=[1, 2], in_sync=[1, 2]
                )
        return answer

    async def ManageBrokers(self, request: Any, context: Any) -> Any:
        await self._enter("ManageBrokers", context)
        return pb.ManageBrokersResponse(id=request.remove.id, message="draining")


class FakeCluster:
    """The state that the brokers share."""

    def __init__(self, count: int = 2) -> None:
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, TopicId] = {}
        self.groups: dict[str, Group] = {}
        self.numbers = itertools.count(1)
        self.version = 1
        self.answer_delay = 0.0
        self.ahead_seconds = 0.0
        self.dies_in_batch = 0
        self.brokers = {number: FakeBroker(self, number) for number in range(1, count + 1)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(wait_seconds_max())

    def kill(self, number: int) -> None:
        self.run(self.brokers[number].stop())

    def revive(self, number: int) -> None:
        self.run(self.brokers[number].start())

    def now(self) -> float:
        """The time that leases end by; a test may let it pass."""
        return time.monotonic() + self.ahead_seconds

    def calls(self, name: str) -> dict[int, int]:
        return {number: broker.calls[name] for number, broker in self.brokers.items()}

    @property
    def has_waiting_polls(self) -> bool:
        """Whether every broker was last asked to wait for messages."""
        return all(broker.polls and broker.polls[-1].wait_ms for broker in self.brokers.values())

    # ---- state

    def create(self, topic: str, partitions: int = 2) -> None:
        """Partition 0 is led by broker 1, partition 1 by broker 2, and so on in turn."""
        count = len(self.brokers)
        self.topics[topic] = [
            Partition(topic, number, number % count + 1) for number in range(partitions)
        ]
        self.ids[topic] = TopicId(topic.encode().ljust(16, b"\0")[:16])
        self.version += 1

    def move(self, topic: str, partition: int, leader: int) -> None:
        """Another leader: what was leased by the one before is void."""
        self.topics[topic][partition].leader = leader
        for group in self.groups.values():
            queue = group.queues.get((topic, partition))
            if queue is not None:
                for lease in queue.leases.values():
                    queue.due[lease.offset] = 0.0
                queue.leases.clear()

    def evict(self, group: str) -> None:
        found = self.groups[group]
        for consumer in list(found.consumers):
            self.release(found, consumer)
        found.consumers.clear()

    def release(self, group: Group, consumer: str) -> None:
        for queue in group.queues.values():
            for token, lease in list(queue.leases.items()):
                if lease.consumer == consumer:
                    del queue.leases[token]
                    queue.due[lease.offset] = 0.0

    def append(self, topic: str, message: pb.OutgoingMessage) -> tuple[int, int]:
        partitions = self.topics[topic]
        if message.HasField("partition"):
            number = message.partition
        elif message.HasField("key"):
            number = partition_of(message.key, len(partitions))
        else:
            number = min(range(len(partitions)), key=lambda n: len(partitions[n].log))
        log = partitions[number].log
        stored = pb.Message(
            topic=topic,
            partition=number,
            offset=len(log),
            timestamp_ms=1_000 + len(log),
            headers=message.headers,
        )
        if message.HasField("key"):
            stored.key = message.key
        if message.HasField("value"):
            stored.value = message.value
        log.append(stored)
        return number, stored.offset

    def take(self, group: Group, leader: int, request: pb.PollRequest) -> list[pb.Message]:
        found: list[pb.Message] = []
        now = self.now()
        visibility = (request.visibility_ms or group.settings.visibility_ms) / 1000
        for name in group.topics:
            for each in self.topics.get(name, []):
                if each.leader != leader:
                    continue
                queue = group.queues.setdefault((name, each.number), Queue())
                for token, lease in list(queue.leases.items()):
                    if lease.until <= now:
                        del queue.leases[token]
                        queue.due[lease.offset] = now
                while len(found) < (request.max_messages or 1):
                    ready = [offset for offset, due in queue.due.items() if due <= now]
                    if ready:
                        offset = min(ready)
                        del queue.due[offset]
                    elif queue.next < len(each.log):
                        offset = queue.next
                        queue.next += 1
                    else:
                        break
                    queue.attempts[offset] += 1
                    message = pb.Message()
                    message.CopyFrom(each.log[offset])
                    message.attempt = queue.attempts[offset]
                    message.lease_until_ms = int((time.time() + visibility) * 1000)
                    message.token = encode_delivery_token(
                        DeliveryToken(
                            TokenKind.QUEUE,
                            self.ids[name],
                            PartitionIndex(each.number),
                            f"{offset}-{message.attempt}-{leader}".encode(),
                        )
                    )
                    queue.leases[message.token] = Lease(
                        offset, request.consumer_id, now + visibility
                    )
                    found.append(message)
        return found

    def settle(
        self, group: Group, leader: int, request: Any, token: bytes, what: str
    ) -> pb.Reason.ValueType:
        ticket = decode_delivery_token(token)
        names = {held: name for name, held in self.ids.items()}
        if ticket is None or ticket.topic_id not in names:
            return pb.BAD_TOKEN
        name = names[ticket.topic_id]
        if self.topics[name][ticket.partition].leader != leader:
            return pb.NOT_LEADER
        queue = group.queues.setdefault((name, ticket.partition), Queue())
        offset = int(ticket.rest.partition(b"-")[0])
        lease = queue.leases.get(token)
        if lease is None or lease.consumer != request.consumer_id:
            return pb.SETTLED if offset in queue.settled else pb.EXPIRED
        if what == "extend":
            lease.until = self.now() + request.visibility_ms / 1000
            return pb.REASON_UNSPECIFIED
        del queue.leases[token]
        if what == "ack":
            queue.settled.add(offset)
        else:
            delay = request.delay_ms / 1000 if request.HasField("delay_ms") else 0.0
            queue.due[offset] = self.now() + delay
        return pb.REASON_UNSPECIFIED

    # ---- life

    def start(self) -> None:
        self._thread.start()
        for broker in self.brokers.values():
            self.run(broker.start())

    def close(self) -> None:
        for broker in self.brokers.values():
            self.run(broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_seconds_max())
        self._loop.close()


@contextmanager
def fake_cluster(count: int = 2) -> Iterator[FakeCluster]:
    cluster = FakeCluster(count)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.close()


@functools.cache
def keep_what_a_process_shares() -> grpc.Channel:
    """gRPC's own threads and files come with its first object and go with its last; the clients'
    loop and the claims on ports stay. Held from now on, they are not left behind by any test."""
    free_ports(1)
    channel = grpc.insecure_channel("127.0.0.1:1")
    with contextlib.suppress(grpc.RpcError):
        call: Any = channel.unary_unary("/nobody/there")
        call(b"", timeout=wait_seconds_max())

    async def hold() -> None:
        aio.init_grpc_aio()

    shared_loop().run(hold())
    return channel


def once_polls_wait(brokers: FakeCluster, work: Callable[..., object]) -> threading.Thread:
    """Does the work in a thread, as soon as a poll waits at a broker."""

    def run() -> None:
        wait_until(lambda: brokers.has_waiting_polls, "the polls wait")
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread

"""A worker of a queue group, on the bare gRPC stubs, and the ends of such a run.

    python -m faults.queue_worker work  --brokers A,B --topic T --group G --name q1 --history F
    python -m faults.queue_worker order --brokers A,B --topic T --group H --name o1 --history F
    python -m faults.queue_worker drain --brokers A,B --topic T --group G --name d  --history F
    python -m faults.queue_worker dead  --bootstrap K --topic T --group G --name d  --history F

`work` polls, works and settles until SIGTERM; it dawdles past its lease now and then, and acks all
the same. `order` polls and acks in an ordered group. `drain` waits until nothing is open; `dead`
reads the dead letters with a Kafka client.
Routing is done here, so that no mistake of our client can hide one of the brokers.
"""

import argparse
import asyncio
import base64
import contextlib
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

import grpc
from confluent_kafka import Consumer, TopicPartition

from faults.clients import COMMON, EXIT_UNREAD, History
from faults.login import properties
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc

ATTEMPTS_MAX: Final = 12
VISIBILITY_MS: Final = 2_000
POISON: Final = "cannot be done"
_BACKOFF_MS: Final = 50
_CALL_SECONDS: Final = 6.0
_DAWDLE_EVERY: Final = 100
"""One batch in so many is worked on until well past the end of its lease; which one, each
worker draws for itself, among its first: no run is without."""
_DAWDLE_FIRST: Final = 8
_SESSION_MS: Final = 6_000
_PAUSE_SECONDS: Final = 0.2
_READ_SECONDS_MAX: Final = 30.0
_OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def poison(place: str, offset: int) -> str:
    """Why a message cannot be worked on; empty if it can."""
    return POISON if offset % 101 == 7 else ""


class _Login(grpc.AuthMetadataPlugin):
    """Sends the user and the password with each call."""

    def __init__(self, user: str, password: str) -> None:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._metadata = (("authorization", f"Basic {pair}"),)

    def __call__(self, context: Any, callback: Callable[..., None]) -> None:
        callback(self._metadata, None)


def _channel(address: str) -> grpc.aio.Channel:
    given = properties()
    if not given:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(Path(given["ssl.ca.location"]).read_bytes()),
        grpc.metadata_call_credentials(_Login(given["sasl.username"], given["sasl.password"])),
    )
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


class Brokers:
    """A channel to each, and the leaders as far as known."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._known = list(addresses)
        self._stubs: dict[str, Any] = {}
        self._turn = 0

    def at(self, address: str) -> Any:
        stub = self._stubs.get(address)
        if stub is None:
            stub = self._stubs[address] = queue_pb2_grpc.QueueStub(_channel(address))
        return stub

    def any(self) -> Any:
        """Each in its turn: one may be dead."""
        self._turn += 1
        return self.at(self._known[self._turn % len(self._known)])


class Worker:
    """One consumer; connects again whenever it is not a member."""

    def __init__(self, options: argparse.Namespace, history: History) -> None:
        self._options = options
        self._history = history
        self._rng = random.Random(f"{options.seed}-{options.name}")
        self._brokers = Brokers(options.brokers.split(","))
        self._dawdles_at = self._rng.randrange(1, _DAWDLE_FIRST)
        self._batches = 0
        self._consumer = ""
        self._epoch = 0
        self._leaders: dict[str, list[int]] = {}
        """Partitions by the address of their leader."""
        self._owned: list[int] = []
        self._interval_seconds = 1.0
        self.stop = asyncio.Event()

    async def run(self) -> None:
        while not self.stop.is_set():
            try:
                await self._connect()
                heartbeats = asyncio.create_task(self._keep_beating())
                try:
                    await self._work()
                finally:
                    heartbeats.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await heartbeats
            except grpc.aio.AioRpcError as error:
                self._history.add("x-error", w=self._options.name, code=str(error.code()))
                await asyncio.sleep(_PAUSE_SECONDS)
        self._history.flush()

    def _connect_request(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(
            group=self._options.group,
            topics=[self._options.topic],
            mode=pb.QUEUE,
            client_id=self._options.name,
            settings=pb.QueueSettings(
                visibility_ms=VISIBILITY_MS,
                attempts_max=ATTEMPTS_MAX,
                backoff_ms=_BACKOFF_MS,
                backoff_ms_max=_BACKOFF_MS * 4,
            ),
        )

    async def _connect(self) -> None:
        request = self._connect_request()
        reply = await self._brokers.any().Connect(request, timeout=_CALL_SECONDS)
        self._consumer = reply.consumer_id
        self._interval_seconds = reply.heartbeat_interval_ms / 1000
        self._history.add("x-connected", w=self._options.name, c=self._consumer)
        self._take(reply.assignment)

    def _take(self, assignment: pb.Assignment) -> None:
        self._epoch = assignment.epoch
        self._owned = sorted(each.partition for each in assignment.partitions)
        leaders: dict[str, list[int]] = defaultdict(list)
        for each in assignment.partitions:
            if each.leader_address:
                leaders[each.leader_address].append(each.partition)
        self._leaders = dict(leaders)

    async def _keep_beating(self) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for reply in self._brokers.any().Heartbeat(self._heartbeats()):
                    if reply.HasField("assignment"):
                        self._take(reply.assignment)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _heartbeats(self) -> AsyncIterator[pb.HeartbeatRequest]:
        while True:
            yield pb.HeartbeatRequest(
                group=self._options.group,
                consumer_id=self._consumer,
                epoch=self._epoch,
                owned=self._owned_partitions(),
            )
            await asyncio.sleep(min(self._interval_seconds, 0.5))

    def _owned_partitions(self) -> list[pb.TopicPartitions]:
        """Members of a queue own nothing."""
        return []

    # ---- work

    async def _work(self) -> None:
        while not self.stop.is_set():
            leaders = list(self._leaders)
            if not leaders:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._rng.shuffle(leaders)
            for address in leaders:
                try:
                    await self._take_some(address)
                except grpc.aio.AioRpcError as error:
                    if _reason_of(error) == "UNKNOWN_CONSUMER":
                        raise
                    await asyncio.sleep(_PAUSE_SECONDS)
                if self.stop.is_set():
                    return

    async def _take_some(self, address: str) -> None:
        request = pb.PollRequest(
            group=self._options.group,
            consumer_id=self._consumer,
            max_messages=self._rng.choice((1, 5, 20)),
            wait_ms=200,
        )
        reply = await self._brokers.at(address).Poll(request, timeout=_CALL_SECONDS)
        for message in reply.messages:
            self._add("x-got", message)
        # What was got is on record before anything is made of it: this process may be killed.
        self._history.flush()
        if not reply.messages:
            return
        self._batches += 1
        if self._batches % _DAWDLE_EVERY == self._dawdles_at:
            await asyncio.sleep(VISIBILITY_MS / 1000 * 1.6)
        else:
            await asyncio.sleep(self._rng.random() * 0.02)
        bad = [m for m in reply.messages if poison(m.topic, m.offset)]
        good = [m for m in reply.messages if not poison(m.topic, m.offset)]
        if good:
            await self._settle("x-acked", address, good)
        if bad:
            await self._settle("x-nacked", address, bad)

    async def _settle(self, operation: str, address: str, messages: list[pb.Message]) -> None:
        tokens = [message.token for message in messages]
        whose = {"group": self._options.group, "consumer_id": self._consumer, "tokens": tokens}
        stub = self._brokers.at(address)
        if operation == "x-acked":
            for message in messages:
                self._add("x-acking", message)
            self._history.flush()
        try:
            if operation == "x-acked":
                call = stub.Ack(pb.AckRequest(**whose), timeout=_CALL_SECONDS)
            else:
                call = stub.Nack(pb.NackRequest(**whose, reason=POISON), timeout=_CALL_SECONDS)
            reply = await call
        except grpc.aio.AioRpcError as error:
            # Refused as a whole, with a name for it; or nobody knows what became of it.
            answer = _reason_of(error) if _reason_of(error) in _NOTHING_DONE else "unknown"
            for message in messages:
                self._add(operation, message, r=answer)
            self._history.flush()
            raise
        refused = {each.index: pb.Reason.Name(each.reason) for each in reply.refused}
        for index, message in enumerate(messages):
            self._add(operation, message, r=_reported(refused.get(index, "done")))
        self._history.flush()

    def _add(self, operation: str, message: pb.Message, **fields: Any) -> None:
        place = f"{message.topic}/{message.partition}"
        self._history.add(
            operation, w=self._options.name, tp=place, o=message.offset, a=message.attempt, **fields
        )


class OrderedWorker(Worker):
    """The same in an ordered group: it acks the last of what it got from each partition."""

    def _connect_request(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(
            group=self._options.group,
            topics=[self._options.topic],
            mode=pb.ORDERED,
            client_id=self._options.name,
            session_timeout_ms=_SESSION_MS,
        )

    def _owned_partitions(self) -> list[pb.TopicPartitions]:
        return [pb.TopicPartitions(topic=self._options.topic, partitions=self._owned)]

    async def _take_some(self, address: str) -> None:
        since = time.monotonic_ns()
        request = pb.PollRequest(
            group=self._options.group,
            consumer_id=self._consumer,
            max_messages=self._rng.choice((5, 20)),
            wait_ms=200,
        )
        reply = await self._brokers.at(address).Poll(request, timeout=_CALL_SECONDS)
        last: dict[int, pb.Message] = {}
        for message in reply.messages:
            self._add("x-ordered-got", message, since=since)
            last[message.partition] = message
        self._history.flush()
        if not last:
            return
        await asyncio.sleep(self._rng.random() * 0.02)
        acked = pb.AckRequest(
            group=self._options.group,
            consumer_id=self._consumer,
            tokens=[message.token for message in last.values()],
        )
        answer = await self._brokers.at(address).Ack(acked, timeout=_CALL_SECONDS)
        refused = {each.index: pb.Reason.Name(each.reason) for each in answer.refused}
        for index, message in enumerate(last.values()):
            self._add("x-ordered-acked", message, r=refused.get(index, "done"))
        self._history.flush()


_NOTHING_DONE: Final = frozenset({"UNKNOWN_CONSUMER", "NOT_LEADER", "UNKNOWN_GROUP"})


def _reported(reason: str) -> str:
    """Whether it was carried out is not known after some of the refusals."""
    return "unknown" if reason in ("UNAVAILABLE", "TIMED_OUT", "INTERNAL", "BUSY") else reason


def _reason_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "moldau-reason":
            return value if isinstance(value, str) else value.decode()
    return ""


async def work(options: argparse.Namespace, history: History) -> int:
    worker = (OrderedWorker if options.role == "order" else Worker)(options, history)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop.set)
    await worker.run()
    return 0


async def drain(options: argparse.Namespace, history: History) -> int:
    """Until nothing is open in any partition."""
    brokers = Brokers(options.brokers.split(","))
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        found: dict[int, pb.PartitionStats] = {}
        wanted = 0
        for address in options.brokers.split(","):
            try:
                reply = await brokers.at(address).Stats(
                    pb.StatsRequest(group=options.group), timeout=_CALL_SECONDS
                )
            except grpc.aio.AioRpcError:
                continue
            wanted = max(wanted, len(reply.partitions))
            found |= {each.partition: each for each in reply.partitions if each.is_here}
        still = [s for s in found.values() if s.ready or s.leased or s.delayed or s.dead]
        if wanted and len(found) == wanted and not still:
            for stats in found.values():
                place = f"{options.topic}/{stats.partition}"
                history.add("x-drained", tp=place, end=stats.end, floor=stats.floor)
            history.flush()
            return 0
        await asyncio.sleep(_PAUSE_SECONDS)
    history.add("x-not-drained", left=[str(each) for each in still], of=wanted)
    history.flush()
    return EXIT_UNREAD


def dead(options: argparse.Namespace, history: History) -> int:
    """All dead letters, by an unmodified Kafka client."""
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": options.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
        }
    )
    topic = f"{options.group}.dead"
    known = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = {
        p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in known
    }
    left = {partition for partition, end in ends.items() if end}
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    deadline = time.monotonic() + _READ_SECONDS_MAX
    while left and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        given = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        headers = {key: (value or b"").decode() for key, value in given}
        history.add(
            "x-dead",
            tp=f"{headers['moldau-dead-topic']}/{headers['moldau-dead-partition']}",
            o=int(headers["moldau-dead-offset"]),
            a=int(headers["moldau-dead-attempts"]),
            why=headers["moldau-dead-reason"],
        )
        if offset + 1 >= ends[partition]:
            left.discard(partition)
    consumer.close()
    history.flush()
    return EXIT_UNREAD if left else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("work", "order", "drain", "dead"))
    parser.add_argument("--brokers", default="", help="gRPC addresses")
    parser.add_argument("--bootstrap", default="", help="Kafka addresses")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with options.history.open("a") as file:
        history = History(file)
        if options.role == "dead":
            return dead(options, history)
        return asyncio.run((drain if options.role == "drain" else work)(options, history))


if __name__ == "__main__":
    sys.exit(main())

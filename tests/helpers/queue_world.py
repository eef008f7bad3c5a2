"""Queues over partitions in memory: real replicas and logs, and a ledger that does what it is told.

Time stands still until a test moves it.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_log import MemoryLog

from moldau.data.append_forwarding import AppendForwarder, AppendResult
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition
from moldau.data.produce import ProduceService
from moldau.leases.commands import Ack
from moldau.leases.ledger import Ledger
from moldau.leases.records import encode
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId, QueueRecord
from moldau.log.interface import LogConfig
from moldau.metadata.image import Partition, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.metadata.topic_configs import TopicConfig
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicId
from moldau.queues.ledgers import LedgerRefusedError
from moldau.queues.limits import QueueLimits
from moldau.queues.queue_host import QueueHost
from moldau.queues.settlement import Settlement
from moldau.queues.types import (
    DONE,
    Delivery,
    ErrorReason,
    PartitionStats,
    PollResult,
    QueueRefusedError,
    TokenResult,
)
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.control import EndMarker
from moldau.records.record import Headers, Record, build_batch, read_records
from moldau.replica.replica import Replica
from moldau.testing.replicas import ManualClock, make_driver, make_flusher, open_replica, wait_ready
from moldau.testing.waiting import until

LIMITS = QueueLimits(
    timer_seconds_max=0.005, pause_seconds_min=0.001, pause_seconds_max=0.01, sweep_seconds=0.01
)
START_MS = 1_000_000


class FakeLedger:
    """Keeps records as a ledger does, and can be told to misbehave."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.writes: list[list[QueueRecord]] = []
        self.forgotten: list[QueueId] = []
        self.fails_before = 0
        """So many writes are refused, and nothing is kept of them."""
        self.fails_after = 0
        """So many writes are kept, and nobody hears of it."""
        self.comes_late = 0
        """So many writes are refused, and come to be judged a moment later nevertheless."""
        self.late: set[asyncio.Task[None]] = set()
        self.fails_loading = 0
        self.gate = asyncio.Event()
        """Cleared: writes wait."""
        self.gate.set()
        self.waiting = 0

    async def stored(self, queue: QueueId) -> list[tuple[bytes, bytes]]:
        await asyncio.sleep(0)
        if self.fails_loading:
            self.fails_loading -= 1
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return list(self.ledger.stored(queue))

    async def write(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        self.waiting += 1
        await asyncio.sleep(0)
        await self.gate.wait()
        self.waiting -= 1
        if self.fails_before:
            self.fails_before -= 1
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.comes_late:
            self.comes_late -= 1
            late = asyncio.create_task(self._write_late(queue, records))
            self.late.add(late)
            late.add_done_callback(self.late.discard)
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION)
        await self._check(queue, records)
        if self.fails_after:
            self.fails_after -= 1
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT)

    async def _write_late(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        with suppress(LedgerRefusedError):
            await self._check(queue, records)

    async def _check(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        encoded = [encode(record) for record in records]
        refusal = self.ledger.check(*encoded)
        if refusal is not Refusal.NONE:
            raise LedgerRefusedError(refusal)
        for one in encoded:
            assert self.ledger.apply(*one)
        self.writes.append(list(records))

    async def forget(self, queue: QueueId) -> None:
        self.forgotten.append(queue)
        self.ledger.forget(queue)


class QueueWorld:
    """A broker's partitions and its lease host. Topic `t` is the one with messages."""

    def __init__(self, limits: QueueLimits = LIMITS, **settings: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.flusher = make_flusher(self.clock, threads=0)
        self.driver = make_driver(self.flusher, clock=self.clock)
        self.ledger = FakeLedger()
        self.limits = limits
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.replicas: dict[tuple[str, int], Replica] = {}
        self.message_bytes_max = 1 << 20
        self.append_failures = 0
        self.compacted: set[str] = set()
        """Topics that take no message without a key."""
        self.offline: list[str] = []
        self._ids = itertools.count(1)
        settings.setdefault("dead_letter_topic", "g.dead")
        self.group = QueueGroup(name="g", topics=("t",), settings=QueueSettings(**settings))
        self.groups = {"g": self.group}
        self.host = self.new_host()

    @classmethod
    async def make(cls, partitions: int = 1, **settings: Any) -> "QueueWorld":
        world = cls(**settings)
        await world.create("t", partitions)
        return world

    def new_host(self) -> QueueHost:
        produce = ProduceService(cast(Any, self), DiskGuard(), self.clock)
        appends = AppendForwarder(
            me=BrokerId(1),
            image=lambda: cast(Any, self),
            leader_of=self._leader_of,
            produce=produce,
            caller=cast(Any, None),
        )
        real_append = appends.append

        async def append(*arguments: Any, **named: Any) -> Any:
            if self.append_failures:
                self.append_failures -= 1
                return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")
            return await real_append(*arguments, **named)

        self.loop = asyncio.get_running_loop()
        self.appends = SimpleNamespace(append=append)
        return QueueHost(
            loop=self.loop,
            clock=self.clock,
            partitions=cast(Any, self),
            image=lambda: cast(Any, self),
            group_of=self.groups.get,
            leader_of=self._leader_of,
            ledgers=cast(Any, self.ledger),
            topics=cast(Any, self),
            appends=cast(Any, self.appends),
            on_internal_error=self._give_up,
            limits=self.limits,
        )

    def _give_up(self, error: BaseException) -> None:
        """As a broker does; else a test would wait for what never comes."""
        for task in asyncio.all_tasks():
            task.cancel(f"defect: {error!r}")

    # ---- what a broker has

    async def create(self, name: str, partitions: int) -> Topic:
        topic_id = TopicId(next(self._ids).to_bytes(16, "big"))
        parts = tuple(
            Partition(PartitionIndex(index), (BrokerId(1),)) for index in range(partitions)
        )
        topic = Topic(name=name, topic_id=topic_id, partitions=parts)
        self.topics[name] = topic
        for index in range(partitions):
            self.logs[name, index] = MemoryLog(LogConfig(flush=FlushPolicy.NEVER))
            await self._open(name, index)
        return topic

    async def _open(self, name: str, index: int) -> None:
        replica = open_replica(
            self.logs[name, index],
            self.flusher,
            self.driver,
            partition=index,
            topic=name,
            topic_id=self.topics[name].topic_id,
            clock=self.clock,
            listener=cast(Any, self),
        )
        self.replicas[name, index] = replica
        await wait_ready(replica)

    def on_leadership(self, replica: Replica) -> None:
        self.host.on_leadership(replica)

    def on_voter_replaced(self, replica: Replica) -> None:
        pass

    def on_failed(self, replica: Replica, error: Exception) -> None:
        raise error

    async def ensure(self, name: str) -> Topic:
        return self.topics.get(name) or await self.create(name, 1)

    def _leader_of(self, topic: Topic, index: int) -> Leader:
        return Leader(BrokerId(1), self.replicas[topic.name, index].epoch)

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        found = [topic for topic in self.topics.values() if topic.topic_id == topic_id]
        return found[0] if found else None

    def get(self, topic: str, partition: int) -> Any:
        replica = self.replicas.get((topic, partition))
        if replica is None:
            return None
        policy = "compact" if topic in self.compacted else "delete"
        config = TopicConfig.resolve(
            {"max.message.bytes": str(self.message_bytes_max), "cleanup.policy": policy}, ()
        )
        return HostedPartition(replica, config, internal=False)

    def find(self, topic: str, partition: int) -> Any:
        hosted = self.get(topic, partition)
        if hosted is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return hosted

    def lead(self, topic: str, partition: int) -> Any:
        hosted = self.find(topic, partition)
        hosted.replica.check_leadership()
        return hosted

    def take_offline(self, hosted: Any, error: Exception) -> None:
        self.offline.append(str(error))
        hosted.replica.end(ErrorCode.KAFKA_STORAGE_ERROR)
        self.on_leadership(hosted.replica)

    # ---- what happens to it

    async def change_leader(self, *, new_host: bool = True) -> None:
        """The broker goes, and another one comes, with the same logs and the same ledger."""
        old = self.host
        if new_host:
            self.host = self.new_host()
        for name, index in list(self.replicas):
            self.replicas[name, index].end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.driver = make_driver(self.flusher, clock=self.clock)
            await self._open(name, index)
        if new_host:
            old.stop()

    def pass_time(self, milliseconds: int) -> None:
        self.clock.wall += milliseconds  # type: ignore[assignment]
        self.clock.steady += milliseconds / 1000

    # ---- messages

    async def send(
        self,
        *values: bytes,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers | None = None,
        codec: Codec = Codec.NONE,
        topic: str = "t",
    ) -> Offset:
        """As one batch; returns the offset after it when it is committed."""
        records = [
            Record(Offset(0), self.clock.wall_ms(), key, value, headers or []) for value in values
        ]
        return await self.append(build_batch(records, codec=codec), partition, topic)

    async def append(self, batch: bytes, partition: int = 0, topic: str = "t") -> Offset:
        replica = self.replicas[topic, partition]
        data = bytearray(batch)
        header = read_header(data)
        guard = replica.guard_for(header, "tx") if header.is_transactional else None
        end = replica.propose(data, [header], guard=guard).end_offset
        await until(lambda: replica.high_watermark >= end, "it is committed")
        return end

    async def send_in_transaction(self, *values: bytes, producer: int, sequence: int = 0) -> None:
        records = [Record(Offset(0), self.clock.wall_ms(), None, value, []) for value in values]
        await self.append(
            build_batch(
                records,
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(0),
                base_sequence=sequence,
                transactional=True,
            )
        )

    async def end_transaction(self, producer: int, *, is_commit: bool) -> None:
        done = asyncio.Event()
        self.replicas["t", 0].write_marker(
            ProducerId(producer), ProducerEpoch(0), EndMarker(is_commit, 1), lambda _: done.set()
        )
        await done.wait()

    def stored(self, topic: str) -> list[Record]:
        """All that a topic holds."""
        return [
            record
            for (name, _), log in sorted(self.logs.items())
            if name == topic
            for batch in log.batches(log.start_offset)
            for record in read_records(batch)
        ]

    # ---- workers

    async def poll(
        self,
        count: int = 10,
        *,
        member: str = "w",
        wait: float = 0.0,
        visibility_ms: int | None = None,
        partitions: Sequence[int] | None = None,
    ) -> PollResult:
        topic = self.topics["t"]
        indexes = range(len(topic.partitions)) if partitions is None else partitions
        return await self.host.poll(
            self.groups.get("g", self.group),
            [(topic, PartitionIndex(index)) for index in indexes],
            member,
            count,
            visibility_ms,
            wait,
        )

    async def take(self, count: int = 10, **named: Any) -> list[Delivery]:
        return (await self.poll(count, **named)).deliveries


def values_of(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.record.value or b"" for delivery in deliveries]


# ---- what tests say


async def settle(
    world: QueueWorld, deliveries: Sequence[Delivery], what: Settlement, member: str = "w"
) -> list[TokenResult]:
    tokens = [delivery.token for delivery in deliveries]
    return await world.host.settle(world.group, member, tokens, what)


async def ack(world: QueueWorld, deliveries: Sequence[Delivery], member: str = "w") -> None:
    verdicts = await settle(world, deliveries, Ack, member)
    assert verdicts == [DONE] * len(deliveries)


async def why_refused(world: QueueWorld, **named: object) -> ErrorReason:
    with pytest.raises(QueueRefusedError) as caught:
        await world.poll(**named)  # type: ignore[arg-type]
    return caught.value.reason


async def stats(world: QueueWorld) -> PartitionStats:
    return await world.host.stats(world.group, world.topics["t"], PartitionIndex(0))

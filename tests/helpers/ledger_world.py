"""Owns ledgers of two brokers for tests, which decide over commits, leadership and links."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import cast

from group_world import ME, OTHER, HostedHere, OffsetsReplica, turns
from memory_log import MemoryLog

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_service import java_hash
from moldau.data.partitions import HostedPartition, Partitions
from moldau.leases.commands import Ack, Command, LogMessage, LogSlice, Poll, TakeOver
from moldau.leases.config import QueueConfig
from moldau.leases.records import encode
from moldau.leases.results import CommandResult, GrantedLeases, Refusal
from moldau.leases.state import QueueId, QueueRecord
from moldau.leases.state_machine import QueueStateMachine
from moldau.leases.tokens import Token
from moldau.metadata.apply import apply
from moldau.metadata.commands import Command as MetadataCommand
from moldau.metadata.commands import CreateTopic, DeleteTopic, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, QUEUE_STATE_TOPIC, Image, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import NotSentError
from moldau.queues.ledgers import LedgerRefusedError, Ledgers
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.replicas import ManualClock

PARTITIONS = 2
MESSAGES = 1_000
"""So many are in the partition that a queue is about."""


class Links:
    """Hands questions of one broker to the others."""

    def __init__(self, world: "LedgerWorld", me: BrokerId) -> None:
        self._world = world
        self._me = me
        self._open = 0

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        world = self._world
        world.calls.append((peer, method))
        if world.is_cut:
            raise NotSentError(ErrorCode.NETWORK_EXCEPTION, "no link")
        self._open += 1
        world.open_max = max(world.open_max, self._open)
        try:
            await asyncio.sleep(0)
            reply = await self._ask(world.brokers[peer].ledgers, method, payload)
        finally:
            self._open -= 1
        if world.answers_to_lose:
            world.answers_to_lose -= 1
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "the link is lost")
        return reply

    async def _ask(self, theirs: Ledgers, method: int, payload: bytes) -> bytes:
        answerers: dict[int, Callable[[BrokerId, bytes], Awaitable[bytes]]] = {
            PeerMethod.LEDGER_READ: theirs.handle_stored,
            PeerMethod.LEDGER_WRITE: theirs.handle_write,
            PeerMethod.LEDGER_FORGET: theirs.handle_forget,
        }
        return await answerers[method](self._me, payload)


class OneBroker:
    """Stands in for the partitions and topics of a broker, and has its ledgers."""

    def __init__(self, world: "LedgerWorld", me: BrokerId) -> None:
        self._world = world
        self.me = me
        self.hosted: dict[int, HostedHere] = {}
        self.offline: list[int] = []
        self.ledgers = Ledgers(
            loop=asyncio.get_running_loop(),
            clock=ManualClock(wall_ms=1_700_000_000_000),
            partitions=cast(Partitions, self),
            topics=cast(TopicService, self),
            state_partitions=PARTITIONS,
            broker=me,
            leader_of=lambda topic, index: world.leaders.get(index, NO_LEADER),
            fresh_image=self._fresh_image,
            on_internal_error=world.defects.append,
            caller=Links(world, me),
        )

    @property
    def image(self) -> Image:
        return self._world.image

    async def _fresh_image(self) -> Image:
        await asyncio.sleep(0)
        return self.image

    async def ensure(self, name: str, *, internal: bool, partitions: int) -> Topic:
        if self.image.topic(name) is None:
            self._world.create(name, partitions=partitions, internal=internal)
            self._world.created()
        return self.image.topics[name]

    def get(self, topic: str, index: int) -> HostedHere | None:
        return self.hosted.get(index) if topic == QUEUE_STATE_TOPIC else None

    def take_offline(self, hosted: HostedHere, error: CorruptionError) -> None:
        index = hosted.replica.partition.partition
        del self.hosted[index]
        self.offline.append(index)


class LedgerWorld:
    """Two brokers. Queues are asked for at broker 1, which leads what it is told to."""

    def __init__(self, *, bare: bool = False) -> None:
        self.image: Image = EMPTY_IMAGE
        self._topic_numbers = count(1)
        self.leaders: dict[int, Leader] = {}
        self.defects: list[BaseException] = []
        self.calls: list[tuple[BrokerId, int]] = []
        self.is_cut = False
        self.answers_to_lose = 0
        self.open_max = 0
        self.created: Callable[[], None] = lambda: None
        self.replicas: dict[int, OffsetsReplica] = {}
        self.brokers = {me: OneBroker(self, me) for me in (ME, OTHER)}
        self.ledgers = self.brokers[ME].ledgers
        for broker in (ME, OTHER):
            self.submit(
                RegisterBroker(
                    id=broker, host="localhost", port=9090 + broker, incarnation=str(broker)
                )
            )
        self.create("t")
        if not bare:
            self.create(QUEUE_STATE_TOPIC, partitions=PARTITIONS, internal=True)

    # ---- metadata

    def submit(self, command: MetadataCommand) -> None:
        for record in decide(command, self.image):
            self.image = apply(self.image, record)

    def create(self, name: str, *, partitions: int = 1, internal: bool = False) -> None:
        self.submit(
            CreateTopic(
                name=name,
                topic_id=TopicId(next(self._topic_numbers).to_bytes(16, "big")),
                partitions=partitions,
                replication_factor=2,
                internal=internal,
            )
        )

    def delete(self, name: str) -> None:
        self.submit(DeleteTopic(name=name))
        for broker in self.brokers.values():
            broker.ledgers.topics_deleted()

    def queue(self, group: str = "g", *, index: int | None = None) -> QueueId:
        """Of topic t; with `index`, one that is stored in that partition."""
        topic_id = self.image.topics["t"].topic_id
        for number in count():
            name = group if index is None else f"{group}{number}"
            queue = QueueId(name, topic_id, PartitionIndex(0))
            if index is None or self.index_of(queue) == index:
                return queue
        raise AssertionError

    def index_of(self, queue: QueueId) -> int:
        name = f"{queue.group}/{queue.topic_id.hex()}/{queue.partition}"
        return java_hash(name) % PARTITIONS

    # ---- leadership

    def lead(self, *indices: int, broker: BrokerId = ME) -> None:
        """Elects the broker and tells its ledgers, as the partitions do. The log is one."""
        for index in indices or range(PARTITIONS):
            replica = self.replicas.get(index)
            if replica is None:
                replica = self.replicas[index] = OffsetsReplica(index)
                partition = PartitionIndex(index)
                replica.partition = TopicPartition(QUEUE_STATE_TOPIC, partition)
            elif not replica.is_ready:
                replica.win()
            here = self.brokers[broker]
            if index not in here.hosted or here.hosted[index].replica is not replica:
                here.hosted[index] = HostedHere(replica)
            self.leaders[index] = Leader(broker, replica.epoch)
            here.ledgers.lead(index, cast(HostedPartition, here.hosted[index]))

    def depose(self, index: int, broker: BrokerId = ME) -> None:
        """Nobody leads; what waits for a commit hears of it."""
        self.replicas[index].lose()
        self.leaders.pop(index)
        self.brokers[broker].ledgers.unlead(index)

    async def reload(self, index: int, broker: BrokerId = ME) -> None:
        self.depose(index, broker)
        self.lead(index, broker=broker)
        await turns(20)

    def compact(self, index: int) -> int:
        """Keep the last record of each key, and no tombstones; returns how many are left."""
        last = {record.key: record for record in self.records(index)}
        kept = sorted((r for r in last.values() if r.value is not None), key=lambda r: r.offset)
        self._store(index, kept)
        return len(kept)

    def drop(self, index: int, number: int) -> None:
        """Lose the record of that number."""
        records = self.records(index)
        self._store(index, records[:number] + records[number + 1 :])

    def _store(self, index: int, kept: list[Record]) -> None:
        replica = self.replicas[index]
        replica.log = MemoryLog()
        for record in kept:
            again = [Record(Offset(0), record.timestamp, record.key, record.value, [])]
            data = build_batch(
                again, base_offset=replica.log.end_offset, leader_epoch=replica.epoch
            )
            replica.log.append(data, [read_header(data)])
        replica.high_watermark = replica.log.end_offset

    def records(self, index: int) -> list[Record]:
        batches = self.replicas[index].log.batches(Offset(0))
        return [record for batch in batches for record in read_records(batch)]

    def batches(self, index: int) -> int:
        return len(list(self.replicas[index].log.batches(Offset(0))))


class QueueLeader:
    """Leads a queue in an epoch, as the leader of its partition does."""

    def __init__(self, ledgers: Ledgers, queue: QueueId, epoch: int) -> None:
        self._ledgers = ledgers
        self.queue = queue
        self.machine = QueueStateMachine(queue, QueueConfig(), Epoch(epoch))

    async def load(self) -> None:
        self.machine.load(await self._ledgers.stored(self.queue))

    async def take_over(self) -> None:
        await self.load()
        await self.do(
            TakeOver(
                epoch=self.machine.epoch,
                now=TimestampMs(0),
                start=Offset(0),
                end=Offset(MESSAGES),
            )
        )

    async def do(self, *commands: Command) -> list[CommandResult]:
        decisions = [self.machine.decide_and_apply(command) for command in commands]
        records = [each.record for each in decisions if each.record is not None]
        if records:
            await self._ledgers.write(self.queue, records)
        return [each.result for each in decisions]

    def poll_command(self, messages: int = 1) -> Poll:
        """For one message, with so many at hand."""
        first = self.machine.state.next
        offsets = range(first, first + messages)
        return Poll(
            member="ann",
            count_max=1,
            now=TimestampMs(1),
            visibility_ms=60_000,
            read=LogSlice(
                first=first,
                end=Offset(first + messages),
                messages=tuple(LogMessage(Offset(offset)) for offset in offsets),
            ),
        )

    async def poll(self) -> Token:
        (answer,) = await self.do(self.poll_command())
        assert isinstance(answer, GrantedLeases)
        return answer.leases[0].token

    async def work(self, messages: int) -> None:
        """Take and settle so many, each with two records."""
        for _ in range(messages):
            token = await self.poll()
            await self.do(Ack(member="ann", tokens=(token,), now=TimestampMs(2)))

    def next_record(self) -> QueueRecord:
        """That it would write for a poll; it is not carried out."""
        record = self.machine.decide(self.poll_command()).record
        if record is None:
            raise AssertionError("a poll that gives nothing")
        return record


async def written(work: Awaitable[None]) -> Refusal | ErrorCode:
    """What became of a write."""
    try:
        await work
    except LedgerRefusedError as error:
        return error.refusal
    except RefusedError as error:
        return error.code
    return Refusal.NONE


def encoded(record: QueueRecord) -> list[tuple[bytes, bytes]]:
    return [encode(record)]

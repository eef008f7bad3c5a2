"""Owns group coordinators for tests: the test decides over commits, leadership and the image."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from memory_log import MemoryLog

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_service import java_hash
from moldau.coordination.group_service import GroupService
from moldau.coordination.group_topics import ImageTopics
from moldau.data.partitions import HostedPartition, Partitions
from moldau.groups.config import GroupConfig
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.events import Heartbeat, Join, OffsetToCommit, Sync
from moldau.groups.results import HeartbeatResult, JoinResult, SyncResult
from moldau.metadata.apply import apply
from moldau.metadata.commands import Command, CreateTopic, DeleteTopic, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, EMPTY_IMAGE, Image, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.ids import (
    NO_TIMESTAMP,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.records.batch import BatchHeader, read_header, stamp
from moldau.records.control import EndMarker, build_end_marker
from moldau.replica.raft_replica import Proposal
from moldau.replica.verification_guards import VerificationGuard
from moldau.testing.replicas import ManualClock

ME, OTHER = BrokerId(1), BrokerId(2)


class OffsetsReplica:
    """Commits at once, unless `holds`; then `commit` does. Leads from the beginning."""

    def __init__(self, index: int = 0) -> None:
        self.partition = TopicPartition(CONSUMER_OFFSETS_TOPIC, PartitionIndex(index))
        self.log = MemoryLog()
        self.epoch = Epoch(1)
        self.is_ready = True
        self.high_watermark = Offset(0)
        self.holds = False
        self.is_deposed = False
        """Others have elected another leader, and this one does not know."""
        self.group = SimpleNamespace(leads_alone=False)
        self.refusal: MoldauError | None = None
        self.epochs_written: list[int] = []
        self._waiters: list[tuple[Offset, Callable[[ErrorCode], None]]] = []

    def propose(
        self,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        *,
        guard: VerificationGuard | None = None,
    ) -> Proposal:
        if self.refusal is not None:
            raise self.refusal
        if not self.is_ready:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        base = self.log.end_offset
        (header,) = headers
        stamp(data, 0, base, self.epoch)
        self.log.append(data, [header.replaced(base_offset=base, leader_epoch=self.epoch)])
        self.epochs_written.append(self.epoch)
        if not self.holds:
            self.commit()
        return Proposal(base, self.log.end_offset, NO_TIMESTAMP, cast(Any, self))

    def guard_for(self, header: BatchHeader, transactional_id: str) -> VerificationGuard | None:
        """Whether a transaction may be opened is the matter of real replicas."""
        return None

    def write_marker(
        self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        marker: EndMarker,
        callback: Callable[[ErrorCode], None],
        *,
        transaction_version: int = 0,
    ) -> None:
        data = bytearray(build_end_marker(producer, epoch, marker, TimestampMs(1)))
        self.when_committed(self.propose(data, [read_header(data)]).end_offset, callback)

    def when_committed(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None:
        if offset <= self.high_watermark:
            callback(ErrorCode.NONE)
        else:
            self._waiters.append((offset, callback))

    async def confirm_leadership(self) -> None:
        """A majority says what the test says."""
        await asyncio.sleep(0)
        if self.is_deposed:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def commit(self) -> None:
        """Everything that was appended."""
        self.high_watermark = self.log.end_offset
        self.settle(ErrorCode.NONE)

    def settle(self, code: ErrorCode) -> None:
        """Tell everybody who waits; what was appended stays in the log."""
        waiters, self._waiters = self._waiters, []
        for _, callback in waiters:
            callback(code)

    def lose(self) -> None:
        """Another broker leads. What was not committed may yet be, or be cut."""
        self.epoch = Epoch(self.epoch + 1)
        self.is_ready = False
        self.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def cut(self) -> None:
        """The new leader does not have what was not committed."""
        self.log.truncate(self.log.index_of(self.high_watermark))

    def win(self) -> None:
        """Elected again; what is in the log is committed with the no-op."""
        self.epoch = Epoch(self.epoch + 1)
        self.is_ready = True
        self.high_watermark = self.log.end_offset


class HostedHere:
    """What partitions hand out, as far as groups look at it."""

    def __init__(self, replica: OffsetsReplica) -> None:
        self.replica = replica


class World:
    """Broker 1 of two, with two partitions of the offsets topic unless it is `bare`."""

    def __init__(self, *, bare: bool = False) -> None:
        self.image: Image = EMPTY_IMAGE
        self._topic_numbers = count(1)
        self.hosted: dict[int, HostedHere] = {}
        self.offline: list[int] = []
        self.defects: list[BaseException] = []
        self.leaders: dict[int, Leader] = {}
        self.creation_refusal: RefusedError | None = None
        self.created: Callable[[], None] = lambda: None
        self.fresh_refusals = 0
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self._member_numbers = count(1)
        self.groups = self.make_groups()
        for broker in (ME, OTHER):
            self.submit(
                RegisterBroker(
                    id=broker, host="localhost", port=9090 + broker, incarnation=str(broker)
                )
            )
        self.create("t", partitions=4)
        if not bare:
            self.create(CONSUMER_OFFSETS_TOPIC, partitions=2, internal=True)

    def make_groups(self, **changes: Any) -> GroupService:
        settings: dict[str, Any] = {
            "broker": ME,
            "leader_of": lambda topic, index: self.leaders.get(index, NO_LEADER),
            "fresh_image": self._fresh_image,
            "on_internal_error": self.defects.append,
        }
        return GroupService(
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            new_coordinator=lambda: GroupCoordinator(
                GroupConfig(initial_rebalance_delay_ms=0),
                new_member_id=lambda client: f"{client}-{next(self._member_numbers)}",
                wall_ms=self.clock.wall_ms,
                topics=ImageTopics(lambda: self.image),
            ),
            partitions=cast(Partitions, self),
            topics=cast(TopicService, self),
            offsets_partitions=2,
            **{**settings, **changes},
        )

    # ---- in place of the partitions and topics

    def get(self, topic: str, index: int) -> HostedHere | None:
        return self.hosted.get(index) if topic == CONSUMER_OFFSETS_TOPIC else None

    def take_offline(self, hosted: HostedHere, error: CorruptionError) -> None:
        index = hosted.replica.partition.partition
        del self.hosted[index]
        self.offline.append(index)

    async def ensure(self, name: str, *, internal: bool, partitions: int) -> Topic:
        if self.creation_refusal is not None:
            raise self.creation_refusal
        if self.image.topic(name) is None:
            self.create(name, partitions=partitions, internal=internal)
            self.created()
        return self.image.topics[name]

    async def _fresh_image(self) -> Image:
        await asyncio.sleep(0)
        if self.fresh_refusals:
            self.fresh_refusals -= 1
            raise RefusedError(ErrorCode.NOT_CONTROLLER)
        return self.image

    def submit(self, command: Command) -> None:
        for record in decide(command, self.image):
            self.image = apply(self.image, record)

    def create(self, name: str, *, partitions: int = 1, internal: bool = False) -> None:
        topic_id = TopicId(next(self._topic_numbers).to_bytes(16, "big"))
        self.submit(
            CreateTopic(
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                replication_factor=2,
                internal=internal,
            )
        )

    def delete(self, name: str) -> None:
        self.submit(DeleteTopic(name=name))

    # ---- leadership

    def host(self, index: int = 0) -> OffsetsReplica:
        replica = OffsetsReplica(index)
        self.hosted[index] = HostedHere(replica)
        return replica

    def lead(self, index: int = 0) -> OffsetsReplica:
        """Tells the groups, as the partitions do; hosted and elected first if need be."""
        if index not in self.hosted:
            self.host(index)
        hosted = self.hosted[index]
        self.leaders[index] = Leader(ME, hosted.replica.epoch)
        self.groups.lead(index, cast(HostedPartition, hosted))
        return hosted.replica

    def depose(self, index: int = 0) -> None:
        replica = self.hosted[index].replica
        replica.lose()
        self.leaders[index] = Leader(OTHER, replica.epoch)
        self.groups.unlead(index)

    async def loaded(self) -> None:
        await turns(20)
        error, _ = self.groups.list_groups((), ())
        if error is not ErrorCode.NONE:
            raise AssertionError(f"not loaded: {error.name}")

    # ---- requests

    def join(self, group: str, member: str = "") -> Coroutine[Any, Any, JoinResult]:
        return self.groups.submit(
            group,
            lambda request_id: Join(
                request_id=request_id,
                group_id=group,
                member_id=member,
                client_id="c",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=(("range", b""),),
            ),
            JoinResult,
        )

    def sync(
        self, group: str, joined: JoinResult, assignment: bytes | None = None
    ) -> Coroutine[Any, Any, SyncResult]:
        member = joined.member_id
        return self.groups.submit(
            group,
            lambda request_id: Sync(
                request_id=request_id,
                group_id=group,
                member_id=member,
                generation=joined.generation,
                assignments=() if assignment is None else ((member, assignment),),
            ),
            SyncResult,
        )

    def heartbeat(self, group: str, joined: JoinResult) -> Coroutine[Any, Any, HeartbeatResult]:
        return self.groups.submit(
            group,
            lambda request_id: Heartbeat(
                request_id=request_id,
                group_id=group,
                member_id=joined.member_id,
                generation=joined.generation,
            ),
            HeartbeatResult,
        )

    async def commit(self, group: str, offset: int, topic: str = "t") -> ErrorCode:
        """What a client is told, also if the whole request is refused."""
        partition = TopicPartition(topic, PartitionIndex(0))
        try:
            (error,) = await self.groups.commit_offsets(
                group, [OffsetToCommit(partition=partition, offset=Offset(offset))]
            )
        except RefusedError as refused:
            return refused.code
        return error

    def committed(self, group: str) -> ErrorCode | dict[str, int]:
        found = self.groups.known_offsets(group)
        if found.error is not ErrorCode.NONE:
            return found.error
        return {partition.topic: one.offset for partition, one in found.offsets.items()}


async def turns(number: int = 3) -> None:
    """Let the loop turn that often."""
    for _ in range(number):
        await asyncio.sleep(0)


def group_of(index: int, *, partitions: int = 2, number: int = 0) -> str:
    """The name of a group that is stored in that partition."""
    names = (f"g{candidate}" for candidate in count())
    fitting = (name for name in names if java_hash(name) % partitions == index)
    return next(name for place, name in enumerate(fitting) if place == number)

"""Owns transaction coordinators for tests: the test decides over commits, leaders and links."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from group_world import ME, OTHER, HostedHere, OffsetsReplica
from group_world import World as GroupWorld

from moldau.control.topic_service import TopicService
from moldau.coordination.markers import MarkerSender, MarkerWriter
from moldau.coordination.transaction_service import TransactionService
from moldau.data.partitions import HostedPartition, Partitions
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, Image, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, ProducerId, TopicPartition
from moldau.net.peers.methods import PeerMethod
from moldau.records.control import EndMarker
from moldau.replica.producers import ProducerTable
from moldau.transactions.config import TransactionConfig
from moldau.transactions.coordinator import TransactionCoordinator

__all__ = ["ME", "OTHER", "DataReplica", "TransactionWorld", "tp"]

STATE_PARTITIONS = 2


def tp(topic: str, index: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


class DataReplica:
    """Notes the markers; commits them at once, unless `holds` or `refusal`."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.markers: list[tuple[int, int, bool, int, int]] = []
        self.holds = False
        self.held: list[Callable[[ErrorCode], None]] = []
        self.refusal: RefusedError | None = None
        self.producers = ProducerTable()

    def write_marker(
        self,
        producer: int,
        epoch: int,
        marker: EndMarker,
        callback: Callable[[ErrorCode], None],
        *,
        transaction_version: int = 0,
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.markers.append(
            (producer, epoch, marker.is_commit, marker.coordinator_epoch, transaction_version)
        )
        if self.holds:
            self.held.append(callback)
        else:
            callback(ErrorCode.NONE)

    def settle(self, code: ErrorCode = ErrorCode.NONE) -> None:
        held, self.held = self.held, []
        for callback in held:
            callback(code)


class GroupsOf(GroupWorld):
    """Groups that share topics and partitions with the transactions."""


class TransactionWorld:
    """Broker 1 of a cluster; topic "t" has four partitions, of which it leads those not moved."""

    def __init__(self, **config: Any) -> None:
        self.group_world = GroupsOf()
        self.clock = self.group_world.clock
        self.group_world.create(TRANSACTION_STATE_TOPIC, partitions=STATE_PARTITIONS, internal=True)
        self.data: dict[TopicPartition, DataReplica] = {}
        self.stored: dict[int, HostedHere] = {}
        self.leaders: dict[tuple[str, int], BrokerId] = {}
        self.peers: dict[BrokerId, TransactionWorld] = {}
        self.calls: list[tuple[BrokerId, int]] = []
        self.cut: set[BrokerId] = set()
        self.offline: list[int] = []
        self.defects: list[BaseException] = []
        self.producer_ids = count(1000)
        self.no_producer_ids = False
        self.fresh_refusal = False
        self.me = ME
        loop = asyncio.get_running_loop()
        self.writer = MarkerWriter(cast(Partitions, self), self.group_world.groups)
        self.sender = MarkerSender(
            loop=loop,
            me=ME,
            writer=self.writer,
            caller=self,
            image=lambda: self.image,
            fresh_image=self._fresh_image,
            leader_of=self.leader_of,
        )
        self.service = TransactionService(
            loop=loop,
            clock=self.clock,
            new_coordinator=lambda epoch, token: TransactionCoordinator(
                TransactionConfig(**{"complete_wait_ms": 0, **config}),
                epoch,
                self.clock.wall_ms,
                first_token=token,
            ),
            partitions=cast(Partitions, self),
            topics=cast(TopicService, self),
            groups=self.group_world.groups,
            state_partitions=STATE_PARTITIONS,
            broker=ME,
            leader_of=self.leader_of,
            on_internal_error=self.defects.append,
            take_producer_id=self._take_producer_id,
            markers=self.sender,
            caller=self,
        )

    # ---- in place of metadata, topics, partitions and peers

    @property
    def image(self) -> Image:
        return self.group_world.image

    async def _fresh_image(self) -> Image:
        await asyncio.sleep(0)
        if self.fresh_refusal:
            raise RefusedError(ErrorCode.NOT_CONTROLLER)
        return self.image

    async def ensure(self, name: str, *, internal: bool, partitions: int) -> Topic:
        return await self.group_world.ensure(name, internal=internal, partitions=partitions)

    async def _take_producer_id(self) -> ProducerId:
        await asyncio.sleep(0)
        if self.no_producer_ids:
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT)
        return ProducerId(next(self.producer_ids))

    def leader_of(self, topic: Topic, index: int) -> Leader:
        broker = self.leaders.get((topic.name, index), ME)
        return NO_LEADER if broker < 0 else Leader(broker, Epoch(1))

    def get(self, topic: str, index: int) -> Any:
        if topic == TRANSACTION_STATE_TOPIC:
            return self.stored.get(index)
        if topic == CONSUMER_OFFSETS_TOPIC:
            return self.group_world.get(topic, index)
        return self._hosted(tp(topic, index))

    def _hosted(self, partition: TopicPartition) -> Any:
        return HostedHere(cast(OffsetsReplica, self.replica(partition)))

    def lead(self, topic: str, index: int) -> Any:
        if self.leaders.get((topic, index), ME) != ME:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.get(topic, index)

    def replica(self, partition: TopicPartition) -> DataReplica:
        return self.data.setdefault(partition, DataReplica(partition))

    def take_offline(self, hosted: HostedHere, error: Exception) -> None:
        self.offline.append(hosted.replica.partition.partition)

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.calls.append((peer, method))
        await asyncio.sleep(0)
        if peer in self.cut or peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION)
        other = self.peers[peer]
        if method == PeerMethod.WRITE_MARKERS:
            return await other.writer.answer(ME, payload)
        if method == PeerMethod.ADMIT_TO_TRANSACTION:
            return await other.service.answer_admit(ME, payload)
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)

    # ---- leadership

    def host(self, index: int = 0) -> OffsetsReplica:
        replica = OffsetsReplica(index)
        replica.partition = tp(TRANSACTION_STATE_TOPIC, index)
        self.stored[index] = HostedHere(replica)
        return replica

    def begin(self, index: int = 0) -> OffsetsReplica:
        """This broker leads that partition of the state, and says so."""
        if index not in self.stored:
            self.host(index)
        self.service.lead(index, cast(HostedPartition, self.stored[index]))
        return self.stored[index].replica

    async def settle(self, turns: int = 30) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def ready(self) -> "TransactionWorld":
        for index in range(STATE_PARTITIONS):
            self.begin(index)
        await self.settle()
        return self

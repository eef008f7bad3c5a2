"""Owns brokers in one process whose groups are replicas, or metadata stores, over loopback."""

import asyncio
from typing import cast

from raft_brokers import Broker, Cluster, key

from moldau.control.metadata_replica import MetadataReplica
from moldau.control.metadata_store import MetadataStore, RemovedReplica
from moldau.metadata.image import Image
from moldau.model.errors import ErrorCode, MoldauError
from moldau.model.ids import (
    BrokerId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import Members
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.raft_group import RaftGroup
from moldau.replica.raft_replica import Proposal
from moldau.replica.replica import Replica
from moldau.server.clock import SystemClock
from moldau.testing.replicas import RecordingListener
from moldau.testing.waiting import until, wait_seconds_max


class ReplicaBroker(Broker):
    """Opens a Replica for every group."""

    replicas: dict[int, Replica]
    listeners: dict[int, RecordingListener]

    def start(self) -> None:
        self.replicas = {}
        self.listeners = {}
        super().start()

    def open(self, number: int, members: Members) -> RaftGroup:
        self.open_log(number, members)
        listener = self.listeners[number] = RecordingListener()
        replica = self.replicas[number] = Replica(
            partition=TopicPartition("t", PartitionIndex(number)),
            topic_id=key(number).topic_id,
            log=self.logs[number],
            members=members,
            driver=self.driver,
            flusher=self.flusher,
            clock=SystemClock(),
            listener=listener,
        )
        return replica.group

    @property
    def replica(self) -> Replica:
        return self.replicas[0]


class ReplicaCluster(Cluster):
    """Of replicas of one partition."""

    broker_type = ReplicaBroker

    @property
    def all(self) -> list[ReplicaBroker]:
        return [cast(ReplicaBroker, broker) for broker in self.brokers.values()]

    @property
    def running(self) -> list[ReplicaBroker]:
        return [broker for broker in self.all if broker.is_running]

    def at(self, number: int) -> ReplicaBroker:
        return cast(ReplicaBroker, self.brokers[number])

    async def ready(self, other_than: int = 0) -> ReplicaBroker:
        """The leader, once its replica says that it is ready."""
        leader = cast(ReplicaBroker, await self.wait_for_leader(other_than=other_than))
        await until(lambda: leader.replica.is_ready, "the replica is ready")
        return leader

    def cut_off(self, broker: Broker) -> None:
        """Let nobody hear of a broker that goes on, nor the other way round."""
        for other in self.brokers.values():
            if other is not broker:
                broker.driver.remove_peer(other.id)

    async def lead(self, number: int) -> ReplicaBroker:
        """Hand leadership over to that broker, as often as it takes."""
        wanted = self.at(number)
        while True:
            leader = await self.ready()
            if leader is wanted:
                return wanted
            if await leader.driver.transfer(leader.group(), wanted.id):
                await until(lambda: wanted.replica.is_ready, "the replica is ready")
            else:
                await asyncio.sleep(0.02)

    async def alike(self) -> None:
        """Until all have the same, and know that it is committed."""
        await self.agree(brokers=[int(broker.id) for broker in self.running])
        end = self.running[0].replica.log.end_offset
        await until(
            lambda: all(broker.replica.high_watermark == end for broker in self.running),
            "watermarks are equal",
        )


class MetadataBroker(Broker):
    """Opens a metadata store for its one group."""

    replica: MetadataReplica
    store: MetadataStore
    images: list[Image]
    gone: list[RemovedReplica]

    def open(self, number: int, members: Members) -> RaftGroup:
        self.open_log(number, members)
        self.images, self.gone = [], []
        self.replica = MetadataReplica(
            partition=TopicPartition("__cluster_metadata", PartitionIndex(number)),
            topic_id=key(number).topic_id,
            log=self.logs[number],
            members=members,
            driver=self.driver,
            flusher=self.flusher,
            on_leadership=self._on_leadership,
            on_failed=self._on_failed,
        )
        self.store = MetadataStore(
            self.replica,
            SystemClock(),
            self.transport,
            self._note,
            on_committed=self.driver.send_heartbeats_now,
        )
        self.transport.rpc.serve(PeerMethod.SUBMIT_COMMAND, self.store.on_command)
        self.transport.rpc.serve(
            PeerMethod.FRESH_METADATA_OFFSET, self.store.on_fresh_offset_request
        )
        self.store.start()
        return self.replica.group

    async def _note(self, image: Image, gone: list[RemovedReplica]) -> None:
        self.images.append(image)
        self.gone += gone

    def _on_leadership(self) -> None:
        self.store.leader_changed()

    def _on_failed(self, error: MoldauError) -> None:
        raise AssertionError(f"broker {self.id}: {error}")

    def stop(self) -> None:
        """As a crash: nothing is kept but the log."""
        if self.is_running and self.store.applying is not None:
            self.store.applying.cancel()
        super().stop()


class MetadataCluster(Cluster):
    """Of metadata stores."""

    broker_type = MetadataBroker

    def at(self, number: int) -> MetadataBroker:
        return cast(MetadataBroker, self.brokers[number])

    @property
    def running(self) -> list[MetadataBroker]:
        return [self.at(number) for number, broker in self.brokers.items() if broker.is_running]

    async def ready(self, other_than: int = 0) -> MetadataBroker:
        leader = cast(MetadataBroker, await self.wait_for_leader(other_than=other_than))
        await until(lambda: leader.store.is_leading, "the store is ready")
        return leader

    async def followers(self) -> list[MetadataBroker]:
        """Once they know their leader."""
        await self.ready()

        def known() -> Broker | None:
            leader = self.leader()
            is_known = leader is not None and all(
                broker.store.leader == leader.id for broker in self.running
            )
            return leader if is_known else None

        leader = await until(known, "the leader is known")
        return [broker for broker in self.running if broker is not leader]

    def cut_off(self, broker: Broker) -> None:
        """Let nobody hear of a broker that goes on, nor the other way round."""
        for other in self.brokers.values():
            if other is not broker:
                broker.driver.remove_peer(other.id)


def make_batch(
    *values: bytes, producer: int = -1, sequence: int = -1, epoch: int | None = None
) -> bytearray:
    """Of an idempotent producer, if one is named."""
    records = [Record(Offset(0), TimestampMs(5), None, value, []) for value in values]
    if epoch is None:
        epoch = 0 if producer >= 0 else -1
    return bytearray(
        build_batch(
            records,
            producer_id=ProducerId(producer),
            producer_epoch=ProducerEpoch(epoch),
            base_sequence=sequence,
        )
    )


def propose(replica: Replica, data: bytearray, *, append_time: bool = False) -> Proposal:
    """Any number of batches, one after the other."""
    headers = []
    position = 0
    while position < len(data):
        headers.append(read_header(data, position))
        position += headers[-1].size
    return replica.propose(data, headers, append_time=append_time)


def said_by(proposal: Proposal) -> tuple[Offset, Offset, TimestampMs]:
    """What its client is told, and waits for."""
    return proposal.base_offset, proposal.end_offset, proposal.append_time


async def write(replica: Replica, data: bytearray) -> tuple[Proposal, ErrorCode]:
    """Propose, and wait for the commit or for the refusal."""
    proposal = propose(replica, data)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    replica.when_committed(proposal.end_offset, done.set_result)
    async with asyncio.timeout(wait_seconds_max()):
        return proposal, await done


def values(replica: Replica) -> list[bytes | None]:
    """All that its log holds, committed or not."""
    found = []
    for stored in replica.log.batches(replica.log.start_offset):
        found += [record.value for record in read_records(stored)]
    return found


class Watching:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.progressed = 0
        self.gone = 0

    def on_progress(self, replica: Replica) -> None:
        self.progressed += 1

    def on_unavailable(self, replica: Replica) -> None:
        self.gone += 1


def members(voters: tuple[int, ...], learners: tuple[int, ...] = ()) -> Members:
    return Members(tuple(map(BrokerId, voters)), tuple(map(BrokerId, learners)))

"""Owns one broker's metadata store over the log that a test gives, and commands for it."""

import asyncio

from memory_log import MemoryLog

from moldau.control.metadata_replica import MetadataReplica
from moldau.control.metadata_store import MetadataStore, RemovedReplica
from moldau.log.interface import LogConfig, PartitionLog
from moldau.metadata.commands import CreateCluster, CreateTopic, RegisterBroker
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import MoldauError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from moldau.raft.membership import Members
from moldau.server.clock import SystemClock
from moldau.testing.replicas import (
    ME,
    make_driver,
    make_flusher,
    wait_ready,
)


class NoCaller:
    """There is nobody to be called."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        raise AssertionError(f"broker {peer} was asked")


class World:
    """One broker's store, over the log that the test gives."""

    store: MetadataStore
    replica: MetadataReplica

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.flusher = make_flusher()
        self.driver = make_driver(self.flusher)
        self.failures: list[MoldauError] = []
        self.images: list[Image] = []
        self.following: Image = EMPTY_IMAGE
        """What the broker is made to be as, or was last."""
        self.gone: list[RemovedReplica] = []
        self.gate = asyncio.Event()
        """Cleared: whoever makes the broker as the image says comes to no end."""
        self.gate.set()
        self.is_gate_for_one = False
        self.on_committed = 0

    @classmethod
    async def open(cls, log: PartitionLog) -> "World":
        world = cls(log)
        world.prepare()
        world.store.start()
        await wait_ready(world.replica)
        await world.store.settled(log.end_offset)
        return world

    def prepare(self, voters: Members | None = None) -> None:
        self.replica = MetadataReplica(
            partition=TopicPartition("__cluster_metadata", PartitionIndex(0)),
            topic_id=TopicId(bytes(16)),
            log=self.log,
            members=voters or Members((ME,)),
            driver=self.driver,
            flusher=self.flusher,
            on_leadership=lambda: None,
            on_failed=self.failures.append,
        )
        self.store = MetadataStore(
            self.replica, SystemClock(), NoCaller(), self._follow, self._count_committed
        )

    async def _follow(self, image: Image, gone: list[RemovedReplica]) -> None:
        self.following = image
        await self.gate.wait()
        if self.is_gate_for_one:
            self.gate.clear()
        self.images.append(image)
        self.gone += gone

    def _count_committed(self) -> None:
        self.on_committed += 1

    def crash(self) -> None:
        """Nothing is left but the log."""
        if self.store.applying is not None:
            self.store.applying.cancel()
        self.driver.stop()
        self.flusher.stop()

    async def close(self) -> None:
        await self.store.stop()
        self.replica.close()
        self.driver.stop()
        self.flusher.stop()


def topic(name: str, number: int, partitions: int = 1, factor: int = 1) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=TopicId(bytes([number] * 16)),
        partitions=partitions,
        replication_factor=factor,
    )


def registration(broker: int) -> RegisterBroker:
    return RegisterBroker(id=BrokerId(broker), host="h", port=broker, incarnation=f"i{broker}")


async def set_up(log: PartitionLog | None = None) -> World:
    world = await World.open(MemoryLog(LogConfig()) if log is None else log)
    await world.store.submit(CreateCluster(cluster_id="c"))
    await world.store.submit(registration(ME))
    return world

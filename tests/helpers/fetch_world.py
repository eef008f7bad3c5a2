"""Two partitions and a fetch service over them."""

import asyncio
from types import SimpleNamespace
from typing import cast

from memory_log import MemoryLog

from moldau.data.fetch import FetchService, ParkedFetch, PartitionFetch, PartitionFetchResult
from moldau.data.partitions import Partitions
from moldau.data.traffic import Traffic
from moldau.log.interface import LogConfig, PartitionLog
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.replica import Replica
from moldau.testing.replicas import lead_replica, make_driver, make_flusher
from moldau.testing.waiting import until


class World:
    """Two partitions in memory and a fetch service over them."""

    def __init__(self, reply_bytes_max: int) -> None:
        self.flusher = make_flusher(threads=0)
        self.driver = make_driver(self.flusher)
        self.replicas: dict[tuple[str, int], Replica] = {}
        loop = asyncio.get_running_loop()
        self.service = FetchService(loop, cast(Partitions, self), reply_bytes_max)
        self.answers: list[list[PartitionFetchResult]] = []
        self.traffic = Traffic()
        self.offline: list[CorruptionError] = []

    @classmethod
    async def make(
        cls, flush: FlushPolicy = FlushPolicy.NEVER, reply_bytes_max: int = 1 << 24
    ) -> "World":
        world = cls(reply_bytes_max)
        for index in range(2):
            await world.open(index, MemoryLog(LogConfig(flush=flush)))
        return world

    async def open(self, index: int, log: PartitionLog) -> None:
        self.replicas["t", index] = await lead_replica(
            log, self.flusher, partition=index, driver=self.driver
        )

    def get(self, topic: str, partition: int) -> SimpleNamespace | None:
        replica = self.replicas.get((topic, partition))
        return None if replica is None else SimpleNamespace(replica=replica, traffic=self.traffic)

    def take_offline(self, hosted: SimpleNamespace, error: CorruptionError) -> None:
        self.offline.append(error)
        self.replicas.pop(("t", hosted.replica.partition.partition), None)
        hosted.replica.end(ErrorCode.KAFKA_STORAGE_ERROR)

    def find(self, topic: str, partition: int) -> SimpleNamespace:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def propose(self, partition: int, size: int = 100) -> tuple[int, Offset]:
        """Returns its size, and where it ends."""
        data = bytearray(build_batch([Record(Offset(0), TimestampMs(0), None, bytes(size), [])]))
        proposal = self.replicas["t", partition].propose(data, [read_header(data)])
        return len(data), proposal.end_offset

    async def append(self, partition: int, size: int = 100) -> int:
        """Returns its size once it is committed."""
        stored, end = self.propose(partition, size)
        await until(lambda: self.replicas["t", partition].high_watermark >= end, "it is committed")
        return stored

    def begin(self, sequence: int, *, partition: int = 0) -> None:
        """Appends a batch of a transaction, which begins with the first."""
        data = bytearray(
            build_batch(
                [Record(Offset(0), TimestampMs(0), None, bytes(100), [])],
                producer_id=ProducerId(7),
                producer_epoch=ProducerEpoch(0),
                base_sequence=sequence,
                transactional=True,
            )
        )
        header = read_header(data)
        replica = self.replicas["t", partition]
        replica.propose(data, [header], guard=replica.guard_for(header, "tx"))

    def fetch(
        self,
        *wanted: tuple[int, int],
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        wait_ms_max: int = 60_000,
        partition_bytes_max: int = 1 << 20,
        epoch: int = -1,
        reads_committed: bool = False,
    ) -> ParkedFetch | None:
        return self.service.fetch(
            [
                PartitionFetch(
                    "t", partition, Offset(offset), partition_bytes_max, epoch, reads_committed
                )
                for partition, offset in wanted
            ],
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            wait_ms_max=wait_ms_max,
            on_ready=self.answers.append,
        )

    @property
    def sizes(self) -> list[list[int]]:
        return [[result.size for result in answer] for answer in self.answers]

    @property
    def watchers(self) -> int:
        return sum(len(replica.watchers) for replica in self.replicas.values())

"""Questions about offsets and epochs, answered from replicas on in-memory logs."""

import asyncio
from types import SimpleNamespace
from typing import cast

from moldau.log.interface import LogConfig
from moldau.log.memory import MemoryLog
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.group import RaftGroup
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.election import elect
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica
from moldau.service.offsets import LATEST, OffsetService
from moldau.service.partitions import Partitions

ME = BrokerId(1)


class Clock:
    def wall_ms(self) -> TimestampMs:
        return TimestampMs(0)

    def monotonic(self) -> float:
        return 0.0


class Votes(dict[str, tuple[Epoch, BrokerId]]):
    def record(self, votes: dict[str, tuple[Epoch, BrokerId]]) -> None:
        self.update(votes)


def open_replica(flusher: Flusher) -> Replica:
    replica = Replica(
        partition=TopicPartition("t", PartitionIndex(0)),
        topic_id=TopicId(bytes(16)),
        log=MemoryLog(LogConfig()),
        group=RaftGroup(broker=ME, voters=frozenset({ME}), epoch=Epoch(-1), commit=RaftIndex(0)),
        flusher=flusher,
        clock=Clock(),
    )
    elect([replica], Votes())
    return replica


async def test_the_current_epoch_ends_where_the_log_does_and_the_latest_offset_is_committed() -> (
    None
):
    loop = asyncio.get_running_loop()
    flusher = Flusher(loop=loop, clock=Clock(), threads=1, on_failure=lambda _: None)
    replica = open_replica(flusher)
    found = SimpleNamespace(find=lambda topic, partition: SimpleNamespace(replica=replica))
    service = OffsetService(cast(Partitions, found))
    data = bytearray(build_batch([Record(Offset(0), TimestampMs(0), None, b"v", [])]))
    replica.propose(data, [read_header(data)])
    assert replica.high_watermark == 0
    assert service.epoch_end("t", 0, 0) == (0, 1)
    assert service.list_offset("t", 0, LATEST).offset == 0
    assert service.epoch_end("t", 0, 1) == (-1, -1)
    flusher.stop()

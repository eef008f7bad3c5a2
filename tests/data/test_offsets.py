"""Questions about offsets and epochs, answered from replicas on in-memory logs."""

from types import SimpleNamespace
from typing import cast

from memory_log import MemoryLog

from moldau.data.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetService
from moldau.data.partitions import Partitions
from moldau.log.interface import LogConfig
from moldau.model.flush import FlushPolicy
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.testing.replicas import lead_replica, make_flusher
from moldau.testing.waiting import until


async def test_the_current_epoch_ends_where_the_log_does_and_the_latest_offset_is_committed() -> (
    None
):
    flusher = make_flusher(threads=0)
    replica = await lead_replica(MemoryLog(LogConfig()), flusher)
    found = SimpleNamespace(lead=lambda topic, partition: SimpleNamespace(replica=replica))
    service = OffsetService(cast(Partitions, found))
    data = bytearray(build_batch([Record(Offset(0), TimestampMs(0), None, b"v", [])]))
    replica.propose(data, [read_header(data)])
    assert replica.high_watermark == 0
    assert service.epoch_end("t", 0, 0) == (0, 1)
    assert service.list_offset("t", 0, LATEST).offset == 0
    assert service.epoch_end("t", 0, 1) == (-1, -1)
    flusher.stop()


async def test_one_who_reads_committed_finds_nothing_that_is_not_stable() -> None:
    flusher = make_flusher(threads=0)
    replica = await lead_replica(MemoryLog(LogConfig(flush=FlushPolicy.NEVER)), flusher)
    found = SimpleNamespace(lead=lambda topic, partition: SimpleNamespace(replica=replica))
    service = OffsetService(cast(Partitions, found))
    for time in range(3):
        data = bytearray(
            build_batch(
                [Record(Offset(0), TimestampMs(time), None, b"v", [])],
                producer_id=ProducerId(7 if time else -1),
                producer_epoch=ProducerEpoch(0),
                base_sequence=time - 1,
                transactional=time > 0,
            )
        )
        header = read_header(data)
        guard = replica.guard_for(header, "tx") if time else None
        replica.propose(data, [header], guard=guard)
    await until(lambda: replica.high_watermark >= 3, "all is committed")

    def offset(time: int, *, reads_committed: bool) -> int:
        return service.list_offset("t", 0, time, reads_committed=reads_committed).offset

    for time, everything, stable in (
        (LATEST, 3, 1),
        (MAX_TIMESTAMP, 2, 0),
        (0, 0, 0),
        (1, 1, -1),
        (EARLIEST, 0, 0),
    ):
        assert offset(time, reads_committed=False) == everything
        assert offset(time, reads_committed=True) == stable
    (producer,) = service.producers("t", 0)
    assert producer == (7, 0, 1, 2, -1, 1)
    flusher.stop()

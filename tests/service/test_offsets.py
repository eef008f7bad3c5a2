"""Questions about offsets and epochs, answered from replicas on in-memory logs."""

from types import SimpleNamespace
from typing import cast

from moldau.log.interface import LogConfig
from moldau.log.memory import MemoryLog
from moldau.model.ids import (
    Offset,
    TimestampMs,
)
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.service.offsets import LATEST, OffsetService
from moldau.service.partitions import Partitions
from moldau.testing.replicas import lead_replica, make_flusher


async def test_the_current_epoch_ends_where_the_log_does_and_the_latest_offset_is_committed() -> (
    None
):
    flusher = make_flusher()
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

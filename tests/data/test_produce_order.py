"""Batches of an idempotent producer keep their order over reasons to refuse that pass."""

from typing import Any, cast

import pytest
from memory_log import MemoryLog
from replica_brokers import make_batch

from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition
from moldau.data.produce import ACKS_ALL, ProduceService
from moldau.log.interface import LogConfig
from moldau.metadata.topic_configs import TopicConfig
from moldau.model.errors import ErrorCode, RefusedError
from moldau.testing.replicas import ManualClock, lead_replica, make_flusher


class OnePartition:
    def __init__(self, hosted: HostedPartition) -> None:
        self._hosted = hosted

    def get(self, topic: str, partition: int) -> HostedPartition:
        return self._hosted


def code_of(service: ProduceService, sequence: int) -> ErrorCode:
    data = memoryview(make_batch(b"v", producer=1, sequence=sequence))
    try:
        service.append("t", 0, data, ACKS_ALL)
    except RefusedError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize("first", [0, 5], ids=["a new producer", "a known producer"])
async def test_what_was_sent_after_a_refused_batch_does_not_overtake_it(first: int) -> None:
    flusher = make_flusher(threads=0)
    replica = await lead_replica(MemoryLog(LogConfig()), flusher)
    hosted = HostedPartition(replica, TopicConfig.resolve({}, ()), False)
    disk = DiskGuard()
    service = ProduceService(cast("Any", OnePartition(hosted)), disk, ManualClock())
    for sequence in range(first):
        assert code_of(service, sequence) is ErrorCode.NONE
    disk.is_full = True
    assert code_of(service, first) is ErrorCode.KAFKA_STORAGE_ERROR
    # There is room again when the next ones are read, which were on their way.
    disk.is_full = False
    for sequence in range(first + 1, first + 4):
        assert code_of(service, sequence) is ErrorCode.KAFKA_STORAGE_ERROR
    for sequence in range(first, first + 4):
        assert code_of(service, sequence) is ErrorCode.NONE
    assert replica.log.end_offset == first + 4
    flusher.stop()

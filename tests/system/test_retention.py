"""Old records go by size, by time and on request, and consumers are told where the log begins."""

import time
from pathlib import Path

import pytest

from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from raw_client import TIMESTAMP_MS, RawClient

pytestmark = pytest.mark.system
VALUE = bytes(1000)
HUNDRED_YEARS_MS = 100 * 365 * 24 * 3600 * 1000


def client(broker: Broker) -> RawClient:
    return RawClient(broker.host, broker.port, client_id="retention")


def test_the_oldest_segments_go_by_size_and_by_time_and_the_rest_stays(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data", settings={"LOG__RETENTION_CHECK_MS": "200"})
    with broker, client(broker) as raw:
        # Closed by size alone: the records are old, so that by age each look closes a segment, and
        # where that is depends on the time of the look.
        raw.create_well(
            "by-size",
            segment_bytes="20000",
            segment_ms=str(HUNDRED_YEARS_MS),
            retention_bytes="50000",
            retention_ms="-1",
        )
        raw.create_well("by-time", segment_bytes="20000", retention_ms="3600000")
        raw.create_well("kept", segment_bytes="20000", retention_ms="-1")
        for topic in ("by-size", "by-time", "kept"):
            for _ in range(100):
                raw.produce_well(topic, VALUE)
        assert (time.time() - 3600) * 1000 > TIMESTAMP_MS
        # Whole segments go, so up to one more than the limit stays.
        wait_until(lambda: raw.list_offset("by-size", -2).offset >= 25, "old records go by size")
        wait_until(lambda: raw.list_offset("by-time", -2).offset > 0, "old records go by time")
        first = raw.list_offset("by-size", -2).offset
        left = [record.offset for record in raw.read_all("by-size")]
        assert left == list(range(first, 100))
        assert 50 <= len(left) <= 75
        assert raw.list_offset("kept", -2).offset == 0
        assert raw.fetch("by-size", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert raw.produce_well("by-time", VALUE) == 100
        start = raw.list_offset("by-time", -2).offset
    with broker, client(broker) as raw:
        assert raw.list_offset("by-size", -2).offset >= first
        assert raw.list_offset("by-time", -2).offset >= start
        assert raw.list_offset("by-time", -1).offset == 101


@pytest.mark.safety
def test_deleted_records_stay_deleted_after_kill_9(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    broker.start()
    try:
        with client(broker) as raw:
            raw.create_well("t")
            for number in range(10):
                raw.produce_well("t", b"%d" % number)
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name="t",
                        partitions=[DeleteRecordsPartition(partition_index=0, offset=6)],
                    )
                ],
                timeout_ms=60_000,
            )
            answer = raw.request(request, DeleteRecordsResponse).topics[0].partitions[0]
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 6)
    finally:
        broker.kill()
    with broker, client(broker) as raw:
        assert raw.list_offset("t", -2).offset == 6
        assert raw.fetch("t", 5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [record.value for record in raw.read_all("t")] == [b"6", b"7", b"8", b"9"]

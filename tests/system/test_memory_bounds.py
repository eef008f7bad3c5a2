"""What clients send, and do not read, costs the broker no more memory than its bounds allow."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chunks import joined

from moldau.client.errors import ClientError
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raw_client import RawClient, batch, produce_request

pytestmark = pytest.mark.system

MIB = 1 << 20


@pytest.fixture
def bounded() -> Iterator[Broker]:
    settings = {
        "KAFKA__INFLIGHT_BYTES_PER_CONNECTION_MAX": str(4 * MIB),
        "KAFKA__INFLIGHT_BYTES_MAX": str(16 * MIB),
    }
    with Broker(settings=settings) as broker:
        with RawClient(broker.host, broker.port) as raw:
            raw.create_well("topic", partitions=4)
            # The first requests load code and buffers, which is not what is measured.
            for partition in range(4):
                raw.produce("topic", batch([b"x" * 900_000]), partition=partition)
            raw.fetch("topic", 0, partitions=[0, 1, 2, 3])
        yield broker


def peak_bytes(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_pipelined_large_requests_are_read_only_as_fast_as_they_are_answered(
    bounded: Broker,
) -> None:
    data = batch([b"x" * 900_000])
    connections, requests = 8, 40
    before = peak_bytes(bounded)
    failures: list[ClientError] = []

    def pipeline(partition: int) -> None:
        try:
            with RawClient(bounded.host, bounded.port) as raw:
                for _ in range(requests):
                    raw.post(produce_request("topic", data, partition=partition), 9)
                for _ in range(requests):
                    answer: Any = raw.receive()
                    assert answer.topics[0].partitions[0].error_code == 0
        except ClientError as error:
            failures.append(error)

    threads = [
        threading.Thread(target=pipeline, args=(number % 4,)) for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(wait_seconds_max())
        assert not thread.is_alive()
    assert failures == []
    sent = connections * requests * len(data)
    assert peak_bytes(bounded) - before < sent / 4
    with RawClient(bounded.host, bounded.port) as raw:
        ends = [raw.list_offset("topic", -1, partition=number).offset for number in range(4)]
    assert ends == [1 + requests * connections // 4] * 4


def test_fetches_whose_replies_are_not_read_hold_no_data(bounded: Broker) -> None:
    with RawClient(bounded.host, bounded.port) as raw:
        for number in range(20):
            raw.produce("topic", batch([b"x" * 900_000]), partition=number % 4)
    before = peak_bytes(bounded)
    deaf = [socket.create_connection((bounded.host, bounded.port)) for _ in range(20)]
    for opened in deaf:
        # 20 replies of some 20 MB each, to each of 20 clients: 8 GB if they were made.
        for _ in range(20):
            opened.sendall(fetch_frame())
    with RawClient(bounded.host, bounded.port) as raw:
        assert len(raw.read_all("topic")) == 6
    assert peak_bytes(bounded) - before < 64 * MIB
    for opened in deaf:
        opened.close()


def fetch_frame() -> bytes:
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=64 * MIB)
        for number in range(4)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=64 * MIB,
        topics=[FetchTopic(topic="topic", partitions=wanted)],
    )
    return joined(frame_request(request, 12, 1, "deaf"))


def test_idle_connections_cost_little(bounded: Broker) -> None:
    before = peak_bytes(bounded)
    count = 500
    idle = [socket.create_connection((bounded.host, bounded.port)) for _ in range(count)]
    with RawClient(bounded.host, bounded.port) as raw:
        raw.produce_well("topic", b"x")
    assert (peak_bytes(bounded) - before) / count < 20_000
    for opened in idle:
        opened.close()

"""The listener: it loads when somebody comes, who is served through it, as are all who follow."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from grpc_world import Door, opened
from moldau.edge.grpc.listener import GrpcLimits, GrpcListener
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.queues.types import DONE
from moldau.testing.broker import Broker
from moldau.testing.waiting import until, wait_seconds_max, wait_until

pytestmark = pytest.mark.system

ACK = pb.AckRequest(group="g", consumer_id="c", tokens=[b"t"])
ALONE = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def door() -> Iterator[Door]:
    with opened() as found:
        found.queues.answers["ack"] = [DONE]
        yield found


def test_nothing_is_imported_before_somebody_comes() -> None:
    code = "import moldau.server.run, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=wait_seconds_max()).returncode == 0


def test_a_broker_loads_grpc_for_the_first_who_comes(moldau_broker: Broker) -> None:
    maps = f"/proc/{moldau_broker.pid}/maps"
    with open(maps) as file:
        assert "cygrpc" not in file.read()
    with grpc.insecure_channel(moldau_broker.grpc_address) as channel:
        QueueStub(channel).Topology(pb.TopologyRequest(), timeout=wait_seconds_max())
    with open(maps) as file:
        assert "cygrpc" in file.read()


def test_all_who_come_while_it_loads_are_served(door: Door) -> None:
    assert not door.listener.is_loaded

    def ask(_: int) -> int:
        with grpc.insecure_channel(door.address, options=ALONE) as channel:
            stub = QueueStub(channel)
            return sum(stub.Ack(ACK, timeout=wait_seconds_max()).done for _ in range(20))

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(20))) == [20] * 20
    assert door.listener.is_loaded


def test_who_came_early_is_soon_no_burden_and_does_not_notice() -> None:
    with opened(GrpcLimits(early_ms=3_000)) as door:
        door.queues.answers["ack"] = [DONE]
        seen = 0

        def has_come_and_gone() -> bool:
            nonlocal seen
            assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1
            seen = max(seen, door.listener.early_count)
            return bool(seen) and not door.listener.early_count

        wait_until(has_come_and_gone, "nobody counts as early any more")
        assert (seen, door.listener.early_count) == (1, 0)
        assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1


def test_large_answers_and_requests_come_through_to_the_first(door: Door) -> None:
    tokens = [b"%1000d" % number for number in range(3_000)]
    door.queues.answers["ack"] = [DONE] * 3_000
    for _ in range(5):
        answer = door.stub.Ack(
            pb.AckRequest(group="g", consumer_id="c", tokens=tokens), timeout=wait_seconds_max()
        )
        assert answer.done == 3_000
    assert door.queues.asked[-1][1][2] == tokens


def test_the_end_of_the_first_connection_is_heard(door: Door) -> None:
    door.queues.hold = threading.Event()
    with grpc.insecure_channel(door.address, options=ALONE) as channel:
        call = QueueStub(channel).Ack.future(ACK, timeout=wait_seconds_max())
        wait_until(lambda: door.queues.asked, "the call is under way")
    assert call.done()
    wait_until(lambda: door.queues.cancelled, "the call has ended")


def test_who_says_nothing_or_nonsense_disturbs_nobody(door: Door) -> None:
    host, _, port = door.address.rpartition(":")
    address = (host, int(port))
    with socket.create_connection(address) as silent, socket.create_connection(address) as noisy:
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1
        silent.sendall(b"x")
    assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1


def test_a_stop_before_anybody_came_loads_nothing(door: Door) -> None:
    door.run(door.listener.stop(10))
    assert not door.listener.is_loaded
    host, _, port = door.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_stop_while_it_loads_waits_for_nobody(door: Door) -> None:
    begun, free = threading.Event(), threading.Event()

    async def stop_while_loading() -> None:
        loop = asyncio.get_running_loop()

        def load() -> Any:
            begun.set()
            free.wait(wait_seconds_max())

        listener = GrpcListener(loop=loop, load=load)
        address = listener.bind("127.0.0.1", 0)
        listener.start()
        _, writer = await asyncio.open_connection(*address)
        await until(begun.is_set, "it loads")
        await listener.stop(10)
        assert not listener.is_loaded
        writer.close()

    try:
        door.run(stop_while_loading())
    finally:
        free.set()


def test_what_cannot_be_loaded_is_logged_and_the_rest_goes_on(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_to_load() -> None:
        def load() -> Any:
            raise ImportError("no such library")

        listener = GrpcListener(loop=asyncio.get_running_loop(), load=load)
        address = listener.bind("127.0.0.1", 0)
        listener.start()
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await listener.stop(1)

    door.run(fail_to_load())
    (record,) = caplog.records
    assert record.getMessage() == "gRPC is not served"

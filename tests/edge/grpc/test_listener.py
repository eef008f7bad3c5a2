"""The listener: its port is reserved first, open when it starts, closed when it stops."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from grpc_world import Door, opened
from moldau.edge.grpc.listener import GrpcListener
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.queues.types import DONE
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

ACK = pb.AckRequest(group="g", consumer_id="c", tokens=[b"t"])
ALONE = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def door() -> Iterator[Door]:
    with opened() as found:
        found.queues.answers["ack"] = [DONE]
        yield found


def test_a_broker_without_grpc_does_not_import_it() -> None:
    code = "import moldau.server.run, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=wait_seconds_max()).returncode == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_the_port_is_reserved_then_open_then_closed(door: Door, host: str) -> None:
    async def serve() -> None:
        listener = GrpcListener(door.entrance, loop=door.loop)
        _, port = listener.bind(host, 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        listener.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=ALONE) as channel:
            assert (await QueueStub(channel).Ack(ACK, timeout=wait_seconds_max())).done == 1
        second: Any = GrpcListener(door.entrance, loop=door.loop)
        with pytest.raises(OSError, match="in use"):
            second.bind(host, port)
        await listener.stop(10)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    door.run(serve())


def test_a_port_that_was_taken_meanwhile_is_an_error(door: Door) -> None:
    async def take() -> None:
        listener = GrpcListener(door.entrance, loop=door.loop)
        address = listener.bind("127.0.0.1", 0)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(address)
            other.listen()
            with pytest.raises(OSError):
                listener.start()
        await listener.stop(0)

    door.run(take())


def test_a_stop_before_the_start_frees_the_port(door: Door) -> None:
    async def stop() -> None:
        listener = GrpcListener(door.entrance, loop=door.loop)
        address = listener.bind("127.0.0.1", 0)
        await listener.stop(10)
        with socket.socket() as other:
            other.bind(address)

    door.run(stop())


def test_large_requests_and_responses_come_through(door: Door) -> None:
    tokens = [b"%1000d" % number for number in range(3_000)]
    door.queues.answers["ack"] = [DONE] * 3_000
    answer = door.stub.Ack(
        pb.AckRequest(group="g", consumer_id="c", tokens=tokens), timeout=wait_seconds_max()
    )
    assert answer.done == 3_000
    assert door.queues.asked[-1][1][2] == tokens


def test_a_call_is_cancelled_when_its_client_disconnects(door: Door) -> None:
    door.queues.hold = threading.Event()
    with grpc.insecure_channel(door.address, options=ALONE) as channel:
        call = QueueStub(channel).Ack.future(ACK, timeout=wait_seconds_max())
        wait_until(lambda: door.queues.asked, "the call is under way")
    assert call.done()
    wait_until(lambda: door.queues.cancelled, "the call has ended")


def test_clients_that_send_nothing_or_nonsense_disturb_no_others(door: Door) -> None:
    host, _, port = door.address.rpartition(":")
    address = (host, int(port))
    with socket.create_connection(address) as silent, socket.create_connection(address) as noisy:
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1
        silent.sendall(b"x")
    assert door.stub.Ack(ACK, timeout=wait_seconds_max()).done == 1

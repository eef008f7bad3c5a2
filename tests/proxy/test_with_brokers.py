"""`moldau proxy` as a process, in front of real brokers of which one is killed."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from proxy_process import proxy_process
from tls_world import TlsWorld

from moldau import QueueClient, QueueMessage
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

MESSAGES = 300


@pytest.mark.safety
def test_no_message_is_lost_and_none_comes_again_when_a_leader_is_killed(
    moldau_cluster: Cluster,
) -> None:
    addresses = [broker.grpc_address for broker in moldau_cluster.brokers]
    with proxy_process(addresses) as proxy, QueueClient(addresses) as direct:
        direct.create_topic("jobs", partitions=3, replication_factor=3)
        direct.send_many("jobs", [f"{number}" for number in range(MESSAGES)])
        done: set[str] = set()
        seen_again: list[str] = []
        lock = threading.Lock()
        stop = threading.Event()

        def handle(message: QueueMessage) -> None:
            with lock:
                if message.text in done:
                    seen_again.append(message.text)
            time.sleep(0.01)
            # What a killed leader had given out and nobody had acked is given out anew. Whoever
            # acks that second wins as well: it is done.
            message.ack()
            with lock:
                done.add(message.text)

        def work(address: object) -> None:
            with QueueClient(address) as client:  # type: ignore[arg-type]
                client.work("g", "jobs", handle, concurrency=4, stop=stop, visibility=5)

        threads = [threading.Thread(target=work, args=(to,)) for to in (proxy.address, addresses)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(done) > MESSAGES // 10, "messages are done")
        moldau_cluster.leader("jobs", 0).kill()
        wait_until(lambda: len(done) == MESSAGES, "all messages are done")
        stop.set()
        for thread in threads:
            thread.join(wait_seconds_max())
        assert seen_again == [], "acked once is never seen again"
        code, errors = proxy.stop()
        assert code == 0
        assert "Traceback" not in errors


def test_it_starts_without_brokers_and_stops_on_request() -> None:
    (port,) = free_ports(1)
    with proxy_process([f"127.0.0.1:{port}"], "--timeout", "300ms") as proxy:
        why = f"(127.0.0.1:{port}: connection refused)"
        assert f"no broker reachable yet {why}, retrying" in proxy.said
        with grpc.insecure_channel(proxy.address) as channel:
            stub = queue_pb2_grpc.QueueStub(channel)
            with pytest.raises(grpc.RpcError) as raised:
                stub.Topology(pb.TopologyRequest(), timeout=wait_seconds_max())
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"127.0.0.1:{port}: connection refused" in (raised.value.details() or "")
        assert proxy.stop() == (0, "")


def _call(channel: Any, method: Any, path: str, data: bytes) -> None:
    if method.client_streaming:
        list(channel.stream_stream(path)(iter([data]), timeout=wait_seconds_max()))
    elif method.server_streaming:
        list(channel.unary_stream(path)(data, timeout=wait_seconds_max()))
    else:
        channel.unary_unary(path)(data, timeout=wait_seconds_max())


def test_bytes_that_are_no_message_are_refused_by_every_call_and_it_goes_on(
    moldau_session_broker: Broker,
) -> None:
    service = pb.DESCRIPTOR.services_by_name["Queue"]
    with (
        proxy_process([moldau_session_broker.grpc_address]) as proxy,
        grpc.insecure_channel(proxy.address) as channel,
    ):
        for method in service.methods:
            path = f"/moldau.v1.Queue/{method.name}"
            for garbage in (b"\xff" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xc3\x28"):
                with pytest.raises(grpc.RpcError) as raised:
                    _call(channel, method, path, garbage)
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
                assert raised.value.details(), method.name
        stub = queue_pb2_grpc.QueueStub(channel)
        assert len(stub.Topology(pb.TopologyRequest(), timeout=wait_seconds_max()).brokers) == 1
        assert proxy.stop() == (0, "")


@pytest.mark.parametrize("listen", ["nowhere", ":99999", "localhost"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "proxy", "--listen", listen],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )
    assert done.returncode == 2
    assert "is not a valid address" in done.stderr


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "broker.example:0"])
def test_an_address_for_other_machines_is_refused_unless_it_is_wanted(listen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "proxy", "--listen", listen],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )
    assert done.returncode == 2
    assert "add --insecure" in done.stderr


def test_the_certificate_of_the_proxy_is_not_lent_to_its_clients(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    settings = {
        "GRPC__SECURITY": "mtls",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        "SECURITY__SUPER_USERS": "User:CN=boss",
    }
    certificate, key = world.client_files("boss")
    files = ("--cafile", str(world.ca_file), "--certfile", certificate, "--keyfile", key)

    def create(address: str, topic: str, authorization: str = "") -> grpc.StatusCode:
        metadata = [("authorization", authorization)] if authorization else []
        with grpc.insecure_channel(address) as channel:
            stub = queue_pb2_grpc.QueueStub(channel)
            request = pb.CreateTopicRequest(topic=topic)
            try:
                stub.CreateTopic(request, metadata=metadata, timeout=wait_seconds_max())
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    with Broker(settings=settings) as broker:
        brokers = [f"localhost:{broker.grpc_port}"]
        token = (broker.data_dir / "admin.token").read_text().strip()
        with proxy_process(brokers, *files) as proxy:
            assert create(proxy.address, "of-nobody") is grpc.StatusCode.UNAUTHENTICATED
            wrong = create(proxy.address, "of-nobody", "Bearer x")
            assert wrong is grpc.StatusCode.UNAUTHENTICATED
            assert create(proxy.address, "of-admin", f"Bearer {token}") is grpc.StatusCode.OK
        with proxy_process(brokers, *files, "--lend-certificate") as proxy:
            assert create(proxy.address, "of-boss") is grpc.StatusCode.OK


def test_help_shows_how() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "proxy", "--help"],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=True,
    )
    assert "moldau proxy --insecure --listen 0.0.0.0:9000 --brokers b1:8000,b2:8000" in done.stdout
    assert "MOLDAU_GRPC" in done.stdout

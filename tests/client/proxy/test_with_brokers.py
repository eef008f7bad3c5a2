"""`moldau proxy` as a process, in front of real brokers of which one is killed."""

import subprocess
import sys
import threading
import time
from collections import Counter

import grpc
import pytest
from proxy_process import proxy_process

from moldau import QueueClient, QueueMessage
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc
from moldau.testing.cluster import Cluster
from moldau.testing.ports import free_ports

pytestmark = pytest.mark.system

MESSAGES = 300


@pytest.mark.timeout(240)
def test_no_message_is_lost_and_none_comes_again_when_a_leader_is_killed(
    moldau_cluster: Cluster,
) -> None:
    addresses = [broker.grpc_address for broker in moldau_cluster.brokers]
    with proxy_process(addresses) as proxy, QueueClient(addresses) as direct:
        direct.create_topic("jobs", partitions=3, replication_factor=3)
        direct.send_many("jobs", [f"{number}" for number in range(MESSAGES)])
        done: Counter[str] = Counter()
        lock = threading.Lock()
        stop = threading.Event()

        def handle(message: QueueMessage) -> None:
            time.sleep(0.01)
            message.ack()
            with lock:
                done[message.text] += 1

        def work(address: object) -> None:
            with QueueClient(address) as client:  # type: ignore[arg-type]
                client.work("g", "jobs", handle, concurrency=4, stop=stop, visibility=5)

        threads = [threading.Thread(target=work, args=(to,)) for to in (proxy.address, addresses)]
        for thread in threads:
            thread.start()
        _wait(lambda: len(done) > MESSAGES // 10)
        moldau_cluster.leader("jobs", 0).kill()
        _wait(lambda: len(done) == MESSAGES)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert max(done.values()) == 1, "acked once is never seen again"
        code, errors = proxy.stop()
        assert code == 0
        assert "Traceback" not in errors


def _wait(holds: object) -> None:
    deadline = time.monotonic() + 90
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_starts_without_brokers_and_stops_when_it_is_told() -> None:
    (port,) = free_ports(1)
    with proxy_process([f"127.0.0.1:{port}"], "--timeout", "300ms") as proxy:
        assert "nobody yet" in proxy.said
        with grpc.insecure_channel(proxy.address) as channel:
            stub = queue_pb2_grpc.QueueStub(channel)
            with pytest.raises(grpc.RpcError) as raised:
                stub.Topology(pb.TopologyRequest(), timeout=20)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"127.0.0.1:{port}: connection refused" in raised.value.details()
        assert proxy.stop() == (0, "")


@pytest.mark.parametrize("listen", ["nowhere", ":99999", "localhost"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "proxy", "--listen", listen],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "is no address" in done.stderr


def test_help_shows_how() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "proxy", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "moldau proxy --listen :9000 --brokers b1:8000,b2:8000" in done.stdout
    assert "MOLDAU_GRPC" in done.stdout

"""gRPC over TLS: certificates that change, clients with certificates, and those without."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tls_world import TlsWorld

from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def settings(world: TlsWorld, security: str) -> dict[str, str]:
    return {
        "GRPC__SECURITY": security,
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        "SECURITY__SUPER_USERS": "User:CN=boss",
    }


@contextmanager
def stub(
    world: TlsWorld, broker: Broker, pair: tuple[str, str] | None = None
) -> Iterator[QueueStub]:
    key, chain = (Path(pair[1]).read_bytes(), Path(pair[0]).read_bytes()) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(world.ca_file.read_bytes(), key, chain)
    alone: Any = [("grpc.use_local_subchannel_pool", 1)]
    address = f"localhost:{broker.grpc_port}"
    with grpc.secure_channel(address, credentials, options=alone) as channel:
        yield QueueStub(channel)


def create(found: QueueStub, topic: str) -> grpc.StatusCode:
    try:
        found.CreateTopic(pb.CreateTopicRequest(topic=topic), timeout=wait_seconds_max())
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def served_certificate(broker: Broker) -> str:
    return ssl.get_server_certificate(("localhost", broker.grpc_port))


def test_calls_are_served_over_tls_with_the_newest_certificate(tmp_path):
    world = TlsWorld(tmp_path)
    with Broker(settings=settings(world, "tls")) as broker:
        with stub(world, broker) as old:
            assert create(old, "before") is grpc.StatusCode.OK
            first = served_certificate(broker)
            world.renew()
            wait_until(lambda: served_certificate(broker) != first, "the certificate is new")
            assert create(old, "after") is grpc.StatusCode.OK
            with stub(world, broker) as new:
                assert create(new, "new") is grpc.StatusCode.OK
        with grpc.insecure_channel(broker.grpc_address) as plain:
            assert create(QueueStub(plain), "plain") is grpc.StatusCode.UNAVAILABLE


def test_a_client_certificate_is_a_user(tmp_path):
    world = TlsWorld(tmp_path)
    with Broker(settings=settings(world, "mtls")) as broker:
        for name, code in (
            ("boss", grpc.StatusCode.OK),
            ("alice", grpc.StatusCode.PERMISSION_DENIED),
        ):
            with stub(world, broker, world.client_files(name)) as known:
                assert create(known, f"of-{name}") is code
        with stub(world, broker) as nobody:
            assert create(nobody, "of-nobody") is grpc.StatusCode.UNAVAILABLE

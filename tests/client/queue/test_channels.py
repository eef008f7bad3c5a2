"""Channels of the queue client: TLS, and credentials in the metadata of each call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from grpc import aio
from secure_front import identity

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.queue.channels import SERVICE, TOPOLOGY, Channels
from moldau.client.queue.rpc_failures import failure_of
from moldau.client.security import parse_security
from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

CA = identity("tests' authority")
SERVER = identity("server", hosts=("localhost", "127.0.0.1"), signer=CA)
OWN = identity("client", hosts=("client",), signer=CA)
ENCRYPTED = OWN.private_key.private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"opens")
).decode()
LOGIN = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t0ken"}
TRUST = {"ssl.truststore.certificates": CA.pem}


@asynccontextmanager
async def served(
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[int, list[str | None]]]:
    """A port, and the credentials of the calls that came."""
    seen: list[str | None] = []

    async def topology(request: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()).get("authorization"))
        return pb.TopologyResponse(cluster_id="c").SerializeToString()

    server = aio.server()
    handlers: dict[str, Any] = {TOPOLOGY.name: grpc.unary_unary_rpc_method_handler(topology)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port, seen
    finally:
        await server.stop(0)


async def ask(channels: Channels, port: int) -> str:
    try:
        response = await channels.call(
            f"127.0.0.1:{port}", TOPOLOGY, pb.TopologyRequest(), seconds_max=wait_seconds_max()
        )
        return response.cluster_id
    finally:
        await channels.close()


def test_a_client_certificate_and_a_token_reach_the_broker() -> None:
    async def run() -> None:
        credentials = grpc.ssl_server_credentials(
            [(SERVER.key_pem.encode(), SERVER.pem.encode())], CA.pem.encode(), True
        )
        async with served(credentials) as (port, seen):
            security = parse_security(
                {
                    "security.protocol": "SASL_SSL",
                    **LOGIN,
                    **TRUST,
                    "ssl.keystore.certificate.chain": OWN.pem,
                    "ssl.keystore.key": ENCRYPTED,
                    "ssl.key.password": "opens",
                }
            )
            assert await ask(Channels(security), port) == "c"
            assert seen == ["Bearer t0ken"]

    asyncio.run(run())


def test_a_server_that_is_not_trusted_gets_no_credentials() -> None:
    async def run() -> None:
        pair = (SERVER.key_pem.encode(), SERVER.pem.encode())
        async with served(grpc.ssl_server_credentials([pair])) as (port, seen):
            other = identity("another authority")
            trust = {"ssl.truststore.certificates": other.pem}
            security = parse_security({"security.protocol": "SASL_SSL", **LOGIN, **trust})
            with pytest.raises(aio.AioRpcError) as caught:
                await ask(Channels(security), port)
            failure = failure_of(caught.value, f"127.0.0.1:{port}")
            assert failure.text == "its certificate is not trusted"
            assert failure.is_retriable
            assert not failure.is_uncertain
            assert seen == []

    asyncio.run(run())


def test_a_server_without_tls_is_named() -> None:
    async def run() -> None:
        async with served() as (port, seen):
            security = parse_security({"security.protocol": "SASL_SSL", **LOGIN, **TRUST})
            with pytest.raises(aio.AioRpcError) as caught:
                await ask(Channels(security), port)
            assert failure_of(caught.value, "a:1").text == "it does not accept TLS"
            assert seen == []

    asyncio.run(run())


def test_calls_for_another_carry_only_its_credentials() -> None:
    async def run() -> None:
        async with served() as (port, seen):
            channels = Channels(parse_security({"security.protocol": "SASL_PLAINTEXT", **LOGIN}))
            request, address = pb.TopologyRequest(), f"127.0.0.1:{port}"
            for caller in (channels.as_caller("Basic abc"), channels.as_caller(""), channels):
                await caller.call(address, TOPOLOGY, request, seconds_max=wait_seconds_max())
            await channels.close()
            assert seen == ["Basic abc", None, "Bearer t0ken"]

    asyncio.run(run())


@pytest.mark.parametrize("is_own", [True, False])
def test_credentials_do_not_leave_this_machine_in_plain_text(is_own: bool) -> None:
    async def run() -> None:
        given = {"security.protocol": "SASL_PLAINTEXT", **LOGIN} if is_own else {}
        channels = Channels(parse_security(given))
        if not is_own:
            channels = channels.as_caller("Bearer t0ken")
        with pytest.raises(ClientError, match=r"to 192\.0\.2\.1 without TLS"):
            await channels.call("192.0.2.1:1", TOPOLOGY, pb.TopologyRequest(), seconds_max=0.1)
        await channels.close()

    asyncio.run(run())


def test_a_disabled_host_check_is_refused() -> None:
    given = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    with pytest.raises(InvalidArgumentError, match="gRPC always checks host names"):
        Channels(parse_security(given))

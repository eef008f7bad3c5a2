"""Calls through the proxy carry the credentials of the client, and never those of the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from moldau.client.queue.channels import (
    HEARTBEAT,
    LIST_GROUPS,
    READ_FROM,
    SEND_BATCH,
    SERVICE,
    TOPOLOGY,
    Channels,
    Method,
)
from moldau.client.queue.resolver import Resolver
from moldau.client.queue.rpc import RpcClient
from moldau.client.security import Security, parse_security
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proxy.callers import Caller
from moldau.proxy.consumers import ConsumerTable
from moldau.proxy.server import Proxy
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

OWN: dict[str, str] = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token": "of-the-proxy",
}
Seen = list[tuple[str, str | None]]


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[str, Seen]]:
    """An address, and the method and credentials of each call."""
    seen: Seen = []

    def note(method: Method[Any, Any], context: Any) -> bytes:
        seen.append((method.name, dict(context.invocation_metadata()).get("authorization")))
        response: bytes = method.response().SerializeToString()
        return response

    def unary(method: Method[Any, Any]) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            return note(method, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(method: Method[Any, Any]) -> Any:
        async def handle(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for _ in requests:
                yield note(method, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def read(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield note(READ_FROM, context)

    handlers = {each.name: unary(each) for each in (TOPOLOGY, LIST_GROUPS)}
    handlers |= {each.name: stream(each) for each in (HEARTBEAT, SEND_BATCH)}
    handlers[READ_FROM.name] = grpc.unary_stream_rpc_method_handler(read)
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", seen
    finally:
        await server.stop(0)


async def call_everything(address: str, authorization: str) -> None:
    """One call of each kind, as a client of the proxy."""
    channels = Channels().as_caller(authorization)
    seconds = wait_seconds_max()
    await channels.call(address, LIST_GROUPS, pb.ListGroupsRequest(), seconds_max=seconds)
    for method, request in (
        (HEARTBEAT, pb.HeartbeatRequest(group="g", consumer_id="c")),
        (SEND_BATCH, pb.SendBatchRequest(topic="t")),
    ):
        call: Any = channels.stream(address, method)
        await call.write(request)
        await asyncio.wait_for(call.read(), seconds)
        call.cancel()
    reading = channels.read(address, READ_FROM, pb.ReadFromRequest(topic="t"))
    assert [each async for each in reading] == [pb.ReadFromResponse()]
    await channels.close()


@pytest.mark.parametrize("authorization", ["Bearer of-the-client", ""])
def test_each_kind_of_call(authorization: str) -> None:
    async def run() -> None:
        async with broker() as (address, seen):
            proxy = Proxy(
                "127.0.0.1:0",
                [address],
                seconds_max=wait_seconds_max(),
                security=parse_security(OWN),
            )
            await proxy.start()
            try:
                assert set(seen) == {("Topology", "Bearer of-the-proxy")}, "it looks for brokers"
                await call_everything(f"127.0.0.1:{proxy.port}", authorization)
            finally:
                await proxy.stop()
            calls = {each for each in seen if each[0] != "Topology"}
            names = (LIST_GROUPS, HEARTBEAT, SEND_BATCH, READ_FROM)
            assert calls == {(method.name, authorization or None) for method in names}

    asyncio.run(run())


def test_consumers_of_other_credentials_get_no_messages_of_ours() -> None:
    async def run() -> None:
        channels = Channels(Security())
        rpc = RpcClient(channels, Resolver(["127.0.0.1:1"], channels), seconds_max=1.0)
        table = ConsumerTable()
        request = pb.PollRequest(group="g", consumer_id="c")
        ours = table.poller(Caller(rpc, "Bearer a"), request)
        assert table.poller(Caller(rpc, "Bearer a"), request) is ours
        assert table.poller(Caller(rpc, "Bearer b"), request) is not ours
        assert table.poller(Caller(rpc, ""), request) is not ours
        await table.forget(Caller(rpc, "Bearer b"), "g", "c")
        assert table.poller(Caller(rpc, "Bearer a"), request) is ours
        await table.close()
        await channels.close()

    asyncio.run(run())


def test_credentials_are_not_kept_in_keys() -> None:
    async def run() -> None:
        channels = Channels(Security())
        rpc = RpcClient(channels, Resolver(["127.0.0.1:1"], channels), seconds_max=1.0)
        caller = Caller(rpc, "Bearer pl4nted")
        assert b"pl4nted" not in caller.key
        assert "pl4nted" not in repr(caller)

    asyncio.run(run())

"""A flood over many connections keeps to the quota of its client. Real sockets on loopback."""

import asyncio
import time
from typing import Any, cast

import pytest
from connections import read_frame
from guarded_calls import GuardedWorld

from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.net.budget import ByteBudget
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.server.clock import SystemClock
from moldau.testing.waiting import until
from moldau.wire.framing import frame_request
from moldau.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.inprocess

CONNECTIONS = 20
RATE = 200_000
REQUEST_BYTES = 10_000
VERSION = 8


def request(client_id: str) -> bytes:
    padded = "x" * (REQUEST_BYTES - 60)
    message = ProduceRequest(transactional_id=padded, acks=0, timeout_ms=1, topics=[])
    chunks = frame_request(message, VERSION, 1, client_id)
    return b"".join(bytes(cast(Any, chunk)) for chunk in chunks)


async def test_a_flood_over_many_connections_keeps_to_the_quota() -> None:
    world = GuardedWorld()
    quotas = world.sessions.quotas
    quotas._clock = SystemClock()
    quotas.replace({QuotaEntity(None, "flood"): {QuotaKey.PRODUCE: float(RATE)}})
    handled = 0

    def handle(call: Call, request: ProduceRequest) -> None:
        nonlocal handled
        if call.client_id == "flood":
            handled += REQUEST_BYTES
            call.no_reply()
        else:
            call.connection.reply([b"\0\0\0\2ok"])

    api = Api(ProduceRequest, versions=(3, 13), handle=handle)
    limits = ConnectionLimits(
        request_bytes_max=1 << 20, inflight_bytes_max=1 << 20, inflight_requests_max=100
    )
    listener = Listener(
        loop=asyncio.get_running_loop(),
        handler=Dispatcher(world.sessions, {api.key: api}, quotas=quotas),
        limits=ListenerLimits(
            connections_max=100, connections_per_address_max=100, idle_seconds_max=3600
        ),
        connection_limits=limits,
        budget=ByteBudget(1 << 26),
        clock=SystemClock(),
    )
    _, port = listener.bind("127.0.0.1", 0)
    listener.start()
    began = time.monotonic()
    writers = []
    for _ in range(CONNECTIONS):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("flood") * 50)
        writers.append(writer)
    try:
        await until(lambda: quotas.throttled[QuotaKey.PRODUCE] > 0, "the flood is over its quota")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        for _ in range(20):
            # Another client is served at once, while most of the flood waits.
            writer.write(request("other"))
            assert await read_frame(reader) == b"ok"
        assert handled < CONNECTIONS * 50 * REQUEST_BYTES / 2
        await until(lambda: handled > 3 * RATE, "the flood goes on at its rate")
        # Every connection may send one request before it is muted.
        most = RATE * (time.monotonic() - began + 1) + CONNECTIONS * REQUEST_BYTES
        assert handled <= most * 1.1
    finally:
        for writer in writers:
            writer.close()
        listener.close()

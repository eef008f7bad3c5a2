"""Clients with certificates are known by their subjects, from their first request on."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from connections import read_frame
from handler_calls import LoopClock
from tls_world import TlsWorld

from moldau.api.authentication import Authenticator
from moldau.api.login_throttle import LoginThrottle
from moldau.api.password_check import OsHashThreads
from moldau.edge.kafka.certificate_gate import CertificateGate
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.net.budget import ByteBudget
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.security.certificate_names import CertificateNames
from moldau.security.principal import Principal
from moldau.server.clock import SystemClock
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

pytestmark = pytest.mark.inprocess


async def served_as(tmp_path: Path, *names: str, rules: str = "DEFAULT") -> list[str]:
    """Whom the broker takes the clients with these certificates for."""
    world = TlsWorld(tmp_path)
    served: list[str] = []

    def session(principal: Principal, host: str, *, listener: object) -> Any:
        return SimpleNamespace(
            principal=principal,
            clock=SystemClock(),
            fetch_sessions=SimpleNamespace(close=lambda _: None),
        )

    def handle(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
        served.append(str(call.session.principal))
        return ListGroupsResponse(groups=[])

    api = Api(ListGroupsRequest, versions=(0, 5), handle=handle)
    authenticator = Authenticator(
        users=dict,
        throttle=LoginThrottle(LoopClock()),
        threads=OsHashThreads(),
        decoy_key=bytes(32),
        random_bytes=os.urandom,
        certificate_names=CertificateNames(rules),
    )
    dispatcher = Dispatcher(cast("Any", SimpleNamespace(session=session)), {api.key: api})
    limits = ConnectionLimits(
        request_bytes_max=1 << 20, inflight_bytes_max=1 << 20, inflight_requests_max=100
    )
    listener = Listener(
        loop=asyncio.get_running_loop(),
        handler=CertificateGate(dispatcher, authenticator),
        limits=ListenerLimits(
            connections_max=10, connections_per_address_max=10, idle_seconds_max=3600
        ),
        connection_limits=limits,
        budget=ByteBudget(1 << 24),
        clock=SystemClock(),
        tls=world.contexts(mtls=True),
    )
    _, port = listener.bind("127.0.0.1", 0)
    listener.start()
    try:
        for name in names:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=world.client(world.client_files(name))
            )
            request = b"".join(
                cast("list[bytes]", frame_request(ListGroupsRequest(states_filter=[]), 4, 1, "t"))
            )
            writer.write(request * 2)
            try:
                for _ in range(2):
                    await asyncio.wait_for(read_frame(reader), wait_seconds_max())
            except (asyncio.IncompleteReadError, ConnectionError):
                served.append("closed")
            writer.close()
    finally:
        listener.close()
        await dispatcher.stop()
    return served


async def test_a_client_is_its_subject(tmp_path: Path):
    assert await served_as(tmp_path, "alice", "bob") == ["User:CN=alice"] * 2 + ["User:CN=bob"] * 2


async def test_rules_map_subjects_to_users_and_others_are_not_served(tmp_path: Path):
    rules = "RULE:^CN=(a[a-z]*)$/$1/L"
    assert await served_as(tmp_path, "alice", "bob", rules=rules) == ["User:alice"] * 2 + ["closed"]


async def test_no_certificate_makes_a_client_the_administrator(tmp_path: Path):
    rules = "RULE:^CN=(.*)$/$1/"
    for name in ("moldau-admin", "ANONYMOUS"):
        assert await served_as(tmp_path, name, rules=rules) == ["closed"]

"""Whose session a request gets: that of its connection, as it is known by then."""

import asyncio
from typing import Any, cast

import pytest
from guarded_calls import ALICE, GuardedWorld
from handler_calls import FakeConnection

from moldau.api.session import ListenerAccess, Session
from moldau.edge.kafka import large_requests
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.edge.kafka.turn_order import LargeRequests
from moldau.net.connection import Connection
from moldau.security.principal import ANONYMOUS, user
from moldau.wire.framing import frame_request
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.registry import ApiKey

LISTENER = ListenerAccess(name="public", read_only=True)


class World:
    """A dispatcher with one API, which keeps the sessions of its calls."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        api = Api(ListGroupsRequest, versions=(0, 0), handle=self._handle)
        made = GuardedWorld().sessions
        self.dispatcher = Dispatcher(made, {ApiKey.LIST_GROUPS: api}, LISTENER)

    def _handle(self, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
        self.sessions.append(call.session)
        return ListGroupsResponse(groups=[])

    def ask(self, connection: Connection) -> Session:
        chunks = frame_request(ListGroupsRequest(), 0, 1, "test")
        frame = b"".join(bytes(cast(Any, chunk)) for chunk in chunks)
        self.dispatcher.on_frame(connection, memoryview(frame)[4:])
        return self.sessions[-1]


def connection(host: str = "192.0.2.7") -> Connection:
    made = FakeConnection()
    made.address = f"{host}:50000"
    return cast(Connection, made)


def test_a_client_is_anonymous_until_it_is_known() -> None:
    world, client = World(), connection()
    session = world.ask(client)
    assert (session.principal, session.host) == (ANONYMOUS, "192.0.2.7")
    assert session.read_only
    world.dispatcher.set_principal(client, ALICE)
    assert cast(FakeConnection, client).user == str(ALICE)
    assert world.ask(client).principal == ALICE
    assert world.ask(client) is world.ask(client)


def test_a_principal_belongs_to_its_connection_only() -> None:
    world, first, second = World(), connection(), connection()
    world.dispatcher.set_principal(first, ALICE)
    world.dispatcher.set_principal(second, user("bob"))
    assert world.ask(first).principal == ALICE
    assert world.ask(second).principal == user("bob")
    assert world.ask(connection()).principal == ANONYMOUS


def test_a_closed_connection_leaves_nothing() -> None:
    world, client = World(), connection("2001:db8::1")
    world.dispatcher.set_principal(client, ALICE)
    assert world.ask(client).host == "2001:db8::1"
    world.dispatcher.on_closed(client)
    # As if another connection had the same address in memory.
    assert world.ask(client).principal == ANONYMOUS


def test_a_client_that_left_while_it_was_checked_leaves_nothing() -> None:
    world, client = World(), connection()
    client.is_closed = True
    world.dispatcher.on_closed(client)
    world.dispatcher.set_principal(client, ALICE)
    assert world.dispatcher._sessions == {}


async def test_large_requests_of_all_listeners_go_on_one_by_one_and_stop_with_their_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    steps: list[Connection] = []

    @in_turns
    def handle(call: Call, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        for _ in range(200):
            yield
            steps.append(call.connection)
        return ListGroupsResponse(groups=[])

    api = Api(ListGroupsRequest, versions=(0, 0), handle=handle)
    sessions, large = GuardedWorld().sessions, LargeRequests()
    frame = b"".join(
        bytes(cast(Any, each)) for each in frame_request(ListGroupsRequest(), 0, 1, "t")
    )
    dispatchers, clients = [], [connection(), connection(), connection("192.0.2.8")]
    for client in clients:
        dispatchers.append(Dispatcher(sessions, {api.key: api}, large=large))
        dispatchers[-1].on_frame(client, memoryview(frame)[4:])
    begun = len(steps)
    await asyncio.sleep(0)
    clients[1].is_closed = True
    async with asyncio.timeout(60):
        while any(each._tasks for each in dispatchers):
            await asyncio.sleep(0)
    assert [len(cast(FakeConnection, each).replies) for each in clients] == [1, 0, 1]
    # One after the other, and no further step for the client that left.
    assert list(dict.fromkeys(steps[begun:])) == [clients[0], clients[2]]
    assert steps.index(clients[2], begun) > len(steps) - 200
    assert not caplog.records

"""Throttle times in responses, and mutes of connections."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from guarded_calls import ALICE, GuardedWorld
from handler_calls import FakeConnection

from moldau.api.quotas import ON_STEP
from moldau.edge.concurrent_work import run_each
from moldau.edge.kafka import large_requests
from moldau.edge.kafka.client_login import ClientLogin
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.handlers import fetch, produce
from moldau.edge.kafka.large_requests import Steps, in_turns, query_each
from moldau.edge.kafka.served_apis import APIS
from moldau.edge.kafka.throttle import Throttle
from moldau.net.connection import Connection
from moldau.security.principal import ANONYMOUS, user
from moldau.security.quotas import WAIT_SECONDS_MAX, QuotaEntity, QuotaKey
from moldau.testing.replicas import ManualClock
from moldau.wire.framing import frame_request, read_response_header
from moldau.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.fetch import FetchRequest, FetchResponse
from moldau.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from moldau.wire.registry import RESPONSES
from moldau.wire.schema import Request, Response

RATE = 1000.0


class World:
    """A dispatcher whose client has a quota."""

    def __init__(self, api: Api, client: str = "app", **rates: float) -> None:
        self.guarded = GuardedWorld()
        self.quotas = self.guarded.sessions.quotas
        self.quotas.replace(
            {QuotaEntity(None, "app"): {QuotaKey[name]: rate for name, rate in rates.items()}}
        )
        self.dispatcher = Dispatcher(
            self.guarded.sessions, {api.key: api}, quotas=self.guarded.sessions.quotas
        )
        self.client = client
        self.connection = FakeConnection()

    def send(self, request: Request, version: int) -> None:
        chunks = frame_request(request, version, 1, self.client)
        frame = b"".join(bytes(cast(Any, chunk)) for chunk in chunks)
        self.dispatcher.on_frame(cast(Connection, self.connection), memoryview(frame)[4:])

    def answer(self, api_key: int, version: int) -> Any:
        body = memoryview(self.connection.replies[-1])[4:]
        _, position = read_response_header(body, api_key, version)
        return RESPONSES[api_key].decode(body, version, position)

    def ask(self, request: Request, version: int) -> Any:
        self.send(request, version)
        return self.answer(request.API_KEY, version)


def produced(size: int, acks: int = 1) -> ProduceRequest:
    partition = ProducePartition(index=0, records=b"x" * size)
    topic = ProduceTopic(name="orders", partitions=[partition])
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1, topics=[topic])


def fetched(bytes_max: int = 10**9) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=bytes_max, topics=[])


# ---- large responses


async def test_a_response_that_is_encoded_in_turns_is_charged_and_says_how_long_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    groups = [
        ListedGroup(group_id=f"g{number}", protocol_type="consumer") for number in range(1000)
    ]

    @in_turns
    def handle(call: Call, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        for _ in groups:
            yield
        return ListGroupsResponse(groups=groups)

    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=handle), REQUEST=1e-9)
    world.send(ListGroupsRequest(), 1)
    async with asyncio.timeout(60):
        while not world.connection.replies:
            await asyncio.sleep(0)
    answer = world.answer(ListGroupsRequest.API_KEY, 1)
    assert answer.throttle_time_ms > 0
    assert answer.groups == groups
    assert world.connection.muted


# ---- produce


@pytest.mark.parametrize("version", [3, 8, 12, 13])
def test_a_produce_over_the_quota_is_answered_with_the_time_to_wait(version: int) -> None:
    world = World(produce.API, PRODUCE=RATE)
    answer = world.ask(produced(3000), version)
    assert isinstance(answer, ProduceResponse)
    assert answer.topics, "it was handled"
    assert 2000 <= answer.throttle_time_ms <= 2200
    assert world.connection.muted == pytest.approx([answer.throttle_time_ms / 1000], abs=0.002)


def test_a_produce_within_the_quota_is_not() -> None:
    world = World(produce.API, PRODUCE=RATE)
    assert world.ask(produced(500), 8).throttle_time_ms == 0
    assert world.connection.muted == []


def test_a_client_with_another_id_is_not() -> None:
    world = World(produce.API, "other", PRODUCE=RATE)
    assert world.ask(produced(10**6), 8).throttle_time_ms == 0
    assert world.connection.muted == []


def test_a_produce_without_a_response_mutes_its_connection() -> None:
    def handle(call: Call, request: ProduceRequest) -> None:
        call.no_reply()

    world = World(Api(ProduceRequest, versions=(3, 13), handle=handle), PRODUCE=RATE)
    world.send(produced(3000, acks=0), 8)
    assert world.connection.replies == []
    assert len(world.connection.muted) == 1


def test_the_connection_is_muted_before_the_response_can_be_sent() -> None:
    calls: list[Call] = []

    def handle(call: Call, request: ProduceRequest) -> None:
        call.defer()
        calls.append(call)

    world = World(Api(ProduceRequest, versions=(3, 13), handle=handle), PRODUCE=RATE)
    world.send(produced(3000), 8)
    assert (len(world.connection.muted), world.connection.replies) == (1, [])
    calls[0].reply(ProduceResponse(topics=[]))
    assert world.answer(ProduceRequest.API_KEY, 8).throttle_time_ms >= 2000


# ---- fetch


def test_a_fetch_is_charged_by_its_response_and_the_next_one_is_empty() -> None:
    handled: list[int] = []

    def handle(call: Call, request: FetchRequest) -> FetchResponse | None:
        assert call.throttle is not None
        if call.throttle.refuses_fetch:
            return FetchResponse(topics=[])
        handled.append(call.throttle.fetch_bytes(request.max_bytes))
        call.throttle.answered(FetchResponse(topics=[]), call.api_key, 12, [b"x" * 3000])
        return FetchResponse(topics=[])

    world = World(Api(FetchRequest, versions=(4, 18), handle=handle), FETCH=RATE)
    assert world.ask(fetched(), 12).throttle_time_ms >= 2000
    # No more than the client can pay back while it waits.
    assert handled == [10 * RATE]
    assert world.ask(fetched(), 12).throttle_time_ms >= 2000
    assert len(handled) == 1


def test_a_fetch_of_a_client_that_has_to_wait_reads_nothing() -> None:
    world = World(fetch.API, FETCH=RATE)
    meter = world.quotas.meter(ALICE, "app")
    assert meter is not None
    meter.take(QuotaKey.FETCH, 3000)
    answer = world.ask(fetched(), 12)
    assert (answer.error_code, answer.session_id, answer.topics) == (0, 0, [])
    assert 2000 <= answer.throttle_time_ms <= 2200
    assert world.guarded.touched == []
    assert world.connection.muted


# ---- all others


def listed(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    return ListGroupsResponse(groups=[])


def test_every_response_with_the_field_has_the_time_to_wait() -> None:
    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=listed), REQUEST=1e-6)
    assert world.ask(ListGroupsRequest(states_filter=[]), 4).throttle_time_ms > 0
    # Version 0 has no such field: the mute says it.
    world.connection.muted.clear()
    world.send(ListGroupsRequest(), 0)
    assert world.connection.muted


async def test_the_time_of_tasks_of_a_request_is_charged() -> None:
    names = range(150)
    spent: list[float] = []

    async def ask(name: int) -> int:
        return name

    async def change(name: int) -> None:
        await asyncio.sleep(0)

    async def handle(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
        assert call.throttle is not None
        before = len(spent)
        await query_each(names, ask, lambda name, error: name)
        after_queries = len(spent)
        await run_each(change, names, 60_000)
        # Of each task at least one step, beside those of the handler itself.
        assert after_queries - before >= len(names)
        assert len(spent) - after_queries >= len(names)
        return ListGroupsResponse(groups=[])

    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=handle), REQUEST=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Throttle, "spent", lambda self, seconds: spent.append(seconds))
        world.send(ListGroupsRequest(states_filter=[]), 4)
        while not world.connection.replies and world.connection.closed_because is None:
            await asyncio.sleep(0)
    assert world.connection.closed_because is None
    assert ON_STEP.get() is None


async def test_the_time_of_a_coroutine_is_charged() -> None:
    async def handle(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
        await asyncio.sleep(0)
        return ListGroupsResponse(groups=[])

    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=handle), REQUEST=1e-6)
    world.send(ListGroupsRequest(states_filter=[]), 4)
    while not world.connection.replies:
        await asyncio.sleep(0)
    assert world.answer(ListGroupsRequest.API_KEY, 4).throttle_time_ms > 0


def test_a_request_is_counted_once_for_each_quota_that_it_exceeds() -> None:
    world = World(produce.API, PRODUCE=RATE, REQUEST=1e-6)
    world.ask(produced(3000), 8)
    assert world.quotas.throttled == {
        QuotaKey.PRODUCE: 1,
        QuotaKey.FETCH: 0,
        QuotaKey.REQUEST: 1,
        QuotaKey.MUTATION: 0,
    }
    assert world.quotas.throttled_seconds[QuotaKey.PRODUCE] >= 2


def test_changes_of_partitions_have_the_time_to_wait() -> None:
    def handle(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="a", error_code=89)])

    api = Api(CreateTopicsRequest, versions=(2, 7), handle=handle)
    world = World(api, MUTATION=1.0)
    meter = world.quotas.meter(ALICE, "app")
    assert meter is not None
    meter.take(QuotaKey.MUTATION, 3)
    answer = world.ask(CreateTopicsRequest(topics=[], timeout_ms=1), 7)
    assert 2000 <= answer.throttle_time_ms <= 2200


def test_nobody_has_a_quota_before_the_login() -> None:
    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=listed), REQUEST=1e-6)
    world.connection.state = ClientLogin(
        cast(Any, world.connection), cast(Any, None), cast(Any, None)
    )
    assert world.ask(ListGroupsRequest(states_filter=[]), 4).throttle_time_ms == 0
    assert world.connection.muted == []


async def test_a_client_that_authenticates_again_keeps_its_quota() -> None:
    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=listed), REQUEST=1e-6)
    rules = SimpleNamespace(authenticator=SimpleNamespace(exchange=lambda *_: object()))
    login = ClientLogin(cast(Any, world.connection), cast(Any, rules), cast(Any, None))
    login.principal = ALICE
    world.connection.state = login
    login.begin("PLAIN", is_raw=False)
    login.cancel_deadline()
    assert not login.is_open
    assert world.ask(ListGroupsRequest(states_filter=[]), 4).throttle_time_ms > 0


# ---- mutes


class Muted(FakeConnection):
    """Keeps what says how long."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[Callable[[], float]] = []

    def mute(self, seconds: Callable[[], float]) -> None:
        super().mute(seconds)
        self.seconds.append(seconds)


def test_a_mute_ends_whatever_other_connections_take() -> None:
    world = World(produce.API, PRODUCE=RATE)
    world.quotas._clock = clock = ManualClock()
    world.connection = connection = Muted()
    world.ask(produced(30_000), 8)
    meter = world.quotas.meter(ALICE, "app")
    assert meter is not None
    (seconds,) = connection.seconds
    for _ in range(int(WAIT_SECONDS_MAX)):
        assert seconds() > 0
        meter.take(QuotaKey.PRODUCE, 3 * RATE)
        clock.steady += 1
    assert meter.wait(QuotaKey.PRODUCE) > 0
    assert seconds() <= 0


@pytest.mark.parametrize("key", QuotaKey)
def test_a_user_in_debt_waits_from_its_login_on_for_what_it_could_take_again(key: QuotaKey) -> None:
    world = World(produce.API)
    world.quotas.replace({QuotaEntity("alice", None): {key: 100.0}})
    connection = cast(Any, world.connection)
    world.dispatcher.set_principal(connection, ALICE)
    assert not any(world.connection.muted)
    meter = world.quotas.meter(ALICE, None)
    assert meter is not None
    wait = meter.take(key, 1000)
    world.dispatcher.set_principal(connection, user("bob"))
    assert not any(world.connection.muted)
    world.dispatcher.set_principal(connection, ALICE)
    is_charged_later = key in (QuotaKey.PRODUCE, QuotaKey.REQUEST)
    assert world.connection.muted[-1] == pytest.approx(wait * is_charged_later, abs=0.1)


def test_nobody_is_muted_for_the_debt_of_unknown_clients_before_the_login() -> None:
    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=listed))
    world.quotas.replace({QuotaEntity("ANONYMOUS", None): {QuotaKey.REQUEST: 1.0}})
    meter = world.quotas.meter(ANONYMOUS, None)
    assert meter is not None
    assert meter.take(QuotaKey.REQUEST, 100) > 0
    world.connection.state = ClientLogin(
        cast(Any, world.connection), cast(Any, None), cast(Any, None)
    )
    world.ask(ListGroupsRequest(states_filter=[]), 4)
    assert world.connection.muted == []


def test_a_dispatcher_without_quotas_makes_calls_without_a_throttle() -> None:
    seen: list[object] = []

    def handle(call: Call, request: ListGroupsRequest) -> Response:
        seen.append(call.throttle)
        return ListGroupsResponse(groups=[])

    world = World(Api(ListGroupsRequest, versions=(0, 5), handle=handle), REQUEST=1.0)
    world.quotas.replace({})
    world.ask(ListGroupsRequest(states_filter=[]), 4)
    assert seen == [None]


def test_responses_without_a_throttle_time_are_known() -> None:
    """A new response type has one; those that have none are older than throttling."""
    without = {
        api.key.name for api in APIS.values() if "throttle_time_ms" not in RESPONSES[api.key].FIELDS
    }
    assert without == {"SASL_HANDSHAKE", "SASL_AUTHENTICATE", "WRITE_TXN_MARKERS"}

"""Throttle times in responses, and mutes of connections."""

import asyncio
from typing import Any, cast

import pytest
from guarded_calls import ALICE, GuardedWorld
from handler_calls import FakeConnection

from moldau.edge.kafka import large_requests
from moldau.edge.kafka.client_login import ClientLogin
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.handlers import fetch, produce
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.edge.kafka.served_apis import APIS
from moldau.net.connection import Connection
from moldau.security.quotas import QuotaEntity, QuotaKey
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

"""A produce request of many partitions is appended in turns. Appends are counted, not time."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import FakeCluster, FakeConnection, broker_of, brokers, image, service, topic

from moldau.api.session import Sessions
from moldau.edge.kafka import large_requests, turn_order
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handlers import produce
from moldau.edge.kafka.served_apis import APIS
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TIMESTAMP, Offset
from moldau.net.connection import NONE_OVERLAP, Connection
from moldau.replica.raft_replica import Proposal
from moldau.wire.framing import frame_request, read_response_header
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from moldau.wire.registry import ApiKey

PARTITIONS = 20
VERSION = 9
KINDS = pytest.mark.parametrize("transactional_id", [None, "tx"])


class World:
    def __init__(self, transactional_id: str | None, acks: int = 1, partitions: int = PARTITIONS):
        self.appended: list[bytes] = []
        self.waiting: list[Callable[[ErrorCode], None]] = []
        self.replica = SimpleNamespace(
            log=SimpleNamespace(start_offset=Offset(0)),
            is_acknowledged=lambda _: False,
            when_acknowledged=lambda _, callback: self.waiting.append(callback),
        )
        cluster = FakeCluster(image(brokers(1), topic("t", *[(1,)] * PARTITIONS)))
        broker = broker_of(
            cluster,
            produce=service(append=lambda _, index, data, acks: self._append(data)),
            transactional_produce=service(
                append=lambda write, on_done: on_done(self._append(write.data))
            ),
        )
        self.connection = FakeConnection()
        self.dispatcher = Dispatcher(Sessions(broker), APIS)
        asked = [
            ProducePartition(index=index, records=b"records %02d" % index)
            for index in range(partitions)
        ]
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=1000,
            topics=[ProduceTopic(name="t", partitions=asked)],
        )
        chunks = cast("list[bytes]", frame_request(request, VERSION, 7, "test"))
        self.frame = bytearray(b"".join(chunks)[4:])
        self.dispatcher.on_frame(cast("Connection", self.connection), memoryview(self.frame))

    def _append(self, data: memoryview) -> Proposal:
        self.appended.append(bytes(data))
        return Proposal(Offset(7), Offset(8), NO_TIMESTAMP, cast("Any", self.replica))

    def leave(self) -> None:
        self.connection.is_closed = True
        later = self.connection.deferred
        if later is not None and later.on_abandoned is not None:
            later.on_abandoned()

    @property
    def answers(self) -> list[tuple[int, int, int]]:
        (reply,) = self.connection.replies
        body = memoryview(reply)[4:]
        _, position = read_response_header(body, ApiKey.PRODUCE, VERSION)
        found = ProduceResponse.decode(body, VERSION, position).topics[0].partitions
        return [(each.index, each.error_code, each.base_offset) for each in found]

    async def turns(self) -> list[int]:
        """How many partitions are appended in each, until the request is done."""
        counts = []
        while self.dispatcher._tasks:
            before = len(self.appended)
            await asyncio.sleep(0)
            counts.append(len(self.appended) - before)
        return counts


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    monkeypatch.setattr(large_requests, "_CLOCK_INTERVAL", 1)


@KINDS
async def test_other_clients_are_served_in_between(transactional_id: str | None) -> None:
    world = World(transactional_id)
    assert len(world.appended) <= 1
    # What follows on the connection waits, or it would overtake the rest.
    assert world.connection.overlaps == NONE_OVERLAP
    # The receive buffer is used again.
    world.frame[:] = bytes(len(world.frame))
    assert max(await world.turns()) <= 1
    assert world.appended == [b"records %02d" % index for index in range(PARTITIONS)]
    assert world.answers == [(index, 0, 7) for index in range(PARTITIONS)]


@KINDS
@pytest.mark.safety
async def test_an_acknowledgement_is_waited_for_from_the_append_on(
    transactional_id: str | None,
) -> None:
    """Or the broker could lose the lead in between, and another's record count as this one."""
    world = World(transactional_id, acks=-1)
    for _ in range(PARTITIONS // 2):
        await asyncio.sleep(0)
        assert len(world.waiting) == len(world.appended) < PARTITIONS
    # Both before all are appended.
    world.waiting[0](ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.waiting[1](ErrorCode.NONE)
    await world.turns()
    for callback in world.waiting[2:]:
        assert world.connection.replies == []
        callback(ErrorCode.NONE)
    refused = (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert world.answers == [refused, *((index, 0, 7) for index in range(1, PARTITIONS))]
    world.dispatcher._deadlines.stop()


@KINDS
@pytest.mark.parametrize(
    ("acks", "bytes_max", "orphans_max", "goes_on"),
    [(0, 1000, 1, True), (1, 1000, 1, False), (0, 100, 1, False), (0, 1000, 0, False)],
)
async def test_a_client_that_wants_no_answer_may_leave(
    transactional_id: str | None,
    acks: int,
    bytes_max: int,
    orphans_max: int,
    goes_on: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If few do so, and with small requests. Others stop: they keep memory that nobody counts."""
    monkeypatch.setattr(produce, "_LEFT_BYTES_MAX", bytes_max)
    monkeypatch.setattr(turn_order, "_ORPHANS_MAX", orphans_max)
    for has_begun in (False, True):
        world = World(transactional_id, acks=acks)
        if has_begun:
            await asyncio.sleep(0)
        world.leave()
        turns = await world.turns()
        assert (len(world.appended) == PARTITIONS) == goes_on
        assert goes_on or sum(turns) <= 1
        assert b"".join(world.connection.replies) == b""
        assert world.dispatcher._large.orphans == 0


@KINDS
async def test_one_of_ordinary_size_needs_one_turn(
    transactional_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 60.0)
    world = World(transactional_id)
    assert len(world.appended) == PARTITIONS
    assert not world.dispatcher._tasks
    assert len(world.connection.replies) == 1
    assert world.connection.overlaps == ApiKey.PRODUCE

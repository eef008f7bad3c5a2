"""A transactional produce between request and response: partitions that are appended late, or not,
or are acknowledged late, are answered together."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from handler_calls import Asked, FakeCluster, brokers, facade, image, service, topic

from moldau.data.transactional_produce import AppendOutcome, TransactionalWrite
from moldau.edge.kafka.deadlines import TICK_MS
from moldau.edge.kafka.handlers import produce
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TIMESTAMP, Offset
from moldau.replica.raft_replica import Proposal
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

TOPIC = topic("t", (1,), (1,), (1,))
VERSIONS = range(3, 14)


class Replica:
    """Has appended, and acknowledges when the test says so."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.log = service()
        self.log.start_offset = Offset(2)
        self.callbacks: list[Callable[[ErrorCode], None]] = []

    def is_acknowledged(self, offset: Offset) -> bool:
        return offset <= self.acknowledged

    def when_acknowledged(self, _: Offset, callback: Callable[[ErrorCode], None]) -> None:
        self.callbacks.append(callback)


class World:
    def __init__(self, *indexes: int, acks: int = -1, version: int = 12) -> None:
        self.writes: list[tuple[TransactionalWrite, Callable[[AppendOutcome], None]]] = []
        self.replica = Replica()
        cluster = FakeCluster(image(brokers(1, 2), TOPIC))
        cluster.lead("t", 1, 2, 5)
        broker = facade(
            cluster, transactional_produce=service(append=lambda *all: self.writes.append(all))
        )
        partitions = [ProducePartition(index=index, records=b"records") for index in indexes]
        request = ProduceRequest(
            transactional_id="tx",
            acks=acks,
            timeout_ms=TICK_MS,
            topics=[ProduceTopic(name="t", topic_id=TOPIC.topic_id, partitions=partitions)],
        )
        self.asked = Asked(produce.API, broker, request, version)

    def append(self, number: int, end: int = 8) -> None:
        proposal = Proposal(Offset(7), Offset(end), NO_TIMESTAMP, cast(Any, self.replica))
        self.writes[number][1](proposal)

    def refuse(self, number: int, code: ErrorCode) -> None:
        self.writes[number][1](RefusedError(code))

    @property
    def is_answered(self) -> bool:
        return bool(self.asked.connection.replies)

    @property
    def answers(self) -> list[tuple[int, int, int]]:
        (found,) = self.asked.answer(ProduceResponse).topics
        return [(each.index, each.error_code, each.base_offset) for each in found.partitions]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_is_handed_on_with_what_the_service_must_know(version: int) -> None:
    world = World(0, 2, version=version)
    told = [write._replace(data=memoryview(b"")) for write, _ in world.writes]
    assert [bytes(write.data) for write, _ in world.writes] == [b"records"] * 2
    assert told == [
        TransactionalWrite("tx", "t", index, memoryview(b""), -1, version) for index in (0, 2)
    ]


async def test_the_answer_waits_for_the_last_partition_to_be_appended_and_acknowledged() -> None:
    world = World(0, 1, 2)
    world.append(2)
    world.refuse(1, ErrorCode.CONCURRENT_TRANSACTIONS)
    world.append(0)
    assert not world.is_answered
    world.replica.callbacks[0](ErrorCode.NONE)
    assert not world.is_answered
    world.replica.callbacks[1](ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.answers == [
        (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        (1, ErrorCode.CONCURRENT_TRANSACTIONS, -1),
        (2, ErrorCode.NONE, 7),
    ]
    assert len(world.asked.deadlines._waiting) == 0


async def test_the_leader_is_named_to_who_asked_the_wrong_broker() -> None:
    world = World(1)
    world.refuse(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    answer = world.asked.answer(ProduceResponse)
    leader = answer.topics[0].partitions[0].current_leader
    assert leader is not None
    assert (leader.leader_id, leader.leader_epoch) == (2, 5)
    assert [node.node_id for node in answer.node_endpoints] == [2]


async def test_what_is_acknowledged_already_is_answered_at_once() -> None:
    world = World(0)
    world.replica.acknowledged = 8
    world.append(0)
    assert world.answers == [(0, ErrorCode.NONE, 7)]


async def test_a_leader_alone_answers_acks_1_when_it_has_appended() -> None:
    world = World(0, acks=1)
    world.append(0)
    assert (world.answers, world.replica.callbacks) == ([(0, ErrorCode.NONE, 7)], [])


async def test_one_who_wants_no_answer_gets_none_but_a_closed_connection_for_a_refusal() -> None:
    world = World(0, acks=0)
    world.append(0)
    assert world.asked.connection.replies == [b""]
    assert world.asked.connection.closed_because is None
    world = World(0, acks=0)
    world.refuse(0, ErrorCode.INVALID_TXN_STATE)
    assert world.asked.connection.replies == []
    assert world.asked.connection.closed_because is not None


async def test_a_coordinator_that_takes_too_long_is_not_waited_for() -> None:
    world = World(0, 1)
    world.replica.acknowledged = 8
    world.append(0)
    for _ in range(4):
        world.asked.deadlines._on_tick()
    assert world.answers == [(0, ErrorCode.NONE, 7), (1, ErrorCode.REQUEST_TIMED_OUT, -1)]
    # What comes later is nobody's business any more.
    world.append(1)
    world.refuse(1, ErrorCode.INVALID_TXN_STATE)
    assert len(world.asked.connection.replies) == 1
    world.asked.deadlines.stop()


async def test_a_request_for_nothing_is_answered() -> None:
    world = World()
    assert world.answers == []


async def test_a_topic_that_is_not_known_by_its_id_is_refused_beside_others() -> None:
    world = World(0, version=13)
    world.asked.deadlines.stop()
    request = ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=TICK_MS,
        topics=[
            ProduceTopic(
                name="", topic_id=bytes(16), partitions=[ProducePartition(index=0, records=b"r")]
            )
        ],
    )
    asked = Asked(produce.API, world.asked.call.session, request, 13)
    answer = asked.answer(ProduceResponse).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID

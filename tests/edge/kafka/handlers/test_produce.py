"""Produce where the answer is not "appended": led elsewhere, leadership lost, too late."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import (
    Asked,
    FakeCluster,
    ask,
    brokers,
    facade,
    image,
    service,
    topic,
)
from msgspec.structs import replace

from harness.virtual_loop import run_virtually
from moldau.api.session import Session
from moldau.edge.kafka.deadlines import TICK_MS
from moldau.edge.kafka.handlers import produce
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TIMESTAMP, Offset, TopicId
from moldau.replica.raft_replica import Proposal
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)

TOPIC = topic("t", (1, 2), (2, 1), (1, 2), (2, 1))
VERSIONS = range(3, 14)


class Waiting:
    """A replica that has appended and commits when the test says so."""

    def __init__(self) -> None:
        self.high_watermark = Offset(0)
        self.log = SimpleNamespace(start_offset=Offset(0))
        self.callbacks: list[Callable[[ErrorCode], None]] = []

    def is_acknowledged(self, offset: Offset) -> bool:
        return offset <= self.high_watermark

    def when_acknowledged(self, _: Offset, callback: Callable[[ErrorCode], None]) -> None:
        self.callbacks.append(callback)


def cluster() -> FakeCluster:
    """Broker 2 leads the odd partitions; who leads partition 3 is not known here."""
    made = FakeCluster(image(brokers(1, 2), TOPIC))
    made.lead("t", 0, 1, 3)
    made.lead("t", 1, 2, 4)
    made.lead("t", 2, 1, 3)
    return made


def broker(replica: Waiting | None = None, seen: FakeCluster | None = None) -> Session:
    """Broker 1: appends to the even partitions, and refuses those that it does not lead."""

    def append(name: str, index: int, data: memoryview, acks: int) -> Proposal:
        if index % 2:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")
        return Proposal(Offset(7), Offset(8), NO_TIMESTAMP, cast(Any, replica))

    return facade(seen or cluster(), produce=service(append=append))


def request(*indexes: int, acks: int = -1, timeout_ms: int = 30_000) -> ProduceRequest:
    partitions = [ProducePartition(index=index, records=b"records") for index in indexes]
    asked = ProduceTopic(name="t", topic_id=TOPIC.topic_id, partitions=partitions)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=[asked])


def leader_of(partition: ProduceResponsePartition) -> tuple[int, int] | None:
    leader = partition.current_leader
    return None if leader is None else (leader.leader_id, leader.leader_epoch)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("indexes", [(1,), (1, 3)])
def test_partitions_led_by_another_broker_come_with_their_leader(
    version: int, indexes: tuple[int, ...]
) -> None:
    response = ask(produce.API, broker(), request(*indexes), ProduceResponse, version)
    partitions = response.topics[0].partitions
    assert [each.error_code for each in partitions] == [6] * len(indexes)
    told = version >= 10
    assert leader_of(partitions[0]) == ((2, 4) if told else None)
    words = "The leader is broker 2, in epoch 4"
    assert partitions[0].error_message == (words if version >= 8 else None)
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    assert nodes == ([(2, "host-2", 9002, "rack-2")] if told else [])
    # The other has no known leader, and none is made up.
    for each in partitions[1:]:
        assert leader_of(each) is None
        assert each.error_message == ("The partition has no known leader" if version >= 8 else None)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_some_partitions_are_refused_while_others_wait(version: int) -> None:
    async def run() -> ProduceResponse:
        replica = Waiting()
        asked = Asked(produce.API, broker(replica), request(0, 1, 2), version)
        for callback in replica.callbacks:
            callback(ErrorCode.NONE)
        assert len(asked.deadlines._waiting) == 0
        asked.deadlines.stop()
        return asked.answer(ProduceResponse)

    here, elsewhere, also_here = run_virtually(run()).topics[0].partitions
    assert (here.error_code, here.base_offset) == (0, 7)
    assert (also_here.error_code, also_here.base_offset) == (0, 7)
    assert (elsewhere.error_code, elsewhere.base_offset) == (6, -1)
    assert leader_of(elsewhere) == ((2, 4) if version >= 10 else None)


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("indexes", [(0,), (0, 2)])
def test_a_leader_that_is_deposed_before_the_commit_says_so(
    version: int, indexes: tuple[int, ...]
) -> None:
    async def run() -> ProduceResponse:
        replica = Waiting()
        seen = cluster()
        asked = Asked(produce.API, broker(replica, seen), request(*indexes), version)
        seen.lead("t", 0, 2, 9)
        for callback in replica.callbacks:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        asked.deadlines.stop()
        return asked.answer(ProduceResponse)

    partition = run_virtually(run()).topics[0].partitions[0]
    assert (partition.error_code, partition.base_offset) == (6, -1)
    assert leader_of(partition) == ((2, 9) if version >= 10 else None)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("indexes", [(0,), (0, 2)])
def test_what_is_not_committed_in_time_is_answered_all_the_same(
    version: int, indexes: tuple[int, ...]
) -> None:
    async def run() -> ProduceResponse:
        replica = Waiting()
        asked = Asked(produce.API, broker(replica), request(*indexes, timeout_ms=0), version)
        if len(replica.callbacks) > 1:
            replica.callbacks[1](ErrorCode.NONE)
        for _ in range(200):
            if asked.connection.replies:
                break
            await asyncio.sleep(TICK_MS / 2000)
        # The commit that comes later changes nothing: one request has one answer.
        for callback in replica.callbacks:
            callback(ErrorCode.NONE)
        return asked.answer(ProduceResponse)

    first, *others = run_virtually(run()).topics[0].partitions
    assert (first.error_code, first.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert all((each.error_code, each.base_offset) == (0, 7) for each in others)


def test_the_id_of_a_deleted_topic_is_refused_however_often_it_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise records of the deleted topic would be stored in the new one of that name."""
    replica = Waiting()
    replica.high_watermark = Offset(8)

    def answer(seen: FakeCluster, **fields: int) -> tuple[int, int]:
        asked = request(0, **fields)
        response = ask(produce.API, broker(replica, seen), asked, ProduceResponse, 13)
        assert [each.topic_id for each in response.topics] == [TOPIC.topic_id]
        (partition,) = response.topics[0].partitions
        return partition.error_code, partition.base_offset

    made_again = replace(TOPIC, topic_id=TopicId(b"another of 16 by"))
    later = FakeCluster(image(brokers(1, 2), made_again))
    refused = (ErrorCode.UNKNOWN_TOPIC_ID, -1)
    assert [answer(cluster()), answer(later, timeout_ms=1)] == [(0, 7), refused]
    # From now on it is known by its bytes.
    monkeypatch.setattr(ProduceRequest, "decode", None)
    assert [answer(cluster()), answer(later)] == [(0, 7), refused]


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("failure", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_one_partition_is_answered_as_one_of_many_is(
    version: int, failure: ErrorCode | None
) -> None:
    """The first is recognized by its bytes, and the others are decoded."""

    async def run(*indexes: int) -> ProduceResponsePartition:
        replica = Waiting()
        for turn in range(2):
            asked = Asked(produce.API, broker(replica), request(*indexes), version)
            for callback in replica.callbacks[turn * len(indexes) :]:
                callback(failure or ErrorCode.NONE)
                # What comes later changes nothing, and is not counted.
                callback(ErrorCode.REQUEST_TIMED_OUT)
            asked.deadlines.stop()
            assert sum(asked.call.seconds.counts) == 1
            found = asked.answer(ProduceResponse).topics[0].partitions[0]
        return found

    one, of_many = run_virtually(run(0)), run_virtually(run(0, 2))
    assert one == of_many
    assert one.error_code == (failure or ErrorCode.NONE)


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("indexes", [(1,), (0, 1)])
def test_who_wants_no_answer_loses_the_connection(version: int, indexes: tuple[int, ...]) -> None:
    asked = Asked(produce.API, broker(Waiting()), request(*indexes, acks=0), version)
    assert asked.connection.closed_because
    assert asked.connection.replies == []

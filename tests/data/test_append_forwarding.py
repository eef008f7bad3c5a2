"""Writes that are handed to the leader: what comes back, and what nobody knows."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fakes import Fake

from harness.virtual_loop import run_virtually
from moldau.data.append_forwarding import AppendForwarder, AppendResult
from moldau.data.produce import ACKS_ALL, ACKS_LEADER
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, Offset, TimestampMs
from moldau.net.peers.methods import PeerMethod
from moldau.replica.raft_replica import Proposal

ONE, TWO = Leader(BrokerId(1), Epoch(3)), Leader(BrokerId(2), Epoch(3))
TOPIC: Any = SimpleNamespace(name="t", topic_id=b"i" * 16)


class World(Fake):
    """One broker and, perhaps, the peer that leads."""

    def __init__(self, leader=None):
        self.leader = ONE
        self.peer: World | None = leader
        self.topics = {"t": TOPIC}
        self.failure: RefusedError | None = None
        self.acknowledges = ErrorCode.NONE
        self.is_acknowledged_at_once = False
        self.appended = []
        produce: Any = SimpleNamespace(append=self.append_here)
        self.service = AppendForwarder(
            me=BrokerId(1 if leader is not None else 2),
            image=lambda: cast(Any, SimpleNamespace(topic=self.topics.get)),
            leader_of=lambda topic, index: self.leader,
            produce=produce,
            caller=self,
        )
        if leader is not None:
            self.leader = TWO

    def append_here(self, topic, partition, data, acks, *, is_single):
        # Brokers divide what does not fit in one batch.
        assert not is_single
        if self.failure is not None:
            raise self.failure
        # Batches are stamped in place.
        assert not data.readonly
        self.appended.append((topic, partition, bytes(data), acks))
        return Proposal(Offset(7), Offset(9), TimestampMs(-1), self)

    def is_acknowledged(self, offset):
        return self.is_acknowledged_at_once

    def when_acknowledged(self, offset, callback):
        assert offset == 9
        if self.acknowledges is not None:
            asyncio.get_running_loop().call_soon(callback, self.acknowledges)

    async def call(self, peer, method, payload, timeout_seconds):
        assert (peer, method) == (2, PeerMethod.APPEND)
        assert self.peer is not None
        return await self.peer.service.on_request(BrokerId(1), payload)

    def append(self, acks=ACKS_ALL, timeout_seconds=60.0):
        return run_virtually(
            self.service.append(TOPIC, 4, b"batch", acks=acks, timeout_seconds=timeout_seconds)
        )


@pytest.fixture
def leader():
    world = World()
    world.leader = TWO
    return world


def test_the_leader_appends_itself_and_waits_for_the_others(leader):
    assert leader.append() == AppendResult(ErrorCode.NONE, "", 7)
    assert leader.appended == [("t", 4, b"batch", ACKS_ALL)]


def test_another_broker_hands_it_to_the_leader(leader):
    assert World(leader).append() == AppendResult(ErrorCode.NONE, "", 7)
    assert leader.appended == [("t", 4, b"batch", ACKS_ALL)]


def test_the_leader_alone_is_enough_if_that_is_asked(leader):
    leader.acknowledges = None
    assert World(leader).append(acks=ACKS_LEADER).base_offset == 7


def test_there_is_no_leader(leader):
    leader.leader = NO_LEADER
    assert leader.append().error is ErrorCode.LEADER_NOT_AVAILABLE
    assert leader.appended == []


@pytest.mark.parametrize("through_another", [False, True])
def test_a_refusal_comes_back_with_its_words(leader, through_another):
    leader.failure = RefusedError(ErrorCode.MESSAGE_TOO_LARGE, "too large")

    async def call(peer, method, payload, timeout_seconds):
        # As the peer links do it.
        return await leader.service.on_request(1, payload)

    world = World(leader) if through_another else leader
    world.call = call  # type: ignore[method-assign]
    assert world.append() == AppendResult(ErrorCode.MESSAGE_TOO_LARGE, "too large")


@pytest.mark.parametrize("through_another", [False, True])
def test_what_is_not_acknowledged_is_reported_as_doubtful(leader, through_another):
    leader.acknowledges = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    answer = (World(leader) if through_another else leader).append()
    assert answer.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert "may be lost" in answer.message
    assert answer.is_uncertain
    leader.acknowledges = None
    assert leader.append(timeout_seconds=0.01).error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("code", "is_uncertain"),
    [
        (ErrorCode.NETWORK_EXCEPTION, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
    ],
)
def test_what_is_lost_on_the_way_is_uncertain_and_what_is_refused_is_not(
    leader, code, is_uncertain
):
    world = World(leader)

    async def call(peer, method, payload, timeout_seconds):
        raise RefusedError(code, "why")

    world.call = call  # type: ignore[method-assign]
    assert world.append() == AppendResult(code, "why", is_uncertain=is_uncertain)


def test_a_topic_of_the_same_name_that_is_another_is_not_written_to(leader):
    leader.topics = {"t": SimpleNamespace(name="t", topic_id=b"j" * 16)}
    assert World(leader).append().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert leader.appended == []


def test_a_leader_that_does_not_know_the_topic_yet_is_asked_again(leader):
    leader.topics = {}
    assert World(leader).append().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.appended == []


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode(["t"])])
def test_a_malformed_request_is_refused(leader, payload):
    with pytest.raises(RefusedError) as caught:
        run_virtually(leader.service.on_request(1, payload))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_malformed_response_is_reported(leader):
    world = World(leader)

    async def call(peer, method, payload, timeout_seconds):
        return b"\xc1"

    world.call = call  # type: ignore[method-assign]
    assert world.append().error is ErrorCode.UNKNOWN_SERVER_ERROR

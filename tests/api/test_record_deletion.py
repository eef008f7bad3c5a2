"""Records deleted on other brokers: each leader is asked once, and each partition has a result."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from handler_calls import brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api.record_deletion import RecordDeletion
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, Offset
from moldau.net.peers.methods import PeerMethod

ORDERS = topic("orders", (1,), (1,), (2,), (2,), (3,))


class World:
    """A broker; partitions 0 and 1 are led by broker 1, 2 and 3 by broker 2, 4 by nobody."""

    def __init__(self, number: int) -> None:
        self.image = image(brokers(1, 2), ORDERS)
        self.peers: dict[int, World] = {}
        self.asked: list[int] = []
        self.deleted: list[tuple[int, int]] = []
        self.stands_still = False
        self.reply: bytes | None = None
        self.deletions = RecordDeletion(
            me=BrokerId(number), topics=cast(Any, self), leader_of=self.leader_of, caller=self
        )

    def leader_of(self, found: object, index: int) -> Leader:
        return NO_LEADER if index == 4 else Leader(BrokerId(1 + index // 2), Epoch(1))

    async def delete_records(self, name: str, partition: int, before: int) -> Offset:
        if self.stands_still:
            await asyncio.sleep(100)
        if before > 50:
            raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{before} is too much")
        self.deleted.append((partition, before))
        return Offset(before)

    async def call(self, peer: int, method: int, payload: bytes, timeout_seconds: float) -> bytes:
        assert method == PeerMethod.DELETE_RECORDS
        self.asked.append(peer)
        if peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        asked = self.peers[peer]
        return asked.reply or await asked.deletions.on_request(BrokerId(1), payload)


def codes(found: dict[int, Any]) -> dict[int, Any]:
    return {
        index: one.code if isinstance(one, RefusedError) else one for index, one in found.items()
    }


def delete(world: World, before: dict[int, int]) -> dict[int, Any]:
    return codes(run_virtually(world.deletions.delete(ORDERS, before)))


def test_each_leader_deletes_and_each_partition_has_its_own_result():
    world, other = World(1), World(2)
    world.peers = {2: other}
    found = delete(world, {4: 1, 3: 99, 2: 20, 1: 51, 0: 10})
    assert list(found) == [4, 3, 2, 1, 0]
    assert found == {
        0: 10,
        1: ErrorCode.OFFSET_OUT_OF_RANGE,
        2: 20,
        3: ErrorCode.OFFSET_OUT_OF_RANGE,
        4: ErrorCode.LEADER_NOT_AVAILABLE,
    }
    assert (world.asked, world.deleted, other.deleted) == ([2], [(0, 10)], [(2, 20)])


def test_a_leader_that_does_not_respond_keeps_nobody_else_from_it():
    world = World(1)
    assert delete(world, {0: 1, 2: 2, 3: 3}) == {
        0: 1,
        2: ErrorCode.NETWORK_EXCEPTION,
        3: ErrorCode.NETWORK_EXCEPTION,
    }


@pytest.mark.parametrize(
    "reply", [b"\xc1", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode([(12345, "?")])]
)
def test_nonsense_of_a_leader_is_an_error_of_its_partitions(reply):
    world, other = World(1), World(2)
    world.peers, other.reply = {2: other}, reply
    assert delete(world, {2: 2}) == {2: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_it_ends_in_time_where_nothing_is_committed():
    world = World(1)
    world.stands_still = True
    assert delete(world, {0: 1, 1: 1}) == dict.fromkeys((0, 1), ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ((), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (
            (SimpleNamespace(name="orders", topic_id=b"new"),),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    ],
)
def test_another_topic_of_the_same_name_is_left_alone(known, code):
    world, other = World(1), World(2)
    world.peers = {2: other}
    other.image = cast(Any, SimpleNamespace(topic={each.name: each for each in known}.get))
    assert delete(world, {2: 2}) == {2: code}
    assert other.deleted == []

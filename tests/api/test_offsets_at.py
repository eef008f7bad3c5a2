"""Offsets of a time: of all leaders, without those that do not respond."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api.offsets_at import OffsetsAt
from moldau.data.offsets import LATEST, NOT_FOUND, FoundOffset
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch
from moldau.net.peers.methods import PeerMethod

ORDERS = topic("orders", (1,), (2,), (2,), (3,))


class World:
    """A broker; partition 0 is led by broker 1, 1 and 2 by broker 2, 3 by nobody."""

    def __init__(self, number: int) -> None:
        self.image = image(brokers(1, 2), ORDERS)
        self.peers: dict[int, World] = {}
        self.asked: list[int] = []
        self.reply: bytes | None = None
        self.service = OffsetsAt(
            me=BrokerId(number), cluster=cast(Any, self), offsets=cast(Any, self), caller=self
        )

    def leader_of(self, found: object, index: int) -> Leader:
        return NO_LEADER if index == 3 else Leader(BrokerId(1 if index == 0 else 2), Epoch(1))

    def list_offset(
        self, name: str, partition: int, timestamp: int, *, reads_committed: bool
    ) -> FoundOffset:
        """Partition 2 has moved away; all records of partition 1 are older than 50."""
        assert (name, reads_committed) == ("orders", True)
        if partition == 2:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if timestamp == LATEST:
            return FoundOffset(99, -1, 1)
        return NOT_FOUND if partition == 1 and timestamp >= 50 else FoundOffset(timestamp, 0, 1)

    async def call(self, peer: int, method: int, payload: bytes, timeout_seconds: float) -> bytes:
        assert method == PeerMethod.OFFSETS_AT
        self.asked.append(peer)
        if peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        asked = self.peers[peer]
        return asked.reply or await asked.service.on_request(BrokerId(1), payload)


def test_each_leader_is_asked_once_and_who_does_not_know_is_missing():
    world = World(1)
    world.peers = {2: World(2)}
    assert run_virtually(world.service.find(ORDERS, range(4), 40)) == {0: 40, 1: 40}
    assert world.asked == [2]
    assert run_virtually(world.service.find(ORDERS, [1], 60)) == {1: 99}


@pytest.mark.parametrize("reply", [None, b"\xc1"], ids=["no link", "nonsense"])
def test_a_leader_that_does_not_respond_is_missing(reply):
    world, other = World(1), World(2)
    if reply is not None:
        world.peers, other.reply = {2: other}, reply
    assert run_virtually(world.service.find(ORDERS, range(4), 40)) == {0: 40}


@pytest.mark.parametrize("known", [None, SimpleNamespace(topic_id=b"new")])
def test_another_topic_of_the_same_name_is_not_looked_at(known):
    world, other = World(1), World(2)
    world.peers = {2: other}
    other.image = cast(Any, SimpleNamespace(topic=lambda name: known))
    assert run_virtually(world.service.find(ORDERS, [1], 40)) == {}

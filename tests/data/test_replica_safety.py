"""Leaders say whether they can spare a replica, to one at a time."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from moldau.data.partitions import HostedPartition, Partitions
from moldau.data.replica_safety import ReplicaSafety
from moldau.metadata.image import Topic
from moldau.metadata.leaders import Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.replica.driver import RaftDriver
from moldau.testing.replicas import ManualClock

ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
TOPIC_ID = TopicId(b"t" * 16)
TOPIC = Topic(name="t", topic_id=TOPIC_ID, partitions=())
FIRST = PartitionIndex(0)


class World:
    """Broker 1 and what its peers say; it leads a partition, or another one does."""

    def __init__(self, leader: BrokerId) -> None:
        self.leader = leader
        self.spare = {OTHER, THIRD, ME}
        self.replica = SimpleNamespace(
            topic_id=TOPIC_ID,
            partition=("t", FIRST),
            is_leader=leader == ME,
            leader=leader,
            is_ready=leader == ME,
            group=None,
        )
        self.clock = ManualClock()
        self.asked: list[BrokerId] = []
        self.reply: bytes | RefusedError = msgspec.msgpack.encode(True)
        self.spares = ReplicaSafety(
            partitions=cast(Partitions, self),
            driver=cast(RaftDriver, self),
            caller=self,
            clock=self.clock,
            me=ME,
            leader_of=lambda topic, index: Leader(self.leader, Epoch(1)),
        )

    def get(self, topic: str, partition: int) -> SimpleNamespace | None:
        return self.hosted if (topic, partition) == ("t", 0) else None

    @property
    def hosted(self) -> SimpleNamespace:
        return SimpleNamespace(replica=self.replica)

    def can_lose_replica(self, group: object, broker: BrokerId) -> bool:
        return broker in self.spare

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.asked.append(peer)
        if isinstance(self.reply, RefusedError):
            raise self.reply
        return self.reply

    async def told(self, broker: BrokerId, topic_id: bytes = TOPIC_ID, index: int = 0) -> bool:
        payload = msgspec.msgpack.encode(("t", index, topic_id))
        answer: bool = msgspec.msgpack.decode(await self.spares.on_request(broker, payload))
        return answer


async def test_one_at_a_time_is_granted() -> None:
    world = World(leader=ME)
    assert [await world.told(broker) for broker in (OTHER, THIRD, OTHER)] == [True, False, True]
    world.clock.steady += 601
    assert await world.told(THIRD)


async def test_no_replica_is_granted_that_the_group_needs() -> None:
    world = World(leader=ME)
    world.spare.clear()
    assert not await world.told(OTHER)
    # A no binds nobody.
    world.spare.add(THIRD)
    assert await world.told(THIRD)


@pytest.mark.parametrize(("topic_id", "index"), [(b"another", 0), (TOPIC_ID, 1)])
async def test_of_what_is_not_here_nothing_can_be_spared(topic_id: bytes, index: int) -> None:
    assert not await World(leader=ME).told(OTHER, topic_id, index)


async def test_only_a_leader_that_is_another_is_asked() -> None:
    world = World(leader=OTHER)
    assert await world.spares.may_rebuild(TOPIC, FIRST)
    assert await world.spares.can_lose(cast(HostedPartition, world.hosted))
    assert world.asked == [OTHER, OTHER]
    for leader in (ME, BrokerId(-1)):
        world.leader = leader
        assert not await world.spares.may_rebuild(TOPIC, FIRST)
    assert world.asked == [OTHER, OTHER]


@pytest.mark.parametrize("reply", [b"?", RefusedError(ErrorCode.REQUEST_TIMED_OUT)])
async def test_without_an_answer_it_is_no(reply: bytes | RefusedError) -> None:
    world = World(leader=OTHER)
    world.reply = reply
    assert not await world.spares.may_rebuild(TOPIC, FIRST)


async def test_a_leader_asks_itself_and_grants_no_other_meanwhile() -> None:
    world = World(leader=ME)
    assert await world.spares.can_lose(cast(HostedPartition, world.hosted))
    assert not await world.told(OTHER)
    assert world.asked == []


async def test_an_unreadable_request_is_refused() -> None:
    with pytest.raises(RefusedError):
        await World(leader=ME).spares.on_request(OTHER, b"?")

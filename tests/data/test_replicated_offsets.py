"""Followers learn from the leader up to where all replicas hold the records."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from moldau.data.partitions import Partitions
from moldau.data.replicated_offsets import ReplicatedOffsets
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicPartition
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import NO_BROKER

ME, LEADER, SILENT = BrokerId(1), BrokerId(2), BrokerId(3)
ID = b"i" * 16


def replica(number: int, leader: BrokerId, *, held: int = 0, topic_id: bytes = ID) -> Any:
    return SimpleNamespace(
        partition=TopicPartition("t", PartitionIndex(number)),
        topic_id=topic_id,
        leader=leader,
        is_leader=leader == ME,
        replicated_offset=Offset(held),
    )


class Hosts:
    """Partitions of one broker."""

    def __init__(self, *replicas: Any) -> None:
        self._hosted = {r.partition: SimpleNamespace(replica=r) for r in replicas}

    def get(self, topic: str, partition: int) -> Any:
        return self._hosted.get(TopicPartition(topic, PartitionIndex(partition)))


class Net:
    """Carries the question to the leader; another broker does not answer."""

    def __init__(self, leader: ReplicatedOffsets) -> None:
        self.leader = leader
        self.calls = 0

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.calls += 1
        assert method == PeerMethod.REPLICATED_OFFSETS
        if peer != LEADER:
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "silence")
        return await self.leader.on_request(ME, payload)


def service(*replicas: Any, caller: Any = None) -> ReplicatedOffsets:
    return ReplicatedOffsets(cast(Partitions, Hosts(*replicas)), caller)


async def test_each_leader_is_asked_once_for_all_that_it_leads() -> None:
    at_leader = service(
        replica(0, ME, held=70),
        replica(1, ME, held=80),
        replica(2, LEADER, held=90),
        replica(3, ME, held=95, topic_id=b"another one with the name"[:16]),
    )
    net = Net(at_leader)
    here = [replica(number, LEADER) for number in range(5)]
    here += [replica(5, ME, held=30), replica(6, SILENT), replica(7, NO_BROKER)]
    told = await service(*here, caller=net).query(here)
    assert {place.partition: offset for place, offset in told.items()} == {
        0: 70,
        1: 80,
        2: 0,
        3: 0,
        4: 0,
        5: 30,
    }
    assert net.calls == 2


async def test_a_malformed_request_is_refused() -> None:
    with pytest.raises(RefusedError):
        await service().on_request(LEADER, msgspec.msgpack.encode({"a": 1}))

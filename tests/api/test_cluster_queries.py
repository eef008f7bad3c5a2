"""Questions that no broker can answer alone: who answers, who is silent, what is nonsense."""

from types import SimpleNamespace

import msgspec
import pytest
from fakes import Fake

from harness.virtual_loop import run_virtually
from moldau.api import cluster_queries
from moldau.api.cluster_queries import (
    ClusterQueries,
    PartitionExtent,
)
from moldau.groups.results import GroupState, ListedGroup
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicPartition
from moldau.net.peers.methods import PeerMethod

ID = b"i" * 16


class World(Fake):
    """Three brokers; partition n of topic "t" is led by broker n + 1, and this one is 1."""

    def __init__(self, broker: int = 1) -> None:
        self.leaders = {n: Leader(BrokerId(n + 1), Epoch(5)) for n in range(3)} | {3: NO_LEADER}
        self.alive = frozenset({1, 2, 3})
        self.peers: dict[int, World] = {}
        self.listed: list[str] = []
        self.error = ErrorCode.NONE
        self.replica = SimpleNamespace(
            topic_id=ID,
            is_ready=True,
            high_watermark=10 * broker,
            log=SimpleNamespace(start_offset=broker, size_bytes=100),
        )
        self.hosts = {("t", broker - 1): SimpleNamespace(replica=self.replica)}
        topic = SimpleNamespace(name="t", topic_id=ID, partitions=range(4))
        self.image = SimpleNamespace(brokers={1: None, 2: None, 3: None}, topic={"t": topic}.get)
        self.views = ClusterQueries(
            me=BrokerId(broker), cluster=self, partitions=self, groups=self, caller=self
        )

    def leader_of(self, topic, index):
        return self.leaders[index]

    def get(self, topic, partition):
        return self.hosts.get((topic, partition))

    def list_groups(self, states, types):
        if self.error is not ErrorCode.NONE:
            return self.error, []
        return ErrorCode.NONE, [
            ListedGroup(group_id=name, protocol_type="consumer", state=GroupState.EMPTY)
            for name in self.listed
        ]

    async def call(self, peer, method, payload, timeout_seconds):
        if peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        asked = self.peers[peer].views
        answer = {
            PeerMethod.PARTITION_EXTENTS: asked.on_extents_request,
            PeerMethod.LIST_GROUPS: asked.on_groups_request,
        }
        return await answer[method](BrokerId(1), payload)


def places(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", PartitionIndex(number)) for number in numbers]


def test_leaders_are_asked_and_who_has_none_or_does_not_answer_is_missing():
    world = World()
    world.peers = {2: World(2)}
    wanted = [*places(0, 1, 2, 3, 4, -1), TopicPartition("gone", PartitionIndex(0))]
    assert run_virtually(world.views.extents(wanted)) == {
        ("t", 0): PartitionExtent(1, 10, 100),
        ("t", 1): PartitionExtent(2, 20, 100),
    }


@pytest.mark.parametrize("change", [{"topic_id": b"j" * 16}, {"is_ready": False}])
def test_a_broker_that_cannot_know_reports_nothing(change):
    world = World()
    world.peers = {2: World(2)}
    vars(world.peers[2].replica).update(change)
    assert run_virtually(world.views.extents(places(0, 1))) == {
        ("t", 0): PartitionExtent(1, 10, 100)
    }


def test_groups_of_all_are_in_order_and_unresponsive_brokers_are_named():
    world = World()
    world.listed = ["b"]
    world.peers = {2: World(2)}
    world.peers[2].listed = ["c", "a"]
    found, silent = run_virtually(world.views.groups())
    assert [(group.group_id, broker) for group, broker in found] == [("a", 2), ("b", 1), ("c", 2)]
    assert silent == [3]


def test_a_broker_that_still_loads_or_is_not_reachable_is_unresponsive():
    world = World()
    world.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.peers = {2: World(2), 3: World(3)}
    world.peers[2].error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.alive = frozenset({1, 2})
    assert run_virtually(world.views.groups()) == ([], [1, 2, 3])


def test_more_groups_than_fit_into_a_response_are_not_returned_in_part(monkeypatch):
    monkeypatch.setattr(cluster_queries, "GROUPS_PER_BROKER_MAX", 1)
    world = World()
    world.listed = ["a", "b"]
    assert run_virtually(world.views.groups())[1] == [1, 2, 3]


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([("t", "x", ID)])])
def test_a_malformed_request_is_refused(payload):
    with pytest.raises(RefusedError) as caught:
        run_virtually(World().views.on_extents_request(BrokerId(2), payload))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_an_answer_that_is_none_counts_as_silence():
    world = World()
    world.peers = {2: World(2), 3: World(3)}

    async def nonsense(sender, payload):
        return b"\xc1"

    world.peers[2].views.on_groups_request = nonsense  # type: ignore[method-assign]
    world.peers[3].views.on_extents_request = nonsense  # type: ignore[method-assign]
    assert run_virtually(world.views.groups())[1] == [2]
    assert set(run_virtually(world.views.extents(places(0, 1, 2)))) == {("t", 0), ("t", 1)}

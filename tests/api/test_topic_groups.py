"""The groups of a topic: of all coordinators, by name, with those offsets that are shown."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api import topic_groups
from moldau.api.topic_groups import GroupOfTopic, TopicGroupPage, TopicGroups, groups_max
from moldau.groups.topic_consumers import TopicConsumers
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset
from moldau.net.peers.methods import PeerMethod

ORDERS = topic("orders", (1,), (2,))


class Coordinator:
    """Has these groups; those with a dash in their names consume something else."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.loaded = True

    def group_ids(self) -> list[str]:
        return list(self.names)

    def consumers_of(
        self, group_id: str, name: str, partitions: int, *, with_offsets: bool
    ) -> TopicConsumers | None:
        assert (name, partitions) == ("orders", 2)
        if group_id not in self.names or "-" in group_id:
            return None
        return TopicConsumers("Empty", 0, ((0, Offset(7)),) if with_offsets else ())


class World:
    def __init__(self, number: int, *coordinators: Coordinator) -> None:
        self.coordinators = list(coordinators)
        self.refusal: RefusedError | None = None
        self.lag_refusal: RefusedError | None = None
        self.peers: dict[int, World] = {}
        self.alive = frozenset({1, 2, 3})
        self.image = image(brokers(1, 2, 3), ORDERS)
        self.service = TopicGroups(
            me=BrokerId(number),
            cluster=cast(Any, self),
            groups=cast(Any, self),
            lags=cast(Any, self),
            caller=self,
        )

    def coordinators_here(self) -> list[Coordinator]:
        if self.refusal is not None:
            raise self.refusal
        return self.coordinators

    async def of_topic(
        self, name: str, groups: dict[str, tuple[tuple[int, int], ...]]
    ) -> dict[str, float | None]:
        assert (name, set(groups.values())) == ("orders", {((0, 7),)})
        if self.lag_refusal is not None:
            raise self.lag_refusal
        return {group: 1.5 if group == "a" else None for group in groups}

    async def call(self, peer: int, method: int, payload: bytes, timeout_seconds: float) -> bytes:
        assert method == PeerMethod.GROUPS_OF_TOPIC
        if peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        return await self.peers[peer].service.on_request(BrokerId(1), payload)


def cluster() -> World:
    world = World(1, Coordinator("b", "other-one"), Coordinator("d"))
    world.peers = {2: World(2, Coordinator("c", "a")), 3: World(3)}
    return world


def test_groups_are_shown_without_their_lag_if_it_is_not_measured():
    world = cluster()
    world.peers[2].lag_refusal = RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many ask")
    found = run_virtually(world.service.page(ORDERS, ["a", "b"], [], has_more=False))
    assert [(one.group_id, one.lag_seconds) for one in found.groups] == [("a", None), ("b", None)]
    assert found.silent == []


def test_the_names_of_all_coordinators_are_in_order():
    assert run_virtually(cluster().service.names(ORDERS)) == (["a", "b", "c", "d"], [])


def test_a_page_has_the_offsets_of_its_groups_and_says_where_to_go_on():
    found = run_virtually(cluster().service.page(ORDERS, ["a", "b", "gone"], [], has_more=True))
    offsets = ((0, 7),)
    assert found == TopicGroupPage(
        [GroupOfTopic("a", "Empty", 0, offsets, 1.5), GroupOfTopic("b", "Empty", 0, offsets)],
        "gone",
        [],
    )


def test_brokers_that_do_not_respond_in_either_round_are_named():
    world = cluster()
    del world.peers[3]
    world.alive = frozenset({1, 3})
    assert run_virtually(world.service.names(ORDERS)) == (["b", "d"], [2, 3])
    world.refusal = RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    page = run_virtually(world.service.page(ORDERS, ["b"], [BrokerId(2)], has_more=False))
    assert page == ([], None, [1, 2, 3])


def test_a_coordinator_that_ends_meanwhile_makes_its_broker_a_silent_one():
    world = cluster()
    world.coordinators[1].loaded = False
    assert run_virtually(world.service.names(ORDERS)) == (["a", "c"], [1])


def test_more_groups_than_fit_into_a_response_are_not_named_in_part(monkeypatch):
    monkeypatch.setattr(topic_groups, "_NAMES_PER_BROKER_MAX", 1)
    assert run_virtually(cluster().service.names(ORDERS)) == ([], [1, 2])


@pytest.mark.parametrize(("partitions", "size"), [(1, 100), (1000, 10), (10_000, 1)])
def test_a_page_holds_no_more_offsets_than_a_topic_has_partitions_at_most(partitions, size):
    wide = SimpleNamespace(partitions=range(partitions))
    assert groups_max(cast(Any, wide), 100) == size

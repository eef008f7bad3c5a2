from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.image import Broker
from moldau.metadata.placement import place
from moldau.model.ids import BrokerId, TopicId


def make_brokers(racks: list[str | None]) -> list[Broker]:
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack)
        for number, rack in enumerate(racks, start=1)
    ]


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    count=st.integers(1, 60),
    seed=st.binary(min_size=16, max_size=16),
    data=st.data(),
)
def test_every_placement_is_sound(
    racks: list[str | None], count: int, seed: bytes, data: st.DataObject
) -> None:
    brokers = make_brokers(racks)
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, topic_id=TopicId(seed), first=0, count=count, replication_factor=factor)
    rack_of = {broker.id: broker.rack for broker in brokers}
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(rack_of)
        used = {rack_of[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[broker.id] for broker in brokers) <= 1


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_replicas_spread_evenly_over_equal_brokers(factor: int) -> None:
    brokers = make_brokers([None] * 5)
    placed = place(
        brokers, topic_id=TopicId(bytes(16)), first=0, count=100, replication_factor=factor
    )
    counts = Counter(broker for replicas in placed for broker in replicas)
    assert set(counts.values()) == {20 * factor}


def test_followers_of_one_leader_vary() -> None:
    brokers = make_brokers([None] * 4)
    placed = place(brokers, topic_id=TopicId(bytes(16)), first=0, count=48, replication_factor=2)
    assert len(set(placed)) == 12


def test_growing_continues_where_creation_ended() -> None:
    brokers = make_brokers(["a", "b", "c"])
    whole = place(brokers, topic_id=TopicId(b"x" * 16), first=0, count=9, replication_factor=2)
    tail = place(brokers, topic_id=TopicId(b"x" * 16), first=4, count=5, replication_factor=2)
    assert whole[4:] == tail

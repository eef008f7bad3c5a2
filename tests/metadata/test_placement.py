from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.image import Broker, BrokerState
from moldau.metadata.placement import Loads, ReplicaPlacer, Replicas, place
from moldau.model.ids import BrokerId, TopicId

SEED = TopicId(b"x" * 16)
topic_ids = st.binary(min_size=16, max_size=16).map(TopicId)


def make_brokers(racks: list[str | None]) -> list[Broker]:
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack)
        for number, rack in enumerate(racks, start=1)
    ]


def difference(counts: Counter[BrokerId], brokers: list[Broker]) -> int:
    loads = [counts[broker.id] for broker in brokers]
    return max(loads) - min(loads)


def loads_of(placed: tuple[Replicas, ...]) -> Loads:
    loads = Loads()
    for replicas in placed:
        loads.add(replicas)
    return loads


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    count=st.integers(1, 60),
    seed=topic_ids,
    data=st.data(),
)
def test_every_placement_is_sound_and_balances_its_leaders(
    racks: list[str | None], count: int, seed: TopicId, data: st.DataObject
) -> None:
    brokers = make_brokers(racks)
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, topic_id=seed, count=count, replication_factor=factor)
    rack_of = {broker.id: broker.rack for broker in brokers}
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(rack_of)
        used = {rack_of[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks)))
    assert difference(loads_of(placed).leaders, brokers) <= 1
    again = place(reversed(brokers), topic_id=seed, count=count, replication_factor=factor)
    assert again == placed


@given(
    racks=st.integers(1, 4),
    size=st.integers(1, 4),
    count=st.integers(1, 40),
    seed=topic_ids,
    data=st.data(),
)
def test_replicas_and_leaders_differ_by_one_at_most_where_racks_are_equal(
    racks: int, size: int, count: int, seed: TopicId, data: st.DataObject
) -> None:
    brokers = make_brokers([f"rack-{number % racks}" for number in range(racks * size)])
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, topic_id=seed, count=count, replication_factor=factor)
    assert difference(loads_of(placed).replicas, brokers) <= 1
    assert difference(loads_of(placed).leaders, brokers) <= 1


@given(
    states=st.lists(st.sampled_from(BrokerState), min_size=1, max_size=8),
    count=st.integers(1, 20),
    data=st.data(),
)
def test_a_broker_that_leaves_is_never_chosen(
    states: list[BrokerState], count: int, data: st.DataObject
) -> None:
    brokers = [
        Broker(id=BrokerId(number), host="h", port=1, state=state)
        for number, state in enumerate(states)
    ]
    active = {broker.id for broker in brokers if broker.state is BrokerState.ACTIVE}
    if not active:
        return
    factor = data.draw(st.integers(1, len(active)))
    placed = place(brokers, topic_id=SEED, count=count, replication_factor=factor)
    assert {broker for replicas in placed for broker in replicas} <= active


def test_partners_of_one_broker_vary() -> None:
    brokers = make_brokers([None] * 4)
    placed = place(brokers, topic_id=SEED, count=48, replication_factor=2)
    pairs = Counter(tuple(sorted(replicas)) for replicas in placed)
    assert sorted(pairs.values()) == [8] * 6


@given(
    brokers=st.integers(1, 6), first=st.integers(1, 10), added=st.integers(1, 10), data=st.data()
)
def test_growing_goes_on_where_creation_ended(
    brokers: int, first: int, added: int, data: st.DataObject
) -> None:
    known = make_brokers([None] * brokers)
    factor = data.draw(st.integers(1, brokers))
    whole = place(known, topic_id=SEED, count=first + added, replication_factor=factor)
    created = place(known, topic_id=SEED, count=first, replication_factor=factor)
    grown = created + place(
        known, topic_id=SEED, count=added, replication_factor=factor, existing=created
    )
    assert [set(replicas) for replicas in grown] == [set(replicas) for replicas in whole]
    # The leaders of the older partitions stay, so one too many may remain.
    assert difference(loads_of(grown).leaders, known) <= 2


def test_topics_of_one_partition_fill_the_cluster_evenly() -> None:
    brokers = make_brokers(["a", "b", "a", "b"])
    loads = Loads()
    for number in range(40):
        topic_id = TopicId(number.to_bytes(16, "big"))
        for replicas in place(
            brokers, topic_id=topic_id, count=1, replication_factor=2, cluster=loads
        ):
            loads.add(replicas)
        assert difference(loads.replicas, brokers) <= 1
        assert difference(loads.leaders, brokers) <= 1


def test_a_broker_that_joins_is_used_first_but_not_heaped_upon() -> None:
    loads = Loads()
    for _ in range(30):
        for number in (1, 2, 3):
            loads.add((BrokerId(number),))
    brokers = make_brokers([None] * 4)
    for number in range(8):
        seed = TopicId(bytes([number]) * 16)
        single = place(brokers, topic_id=seed, count=1, replication_factor=1, cluster=loads)
        assert single == ((BrokerId(4),),)
    placed = place(brokers, topic_id=SEED, count=8, replication_factor=1, cluster=loads)
    assert set(loads_of(placed).replicas.values()) == {2}


def test_topics_do_not_all_begin_at_one_broker() -> None:
    brokers = make_brokers([None] * 3)
    first = {
        place(brokers, topic_id=TopicId(bytes([number]) * 16), count=1, replication_factor=1)[0][0]
        for number in range(16)
    }
    assert first == {1, 2, 3}


def test_a_replacement_takes_the_place_and_keeps_racks_apart() -> None:
    brokers = make_brokers(["a", "b", "a", "b"])
    spread = ReplicaPlacer(brokers, topic_id=SEED, existing=[(BrokerId(1), BrokerId(2))])
    assert spread.replace((BrokerId(1), BrokerId(2)), BrokerId(1), 2) == (3, 2)
    assert spread.replace((BrokerId(3), BrokerId(2)), BrokerId(2), 2) == (3, 4)


def test_replacements_of_one_broker_spread_over_the_others() -> None:
    brokers = make_brokers([None] * 5)
    placed = place(brokers, topic_id=SEED, count=20, replication_factor=2)
    remaining = [broker for broker in brokers if broker.id != 1]
    spread = ReplicaPlacer(remaining, topic_id=SEED, existing=placed)
    moved = tuple(
        spread.replace(replicas, BrokerId(1), 2) if BrokerId(1) in replicas else replicas
        for replicas in placed
    )
    assert all(len(set(replicas)) == 2 and BrokerId(1) not in replicas for replicas in moved)
    assert difference(loads_of(moved).replicas, remaining) <= 1
    assert all(a == b or 1 in a for a, b in zip(placed, moved, strict=True))


def test_a_replacement_counts_what_stays_only_once() -> None:
    two, three, four = (BrokerId(number) for number in (2, 3, 4))
    one = BrokerId(1)
    existing = [(one, two), (one, three), (four,), (four,)]
    spread = ReplicaPlacer(make_brokers([None] * 4)[1:], topic_id=SEED, existing=existing)
    assert spread.replace((one, two), one, 2) == (three, two)
    assert spread.replace((one, three), one, 2) == (two, three)


def test_a_broker_that_leaves_is_not_made_a_preferred_leader() -> None:
    leaving = Broker(id=BrokerId(0), host="h", port=1, state=BrokerState.DRAINING)
    for number in range(8):
        seed = TopicId(bytes([number]) * 16)
        spread = ReplicaPlacer([leaving, *make_brokers([None] * 2)], topic_id=seed)
        for _ in range(4):
            spread.place((leaving.id,), 2)
        assert all(replicas[0] != leaving.id for replicas in spread.placed)


def test_the_choice_prefers_racks_not_used_by_those_that_stay() -> None:
    brokers = make_brokers(["a", "a", "b", "b", "c"])
    rack_of = {broker.id: broker.rack for broker in brokers}
    spread = ReplicaPlacer(brokers, topic_id=SEED)
    for kept in pairwise(broker.id for broker in brokers):
        spread.place(kept, 3)
        replicas = spread.placed[-1]
        assert set(kept) <= set(replicas)
        assert len({rack_of[broker] for broker in replicas}) == (
            3 if rack_of[kept[0]] != rack_of[kept[1]] else 2
        )

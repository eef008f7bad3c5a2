from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moldau.metadata.image import Broker, BrokerState, Place
from moldau.metadata.placement import Loads, ReplicaPlacer, Replicas, place
from moldau.model.ids import BrokerId, TopicId

SEED = TopicId(b"x" * 16)
topic_ids = st.binary(min_size=16, max_size=16).map(TopicId)


def make_brokers(racks: list[str | None]) -> list[Broker]:
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack)
        for number, rack in enumerate(racks, start=1)
    ]


def on_machines(
    machines: Sequence[str | None], racks: Sequence[str | None] | None = None
) -> list[Broker]:
    pairs = zip(machines, racks or [None] * len(machines), strict=False)
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack, machine=machine)
        for number, (machine, rack) in enumerate(pairs, start=1)
    ]


def used(brokers: list[Broker], replicas: Replicas) -> Counter[Place]:
    return Counter(brokers[broker - 1].place for broker in replicas)


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


machine_lists = st.lists(st.sampled_from([None, "m", "n", "o"]), min_size=1, max_size=9)
rack_lists = st.lists(st.sampled_from([None, "a", "b"]), min_size=9, max_size=9)


@given(machine_lists, rack_lists, st.integers(1, 40), topic_ids, st.data())
def test_no_machine_gets_a_second_replica_while_another_has_none(
    machines: list[str | None],
    racks: list[str | None],
    count: int,
    seed: TopicId,
    data: st.DataObject,
) -> None:
    brokers = on_machines(machines, racks)
    places = {broker.place for broker in brokers}
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, topic_id=seed, count=count, replication_factor=factor)
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert len(used(brokers, replicas)) == min(factor, len(places))
    again = place(reversed(brokers), topic_id=seed, count=count, replication_factor=factor)
    assert again == placed


@given(machine_lists, st.integers(1, 40), topic_ids, st.data())
def test_machines_within_racks_leave_the_racks_as_they_are(
    machines: list[str | None], count: int, seed: TopicId, data: st.DataObject
) -> None:
    """Where no machine is in two racks, and there are enough machines."""
    racks: list[str | None] = [
        {"m": "a", "n": "b", "o": "b"}.get(one or "", "c") for one in machines
    ]
    brokers = on_machines(machines, racks)
    factor = data.draw(st.integers(1, len(brokers)))
    for replicas in place(brokers, topic_id=seed, count=count, replication_factor=factor):
        assert len({racks[broker - 1] for broker in replicas}) == min(factor, len(set(racks)))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), topic_ids, st.data())
def test_replicas_and_leaders_differ_by_one_at_most_where_machines_are_equal(
    machines: int, size: int, count: int, seed: TopicId, data: st.DataObject
) -> None:
    brokers = on_machines([f"host-{number % machines}" for number in range(machines * size)])
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, topic_id=seed, count=count, replication_factor=factor)
    assert difference(loads_of(placed).replicas, brokers) <= 1
    assert difference(loads_of(placed).leaders, brokers) <= 1


@given(rack_lists, st.integers(1, 9), st.integers(1, 30), topic_ids, st.data())
def test_one_machine_alone_changes_nothing(
    racks: list[str | None], brokers: int, count: int, seed: TopicId, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    unknown, alone = on_machines([None] * brokers, racks), on_machines(["m"] * brokers, racks)
    placed = [
        place(known, topic_id=seed, count=count, replication_factor=factor)
        for known in (unknown, alone)
    ]
    assert placed[0] == placed[1]


def test_a_machine_that_is_in_two_racks_is_still_one_machine() -> None:
    # Racks by process, as on a laptop; and then a second machine.
    brokers = on_machines(["m", "m", "m", "n"], ["a", "b", "c", "a"])
    for replicas in place(brokers, topic_id=SEED, count=20, replication_factor=2):
        assert used(brokers, replicas) == {"m": 1, "n": 1}


def test_a_replica_that_leaves_goes_to_a_machine_without_one() -> None:
    brokers = on_machines(["m", "m", "n", "o", "o"])
    spread = ReplicaPlacer(brokers, topic_id=SEED)
    one, two, three, four, five = (broker.id for broker in brokers)
    assert spread.replace((one, two, three), two, 3) in {(one, four, three), (one, five, three)}


def test_a_draining_broker_still_counts_where_it_keeps_a_replica() -> None:
    brokers = on_machines(["m", "m", "n", "n"])
    brokers[0] = replace(brokers[0], state=BrokerState.DRAINING)
    spread = ReplicaPlacer(brokers, topic_id=SEED)
    spread.place((brokers[0].id,), 2)
    assert used(brokers, spread.placed[0]) == {"m": 1, "n": 1}


def test_brokers_of_larger_machines_hold_as_much_as_others() -> None:
    brokers = on_machines(["m"] * 4 + ["n", "n", "o", "o"])
    loads = loads_of(place(brokers, topic_id=SEED, count=80, replication_factor=2))
    assert difference(loads.replicas, brokers) <= 2
    assert difference(loads.leaders, brokers) <= 1

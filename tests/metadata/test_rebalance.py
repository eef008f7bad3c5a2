"""The plan of a rebalance: no replica less, nothing worse, and nothing to do after it."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.rebalance import (
    Balance,
    PlanBroker,
    PlannedMove,
    PlanPartition,
    balance_of,
    plan_moves,
)
from moldau.model.ids import BrokerId

GIB = 2**30
RACKS = st.sampled_from([None, "a", "b", "c"])
MACHINES = st.sampled_from([None, "m", "n", "o"])


def after(partitions: Sequence[PlanPartition], moves: Sequence[PlannedMove]) -> list[PlanPartition]:
    changed = {(move.topic, move.partition): move.after for move in moves}
    return [one._replace(replicas=changed.get(one.key, one.replicas)) for one in partitions]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PlanBroker], list[PlanPartition]]:
    """Any cluster: some brokers dead, full or leaving, partitions anywhere."""
    brokers = [
        PlanBroker(
            BrokerId(number),
            rack,
            takes=kind not in ("dead", "leaving"),
            leaves=kind == "leaving",
            # Too full for an empty replica: what the first plan puts there is not in the second.
            disk_free_bytes=9 * GIB if kind == "full" else -1,
            disk_total_bytes=100 * GIB if kind == "full" else -1,
            machine=machine,
        )
        for number, (rack, machine, kind) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        RACKS, MACHINES, st.sampled_from(["", "", "", "dead", "full", "leaving"])
                    ),
                    min_size=1,
                    max_size=6,
                )
            ),
            start=1,
        )
    ]
    ids = [broker.id for broker in brokers]
    factor = draw(st.integers(1, min(3, len(ids))))
    spread = st.permutations(ids).map(lambda order: tuple(order[:factor]))
    partitions = [
        PlanPartition(topic, number, draw(spread), draw(st.integers(0, 8)) * GIB)
        for topic in draw(st.sampled_from(["a", "ab", "abc"]))
        for number in range(draw(st.integers(1, 8)))
    ]
    fixed = draw(st.sets(st.integers(0, len(partitions) - 1), max_size=2))
    return brokers, [one._replace(fixed=at in fixed) for at, one in enumerate(partitions)]


@given(cluster=clusters())
def test_a_plan_is_sound_and_makes_nothing_worse(
    cluster: tuple[list[PlanBroker], list[PlanPartition]],
) -> None:
    brokers, partitions = cluster
    known = {broker.id: broker for broker in brokers}
    moves = plan_moves(brokers, partitions)
    fixed = {one.key for one in partitions if one.fixed}
    for move in moves:
        assert len(move.after) == len(set(move.after)) == len(move.before)
        assert all(known[broker].takes for broker in move.added)
        assert (move.topic, move.partition) not in fixed
        assert move.bytes_moved == move.size_bytes * len(set(move.after) - set(move.before))
    planned = after(partitions, moves)
    before_balance, balance = balance_of(brokers, partitions), balance_of(brokers, planned)
    assert balance <= before_balance
    if not balance.leaving < before_balance.leaving:
        # Only a broker that is emptied, a machine, or a rack, is worth a worse count.
        assert balance[1:4] <= before_balance[1:4]
        if balance[1:4] == before_balance[1:4]:
            assert balance.replicas <= before_balance.replicas
    places = {one.place for one in brokers if one.takes}
    for one in planned:
        used = Counter(known[broker].place for broker in one.replicas)
        is_alone = places <= {*used}
        assert (
            one.key in fixed
            or is_alone
            or not any(used[known[broker].place] > 1 for broker in one.replicas)
        )
    assert plan_moves(brokers, planned) == [], "a second plan must have nothing to do"
    assert plan_moves(reversed(brokers), reversed(partitions)) == moves


@given(cluster=clusters(), most=st.integers(0, 4))
def test_a_bounded_plan_moves_no_more_data_than_allowed(
    cluster: tuple[list[PlanBroker], list[PlanPartition]], most: int
) -> None:
    brokers, partitions = cluster
    moves = plan_moves(brokers, partitions, moves_max=most)
    assert sum(bool(move.added) for move in moves) <= most
    assert balance_of(brokers, after(partitions, moves)) <= balance_of(brokers, partitions)


@given(
    brokers=st.integers(1, 7),
    partitions=st.integers(1, 40),
    racks=st.lists(RACKS, min_size=7, max_size=7),
    data=st.data(),
)
def test_brokers_that_may_hold_anything_hold_and_lead_the_same(
    brokers: int, partitions: int, racks: list[str | None], data: st.DataObject
) -> None:
    one_rack = data.draw(st.booleans())
    ids = [BrokerId(number) for number in range(1, brokers + 1)]
    known = [PlanBroker(one, None if one_rack else racks[one - 1]) for one in ids]
    factor = data.draw(st.integers(1, min(3, brokers)))
    spread = st.permutations(ids).map(lambda order: tuple(order[:factor]))
    found = [PlanPartition("t", number, data.draw(spread)) for number in range(partitions)]
    planned = after(found, plan_moves(known, found))
    held = Counter(broker for one in planned for broker in one.replicas)
    led = Counter(one.replicas[0] for one in planned)
    if one_rack:
        assert max(held[one] for one in ids) - min(held[one] for one in ids) <= 1
        assert max(led[one] for one in ids) - min(led[one] for one in ids) <= 1
    rack_of = {one.id: one.rack for one in known}
    for one in planned:
        used = {rack_of[broker] for broker in one.replicas}
        assert len(used) == min(factor, len(set(rack_of.values())))


def test_copies_on_one_machine_part_when_another_machine_comes() -> None:
    one, two, three, four = (BrokerId(number) for number in (1, 2, 3, 4))
    alone = [PlanBroker(number, machine="m") for number in (one, two)]
    partitions = [PlanPartition("t", number, (one, two), GIB) for number in range(4)]
    assert not any(move.added for move in plan_moves(alone, partitions))
    known = [*alone, PlanBroker(three, machine="n")]
    planned = after(partitions, plan_moves(known, partitions))
    assert all(three in one.replicas for one in planned)
    held = Counter(broker for one in planned for broker in one.replicas)
    assert held == {one: 2, two: 2, three: 4}
    # A rack is no reason to stay, and no reason to leave a machine for one that has a copy, too.
    racks = [PlanBroker(one, "a", machine="m"), PlanBroker(two, "b", machine="m")]
    racks += [PlanBroker(three, "a", machine="n"), PlanBroker(four, "b", machine="n")]
    planned = after(partitions, plan_moves(racks, partitions))
    assert {frozenset(one.replicas) for one in planned} == {
        frozenset((one, four)),
        frozenset((two, three)),
    }


def balanced(count: int) -> list[PlanPartition]:
    ids = (BrokerId(1), BrokerId(2), BrokerId(3))
    return [
        PlanPartition("t", number, ids[number % 3 :] + ids[: number % 3], GIB)
        for number in range(count)
    ]


def three() -> list[PlanBroker]:
    return [PlanBroker(BrokerId(number)) for number in (1, 2, 3)]


def test_the_plan_of_a_balanced_cluster_is_empty() -> None:
    assert plan_moves(three(), balanced(9)) == []
    # Nor is one replica more on one broker worth a move.
    assert plan_moves(three(), balanced(10)) == []


def test_a_new_broker_gets_its_share_and_no_other_replica_moves() -> None:
    brokers = [*three(), PlanBroker(BrokerId(4))]
    moves = plan_moves(brokers, balanced(12))
    data = [move for move in moves if move.added]
    assert {move.added for move in data} == {(BrokerId(4),)}
    assert len(data) == 9
    planned = after(balanced(12), moves)
    assert Counter(one.replicas[0] for one in planned) == dict.fromkeys((1, 2, 3, 4), 3)


def test_a_broker_that_leaves_is_emptied_if_there_is_another_one() -> None:
    brokers = [*three(), PlanBroker(BrokerId(4))]
    leaving = [one._replace(takes=one.id != 2, leaves=one.id == 2) for one in brokers]
    planned = after(balanced(6), plan_moves(leaving, balanced(6)))
    assert all(2 not in one.replicas for one in planned)
    stuck = [one for one in leaving if one.id != 4]
    assert all(len(one.replicas) == 3 for one in after(balanced(6), plan_moves(stuck, balanced(6))))


def test_a_full_broker_gets_fewer_bytes_by_a_swap() -> None:
    one, two = BrokerId(1), BrokerId(2)
    partitions = [
        PlanPartition("t", 0, (one,), 10 * GIB),
        PlanPartition("t", 1, (one,), 10 * GIB),
        PlanPartition("t", 2, (two,), GIB),
        PlanPartition("t", 3, (two,), GIB),
    ]
    moves = plan_moves(three()[:2], partitions)
    assert sum(move.bytes_moved for move in moves) == 11 * GIB
    before = balance_of(three()[:2], partitions)
    assert balance_of(three()[:2], after(partitions, moves)) == before._replace(
        bytes=2 * (11 * GIB) ** 2
    )


def test_brokers_of_one_machine_share_its_disk() -> None:
    old = PlanBroker(BrokerId(1), machine="a")
    node = [
        PlanBroker(
            BrokerId(number),
            machine="b",
            disk_free_bytes=100 * GIB,
            disk_total_bytes=120 * GIB,
        )
        for number in (2, 3, 4, 5)
    ]
    parts = [PlanPartition("t", index, (BrokerId(1),), size_bytes=20 * GIB) for index in range(20)]
    moved = sum(move.size_bytes for move in plan_moves([old, *node], parts))
    # Each would have room for four: 320 GiB in all.
    assert 0 < moved <= 100 * GIB


def test_a_broker_with_a_full_disk_gets_no_replica() -> None:
    one = BrokerId(1)
    partitions = [PlanPartition("t", number, (one,), 20 * GIB) for number in range(4)]
    brokers = [
        PlanBroker(one),
        PlanBroker(BrokerId(2), disk_free_bytes=15 * GIB, disk_total_bytes=100 * GIB),
    ]
    assert plan_moves(brokers, partitions) == []


def test_preferred_leaders_are_spread_without_moving_data() -> None:
    ids = (BrokerId(1), BrokerId(2), BrokerId(3))
    partitions = [PlanPartition("t", number, ids, GIB) for number in range(9)]
    moves = plan_moves(three(), partitions)
    assert [move.bytes_moved for move in moves] == [0] * 6
    assert Counter(one.replicas[0] for one in after(partitions, moves)) == {1: 3, 2: 3, 3: 3}


def test_the_measure_sees_each_kind_of_imbalance() -> None:
    even = balance_of(three(), balanced(3))
    assert even == Balance(0, -9, 27, 9, 27, 27 * GIB**2, 3)
    swapped = [one._replace(replicas=tuple(sorted(one.replicas))) for one in balanced(3)]
    assert balance_of(three(), swapped) == even._replace(leaders=9)

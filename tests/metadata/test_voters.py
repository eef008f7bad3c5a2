from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import Command, CreateTopic, DrainBroker, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Broker, BrokerState, Image
from moldau.metadata.voters import (
    desired_members,
    desired_voters,
    has_majority,
    next_members,
    voter_places,
)
from moldau.model.ids import BrokerId, TopicId
from moldau.raft.membership import Members, check_change

ONE, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))


def make_brokers(*racks: str | None) -> list[Broker]:
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack)
        for number, rack in enumerate(racks, start=1)
    ]


def test_one_two_three_or_five_vote() -> None:
    counts = [len(desired_voters(make_brokers(*[None] * n), ())) for n in range(9)]
    assert counts == [0, 1, 2, 3, 3, 5, 5, 5, 5]


def test_those_who_vote_go_on_voting() -> None:
    brokers = make_brokers(*[None] * 7)
    sitting = [BrokerId(number) for number in (7, 5, 3)]
    assert set(sitting) <= set(desired_voters(brokers, sitting))
    assert desired_voters(brokers[3:], [BrokerId(7)]) == (4, 5, 7)


def test_voters_come_from_different_racks() -> None:
    brokers = make_brokers("a", "a", "b", "c")
    assert desired_voters(brokers, ()) == (1, 3, 4)
    assert desired_voters(brokers, (TWO,)) == (2, 3, 4)


def test_racks_that_come_later_get_their_voters() -> None:
    """The order of joining must not decide: else the loss of the first rack is that of all."""
    racks = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    voters: tuple[BrokerId, ...] = ()
    for count in range(1, len(racks) + 1):
        brokers = make_brokers(*racks[:count])
        before, voters = voters, desired_voters(brokers, voters)
        assert len(set(voters) - set(before)) <= 2, "one comes, and one goes at most"
    found = Counter(racks[voter - 1] for voter in voters)
    assert sorted(found.values()) == [1, 2, 2]


@given(
    st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=12),
    st.sets(st.integers(1, 12).map(BrokerId), max_size=5),
)
def test_voters_are_spread_over_racks_and_then_stay(
    racks: list[str | None], current: set[BrokerId]
) -> None:
    brokers = make_brokers(*racks)
    voters = desired_voters(brokers, sorted(current))
    assert desired_voters(brokers, voters) == voters
    voting = Counter(racks[voter - 1] for voter in voters)
    for rack, count in Counter(racks).items():
        others = [voting[other] for other in set(racks) - {rack}]
        assert voting[rack] == count or voting[rack] >= max(others, default=0) - 1


def on_machines(
    machines: Sequence[str | None], racks: Sequence[str | None] | None = None
) -> list[Broker]:
    pairs = zip(machines, racks or [None] * len(machines), strict=False)
    return [
        Broker(id=BrokerId(number), host="h", port=1, rack=rack, machine=machine)
        for number, (machine, rack) in enumerate(pairs, start=1)
    ]


def votes(machines: str) -> list[int]:
    """How many vote on each machine, the most first."""
    voters = desired_voters(on_machines(machines), ())
    return sorted(Counter(machines[voter - 1] for voter in voters).values(), reverse=True)


def test_no_machine_has_a_majority_of_the_voters() -> None:
    assert votes("ab") == [1, 1]
    assert votes("aab") == votes("aaaaab") == [1, 1]
    assert votes("aabb") == votes("aaaabbbb") == [2, 2]
    assert votes("abc") == votes("aabc") == votes("aaabc") == [1, 1, 1]
    assert votes("aabbc") == votes("aabbcc") == [2, 2, 1]
    assert votes("abcd") == [1, 1, 1]
    assert votes("abcde") == votes("aabcde") == [1, 1, 1, 1, 1]


def test_a_machine_alone_has_all_votes() -> None:
    assert [votes("a" * count) for count in (1, 2, 3, 4, 5, 9)] == [[1], [2], [3], [3], [5], [5]]


def test_votes_stay_as_they_are_until_every_broker_has_said_where_it_is() -> None:
    """In an upgrade one broker after the other does; between, two seem to be on two machines."""
    for known in range(4):
        brokers = on_machines(["m"] * known + [None] * (3 - known))
        assert desired_voters(brokers, (ONE, TWO, THREE)) == (1, 2, 3)
        assert bool(voter_places(brokers)) is (known == 3)


machine_lists = st.lists(st.sampled_from("mnop"), min_size=1, max_size=12)
rack_lists = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=12, max_size=12)
sitting = st.sets(st.integers(1, 12).map(BrokerId), max_size=5).map(sorted)


@given(machine_lists, rack_lists, sitting)
def test_voters_are_spread_over_machines_and_then_stay(
    machines: list[str], racks: list[str | None], current: list[BrokerId]
) -> None:
    brokers = on_machines(machines, racks)
    voters = desired_voters(brokers, current)
    assert not has_majority(voters, voter_places(brokers))
    assert len(voters) >= min(len(brokers), len({*machines}), 3)
    for _ in range(3):
        before, voters = voters, desired_voters(brokers, voters)
    assert voters == before


@given(machine_lists, rack_lists, st.lists(st.integers(0, 11), max_size=12))
def test_no_step_gives_a_machine_a_majority_for_longer_than_the_next_one(
    machines: list[str], racks: list[str | None], changes: list[int]
) -> None:
    """Brokers come and go one by one, and each time the voters change step by step."""
    brokers = on_machines(machines, racks)
    places = voter_places(brokers)
    there = {0}
    members = Members((ONE,))
    for change in [*range(1, len(brokers)), *changes]:
        there ^= {change % len(brokers)}
        if not there:
            break
        active = [brokers[number] for number in sorted(there)]
        desired = Members(desired_voters(active, members.voters))
        may_exceed = has_majority(members.voters, places) or has_majority(desired.voters, places)
        leader = members.voters[0]
        in_a_row = 0
        for _ in range(30):
            step = next_members(
                members, desired, leader=leader, ready=members.everyone, places=places
            )
            if step is None:
                break
            check_change(members, step)
            in_a_row = in_a_row + 1 if has_majority(step.voters, places) else 0
            assert in_a_row <= 1 or step.voters == members.voters or may_exceed
            if leader not in step.voters:
                leader = step.voters[0]
            members = step
        assert members == desired


def test_four_vote_on_two_machines_only_when_both_new_ones_are_ready() -> None:
    places = voter_places(on_machines("mnmn"))
    members, desired = Members((ONE, TWO), (THREE, FOUR)), Members((ONE, TWO, THREE, FOUR))

    def step(ready: tuple[BrokerId, ...]) -> Members | None:
        return next_members(members, desired, leader=ONE, ready=ready, places=places)

    assert step((TWO, THREE)) is None
    assert step((TWO, FOUR)) is None
    assert step((TWO, THREE, FOUR)) == Members((ONE, TWO, THREE), (FOUR,))


def test_of_several_voters_to_remove_one_of_the_fullest_machine_goes_first() -> None:
    places = voter_places(on_machines("mmnno"))
    members, desired = Members(tuple(map(BrokerId, (1, 2, 3, 4)))), Members((ONE, THREE))
    first = next_members(members, desired, leader=ONE, ready=members.voters, places=places)
    assert first == Members((ONE, THREE, FOUR))
    five = BrokerId(5)
    members, desired = Members((ONE, TWO, THREE, FOUR, five)), Members((TWO, THREE, five))
    first = next_members(members, desired, leader=five, ready=members.voters, places=places)
    assert first == Members((TWO, THREE, FOUR, five))


def test_a_broker_that_leaves_does_not_vote_unless_it_is_alone() -> None:
    brokers = [
        Broker(id=BrokerId(number), host="h", port=1, state=BrokerState.DRAINING)
        for number in (1, 2)
    ]
    assert desired_voters(brokers, (ONE,)) == (1, 2)
    brokers.append(Broker(id=THREE, host="h", port=1))
    assert desired_voters(brokers, (ONE, TWO)) == (3,)


broker_sets = st.sets(st.integers(1, 8).map(BrokerId), max_size=6)


def make_members(voters: set[BrokerId], learners: set[BrokerId]) -> Members:
    return Members(tuple(sorted(voters)), tuple(sorted(learners - voters)))


@given(broker_sets.filter(bool), broker_sets, broker_sets.filter(bool), broker_sets, st.data())
def test_every_step_is_safe_and_the_steps_arrive(
    voters: set[BrokerId],
    learners: set[BrokerId],
    wished: set[BrokerId],
    watching: set[BrokerId],
    data: st.DataObject,
) -> None:
    members, desired = make_members(voters, learners), make_members(wished, watching)
    leader = data.draw(st.sampled_from(members.voters))
    fewest = min(len(members.voters), len(desired.voters))
    most = max(len(members.voters), len(desired.voters) + 1)
    for _ in range(30):
        step = next_members(members, desired, leader=leader, ready=members.everyone)
        if step is None:
            break
        check_change(members, step)
        assert fewest <= len(step.voters) <= most
        if leader not in step.voters:
            # Whoever else has to go went before.
            assert set(step.voters) <= set(desired.voters) | {leader}
            leader = step.voters[0]
        members = step
    assert members == desired


def test_a_voter_is_made_only_of_a_learner_that_has_caught_up() -> None:
    members, desired = Members((ONE,)), Members((ONE, TWO, THREE))
    members = next_members(members, desired, leader=ONE, ready=()) or members
    assert members == Members((ONE,), (TWO, THREE))
    assert next_members(members, desired, leader=ONE, ready=()) is None
    assert next_members(members, desired, leader=ONE, ready=(THREE,)) == Members(
        (ONE, THREE), (TWO,)
    )


def test_no_voter_is_removed_before_the_successor_is_ready() -> None:
    members, desired = Members((ONE, TWO, THREE), (FOUR,)), Members((TWO, THREE, FOUR))
    assert next_members(members, desired, leader=TWO, ready=()) is None
    step = next_members(members, desired, leader=TWO, ready=(FOUR,))
    assert step == Members((ONE, TWO, THREE, FOUR))
    assert next_members(step, desired, leader=TWO, ready=(THREE,)) == desired


def test_no_voter_is_removed_if_the_others_would_have_no_majority() -> None:
    """Else a group of three with one broker down ends when another one is drained."""
    members, desired = Members((ONE, TWO, THREE)), Members((ONE, TWO))
    assert next_members(members, desired, leader=TWO, ready=(THREE,)) is None
    assert next_members(members, desired, leader=THREE, ready=(TWO,)) is None
    assert next_members(members, desired, leader=TWO, ready=(ONE, THREE)) == desired
    assert next_members(members, desired, leader=THREE, ready=(ONE, TWO)) == desired


def test_of_several_voters_to_remove_the_one_that_is_down_goes_first() -> None:
    members, desired = Members((ONE, TWO, THREE, FOUR)), Members((ONE, TWO))
    step = next_members(members, desired, leader=ONE, ready=(TWO, THREE))
    assert step == Members((ONE, TWO, THREE))


def test_a_voter_that_shall_only_watch_becomes_a_learner_in_one_step() -> None:
    members, desired = Members((ONE, TWO)), Members((ONE,), (TWO,))
    assert next_members(members, desired, leader=ONE, ready=()) == desired


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def test_every_broker_belongs_to_the_metadata_group_until_it_is_drained() -> None:
    image = after(
        EMPTY_IMAGE,
        *(
            RegisterBroker(id=BrokerId(n), host="h", port=1, incarnation=f"dir-{n}")
            for n in (1, 2, 3, 4)
        ),
        CreateTopic(name="a", topic_id=TopicId(b"t" * 16), assignments={0: (4,)}),
    )
    members = desired_members(image, Members((ONE,)))
    assert members == Members((ONE, TWO, THREE), (FOUR,))
    leaving = after(image, DrainBroker(broker_id=FOUR))
    assert desired_members(leaving, members) == members
    leaving = after(image, DrainBroker(broker_id=ONE))
    assert desired_members(leaving, members) == Members((TWO, THREE, FOUR))

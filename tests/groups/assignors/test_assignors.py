"""What every assignor owes, and what `uniform` and `range` promise beyond that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moldau.groups.assignors.interface import AssignorError, GroupSpec, MemberSpec, checked
from moldau.groups.assignors.range import RangeAssignor
from moldau.groups.assignors.uniform import UniformAssignor

UNIFORM, RANGE = UniformAssignor(), RangeAssignor()


def topic(number):
    return number.to_bytes(16, "big")


sizes = st.dictionaries(st.integers(0, 4).map(topic), st.integers(0, 7), min_size=1, max_size=5)
names = st.integers(0, 8).map(lambda number: f"m{number}")


@st.composite
def groups(draw, *, equal=False):
    """Members that own anything at all: also what is gone, not wanted, or another's."""
    topics = draw(sizes)
    some = st.frozensets(st.sampled_from(sorted(topics)), min_size=1)
    wanted = st.just(frozenset(topics)) if equal else some
    owned = st.dictionaries(
        st.integers(0, 5).map(topic), st.frozensets(st.integers(0, 9), min_size=1), max_size=4
    )
    member = st.builds(
        MemberSpec,
        topics=wanted,
        owned=owned,
        instance_id=st.none() | st.sampled_from(["i1", "i2"]),
    )
    return GroupSpec(
        members=draw(st.dictionaries(names, member, min_size=1, max_size=8)), topics=topics
    )


def flat(assignment):
    return {(one, index) for one, indexes in assignment.items() for index in indexes}


def loads(result):
    return {member_id: len(flat(assignment)) for member_id, assignment in result.items()}


def changed(spec, result, *, only=None):
    """The same group with what it was given now, and these members or all."""
    return GroupSpec(
        members={
            member_id: replace(member, owned=result[member_id])
            for member_id, member in spec.members.items()
            if only is None or member_id in only
        },
        topics=spec.topics,
    )


def moves(spec, result):
    """Partitions that a member had, that it still may have, and that it has no longer."""
    return sum(
        1
        for member_id, member in spec.members.items()
        for one, index in flat(member.owned) - flat(result[member_id])
        if one in member.topics and index < spec.topics.get(one, 0)
    )


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda one: one.name)
@given(spec=groups())
def test_every_partition_goes_to_one_member_that_wants_it(assignor, spec):
    result = checked(assignor, spec, assignor.assign(spec))
    assert set(result) == set(spec.members)
    wanted = frozenset().union(*(member.topics for member in spec.members.values()))
    given_out = [one for assignment in result.values() for one in flat(assignment)]
    expected = {(one, n) for one in wanted for n in range(spec.topics.get(one, 0))}
    assert sorted(given_out) == sorted(expected)


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda one: one.name)
@given(spec=groups())
def test_the_same_group_in_another_order_is_assigned_alike(assignor, spec):
    backwards = GroupSpec(
        members=dict(reversed(spec.members.items())), topics=dict(reversed(spec.topics.items()))
    )
    assert assignor.assign(spec) == assignor.assign(backwards)


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda one: one.name)
@given(spec=groups())
def test_nothing_moves_when_nothing_changed(assignor, spec):
    result = assignor.assign(spec)
    assert assignor.assign(changed(spec, result)) == result


@given(spec=groups(equal=True))
def test_uniform_differs_by_one_at_most_where_all_want_the_same(spec):
    counts = loads(UNIFORM.assign(spec)).values()
    assert max(counts) - min(counts) <= 1


def least_moves(spec):
    """The lower bound: whatever is above the shares, if those who have most get the larger ones."""
    seen: set[Any] = set()
    kept = []
    for member_id in sorted(spec.members):
        member = spec.members[member_id]
        mine = {
            (one, index)
            for one, index in flat(member.owned)
            if one in member.topics and index < spec.topics.get(one, 0)
        } - seen
        seen |= mine
        kept.append(len(mine))
    share, more = divmod(sum(spec.topics.values()), len(spec.members))
    shares = [share + (rank < more) for rank in range(len(kept))]
    return sum(
        max(0, have - may) for have, may in zip(sorted(kept, reverse=True), shares, strict=True)
    )


@given(spec=groups(equal=True), leaving=st.sets(names), joining=st.sets(names))
def test_uniform_moves_only_what_must_move(spec, leaving, joining):
    before = UNIFORM.assign(spec)
    stay = set(spec.members) - leaving
    members = dict(changed(spec, before, only=stay).members)
    for member_id in joining - set(members):
        members[member_id] = MemberSpec(topics=frozenset(spec.topics))
    if not members:
        return
    after = GroupSpec(members=members, topics=spec.topics)
    assert moves(after, UNIFORM.assign(after)) == least_moves(after)


@given(spec=groups())
def test_uniform_cannot_be_made_more_equal_by_a_move(spec):
    result = UNIFORM.assign(spec)
    counts = loads(result)
    for giver, assignment in result.items():
        for taker, member in spec.members.items():
            if counts[taker] <= counts[giver] - 2:
                assert not member.topics & assignment.keys()


@given(spec=groups())
def test_uniform_moves_nothing_for_a_member_that_wants_a_topic_without_partitions(spec):
    before = UNIFORM.assign(spec)
    members = dict(changed(spec, before).members)
    members["new"] = MemberSpec(topics=frozenset({topic(99)}))
    after = UNIFORM.assign(GroupSpec(members=members, topics={**spec.topics, topic(99): 0}))
    assert {**before, "new": {}} == after


def test_uniform_moves_along_a_chain_where_no_single_move_helps():
    a, b = topic(1), topic(2)
    spec = GroupSpec(
        members={
            "m1": MemberSpec(topics=frozenset({a}), owned={a: frozenset({0, 1, 2})}),
            "m2": MemberSpec(topics=frozenset({a, b}), owned={b: frozenset({0, 1})}),
            "m3": MemberSpec(topics=frozenset({b}), owned={b: frozenset({2})}),
        },
        topics={a: 3, b: 3},
    )
    assert loads(UNIFORM.assign(spec)) == {"m1": 2, "m2": 2, "m3": 2}


def test_uniform_spreads_each_topic_over_the_members():
    spec = GroupSpec(
        members={f"m{n}": MemberSpec(topics=frozenset({topic(1), topic(2)})) for n in range(2)},
        topics={topic(1): 4, topic(2): 4},
    )
    for assignment in UNIFORM.assign(spec).values():
        assert {len(indexes) for indexes in assignment.values()} == {2}


@given(sizes, st.integers(1, 6))
def test_range_cuts_topics_of_one_size_alike_and_in_runs(topics, members):
    spec = GroupSpec(
        members={f"m{n}": MemberSpec(topics=frozenset(topics)) for n in range(members)},
        topics=topics,
    )
    for assignment in RANGE.assign(spec).values():
        by_size: dict[int, Any] = {}
        for one, indexes in assignment.items():
            assert indexes == frozenset(range(min(indexes), max(indexes) + 1))
            assert by_size.setdefault(topics[one], indexes) == indexes


def test_range_swaps_no_partitions_when_a_member_with_a_lower_name_joins():
    one = topic(1)
    both = frozenset({one})
    spec = GroupSpec(
        members={
            "a": MemberSpec(topics=both),
            "b": MemberSpec(topics=both, owned={one: frozenset({0, 1, 2})}),
            "c": MemberSpec(topics=both, owned={one: frozenset({3, 4, 5})}),
        },
        topics={one: 6},
    )
    assert RANGE.assign(spec) == {
        "b": {one: frozenset({0, 1})},
        "c": {one: frozenset({2, 3})},
        "a": {one: frozenset({4, 5})},
    }


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"nobody": {}}, "unknown member"),
        ({"m1": {topic(2): frozenset({0})}}, "unsubscribed topic"),
        ({"m1": {topic(3): frozenset({0})}}, "unsubscribed topic"),
        ({"m1": {topic(1): frozenset({4})}}, "unknown partitions"),
        ({"m1": {topic(1): frozenset({-1})}}, "unknown partitions"),
        ({"m1": {topic(1): frozenset({0})}, "m2": {topic(1): frozenset({0})}}, "two members"),
    ],
)
def test_a_result_that_would_send_members_astray_is_refused(result, problem):
    spec = GroupSpec(
        members={
            "m1": MemberSpec(topics=frozenset({topic(1)})),
            "m2": MemberSpec(topics=frozenset({topic(1), topic(2)})),
        },
        topics={topic(1): 4, topic(2): 4},
    )
    with pytest.raises(AssignorError, match=problem):
        checked(UNIFORM, spec, result)


def test_a_member_that_an_assignor_forgets_has_nothing():
    spec = GroupSpec(members={"m1": MemberSpec(topics=frozenset())}, topics={})
    assert checked(UNIFORM, spec, {}) == {"m1": {}}

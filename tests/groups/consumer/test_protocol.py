"""The next-generation protocol, request by request."""

import pytest

from moldau.groups.assignors.interface import AssignorError
from moldau.groups.events import CommitTransactionOffsets, OffsetToCommit
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset

ALL = frozenset(range(4))
LOW, HIGH = frozenset({0, 1}), frozenset({2, 3})


@pytest.fixture
def world(make_world):
    world = make_world()
    world.t = world.topics.create("t", 4)
    return world


def two(world, **fields):
    """Members a and b in epoch 2 with half of the topic each."""
    world.beat("a", 0, **fields)
    world.beat("b", 0)
    world.beat("a", 1)
    world.beat("a", 1, {world.t: LOW})
    given = world.beat("b", 2)
    assert given.assignment == {world.t: HIGH}
    assert world.consumers()[0] == "Stable"


def test_the_first_member_gets_everything_at_once(world):
    joined = world.beat("a", 0)
    assert (joined.error, joined.member_id, joined.member_epoch) == (ErrorCode.NONE, "a", 1)
    assert joined.assignment == {world.t: ALL}
    assert joined.heartbeat_interval_ms == 5_000
    assert world.consumers() == ("Stable", 1, {"a": (1, {world.t: ALL})})


def test_a_heartbeat_that_changes_nothing_returns_and_stores_nothing(world):
    world.beat("a", 0)
    stored = len(world.log)
    again = world.beat("a", 1)
    assert (again.member_epoch, again.assignment) == (1, None)
    assert len(world.log) == stored


def test_a_partition_is_given_on_only_when_its_owner_has_let_it_go(world):
    world.beat("a", 0)
    joined = world.beat("b", 0)
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert joined.heartbeat_interval_ms < 5_000
    told = world.beat("a", 1)
    assert (told.member_epoch, told.assignment) == (1, {world.t: LOW})
    assert world.beat("b", 2).assignment is None
    # Still reading the others: it says so, or says nothing.
    assert world.beat("a", 1, {world.t: ALL}).member_epoch == 1
    assert world.beat("a", 1).member_epoch == 1
    assert world.beat("b", 2).assignment is None
    assert world.beat("a", 1, {world.t: LOW}).member_epoch == 2
    assert world.beat("b", 2).assignment == {world.t: HIGH}
    assert world.consumers() == ("Stable", 2, {"a": (2, {world.t: LOW}), "b": (2, {world.t: HIGH})})


def test_what_a_member_leaves_behind_goes_to_the_others(world):
    two(world)
    left = world.beat("b", -1)
    assert (left.error, left.member_epoch) == (ErrorCode.NONE, -1)
    taken = world.beat("a", 2)
    assert (taken.member_epoch, taken.assignment) == (3, {world.t: ALL})


def test_a_member_without_heartbeats_loses_its_place(world):
    two(world)
    world.advance(30)
    world.beat("a", 2)
    world.advance(16)
    assert world.consumers()[2].keys() == {"a"}
    assert world.beat("b", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("a", 2).assignment == {world.t: ALL}


def test_a_member_that_does_not_let_go_in_time_loses_its_place(world):
    world.beat("a", 0, rebalance_timeout_ms=10_000)
    world.beat("b", 0)
    world.beat("a", 1)
    for _ in range(6):
        world.advance(2)
        if world.beat("a", 1, {world.t: ALL}).error is not ErrorCode.NONE:
            break
    assert world.consumers()[2].keys() == {"b"}
    assert world.beat("b", 2).assignment == {world.t: ALL}


def test_letting_go_in_time_ends_the_watch(world):
    two(world, rebalance_timeout_ms=10_000)
    for _ in range(10):
        world.advance(5)
        world.beat("a", 2)
        world.beat("b", 2)
    assert world.consumers()[2].keys() == {"a", "b"}


def test_a_member_from_the_future_or_too_far_back_is_fenced(world):
    two(world)
    assert world.beat("a", 3).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a", 1, {world.t: ALL}).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_missed_the_last_response_gets_it_again(world):
    two(world)
    again = world.beat("a", 1, {world.t: LOW})
    assert (again.member_epoch, again.assignment) == (2, {world.t: LOW})


def test_a_fenced_member_joins_again_under_its_id(world):
    two(world)
    back = world.beat("a", 0)
    assert (back.member_epoch, back.assignment) == (2, {world.t: LOW})


def test_unknown_members_are_refused(world):
    assert world.beat("x", 5).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.beat("a", 0)
    assert world.beat("x", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("x", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": -3},
        {"epoch": -2},
        {"epoch": 0, "member_id": "", "makes_member_id": True},
        {"epoch": 1, "member_id": ""},
        {"epoch": 0, "instance_id": ""},
        {"epoch": 0, "rack": ""},
        {"epoch": 0, "rebalance_timeout_ms": -1},
        {"epoch": 0, "owned": None},
        {"epoch": 0, "owned": {b"x" * 16: frozenset({1})}},
        {"epoch": 0, "topics": None},
        {"epoch": 0, "topics": ("x" * 40_000,)},
        {"epoch": 0, "topics": tuple(map(str, range(10_001)))},
    ],
    ids=str,
)
def test_requests_that_make_no_sense_are_invalid(world, fields):
    values = dict(fields)
    member_id, epoch = values.pop("member_id", "a"), values.pop("epoch")
    owned = values.pop("owned", {})
    request = world.send_beat(member_id, epoch, **{**values, "owned": owned} if epoch == 0 else {})
    assert world.reply(request).error is ErrorCode.INVALID_REQUEST
    assert world.log == []


def test_an_older_client_is_given_its_id(world):
    joined = world.beat("", 0)
    assert joined.member_id == "c-1"
    assert world.beat("c-1", 1).error is ErrorCode.NONE


def test_an_assignor_that_is_not_there_is_refused_and_one_that_is_asked_for_is_used(world):
    refused = world.beat("a", 0, assignor="mine")
    assert refused.error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in refused.message
    world.beat("a", 0, assignor="range")
    assert world.coordinator.describe_consumers("g").assignor == "range"


def test_a_full_group_accepts_no_other_member(make_world):
    world = make_world(consumer_group_size_max=1)
    world.topics.create("t", 4)
    world.beat("a", 0)
    assert world.beat("b", 0).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a", 0).error is ErrorCode.NONE


def test_an_assignor_that_fails_changes_nothing(world, monkeypatch):
    world.beat("a", 0)
    stored = list(world.log)

    def fails(spec):
        raise AssignorError("no idea")

    uniform = world.coordinator._context.assignors["uniform"]
    monkeypatch.setattr(type(uniform), "assign", lambda self, spec: fails(spec))
    refused = world.beat("b", 0)
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "no idea" in refused.message
    assert world.log == stored
    assert world.beat("a", 1).error is ErrorCode.NONE


# ---- topics


def test_partitions_that_are_added_are_assigned(world):
    world.beat("a", 0)
    world.topics.create("t", 6)
    grown = world.beat("a", 1)
    assert (grown.member_epoch, grown.assignment) == (2, {world.t: frozenset(range(6))})


def test_a_topic_that_comes_later_is_assigned_and_one_that_goes_is_not(world):
    assert world.beat("a", 0, topics=("t", "later")).assignment == {world.t: ALL}
    later = world.topics.create("later", 1)
    assert world.beat("a", 1).assignment == {world.t: ALL, later: frozenset({0})}
    world.topics.delete("t")
    told = world.beat("a", 2, {world.t: ALL, later: {0}})
    assert told.assignment == {later: frozenset({0})}
    assert world.beat("a", 2, {later: {0}}).member_epoch == 3


def test_topics_without_subscribers_disturb_no_member(world):
    world.beat("a", 0)
    world.topics.create("other", 3)
    assert world.beat("a", 1).member_epoch == 1


def test_a_changed_subscription_is_a_new_epoch(world):
    other = world.topics.create("other", 1)
    world.beat("a", 0)
    changed = world.beat("a", 1, {world.t: ALL}, topics=("other",))
    assert (changed.member_epoch, changed.assignment) == (1, {})
    assert world.beat("a", 1, {}).assignment == {other: frozenset({0})}


def test_a_pattern_finds_topics_that_are_there_and_that_come(world):
    joined = world.beat("a", 0, topics=(), pattern="t|log-.*")
    assert joined.assignment == {world.t: ALL}
    found = world.topics.create("log-1", 1)
    world.topics.create("xlog-1", 1)
    assert world.beat("a", 1).assignment == {world.t: ALL, found: frozenset({0})}


@pytest.mark.parametrize("pattern", ["(", "a" * 3_000, "(?=t)", "((a{900}){900}){900}"], ids=len)
def test_a_pattern_that_cannot_be_used_is_refused(world, pattern):
    assert world.beat("a", 0, pattern=pattern).error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.log == []


# ---- static members


def test_a_static_member_that_said_it_would_be_back_finds_its_place(world):
    two(world, instance_id="i")
    assert world.beat("a", -2, instance_id="i").member_epoch == -2
    assert world.beat("b", 2).assignment is None
    stored = world.consumers()[1]
    back = world.beat("a2", 0, instance_id="i")
    assert (back.member_epoch, back.assignment) == (2, {world.t: LOW})
    assert world.consumers() == (
        "Stable",
        stored,
        {"b": (2, {world.t: HIGH}), "a2": (2, {world.t: LOW})},
    )
    assert world.beat("a", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_loses_its_place(world):
    two(world, instance_id="i")
    world.beat("a", -2, instance_id="i")
    for _ in range(10):
        world.advance(5)
        world.beat("b", 2)
    assert world.consumers()[2].keys() == {"b"}


def test_a_static_member_may_leave_for_good(world):
    two(world, instance_id="i")
    world.beat("a", -1, instance_id="i")
    assert world.consumers()[2].keys() == {"b"}
    assert world.beat("x", 0, instance_id="i").error is ErrorCode.NONE


def test_an_instance_that_is_there_cannot_be_taken(world):
    world.beat("a", 0, instance_id="i")
    assert world.beat("x", 0, instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.beat("x", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", 1, instance_id="j").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_comes_back_wanting_something_else_is_a_new_epoch(world):
    other = world.topics.create("other", 1)
    two(world, instance_id="i")
    world.beat("a", -2, instance_id="i")
    back = world.beat("a2", 0, instance_id="i", topics=("other",))
    assert (back.member_epoch, back.assignment) == (3, {other: frozenset({0})})
    assert world.beat("b", 2).assignment == {world.t: ALL}


def test_a_static_member_that_comes_back_changed_keeps_the_larger_share(world):
    world.topics.create("t", 5)
    world.beat("a", 0, instance_id="i")
    world.beat("b", 0)
    kept = world.beat("a", 1).assignment
    assert len(kept[world.t]) == 3
    world.beat("a", 1, kept)
    world.beat("b", 2)
    world.beat("a", -2, instance_id="i")
    back = world.beat("a2", 0, instance_id="i", rack="r")
    assert (back.member_epoch, back.assignment) == (3, kept)
    assert world.beat("b", 2).assignment is None


def test_a_member_that_missed_its_assignment_gets_it_when_it_reports_what_it_has(world):
    two(world)
    assert world.beat("b", 2).assignment is None
    assert world.beat("b", 2, {}).assignment == {world.t: HIGH}


def test_an_administrator_removes_members_by_id_and_by_instance(world):
    two(world, instance_id="i")
    left = world.leave("b", "x", instances=[("", "i"), ("b", "j")])
    assert left.error is ErrorCode.NONE
    assert [one.error for one in left.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert world.consumers()[2] == {}
    world.beat("a", 0, instance_id="i")
    left = world.leave(instances=[("b", "i"), ("a", "j")])
    assert [one.error for one in left.members] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    world.hold_writes = True
    world.leave("a")
    world.fail()
    assert world.consumers()[2].keys() == {"a"}


# ---- offsets


def test_members_commit_with_their_epoch(world):
    two(world)
    offsets = {world.tp("t"): 7}
    assert world.commit(offsets, "a", 2) is ErrorCode.NONE
    assert world.commit(offsets, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit(offsets, "x", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(offsets) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(offsets, "a", 2, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID
    world.beat("c", 0, instance_id="i")
    assert world.commit(offsets, "a", 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    world.beat("c", -1)
    world.beat("a", -1)
    world.beat("b", -1)
    assert world.commit({world.tp("t"): 9}) is ErrorCode.NONE
    assert world.committed() == {world.tp("t"): 9}


def test_in_a_transaction_an_old_epoch_is_an_old_generation(world):
    """TxnOffsetCommit has no other word for it: Java's client ends at one that it does not know."""
    two(world)
    request = world.send(
        CommitTransactionOffsets,
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        guard=world.coordinator.transaction_guard(),
        member_id="a",
        generation=1,
        offsets=(OffsetToCommit(partition=world.tp("t"), offset=Offset(5)),),
    )
    assert [error for _, error in world.reply(request).errors] == [ErrorCode.ILLEGAL_GENERATION]


def test_members_fetch_offsets_with_their_epoch(world):
    two(world)
    fetch = world.coordinator.fetch_offsets
    assert fetch("g").error is ErrorCode.NONE
    assert fetch("g", member_id="a", member_epoch=2).error is ErrorCode.NONE
    assert fetch("g", member_id="a", member_epoch=1).error is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("g", member_id="x", member_epoch=1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_stay_and_old_ones_go_with_their_group(make_world):
    world = make_world(offsets_retention_ms=60_000, offsets_retention_check_ms=1_000)
    world.topics.create("t", 1)
    world.beat("a", 0)
    world.commit({world.tp("t"): 1, world.tp("gone"): 1}, "a", 1)
    for _ in range(20):
        world.advance(5)
        world.beat("a", 1)
    assert world.committed() == {world.tp("t"): 1}
    assert world.delete_offsets(world.tp("t")).errors[0][1] is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    world.beat("a", -1)
    world.advance(30)
    # Counted from the last member's leave, also by whoever loads the group.
    assert world.restarted(offsets_retention_ms=60_000).committed() == {world.tp("t"): 1}
    world.advance(32)
    assert world.committed() == {}
    world.advance(2)
    assert world.coordinator.list_groups()[1] == []


# ---- two protocols


def test_an_empty_group_changes_its_kind_and_keeps_its_offsets(world):
    (member,) = world.stable()
    world.commit({world.tp("t"): 5}, member, 1)
    world.leave(member)
    assert world.beat("a", 0).member_epoch == 1
    assert world.restarted().consumers() == world.consumers()
    assert world.committed() == {world.tp("t"): 5}
    world.beat("a", -1)
    world.stable()
    again = world.restarted()
    assert again.state() == "Stable"
    assert again.coordinator.describe_consumers("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert again.committed() == {world.tp("t"): 5}


def test_a_classic_join_waits_for_a_heartbeat_that_is_being_stored(world):
    world.hold_writes = True
    beat = world.send_beat("a", 0)
    join = world.send_join()
    assert world.reply(beat) is None
    world.release()
    assert world.reply(beat).error is ErrorCode.NONE
    # By then the group has a member whose broker assigns.
    assert (world.reply(join).error, world.reply(join).generation) == (ErrorCode.NONE, 2)


def test_groups_are_listed_with_their_kind(world):
    world.beat("a", 0)
    world.stable(group="classic")
    list_groups = world.coordinator.list_groups
    kinds = {one.group_id: (one.group_type, one.state) for one in list_groups()[1]}
    assert kinds == {"g": ("consumer", "Stable"), "classic": ("classic", "Stable")}
    assert world.coordinator.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    described = world.coordinator.describe_consumers("classic")
    assert described.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert [one.group_id for one in list_groups((), ("Consumer",))[1]] == ["g"]
    world.beat("b", 0)
    assert [one.group_id for one in list_groups(("reconciling",), ())[1]] == ["g"]


def test_a_group_with_members_is_not_deleted_and_one_without_is_gone(world):
    world.beat("a", 0)
    assert world.delete_groups("g") == {"g": ErrorCode.NON_EMPTY_GROUP}
    world.beat("a", -1)
    assert world.delete_groups("g") == {"g": ErrorCode.NONE}
    assert world.coordinator.list_groups()[1] == []
    assert world.restarted().coordinator.list_groups()[1] == []


# ---- the log


def test_heartbeats_that_wait_for_the_log_are_stored_together(world):
    world.beat("a", 0)
    world.hold_writes = True
    requests = [world.send_beat(name, 0) for name in "bcde"]
    assert len(world.held) == 1
    world.complete()
    assert len(world.held) == 1
    world.complete()
    assert [world.reply(one).member_epoch for one in requests] == [2, 3, 4, 5]


def test_a_write_that_fails_leaves_no_trace(world):
    world.beat("a", 0)
    before = world.consumers()
    world.hold_writes = True
    requests = [world.send_beat(name, 0) for name in "bc"]
    world.fail()
    world.fail()
    for one in requests:
        assert world.reply(one).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.consumers() == before
    world.release()
    assert world.beat("b", 0).member_epoch == 2


def test_a_member_without_heartbeats_is_removed_even_if_that_cannot_be_stored_at_first(world):
    world.beat("a", 0)
    world.hold_writes = True
    world.advance(46)
    world.fail()
    world.release()
    world.advance(2)
    assert world.consumers()[2] == {}


def test_a_heartbeat_that_waited_for_the_log_counts_as_life(world):
    world.beat("a", 0)
    world.advance(44)
    world.hold_writes = True
    world.send_beat("b", 0)
    waiting = world.send_beat("a", 1)
    world.advance(2)
    world.release()
    assert world.reply(waiting).error is ErrorCode.NONE
    assert world.consumers()[2].keys() == {"a", "b"}


def test_another_coordinator_watches_who_has_not_let_go(world):
    world.beat("a", 0, rebalance_timeout_ms=10_000)
    world.beat("b", 0)
    world.beat("a", 1)
    other = world.restarted()
    for _ in range(6):
        other.advance(2)
        other.beat("a", 1, {world.t: ALL})
    assert other.consumers()[2].keys() == {"b"}


def test_topics_are_looked_at_only_when_they_changed(world, monkeypatch):
    world.beat("a", 0)
    looked = []
    size_of = world.topics.topic

    def noting(name):
        looked.append(name)
        return size_of(name)

    monkeypatch.setattr(world.topics, "topic", noting)
    for _ in range(3):
        world.beat("a", 1)
    assert looked == []
    world.topics.create("other", 1)
    for _ in range(3):
        world.beat("a", 1)
    assert looked == ["t"]


def test_another_coordinator_goes_on_where_this_one_was(world):
    two(world)
    world.beat("c", 0)
    world.beat("a", 2)
    other = world.restarted()
    assert other.consumers() == world.consumers()
    assert other.beat("a", 2, {world.t: frozenset({0, 1})}).error is ErrorCode.NONE
    other.advance(46)
    assert other.consumers()[2] == {}

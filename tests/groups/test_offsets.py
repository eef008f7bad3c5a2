import pytest

from moldau.groups import deletion, offsets
from moldau.groups.events import OffsetToCommit
from moldau.model.errors import ErrorCode
from moldau.model.ids import Epoch, Offset


def test_a_member_commits_and_finds_its_offsets(world):
    (leader,) = world.stable()
    t0, t1 = world.tp("t", 0), world.tp("t", 1)
    assert world.commit({t0: 5, t1: 7}, leader, 1) is ErrorCode.NONE
    assert world.committed() == {t0: 5, t1: 7}
    found = world.coordinator.fetch_offsets("g", [t1, world.tp("t", 2)])
    assert set(found.offsets) == {t1}


def test_metadata_and_leader_epoch_round_trip(world):
    t = world.tp("t")
    offset = OffsetToCommit(
        partition=t, offset=Offset(5), leader_epoch=Epoch(3), metadata="ž and more"
    )
    world.commit({t: offset})
    for one in (world, world.restarted()):
        found = one.coordinator.fetch_offsets("g").offsets[t]
        assert (found.offset, found.leader_epoch, found.metadata) == (5, 3, "ž and more")
        assert found.commit_timestamp == world.wall_ms()


def test_too_much_metadata_is_refused_for_that_partition_only(make_world):
    world = make_world(offset_metadata_bytes_max=4)
    t0, t1 = world.tp("t", 0), world.tp("t", 1)
    request = world.send_commit(
        {
            t0: OffsetToCommit(partition=t0, offset=Offset(1), metadata="žžž"),
            t1: OffsetToCommit(partition=t1, offset=Offset(2), metadata="žž"),
        }
    )
    assert world.reply(request).errors == (
        (t0, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (t1, ErrorCode.NONE),
    )
    assert world.committed() == {t1: 2}


def test_a_simple_consumer_commits_to_a_group_without_members(world):
    t = world.tp("t")
    assert world.commit({t: 1}) is ErrorCode.NONE
    assert world.state() == "Empty"
    (leader,) = world.stable()
    assert world.commit({t: 2}) is ErrorCode.UNKNOWN_MEMBER_ID
    world.leave(leader)
    assert world.commit({t: 3}) is ErrorCode.NONE
    assert world.committed() == {t: 3}


def test_a_commit_checks_member_and_generation(world):
    t = world.tp("t")
    (leader,) = world.stable()
    assert world.commit({t: 1}, leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit({t: 1}, leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit({t: 1}, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit({t: 1}, "x", 1, group="other") is ErrorCode.ILLEGAL_GENERATION
    assert world.committed() == {}


def test_a_commit_during_the_join_phase_is_accepted(world):
    (leader,) = world.stable()
    world.send_join()
    assert world.commit({world.tp("t"): 1}, leader, 1) is ErrorCode.NONE


def test_a_commit_before_the_sync_is_asked_to_wait(world):
    joined = world.join()
    commit = world.commit({world.tp("t"): 1}, joined.member_id, 1)
    assert commit is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_the_member_alive(world):
    (leader,) = world.stable()
    for _ in range(3):
        world.advance(9)
        world.commit({world.tp("t"): 1}, leader, 1)
    assert world.heartbeat(leader, 1) is ErrorCode.NONE


def test_a_commit_is_visible_and_answered_only_when_stored(world):
    t = world.tp("t")
    world.hold_writes = True
    request = world.send_commit({t: 1})
    assert world.reply(request) is None
    assert world.committed() == {}
    world.release()
    assert world.reply(request).errors == ((t, ErrorCode.NONE),)
    assert world.committed() == {t: 1}


def test_commits_that_wait_are_written_together_in_order(world):
    t = world.tp("t")
    world.hold_writes = True
    requests = [world.send_commit({t: n}) for n in range(50)]
    assert len(world.held) == 1
    world.complete()
    assert len(world.held) == 1
    assert len(world.held[0].records) == 49
    world.complete()
    assert world.committed() == {t: 49}
    assert all(world.reply(one).errors[0][1] is ErrorCode.NONE for one in requests)


def test_a_merged_write_stays_bounded(make_world):
    world = make_world(persist_bytes_max=100)
    world.hold_writes = True
    for n in range(10):
        world.send_commit({world.tp("t"): n})
    world.complete()
    assert 1 < len(world.held[0].records) < 9


def test_groups_do_not_wait_for_each_other(world):
    world.hold_writes = True
    world.send_commit({world.tp("t"): 1}, group="a")
    world.send_commit({world.tp("t"): 1}, group="b")
    assert [one.what for one in world.held] == ["group 'a'", "group 'b'"]


def test_a_commit_that_waited_is_judged_by_the_generation_of_its_turn(world):
    """The write before it takes until the member is out: its offset must not appear later."""
    t = world.tp("t")
    leader, second = world.stable(2)
    world.hold_writes = True
    world.send_commit({t: 1}, leader, 2)
    late = world.send_commit({t: 2}, second, 2)
    world.leave(second)
    world.release()
    assert world.reply(late).errors == ((t, ErrorCode.UNKNOWN_MEMBER_ID),)
    assert world.committed() == {t: 1}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_cannot_be_stored_returns_the_reason(world, error, told):
    t = world.tp("t")
    world.hold_writes = True
    request = world.send_commit({t: 1})
    world.fail(error)
    assert world.reply(request).errors == ((t, told),)
    assert world.committed() == {}
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_offsets_of_an_empty_group_expire_after_the_retention(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    t = world.tp("t")
    (leader,) = world.stable(session_timeout_ms=1_000_000)
    world.commit({t: 1}, leader, 1)
    world.advance(500)
    assert world.committed() == {t: 1}
    world.leave(leader)
    world.advance(98)
    assert world.committed() == {t: 1}
    world.advance(4)
    assert world.committed() == {}
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])
    assert world.restarted().coordinator.list_groups() == (ErrorCode.NONE, [])


def test_offsets_do_not_expire_because_the_end_of_a_group_could_not_be_stored(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    (leader,) = world.stable()
    world.commit({world.tp("t"): 1}, leader, 1)
    for _ in range(100):
        # Far longer than the retention, and the member is there all the time.
        world.advance(9)
        world.heartbeat(leader, 1)
    world.hold_writes = True
    world.leave(leader)
    world.advance(1.5)
    world.fail()
    world.hold_writes = False
    assert (world.state(), world.committed()) == ("Empty", {world.tp("t"): 1})
    # The next look stores it, and the retention begins.
    world.advance(1)
    for one in (world, world.restarted(offsets_retention_ms=100_000)):
        assert (one.state(), one.committed()) == ("Empty", {world.tp("t"): 1})
    world.advance(98)
    assert world.committed() == {world.tp("t"): 1}
    world.advance(4)
    assert world.committed() == {}


def test_a_look_for_old_offsets_that_had_to_wait_knows_that_the_members_left_since(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    (leader,) = world.stable(topics=("t",))
    world.commit({world.tp("t"): 1, world.tp("unwanted"): 1}, leader, 1)
    world.hold_writes = True
    world.commit({world.tp("t"): 2}, leader, 1)
    for _ in range(20):
        world.advance(9)
        world.heartbeat(leader, 1)
    world.leave(leader)
    world.release()
    assert world.committed()[world.tp("t")] == 2


def test_offsets_of_a_simple_consumer_expire_by_their_commit(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    old, new = world.tp("t", 0), world.tp("t", 1)
    world.commit({old: 1})
    world.advance(60)
    world.commit({new: 1})
    world.advance(60)
    assert world.committed() == {new: 1}


def test_many_old_offsets_are_looked_for_and_removed_a_part_at_a_time(make_world, monkeypatch):
    monkeypatch.setattr(offsets, "_EXPIRY_SLICE_MAX", 5)
    monkeypatch.setattr(deletion, "_REMOVED_MAX", 4)
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    groups = [f"g{number}" for number in range(6)]
    for group in groups:
        world.commit({world.tp("t", index): 1 for index in range(12)}, group=group)
    world.hold_writes = True
    world.advance(99)
    assert not world.held
    while not world.held:
        world.advance(0.01)
    assert len(world.held) == 1, "one look takes one of these groups"
    world.advance(1.2)
    sizes = []
    while world.held:
        sizes.append(len(world.held[0].records))
        world.complete()
    assert sizes == [4] * 18
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_a_group_with_many_offsets_is_deleted_by_several_writes(world, monkeypatch):
    monkeypatch.setattr(deletion, "_REMOVED_MAX", 4)
    for count in (3, 4, 9):
        world.commit({world.tp("t", index): 1 for index in range(count)})
        assert world.delete_groups("g") == {"g": ErrorCode.NONE}
        assert world.committed() == {}
        assert world.restarted().coordinator.list_groups() == (ErrorCode.NONE, [])


def test_offsets_of_topics_no_longer_subscribed_to_expire(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    (leader,) = world.stable(topics=("kept",), session_timeout_ms=1_000_000)
    world.commit({world.tp("kept"): 1, world.tp("left"): 1}, leader, 1)
    world.advance(110)
    assert world.committed() == {world.tp("kept"): 1}


def test_offsets_of_members_with_unknown_subscriptions_are_kept(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    (leader,) = world.stable(protocol_type="connect", session_timeout_ms=1_000_000)
    world.commit({world.tp("t"): 1}, leader, 1)
    world.advance(300)
    assert world.committed() == {world.tp("t"): 1}


def test_a_commit_may_bring_its_own_retention(make_world):
    world = make_world(offsets_retention_check_ms=1000)
    world.commit({world.tp("t"): 1}, retention_ms=5000)
    world = world.restarted(offsets_retention_check_ms=1000)
    world.advance(4)
    assert world.committed() == {world.tp("t"): 1}
    world.advance(2)
    assert world.committed() == {}


def test_deleting_a_topic_removes_its_offsets(world):
    gone, kept = world.tp("gone"), world.tp("kept")
    (leader,) = world.stable()
    world.commit({gone: 1, kept: 2}, leader, 1)
    world.commit({gone: 1}, group="other")
    world.delete_topics("gone")
    assert world.committed() == {kept: 2}
    assert world.committed("other") == {}
    assert world.restarted().committed() == {kept: 2}


def test_deleting_a_topic_removes_offsets_that_are_being_written(world):
    world.hold_writes = True
    world.send_commit({world.tp("gone"): 1})
    world.delete_topics("gone")
    world.release()
    assert world.committed() == {}


def test_single_offsets_are_deleted_unless_subscribed_to(world):
    mine, other = world.tp("mine"), world.tp("other")
    (leader,) = world.stable(topics=("mine",))
    world.commit({mine: 1, other: 1}, leader, 1)
    result = world.delete_offsets(mine, other, world.tp("never"))
    assert result.error is ErrorCode.NONE
    assert dict(result.errors) == {
        mine: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        other: ErrorCode.NONE,
        world.tp("never"): ErrorCode.NONE,
    }
    assert world.committed() == {mine: 1}
    world.leave(leader)
    world.delete_offsets(mine)
    assert world.committed() == {}


def test_offsets_of_a_group_that_is_not_of_consumers_are_kept_while_it_has_members(world):
    world.stable(protocol_type="connect")
    assert world.delete_offsets(world.tp("t")).error is ErrorCode.NON_EMPTY_GROUP
    unknown = world.delete_offsets(world.tp("t"), group="other")
    assert unknown.error is ErrorCode.GROUP_ID_NOT_FOUND


def test_only_empty_groups_are_deleted(world):
    (leader,) = world.stable()
    world.commit({world.tp("t"): 1}, leader, 1)
    assert world.delete_groups("g", "other") == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "other": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    world.leave(leader)
    assert world.delete_groups("g") == {"g": ErrorCode.NONE}
    for one in (world, world.restarted()):
        assert one.committed() == {}
        assert one.coordinator.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.delete_groups() == {}


def test_several_groups_are_deleted_with_one_answer(world):
    for group in ("a", "b"):
        world.commit({world.tp("t"): 1}, group=group)
    world.hold_writes = True
    assert world.delete_groups("a", "b", "a") is None
    world.complete()
    assert world.coordinator.describe("a").error is ErrorCode.GROUP_ID_NOT_FOUND
    world.release()
    (result,) = [r for r in world.replies.values() if hasattr(r, "errors") and len(r.errors) == 3]
    assert {error for _, error in result.errors} == {ErrorCode.NONE}


def test_a_group_that_is_being_deleted_takes_no_members(world):
    world.commit({world.tp("t"): 1})
    world.hold_writes = True
    world.delete_groups("g")
    assert world.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state() == "Dead"
    commit = world.send_commit({world.tp("t"): 7})
    world.release()
    assert world.reply(commit).errors[0][1] is ErrorCode.NONE
    assert world.committed() == {world.tp("t"): 7}
    assert world.restarted().committed() == {world.tp("t"): 7}


def test_a_deletion_that_cannot_be_stored_leaves_the_group(world):
    world.commit({world.tp("t"): 1})
    world.hold_writes = True
    world.delete_groups("g")
    world.fail()
    assert world.state() == "Empty"
    assert world.committed() == {world.tp("t"): 1}

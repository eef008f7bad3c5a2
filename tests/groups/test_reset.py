"""Offsets that an administrator sets: only where nobody commits meanwhile, and all or none."""

import pytest

from moldau.groups.events import OffsetToCommit, ResetOffsets
from moldau.groups.results import ResetResult
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset


def send_reset(world, offsets, *, group="g", removes_members=False, expected=()) -> int:
    request: int = world.send(
        ResetOffsets,
        group_id=group,
        offsets=tuple(
            OffsetToCommit(partition=partition, offset=Offset(offset))
            for partition, offset in offsets.items()
        ),
        removes_members=removes_members,
        expected=tuple(expected),
    )
    return request


def reset(world, offsets, **fields) -> ErrorCode | None:
    reply: ResetResult | None = world.reply(send_reset(world, offsets, **fields))
    return None if reply is None else reply.error


def test_a_group_without_members_gets_its_offsets(world):
    t0, t1, t2 = (world.tp("t", index) for index in range(3))
    world.commit({t0: 5, t1: 6, t2: 7})
    assert reset(world, {t0: 0, t1: 9}) is ErrorCode.NONE
    for one in (world, world.restarted()):
        assert one.committed() == {t0: 0, t1: 9, t2: 7}


def test_offsets_are_set_only_if_the_expected_ones_are_still_committed(world):
    """Members commit until they are removed: a target that was made from older ones is stale."""
    t0, t1 = world.tp("t", 0), world.tp("t", 1)
    (leader,) = world.stable()
    assert world.commit({t0: 5, t1: 6}, leader, 1) is ErrorCode.NONE
    seen = ((t0, Offset(5)), (t1, Offset(6)))
    assert world.commit({t0: 9}, leader, 1) is ErrorCode.NONE
    stale = reset(world, {t0: 3}, removes_members=True, expected=seen)
    assert stale is ErrorCode.INVALID_UPDATE_VERSION
    unknown = reset(world, {t0: 3}, removes_members=True, expected=[(world.tp("t", 2), Offset(0))])
    assert unknown is ErrorCode.INVALID_UPDATE_VERSION
    assert (world.state(), world.committed()) == ("Stable", {t0: 9, t1: 6})
    again = ((t0, Offset(9)), (t1, Offset(6)))
    assert reset(world, {t0: 7}, removes_members=True, expected=again) is ErrorCode.NONE
    assert world.committed() == {t0: 7, t1: 6}


def test_the_reply_has_the_offsets_that_were_replaced(world):
    t0, t1, t2 = (world.tp("t", index) for index in range(3))
    world.commit({t0: 5, t1: 6})
    reply = world.reply(send_reset(world, {t0: 1, t2: 2}))
    assert reply.replaced == {t0: 5}


def test_members_are_removed_only_if_that_is_wanted(world):
    t = world.tp("t")
    leader, follower = world.stable(members=2)
    assert world.commit({t: 5}, leader, 2) is ErrorCode.NONE
    assert reset(world, {t: 0}) is ErrorCode.NON_EMPTY_GROUP
    assert (world.state(), world.committed()) == ("Stable", {t: 5})

    assert reset(world, {t: 0}, removes_members=True) is ErrorCode.NONE
    assert (world.state(), world.committed()) == ("Empty", {t: 0})
    for member in (leader, follower):
        assert world.heartbeat(member, 2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert world.commit({t: 5}, member, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    # A failover does not bring them back.
    assert world.restarted().state() == "Empty"
    # They come again as new members, of a later generation.
    assert world.join().generation > 2


@pytest.mark.parametrize("phase", ["joining", "syncing"])
def test_members_in_a_rebalance_have_to_begin_again(world, phase):
    t = world.tp("t")
    (leader,) = world.stable()
    waiting = world.send_join()
    if phase == "syncing":
        world.send_join(leader)
        member = world.reply(waiting).member_id
        waiting = world.send_sync(member, 2)
    assert world.reply(waiting) is None
    assert reset(world, {t: 3}, removes_members=True) is ErrorCode.NONE
    assert world.reply(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (world.state(), world.committed()) == ("Empty", {t: 3})
    # No timer of the rebalance is left over.
    world.advance(100)
    assert world.state() == "Empty"
    world.stable()


def test_who_joins_meanwhile_gets_partitions_only_with_the_new_offsets(world):
    t = world.tp("t")
    (leader,) = world.stable()
    world.commit({t: 5}, leader, 1)
    world.hold_writes = True
    request = send_reset(world, {t: 0}, removes_members=True)
    assert world.commit({t: 6}) is None, "waits, as it may be of a consumer without a group"
    joined = world.join()
    synced = world.send_sync(joined.member_id, joined.generation, {joined.member_id: b"all"})
    assert (world.reply(request), world.reply(synced)) == (None, None)
    world.complete()
    assert world.reply(request).error is ErrorCode.NONE
    assert world.committed() == {t: 0}
    world.release()
    assert world.reply(synced).assignment == b"all"
    assert world.committed() == {t: 0}


def test_members_of_the_consumer_protocol_are_removed_with_their_assignments(world):
    t = world.tp("t")
    topic = world.topics.create("t", 2)
    epochs = {}
    for member in ("m1", "m2"):
        epochs[member] = world.beat(member, 0, makes_member_id=True).member_epoch
    assert reset(world, {t: 4}) is ErrorCode.NON_EMPTY_GROUP
    before = world.consumers()[1]
    assert reset(world, {t: 4}, removes_members=True) is ErrorCode.NONE
    for one in (world, world.restarted()):
        assert one.consumers() == ("Empty", before + 1, {})
        assert one.committed() == {t: 4}
    assert world.beat("m1", epochs["m1"]).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit({t: 9}, "m2", epochs["m2"]) is ErrorCode.UNKNOWN_MEMBER_ID
    world.advance(1_000)
    again = world.beat("m1", 0, makes_member_id=True)
    assert again.assignment == {topic: frozenset({0, 1})}


def test_members_that_heartbeat_meanwhile_are_removed_all_the_same(world):
    t = world.tp("t")
    world.topics.create("t", 1)
    epoch = world.beat("m", 0, makes_member_id=True).member_epoch
    world.hold_writes = True
    request = send_reset(world, {t: 4}, removes_members=True)
    beat = world.send_beat("m", epoch, topics=("t", "other"))
    commit = world.send_commit({t: 9}, "m", epoch)
    world.release()
    assert world.reply(request).error is ErrorCode.NONE
    assert world.reply(beat).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert {error for _, error in world.reply(commit).errors} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert world.committed() == {t: 4}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_if_it_cannot_be_stored_the_offsets_stay(world, protocol):
    t = world.tp("t")
    if protocol == "classic":
        (leader,) = world.stable()
        world.commit({t: 5}, leader, 1)
    else:
        world.topics.create("t", 1)
        epoch = world.beat("m", 0, makes_member_id=True).member_epoch
        world.commit({t: 5}, "m", epoch)
    world.hold_writes = True
    request = send_reset(world, {t: 0}, removes_members=True)
    world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.reply(request).error is not ErrorCode.NONE
    assert world.committed() == {t: 5}
    world.release()
    assert reset(world, {t: 0}, removes_members=True) is ErrorCode.NONE
    assert world.restarted().committed() == {t: 0}
    too_large = send_reset(world, {t: 1})
    assert world.reply(too_large).error is ErrorCode.NONE
    world.hold_writes = True
    request = send_reset(world, {t: 2})
    world.fail(ErrorCode.MESSAGE_TOO_LARGE)
    assert world.reply(request).error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_new_group_gets_offsets_before_its_first_member(world):
    t = world.tp("t")
    assert reset(world, {t: 7}) is ErrorCode.NONE
    assert world.committed() == {t: 7}
    assert reset(world, {}, group="nothing") is ErrorCode.NONE
    assert "nothing" not in world.coordinator.group_ids()
    assert reset(world, {t: 7}, group="") is ErrorCode.INVALID_GROUP_ID


def test_there_is_no_room_for_more_groups_than_fit(make_world):
    world = make_world(groups_bytes_max=1)
    assert reset(world, {world.tp("t"): 7}) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_coordinator_that_ended_sets_nothing(world):
    world.coordinator.close(world.now)
    assert reset(world, {world.tp("t"): 7}) is ErrorCode.NOT_COORDINATOR


def test_it_comes_after_a_deletion_that_began_before(world):
    t = world.tp("t")
    world.commit({t: 5})
    world.hold_writes = True
    world.delete_groups("g")
    request = send_reset(world, {t: 1})
    world.release()
    assert world.reply(request).error is ErrorCode.NONE
    assert world.committed() == {t: 1}

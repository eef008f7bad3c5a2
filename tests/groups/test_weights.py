"""What clients send stays in memory for as long as they say: all of it has a bound."""

import pytest

from moldau.groups.events import CommitTransactionOffsets, OffsetToCommit
from moldau.groups.weights import GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES, GroupMemory
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId

LONG_MS = 1_800_000
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED
TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE


def large(size):
    return {"protocols": (("range", bytes(size)),)}


@pytest.fixture
def memory():
    return GroupMemory()


# ---- members


def test_a_subscription_is_bounded_over_all_protocols(make_world, memory):
    world = make_world(memory=memory, member_bytes_max=10_000)
    offered = tuple((f"p{number}", bytes(3_000)) for number in range(4))
    assert world.join(protocols=offered).error is TOO_LARGE
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])
    assert memory.held_bytes == 0
    assert world.join(protocols=offered[:2]).error is ErrorCode.NONE


def test_many_protocols_are_as_bad_as_long_ones(make_world):
    world = make_world(member_bytes_max=10_000)
    assert world.join(protocols=tuple((str(n), b"") for n in range(60))).error is TOO_LARGE


def test_the_default_accepts_a_megabyte_less_what_else_is_counted(world):
    assert world.join(**large(1_000_000)).error is ErrorCode.NONE
    assert world.join(group="other", **large(1 << 20)).error is TOO_LARGE


def test_static_members_whose_clients_are_gone_fill_their_group_only(make_world, memory):
    world = make_world(memory=memory, group_bytes_max=100_000, initial_rebalance_delay_ms=3_000)
    fields = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS, **large(20_000)}
    waiting = [world.send_join(instance_id=f"i{number}", **fields) for number in range(30)]
    refused = [one for one in waiting if world.reply(one) is not None]
    assert {world.reply(one).error for one in refused} == {FULL}
    assert len(waiting) - len(refused) == 4
    assert memory.held_bytes <= 100_000
    world.advance(3 * LONG_MS / 1000)
    assert memory.held_bytes == 0
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_a_full_group_takes_back_its_members_unless_they_want_more(make_world):
    world = make_world(group_bytes_max=GROUP_BYTES + MEMBER_BYTES + 1_100)
    (member,) = world.stable(**large(500))
    assert world.join(member, **large(2_000)).error is FULL
    assert world.heartbeat(member, 1) is ErrorCode.NONE
    assert world.join(member, **large(499)).error is ErrorCode.NONE


def test_a_restarted_static_member_is_counted_once(make_world):
    world = make_world(group_bytes_max=GROUP_BYTES + MEMBER_BYTES + 1_100)
    world.stable(instance_id="i", **large(500))
    assert world.join(instance_id="i", **large(500)).error is ErrorCode.NONE


def test_all_groups_of_a_broker_have_a_bound(make_world, memory):
    """There is a coordinator for each partition of the offsets."""
    worlds = [make_world(memory=memory, groups_bytes_max=50_000) for _ in range(2)]
    for number in range(100):
        error = worlds[number % 2].join(group=f"g{number}").error
        assert error is (ErrorCode.NONE if number < 15 else FULL)
    assert memory.held_bytes <= 50_000
    worlds[0].coordinator.close(0.0)
    worlds[0].coordinator.close(0.0)
    assert 0 < memory.held_bytes <= 25_000
    assert worlds[1].join(group="late").error is ErrorCode.NONE


def test_what_is_loaded_is_counted(make_world, memory):
    world = make_world()
    world.stable(**large(5_000))
    world.stable(group="other", **large(5_000))
    make_world(log=world.log, memory=memory)
    assert memory.held_bytes > 10_000


def test_offsets_cannot_make_more_groups_than_there_is_room_for(make_world, memory):
    world = make_world(memory=memory, groups_bytes_max=2 * GROUP_BYTES + 6)
    offsets = {world.tp("t"): 1}
    errors = [world.commit(offsets, group=f"g{number}") for number in range(4)]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, FULL, FULL]
    assert world.commit(offsets, group="g0") is ErrorCode.NONE
    request = world.send(
        CommitTransactionOffsets,
        group_id="g4",
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        guard=0,
        offsets=(OffsetToCommit(partition=world.tp("t"), offset=Offset(1)),),
    )
    assert [error for _, error in world.reply(request).errors] == [FULL]
    world.delete_groups("g0", "g1")
    assert world.commit(offsets, group="g" * 3_000) is FULL
    assert memory.held_bytes == 0


# ---- assignments


def test_an_assignment_is_bounded(make_world):
    world = make_world(member_bytes_max=10_000)
    joined = world.join()
    assigned = {joined.member_id: bytes(10_001)}
    assert world.sync(joined.member_id, 1, assigned).error is TOO_LARGE
    assert world.sync(joined.member_id, 1, {joined.member_id: b"x"}).assignment == b"x"


def test_assignments_count_for_the_group(make_world, memory):
    world = make_world(memory=memory, group_bytes_max=20_000)
    joined = world.join()
    assigned = {str(number): bytes(9_000) for number in range(2)}
    assert world.sync(joined.member_id, 1, assigned).error is FULL
    before = memory.held_bytes
    assert world.sync(joined.member_id, 1, {joined.member_id: bytes(9_000)}).error == 0
    assert memory.held_bytes == before + 9_000


def test_ids_that_are_given_out_count_for_the_group(make_world, memory):
    world = make_world(memory=memory, group_bytes_max=GROUP_BYTES + 4 * PENDING_BYTES)
    given = [world.join(member_id_required=True) for _ in range(5)]
    errors = [one.error for one in given]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [FULL] * 3
    world.advance(60)
    assert memory.held_bytes == 0


# ---- members of the consumer protocol


@pytest.mark.parametrize(
    "fields",
    [
        {"topics": tuple(f"{number:0200}" for number in range(100))},
        {"topics": tuple(map(str, range(300)))},
        {"rack": "r" * 20_000},
        {"client_id": "c" * 20_000},
        {"instance_id": "😀" * 4_000},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_a_consumer_sends_is_bounded(make_world, fields):
    world = make_world(member_bytes_max=10_000)
    assert world.beat("a", 0, **fields).error is TOO_LARGE
    assert world.log == []


def test_the_id_that_a_client_makes_is_short(world):
    assert world.beat("x" * 1_025, 0).error is ErrorCode.INVALID_REQUEST
    assert world.beat("x" * 1_024, 0).error is ErrorCode.NONE


def test_consumers_fill_their_group_only(make_world, memory):
    world = make_world(memory=memory, group_bytes_max=100_000)
    names = tuple(f"{number:0200}" for number in range(70))
    replies = [world.beat(f"m{number}", 0, topics=names) for number in range(20)]
    errors = [one.error for one in replies]
    assert errors == [ErrorCode.NONE] * 5 + [FULL] * 15
    assert memory.held_bytes <= 100_000
    # Who is in stays in, and may not grow.
    epoch = replies[4].member_epoch
    assert world.beat("m4", epoch).error is ErrorCode.NONE
    assert world.beat("m4", epoch, topics=(*names, "x" * 30_000)).error is FULL
    assert world.beat("a", 0, group="other").error is ErrorCode.NONE
    world.advance(1_200)
    assert memory.held_bytes == 0


def test_heartbeats_that_are_decided_together_are_counted_together(make_world):
    world = make_world(group_bytes_max=100_000)
    world.beat("m", 0)
    world.hold_writes = True
    fields = {"topics": tuple(f"{number:0200}" for number in range(70))}
    sent = [world.send_beat(f"m{number}", 0, **fields) for number in range(20)]
    world.release()
    assert sum(world.reply(one).error is ErrorCode.NONE for one in sent) == 4

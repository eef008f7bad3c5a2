"""Classic members and members of the newer protocol in one group: taken over, mixed, and back."""

import struct

import pytest
from group_clients import subscription

from moldau.groups.assignors.queue import QueueAssignor
from moldau.groups.consumer_protocol import assignment_bytes, read_assignment
from moldau.groups.coordinator import BUILT_IN_ASSIGNORS, GroupCoordinator
from moldau.groups.events import Leave, LeavingMember
from moldau.model.errors import ErrorCode

ALL = frozenset(range(4))


@pytest.fixture
def world(make_world):
    world = make_world()
    world.t = world.topics.create("t", 4)
    return world


def classic(world, members=1, **fields):
    """Stable classic members that share the topic; the generation, and their ids."""
    shares = {1: [ALL], 2: [frozenset({0, 1}), frozenset({2, 3})]}[members]
    first = world.join(**fields)
    ids = [first.member_id]
    generation = first.generation
    if members == 2:
        world.sync(ids[0], generation, {ids[0]: assignment_bytes({"t": ALL})})
        second = world.send_join(**{**fields, "instance_id": None})
        world.send_join(ids[0], **fields)
        ids.append(world.reply(second).member_id)
        generation = world.reply(second).generation
        world.send_sync(ids[1], generation)
    plan = {one: assignment_bytes({"t": share}) for one, share in zip(ids, shares, strict=True)}
    instance = {name: fields[name] for name in ("instance_id", "group") if name in fields}
    world.sync(ids[0], generation, plan, **instance)
    return generation, ids


def with_data(assignment):
    """As an assignor writes it that adds something for itself."""
    return assignment[:-4] + struct.pack(">i1s", 1, b"x")


def cooperative(*owned):
    return (("cooperative-sticky", subscription(("t",), {"t": frozenset(owned)})),)


def shown(world):
    """What each member has, by its id."""
    described = world.coordinator.describe_consumers("g")
    return {one.member_id: one.assigned.get(world.t, frozenset()) for one in described.members}


def partitions(assignment):
    read = read_assignment(assignment)
    assert read is not None
    return read.partitions


def shown_classic(world):
    members = world.coordinator.describe("g").members
    return {one.member_id: partitions(one.assignment)["t"] for one in members}


def synced(world, member_id, generation):
    reply = world.sync(member_id, generation)
    assert reply.error is ErrorCode.NONE
    return partitions(reply.assignment).get("t", frozenset())


# ---- taken over


def test_a_consumer_of_the_newer_protocol_joins_a_live_classic_group(world):
    generation, (old,) = classic(world)
    joined = world.beat("n", 0)
    assert (joined.error, joined.member_epoch, joined.assignment) == (ErrorCode.NONE, 2, {})
    assert shown(world) == {old: ALL, "n": frozenset()}
    kinds = world.coordinator.describe_consumers("g").members
    assert {one.member_id: one.is_classic for one in kinds} == {old: True, "n": False}
    # It reads on, and commits, until it is called.
    assert world.commit({world.tp("t"): 5}, old, generation) is ErrorCode.NONE
    assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(old)
    assert (again.error, again.member_id, again.generation) == (ErrorCode.NONE, old, 2)
    assert (again.protocol_name, again.leader, again.members) == ("range", "", ())
    mine = synced(world, old, 2)
    assert len(mine) == 2
    assert world.beat("n", 2).assignment == {world.t: ALL - mine}
    assert world.heartbeat(old, 2) is ErrorCode.NONE
    assert world.commit({world.tp("t"): 6}, old, generation) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit({world.tp("t"): 6}, old, 2) is ErrorCode.NONE
    assert world.restarted().consumers() == world.consumers()
    assert world.restarted().heartbeat(old, 2) is ErrorCode.NONE


def test_a_cooperative_member_lets_go_of_what_goes_to_others_and_reads_the_rest(world):
    generation, (old,) = classic(world, protocols=cooperative())
    world.beat("n", 0)
    assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    told = world.join(old, protocols=cooperative(*ALL))
    assert told.generation == generation
    kept = synced(world, old, generation)
    assert len(kept) == 2
    # As long as it has not said that it let go of the others, they are its own.
    assert world.beat("n", 2).assignment is None
    assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(old, protocols=cooperative(*kept)).generation == 2
    assert synced(world, old, 2) == kept
    assert world.beat("n", 2).assignment == {world.t: ALL - kept}


def test_nothing_changes_if_the_takeover_cannot_be_stored(world):
    generation, (old,) = classic(world)
    world.hold_writes = True
    beat = world.send_beat("n", 0)
    world.fail()
    world.release()
    assert world.reply(beat).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state() == "Stable"
    assert world.heartbeat(old, generation) is ErrorCode.NONE


def test_who_waits_when_the_group_is_taken_over_asks_again(world):
    """A member that waits for a join keeps its id; REBALANCE_IN_PROGRESS would end aiokafka."""
    _, (first, second) = classic(world, 2)
    new, known = world.send_join(), world.send_join(second)
    world.beat("n", 0)
    assert world.reply(known).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.reply(new).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(shown(world)) == {first, second, "n"}
    assert world.join(second).error is ErrorCode.NONE


def test_a_sync_that_waits_when_the_group_is_taken_over_joins_again(world):
    joined = world.join()
    second = world.send_join()
    world.send_join(joined.member_id)
    generation = world.reply(second).generation
    waiting = world.send_sync(world.reply(second).member_id, generation)
    world.beat("n", 0)
    assert world.reply(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(world.reply(second).member_id).error is ErrorCode.NONE


def test_a_takeover_in_the_middle_of_a_rebalance_takes_from_no_member_what_it_reads(world):
    """A generation that came to nothing leaves no assignments, but cooperative members read on."""
    _, (first, second) = classic(world, 2, protocols=cooperative())
    one = world.send_join(first, protocols=cooperative(0, 1))
    two = world.send_join(second, protocols=cooperative(2, 3))
    generation = world.reply(one).generation
    world.send_sync(second, generation)
    world.hold_writes = True
    world.send_sync(first, generation, {first: assignment_bytes({"t": ALL})})
    world.fail()
    world.release()
    assert world.reply(two).generation == generation
    world.beat("n", 0)
    assert shown(world) == {first: {0, 1}, second: {2, 3}, "n": frozenset()}


def test_a_member_that_leaves_while_the_takeover_is_stored_is_gone(world):
    _, (first, second) = classic(world, 2)
    world.hold_writes = True
    world.send_beat("n", 0)
    left = world.leave(second)
    assert left.members[0].error is ErrorCode.NONE
    world.release()
    world.advance(0)
    assert set(shown(world)) == {first, "n"}


def test_a_member_that_does_not_come_when_it_is_called_loses_its_place(world):
    generation, (old,) = classic(world, rebalance_timeout_ms=20_000)
    world.beat("n", 0)
    for _ in range(5):
        assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        world.beat("n", 2)
        world.advance(4.5)
    assert shown(world) == {"n": frozenset()}
    assert world.beat("n", 2).assignment == {world.t: ALL}
    assert world.heartbeat(old, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_came_in_time_has_its_time_again(world):
    generation, (old,) = classic(world, rebalance_timeout_ms=20_000)
    epoch = 1
    for name in "nopq":
        epoch = world.beat(name, 0).member_epoch
        assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        for _ in range(3):
            world.advance(5)
            world.heartbeat(old, generation)
        generation = world.join(old, rebalance_timeout_ms=20_000).generation
        assert generation == epoch
        for other in "nopq"[: "nopq".index(name) + 1]:
            current = world.consumers()[2][other][0]
            world.beat(other, current, world.consumers()[2][other][1])
    assert old in shown(world)


def test_a_classic_member_without_heartbeats_times_out_after_its_own_session(world):
    classic(world, session_timeout_ms=10_000)
    world.beat("n", 0)
    world.advance(10.5)
    assert set(shown(world)) == {"n"}


@pytest.mark.parametrize(
    "assignment",
    [b"no assignment", with_data(assignment_bytes({"t": ALL}))],
    ids=["unreadable", "with data of its own"],
)
def test_a_group_whose_clients_assign_in_a_way_of_their_own_is_not_taken_over(world, assignment):
    joined = world.join(protocols=(("own", subscription(("t",))),))
    world.sync(joined.member_id, joined.generation, {joined.member_id: assignment})
    refused = world.beat("n", 0)
    assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "Stop all its members first" in refused.message
    assert world.heartbeat(joined.member_id, joined.generation) is ErrorCode.NONE


def test_kafka_streams_is_not_taken_over_and_does_not_join_a_group_whose_broker_assigns(world):
    streams = struct.pack(">hi", 1, 1) + b"\0\1t" + struct.pack(">i4si", 4, b"task", 0)
    protocols = (("stream", streams),)
    world.join(protocols=protocols)
    # Nothing is assigned yet: its subscription shows what it is.
    assert world.beat("n", 0).error is ErrorCode.GROUP_ID_NOT_FOUND
    world.beat("n", 0, group="newer")
    refused = world.join(group="newer", protocols=protocols)
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_what_the_assignors_of_all_clients_remember_does_not_keep_a_group(world):
    """The leader of librdkafka copies the data of a sticky subscription into the assignment."""
    generation, (old,) = classic(world, protocols=cooperative())
    world.join(old, protocols=cooperative(*ALL))
    world.sync(old, generation + 1, {old: with_data(assignment_bytes({"t": ALL}))})
    assert world.beat("n", 0).error is ErrorCode.NONE
    assert shown(world)[old] == ALL


def test_a_group_that_is_not_one_of_consumers_is_not_taken_over(world):
    joined = world.join(protocol_type="connect", protocols=(("v1", b"?"),))
    world.sync(joined.member_id, joined.generation, {joined.member_id: b"?"})
    assert world.beat("n", 0).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat("n", 3).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_a_queue_do_not_take_over_and_are_not_joined(world):
    assignors = [*BUILT_IN_ASSIGNORS, QueueAssignor()]
    world.coordinator = GroupCoordinator(
        world.config, lambda client: client, world.wall_ms, world.topics, assignors
    )
    world.load()
    classic(world)
    assert world.beat("q", 0, assignor="queue").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.state() == "Stable"
    world.beat("q", 0, group="queue", assignor="queue")
    assert world.join(group="queue").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_comes_at_the_last_moment_stays(world):
    """The end of its time was next in turn when its join was judged."""
    generation, (old,) = classic(world, protocols=cooperative(), rebalance_timeout_ms=20_000)
    world.beat("n", 0)
    for _ in range(3):
        assert world.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        world.advance(6)
    world.heartbeat(old, generation)
    world.hold_writes = True
    world.send_commit({world.tp("t"): 5}, old, generation)
    fields = {"protocols": cooperative(*ALL), "rebalance_timeout_ms": 20_000}
    joined = world.send_join(old, **fields)
    world.advance(3)
    world.release()
    assert world.reply(joined).error is ErrorCode.NONE
    assert old in shown(world)


def test_a_sync_names_the_protocol_that_its_join_returned(world):
    """A vote chose it before the takeover; the member wants another one more."""
    only = (("range", subscription(("t",))),)
    both = (("cooperative-sticky", subscription(("t",))), *only)
    first = world.join(protocols=only)
    second = world.send_join(protocols=both)
    world.send_join(first.member_id, protocols=only)
    told = world.reply(second)
    world.beat("n", 0)
    fields = {"protocol_type": "consumer", "protocol_name": told.protocol_name}
    synced = world.sync(told.member_id, told.generation, **fields)
    assert (synced.error, synced.protocol_name) == (ErrorCode.NONE, "range")
    wrong = world.sync(told.member_id, told.generation, protocol_name="sticky")
    assert wrong.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# ---- static members


def test_a_static_member_comes_back_with_the_newer_protocol(world):
    """Its classic self said nothing when it stopped."""
    generation, (old,) = classic(world, instance_id="i", session_timeout_ms=10_000)
    joined = world.beat("n", 0, instance_id="i")
    assert (joined.error, joined.assignment) == (ErrorCode.NONE, {world.t: ALL})
    assert shown(world) == {"n": ALL}
    fenced = world.heartbeat(old, generation, instance_id="i")
    assert fenced is ErrorCode.FENCED_INSTANCE_ID
    assert world.commit({world.tp("t"): 1}, old, generation, instance_id="i") is fenced
    assert world.leave(instances=[(old, "i")]).members[0].error is fenced
    # What it said in the classic protocol does not bind it.
    world.advance(20)
    assert set(shown(world)) == {"n"}


def test_a_static_member_that_comes_back_with_the_newer_protocol_disturbs_no_other(world):
    generation, (first, second) = classic(world, 2, instance_id="i")
    had = shown_classic(world)[first]
    joined = world.beat("n", 0, instance_id="i")
    assert (joined.member_epoch, joined.assignment) == (generation, {world.t: had})
    assert world.heartbeat(second, generation) is ErrorCode.NONE


def read_by_and_by(world, member, joined, **fields):
    """What it has after some heartbeats."""
    epoch = joined.member_epoch
    assert epoch > 0
    for _ in range(5):
        epoch = world.beat(member, epoch, **fields).member_epoch
        world.advance(1)
    return shown(world)[member]


def test_what_was_not_assigned_at_the_takeover_is_assigned_then(world):
    """A static member that comes back changes nothing by itself: nobody else would assign it."""
    classic(world, instance_id="i")
    world.topics.create("t", 6)
    joined = world.beat("n", 0, instance_id="i")
    assert read_by_and_by(world, "n", joined) == frozenset(range(6))


def test_what_one_left_open_before_the_takeover_is_read(world):
    _, (_, second) = classic(world, 2, instance_id="i")
    world.leave(second)
    joined = world.beat("n", 0, instance_id="i")
    assert read_by_and_by(world, "n", joined) == ALL


def test_a_takeover_before_the_first_assignment_gives_everything(world):
    world.join(instance_id="i")
    joined = world.beat("n", 0, instance_id="i")
    assert read_by_and_by(world, "n", joined) == ALL


def test_a_takeover_before_the_first_generation_gives_everything(make_world):
    world = make_world(initial_rebalance_delay_ms=3000)
    world.t = world.topics.create("t", 4)
    for _ in range(2):
        world.send_join(instance_id="i")
    joined = world.beat("n", 0, instance_id="i")
    assert read_by_and_by(world, "n", joined) == ALL


def test_a_takeover_between_the_two_steps_of_a_cooperative_rebalance_ends_it(world):
    first = world.join(instance_id="i", protocols=cooperative())
    fields = {"instance_id": "i"}
    plan = {first.member_id: assignment_bytes({"t": ALL})}
    world.sync(first.member_id, first.generation, plan, **fields)
    waiting = world.send_join(protocols=cooperative())
    world.send_join(first.member_id, protocols=cooperative(*ALL), **fields)
    second = world.reply(waiting)
    world.send_sync(second.member_id, second.generation)
    plan = {first.member_id: assignment_bytes({"t": {0, 1}})}
    world.sync(first.member_id, second.generation, plan, **fields)
    joined = world.beat("n", 0, **fields)
    world.beat("n", joined.member_epoch, {world.t: {0, 1}}, **fields)
    assert world.heartbeat(second.member_id, second.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(second.member_id, protocols=cooperative())
    assert synced(world, second.member_id, again.generation) == {2, 3}


def test_a_static_member_comes_back_with_the_classic_protocol(world):
    world.beat("n", 0, instance_id="i")
    world.beat("m", 0)
    world.beat("n", 1, instance_id="i")
    world.beat("n", -2, instance_id="i")
    back = world.join(instance_id="i")
    assert back.error is ErrorCode.NONE
    assert world.beat("n", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    mine = partitions(world.sync(back.member_id, back.generation, instance_id="i").assignment)["t"]
    assert world.beat("m", 2, {}).assignment == {world.t: ALL - mine}


def test_a_static_classic_member_comes_back_with_another_assignor(world):
    """Only others must have a protocol in common with it, not what it was before."""
    world.beat("n", 0)
    before = world.join(instance_id="i")
    back = world.join(instance_id="i", protocols=(("roundrobin", subscription(("t",))),))
    assert back.error is ErrorCode.NONE
    assert set(shown(world)) == {"n", back.member_id} != {"n", before.member_id}


def test_a_takeover_ends_what_an_assignor_gave_to_two(world):
    generation, (first, second) = classic(world, 2, instance_id="i")
    world.send_join(first, instance_id="i")
    world.send_join(second)
    plan = {one: assignment_bytes({"t": ALL}) for one in (first, second)}
    world.send_sync(second, generation + 1)
    world.sync(first, generation + 1, plan, instance_id="i")
    world.beat("n", 0, instance_id="i")
    assert world.heartbeat(second, generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS


# ---- mixed, and back


def test_classic_members_join_a_group_of_the_newer_protocol(world):
    world.beat("n", 0)
    first = world.join(member_id_required=True)
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = world.join(first.member_id, member_id_required=True)
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 2)
    assert synced(world, first.member_id, 2) == frozenset()
    world.beat("n", 1)
    kept = shown(world)["n"]
    world.beat("n", 1, {world.t: kept})
    # All that it waits for is free now.
    assert world.heartbeat(first.member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(first.member_id).generation == 2
    assert synced(world, first.member_id, 2) == ALL - kept
    assert world.heartbeat(first.member_id, 2) is ErrorCode.NONE


def test_ids_of_the_other_protocol_are_unknown(world):
    world.beat("n", 0)
    assert world.heartbeat("n", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync("n", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("n").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(protocols=(("range", b"?"),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    _, (old,) = classic(world, group="classic")
    world.beat("n", 0, group="classic")
    assert world.beat(old, 1, group="classic").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_members_without_a_protocol_in_common_do_not_share_a_group(world):
    """They could not go on when the others have left."""
    world.beat("n", 0)
    assert world.join().error is ErrorCode.NONE
    refused = world.join(protocols=(("roundrobin", subscription(("t",))),))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_id_that_was_given_out_leaves_again(world):
    world.beat("n", 0)
    given = world.join(member_id_required=True).member_id
    assert world.leave(given).members[0].error is ErrorCode.NONE
    assert world.join(given).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_right_after_it_joined_is_gone(world):
    """Both are stored together, when a write before them is."""
    world.beat("n", 0)
    given = world.join(member_id_required=True).member_id
    world.hold_writes = True
    world.send_commit({world.tp("t"): 5}, "n", 1)
    joined = world.send_join(given)
    left = world.send(Leave, group_id="g", members=(LeavingMember(member_id=given),))
    world.release()
    assert world.reply(joined).error is ErrorCode.NONE
    assert world.reply(left).members[0].error is ErrorCode.NONE
    assert set(shown(world)) == {"n"}


def test_a_group_without_members_takes_any_kind(world):
    world.beat("n", 0)
    world.commit({world.tp("t"): 1}, "n", 1)
    world.beat("n", -1)
    assert world.join(protocol_type="connect", protocols=(("v1", b"?"),)).error is ErrorCode.NONE


def test_the_group_is_classic_again_when_the_last_of_the_others_has_left(world):
    _, (old,) = classic(world)
    world.beat("n", 0)
    world.join(old)
    world.commit({world.tp("t"): 7}, old, 2)
    world.beat("n", -1)
    assert world.heartbeat(old, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    back = world.join(old)
    assert back.generation == 3
    assert world.state() == "PreparingRebalance"
    assert world.heartbeat(old, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    led = world.join(old)
    assert (led.generation, led.leader) == (4, old)
    world.sync(old, 4, {old: assignment_bytes({"t": ALL})})
    assert world.state() == "Stable"
    assert world.committed() == {world.tp("t"): 7}
    assert world.restarted().state() == "Stable"
    assert world.beat("n", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_no_member_is_fenced_when_the_group_becomes_classic_again(world):
    """Members reach the last epoch one after the other; it is the generation of all of them."""
    generation, (first, second) = classic(world, 2)
    world.beat("n", 0)
    world.beat("n", -1)
    assert world.join(first).generation == generation + 2
    assert world.heartbeat(second, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(second).generation == generation + 2
    for member in (first, second):
        assert world.heartbeat(member, generation + 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.state() == "PreparingRebalance"


def going_back(world):
    """Two classic members and a group that is about to be classic again: that is being stored."""
    _, (first, second) = classic(world, 2)
    world.beat("n", 0)
    world.beat("n", -1)
    world.join(first)
    world.hold_writes = True
    joined = world.send_join(second)
    world.complete()
    assert world.held
    return first, second, world.reply(joined).generation


def test_a_member_that_leaves_while_the_group_goes_back_is_gone(world):
    first, second, _ = going_back(world)
    left = world.send(Leave, group_id="g", members=(LeavingMember(member_id=second),))
    world.release()
    assert world.reply(left).members[0].error is ErrorCode.NONE
    assert {one.member_id for one in world.coordinator.describe("g").members} == {first}


def test_a_group_that_could_not_go_back_tries_again(world):
    """Nobody leads meanwhile who would watch the topics."""
    first, second, generation = going_back(world)
    world.fail()
    world.release()
    assert world.heartbeat(first, generation) is ErrorCode.NONE
    world.advance(1.5)
    assert world.heartbeat(first, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert {one.member_id for one in world.coordinator.describe("g").members} == {first, second}


def test_a_group_that_is_too_large_for_one_record_is_not_tried_all_the_time(world):
    going_back(world)
    attempts = 0
    for _ in range(8):
        attempts += len(world.held)
        if world.held:
            world.fail(ErrorCode.MESSAGE_TOO_LARGE)
        world.advance(1)
    assert attempts == 1


def test_a_group_that_went_back_rebalances_on_any_coordinator(world):
    """Nobody was told yet that it leads, and nobody else watches the topics."""
    first, second, generation = going_back(world)
    world.release()
    again = world.restarted()
    for member in (first, second):
        assert again.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_that_comes_when_the_group_went_back_joins_again(world):
    """Its join named another protocol than the one that the members have in common."""
    only = (("range", subscription(("t",))),)
    both = (("cooperative-sticky", subscription(("t",))), *only)
    world.beat("n", 0)
    first, second = world.join(protocols=only), world.join(protocols=both)
    world.beat("n", -1)
    world.join(first.member_id, protocols=only)
    told = world.join(second.member_id, protocols=both)
    fields = {"protocol_type": "consumer", "protocol_name": told.protocol_name}
    synced = world.sync(told.member_id, told.generation, **fields)
    assert synced.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_loading_a_group_of_classic_members_makes_it_classic_again(world):
    _, (old,) = classic(world)
    world.beat("n", 0)
    world.beat("n", -1)
    world.hold_writes = True
    world.send_join(old)
    world.complete()
    again = world.restarted()
    assert again.heartbeat(old, 3) is ErrorCode.REBALANCE_IN_PROGRESS

import struct

import pytest
from group_clients import subscription

from moldau.model.errors import ErrorCode


def _owning(generation: int, *owned: int) -> dict[str, object]:
    """The subscription of a cooperative member, by its last generation."""
    first = subscription(["t"], {"t": frozenset(owned)} if owned else {})[2:]
    data = struct.pack(">h", 2) + first + struct.pack(">i", generation)
    return {"protocols": (("cooperative-sticky", data),)}


def test_a_static_member_keeps_its_assignment_over_a_restart(world):
    (old,) = world.stable(instance_id="i")
    back = world.join(instance_id="i")
    assert back.error is ErrorCode.NONE
    assert back.member_id != old
    assert back.generation == 1
    assert world.state() == "Stable"
    assert world.sync(back.member_id, 1, instance_id="i").assignment == b"alone"


def test_the_replaced_id_is_fenced(world):
    (old,) = world.stable(instance_id="i")
    world.join(instance_id="i")
    assert world.heartbeat(old, 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(old, 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.join(old, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    commit = world.commit({world.tp("t"): 1}, old, 1, instance_id="i")
    assert commit is ErrorCode.FENCED_INSTANCE_ID
    left = world.leave(instances=[(old, "i")])
    assert left.members[0].error is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_older_client_that_led_is_not_asked_to_assign(world):
    (old,) = world.stable(instance_id="i")
    back = world.join(instance_id="i")
    assert back.leader == old
    assert back.members == ()
    assert not back.skip_assignment


def test_a_newer_client_that_leads_skips_the_assignment(world):
    world.stable(instance_id="i")
    back = world.join(instance_id="i", can_skip_assignment=True)
    assert back.leader == back.member_id
    assert [m.member_id for m in back.members] == [back.member_id]
    assert back.skip_assignment


def test_the_new_id_is_stored_before_it_is_returned(world):
    world.stable(instance_id="i")
    world.hold_writes = True
    request = world.send_join(instance_id="i")
    assert world.reply(request) is None
    world.release()
    back = world.reply(request).member_id
    again = world.restarted()
    assert again.heartbeat(back, 1, instance_id="i") is ErrorCode.NONE


def test_a_return_that_cannot_be_stored_changes_nothing(world):
    (old,) = world.stable(instance_id="i")
    world.hold_writes = True
    request = world.send_join(instance_id="i")
    world.fail()
    assert world.reply(request).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(old, 1, instance_id="i") is ErrorCode.NONE


def test_a_return_that_meets_a_rebalance_takes_part_in_it(world):
    (old,) = world.stable(instance_id="i")
    world.hold_writes = True
    request = world.send_join(instance_id="i")
    newcomer = world.send_join()
    world.release()
    assert world.reply(request).generation == world.reply(newcomer).generation == 2
    assert world.heartbeat(old, 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_two_returns_at_once_fence_the_first(world):
    world.stable(instance_id="i")
    world.hold_writes = True
    first, second = world.send_join(instance_id="i"), world.send_join(instance_id="i")
    world.release()
    fenced, current = world.reply(first).member_id, world.reply(second).member_id
    assert world.heartbeat(fenced, 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(current, 1, instance_id="i") is ErrorCode.NONE


def test_a_return_that_changes_the_chosen_protocol_rebalances(world):
    world.stable(instance_id="i")
    back = world.join(instance_id="i", protocols=(("sticky", b""), ("range", b"")))
    assert (back.generation, back.protocol_name) == (2, "sticky")


def test_a_return_during_the_sync_phase_rebalances(world):
    first = world.join(instance_id="i")
    waiting = world.send_join(instance_id="j")
    world.send_join(first.member_id, instance_id="i")
    second = world.reply(waiting).member_id
    sync = world.send_sync(second, 2, instance_id="j")
    back = world.send_join(instance_id="j")
    assert world.reply(sync).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.state() == "PreparingRebalance"
    world.join(first.member_id, instance_id="i")
    assert world.reply(back).generation == 3


def test_a_waiting_join_of_a_replaced_member_is_fenced(world):
    world.stable(instance_id="i")
    early = world.send_join(instance_id="j")
    late = world.send_join(instance_id="j")
    assert world.reply(early).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.reply(late) is None


def test_a_static_member_outlives_a_rebalance_it_missed(world):
    (static,) = world.stable(instance_id="i", session_timeout_ms=60_000)
    newcomer = world.send_join(session_timeout_ms=60_000)
    world.advance(31)
    joined = world.reply(newcomer)
    assert joined.error is ErrorCode.NONE
    assert static in {m.member_id for m in joined.members}
    assert joined.leader == joined.member_id


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_left", [False, True])
def test_what_a_static_member_owned_is_void_after_a_generation_it_missed(world, restarts, is_left):
    static = world.join(instance_id="i", session_timeout_ms=60_000, **_owning(-1)).member_id
    world.sync(static, 1, {static: b"0 and 1"}, instance_id="i")
    waiting = world.send_join(session_timeout_ms=60_000, **_owning(-1))
    world.advance(31)
    newcomer = world.reply(waiting)
    world.sync(newcomer.member_id, 2, {static: b"0", newcomer.member_id: b"1"})
    if restarts:
        world = world.restarted()
    if is_left:
        world.leave(newcomer.member_id)
    late = world.join(static, instance_id="i", **_owning(1, 0, 1))
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID
    back = world.join(instance_id="i", **_owning(-1))
    assert (back.error, back.generation) == (ErrorCode.NONE, 3 if is_left else 2)


def test_a_static_member_keeps_what_it_owns_in_the_current_generation(world):
    static = world.join(instance_id="i", **_owning(-1)).member_id
    world.sync(static, 1, {static: b"0 and 1"}, instance_id="i")
    world.send_join(**_owning(-1))
    joined = world.join(static, instance_id="i", **_owning(1, 0, 1))
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 2)


def test_a_static_member_that_joined_may_ask_again_for_the_generation(world):
    static = world.join(instance_id="i", **_owning(-1)).member_id
    world.sync(static, 1, {static: b"0 and 1"}, instance_id="i")
    world.join(static, instance_id="i", **_owning(1, 0, 1))
    again = world.join(static, instance_id="i", **_owning(1, 0, 1))
    assert (again.error, again.generation) == (ErrorCode.NONE, 2)


def test_static_members_alone_are_given_time_to_come_back(world):
    world.stable(instance_id="i", session_timeout_ms=1_000_000)
    dynamic = world.send_join()
    world.advance(29)
    assert world.reply(dynamic) is None
    # The newcomer joined and fell silent; the static member never came.
    world.advance(2)
    world.leave(world.reply(dynamic).member_id)
    world.advance(300)
    assert world.state() == "PreparingRebalance"
    assert world.join(instance_id="i").error is ErrorCode.NONE
    assert world.state() == "CompletingRebalance"


def test_a_static_member_is_gone_after_its_session(world):
    (static,) = world.stable(instance_id="i")
    world.advance(11)
    assert world.state() == "Empty"
    assert world.join(static, instance_id="i").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_administrator_removes_a_static_member_by_its_instance(world):
    world.stable(instance_id="i")
    left = world.leave(instances=[("", "i"), ("", "nobody")])
    assert [m.error for m in left.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.state() == "Empty"


def test_a_static_member_needs_no_second_join(world):
    assert world.join(instance_id="i", member_id_required=True).error is ErrorCode.NONE


def test_a_returned_leader_still_leads_after_a_restart(world):
    first = world.join(instance_id="i")
    waiting = world.send_join(instance_id="j")
    world.send_join(first.member_id, instance_id="i")
    second = world.reply(waiting).member_id
    world.send_sync(second, 2, instance_id="j")
    world.sync(first.member_id, 2, {}, instance_id="i")
    # Twice: after the first return it is no longer the first of the members.
    for _ in range(2):
        leader = world.join(instance_id="i", can_skip_assignment=True).member_id
    for one in (world, world.restarted()):
        assert one.join(second, instance_id="j").leader == leader


def test_a_replaced_newcomer_may_wait_longer_than_its_session(world):
    world.stable(session_timeout_ms=60_000)
    world.send_join(instance_id="j", session_timeout_ms=10_000)
    waiting = world.send_join(instance_id="j", session_timeout_ms=10_000)
    world.advance(20)
    assert world.reply(waiting) is None

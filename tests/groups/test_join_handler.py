import pytest

from moldau.model.errors import ErrorCode


def test_the_first_member_leads_generation_one(world):
    joined = world.join()
    assert joined.error is ErrorCode.NONE
    assert joined.generation == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_type == "consumer"
    assert joined.protocol_name == "range"
    assert [m.member_id for m in joined.members] == [joined.member_id]
    assert joined.members[0].subscription == world.subscription("t")
    assert world.state() == "CompletingRebalance"


def test_a_member_id_carries_the_name_of_the_client(world):
    assert world.join(client_id="billing").member_id.startswith("billing-")


def test_a_new_member_is_given_its_id_first(world):
    refused = world.join(member_id_required=True)
    assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id
    assert world.state() == "Empty"
    joined = world.join(refused.member_id, member_id_required=True)
    assert joined.error is ErrorCode.NONE
    assert joined.member_id == refused.member_id


def test_an_id_that_is_not_used_in_time_is_forgotten(world):
    refused = world.join(member_id_required=True)
    world.advance(10)
    assert world.join(refused.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_a_rebalance_waits_for_ids_that_were_given_out(world):
    (leader,) = world.stable()
    pending = world.join(member_id_required=True).member_id
    rejoin = world.send_join(leader)
    assert world.reply(rejoin) is None
    second = world.send_join(pending)
    assert world.reply(rejoin).generation == world.reply(second).generation == 2


def test_a_rebalance_ends_when_the_id_it_waits_for_leaves(world):
    (leader,) = world.stable()
    pending = world.join(member_id_required=True).member_id
    rejoin = world.send_join(leader)
    assert world.leave(pending).members[0].error is ErrorCode.NONE
    assert world.reply(rejoin).error is ErrorCode.NONE


def test_a_new_group_waits_for_more_members(make_world):
    world = make_world(initial_rebalance_delay_ms=3000)
    first = world.send_join()
    world.advance(2)
    second = world.send_join()
    world.advance(0.9)
    assert world.reply(first) is None
    # A member came during the delay: it is extended once more.
    world.advance(0.2)
    assert world.reply(first) is None
    world.advance(3)
    assert world.reply(first).generation == world.reply(second).generation == 1
    assert len(world.reply(first).members) == 2
    assert world.reply(second).members == ()


def test_the_delay_of_a_new_group_is_bounded_by_the_rebalance_timeout(make_world):
    world = make_world(initial_rebalance_delay_ms=3000)
    first = world.send_join(rebalance_timeout_ms=8000)
    for _ in range(7):
        world.advance(1)
        world.send_join(rebalance_timeout_ms=8000)
        assert world.reply(first) is None
    world.advance(1)
    assert len(world.reply(first).members) == 8


def test_an_older_group_is_not_delayed_twice(make_world):
    world = make_world(initial_rebalance_delay_ms=3000)
    first = world.send_join()
    world.advance(3)
    leader = world.reply(first).member_id
    world.sync(leader, 1, {})
    second = world.send_join()
    world.send_join(leader)
    assert world.reply(second).generation == 2


def test_a_newcomer_makes_the_others_join_again(world):
    (leader,) = world.stable()
    second = world.send_join()
    assert world.state() == "PreparingRebalance"
    assert world.reply(second) is None
    assert world.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = world.join(leader)
    assert rejoined.generation == world.reply(second).generation == 2
    assert rejoined.leader == leader
    assert len(rejoined.members) == 2


def test_a_member_that_does_not_join_again_in_time_is_removed(world):
    leader, second = world.stable(2, session_timeout_ms=60_000)
    rejoin = world.send_join(second, topics=("other",), session_timeout_ms=60_000)
    world.advance(29)
    assert world.reply(rejoin) is None
    world.advance(1)
    joined = world.reply(rejoin)
    assert joined.leader == second
    assert [m.member_id for m in joined.members] == [second]
    assert world.heartbeat(leader, joined.generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_leader_joining_again_rebalances_even_if_nothing_changed(world):
    leader, second = world.stable(2)
    rejoin = world.send_join(leader)
    assert world.state() == "PreparingRebalance"
    world.join(second)
    assert world.reply(rejoin).generation == 3


def test_a_follower_joining_again_without_change_gets_the_generation(world):
    leader, second = world.stable(2)
    rejoined = world.join(second)
    assert (rejoined.error, rejoined.generation) == (ErrorCode.NONE, 2)
    assert rejoined.leader == leader
    assert rejoined.members == ()
    assert world.state() == "Stable"


def test_a_follower_with_a_new_subscription_rebalances(world):
    _, second = world.stable(2)
    world.send_join(second, topics=("other",))
    assert world.state() == "PreparingRebalance"


def test_a_join_repeated_before_the_sync_gets_the_same_response(world):
    first = world.join()
    again = world.join(first.member_id)
    assert again == first
    assert world.state() == "CompletingRebalance"


def test_a_join_repeated_while_it_waits_answers_the_first_one_too(world):
    leader, second = world.stable(2)
    early = world.send_join(second, topics=("other",))
    late = world.send_join(second, topics=("other",))
    assert world.reply(early).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reply(late) is None
    world.join(leader)
    assert world.reply(late).error is ErrorCode.NONE


def test_an_unknown_member_must_start_over(world):
    assert world.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID
    world.stable()
    assert world.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_session_timeout_must_lie_in_the_brokers_bounds(make_world):
    world = make_world(session_timeout_ms_min=100, session_timeout_ms_max=200)
    for timeout in (99, 201, -1, 0):
        assert world.join(session_timeout_ms=timeout).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join(session_timeout_ms=100).error is ErrorCode.NONE


def test_a_group_needs_a_name(world):
    assert world.join(group="").error is ErrorCode.INVALID_GROUP_ID
    assert world.join(group="x" * 40_000).error is ErrorCode.INVALID_GROUP_ID


def test_names_too_long_to_be_stored_are_refused(world):
    assert world.join(client_id="x" * 40_000).error is ErrorCode.INVALID_REQUEST
    assert world.join(protocols=(("x" * 40_000, b""),)).error is ErrorCode.INVALID_REQUEST
    assert world.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_members_must_speak_a_common_protocol(world):
    world.join(protocols=(("range", b""), ("sticky", b"")))
    for strange in (
        {"protocols": (("roundrobin", b""),)},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ):
        refused = world.join(**strange)
        assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.state() == "CompletingRebalance"


def test_the_first_member_must_name_a_protocol(world):
    assert world.join(protocols=()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_members_vote_on_the_protocol(make_world):
    world = make_world(initial_rebalance_delay_ms=1000)
    a, b, only_a = ("a", b"A"), ("b", b"B"), ("z", b"Z")
    first = world.send_join(protocols=(only_a, a, b))
    second = world.send_join(protocols=(b, a))
    third = world.send_join(protocols=(b, a))
    world.advance(2)
    assert {world.reply(one).protocol_name for one in (first, second, third)} == {"b"}
    assert {m.subscription for m in world.reply(first).members} == {b"B"}


def test_a_full_group_refuses_another_member(make_world):
    world = make_world(group_size_max=2)
    leader, second = world.stable(2)
    assert world.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.heartbeat(second, 2) is ErrorCode.NONE
    assert world.heartbeat(leader, 2) is ErrorCode.NONE


def test_during_a_rebalance_of_a_full_group_the_first_come_are_in(make_world):
    world = make_world(group_size_max=1, initial_rebalance_delay_ms=1000)
    first = world.send_join()
    assert world.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(2)
    assert world.reply(first).error is ErrorCode.NONE


def test_a_new_member_whose_client_is_disconnected_does_not_wait_forever(make_world):
    world = make_world(new_member_timeout_ms=20_000)
    (leader,) = world.stable(rebalance_timeout_ms=3_600_000, session_timeout_ms=60_000)
    ghost = world.send_join(rebalance_timeout_ms=3_600_000)
    for _ in range(4):
        world.advance(5)
        world.heartbeat(leader, 1)
    assert world.reply(ghost).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_has_the_beginning_of_the_name_of_the_client(world):
    given = world.join(member_id_required=True, client_id="x" * 30_000).member_id
    assert given == "x" * 80 + "-1"
    assert len(world.beat("", 0, group="next", client_id="ü" * 10_000).member_id) == 42


def test_an_id_that_nobody_uses_is_forgotten_soon(world):
    given = world.join(member_id_required=True, session_timeout_ms=1_800_000).member_id
    world.advance(59)
    assert world.state() == "Empty"
    world.advance(1)
    assert world.join(given).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("state", ["Empty", "Stable", "PreparingRebalance", "consumers"])
def test_ids_have_places_in_the_group(make_world, state):
    world = make_world(group_size_max=5, consumer_group_size_max=5)
    taken = 1
    match state:
        case "Empty":
            taken = 0
        case "Stable":
            world.stable()
        case "PreparingRebalance":
            (leader,) = world.stable()
            world.send_join()
            assert world.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        case "consumers":
            world.beat("a", 0)
    given = [world.join(member_id_required=True) for _ in range(8)]
    ids = [one.member_id for one in given if one.error is ErrorCode.MEMBER_ID_REQUIRED]
    assert [one.error for one in given[5 - taken :]] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * (
        3 + taken
    )
    assert len(ids) == 5 - taken
    # Who was given one gets in.
    joined = world.join(ids[-1])
    assert joined is None or joined.error is ErrorCode.NONE

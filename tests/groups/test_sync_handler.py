from moldau.model.errors import ErrorCode


def test_the_leaders_assignment_reaches_every_member(world):
    first = world.join()
    waiting = world.send_join()
    world.join(first.member_id)
    second = world.reply(waiting).member_id
    follower = world.send_sync(second, 2)
    assert world.reply(follower) is None
    leader = world.sync(first.member_id, 2, {first.member_id: b"one", second: b"two"})
    assert (leader.error, leader.assignment) == (ErrorCode.NONE, b"one")
    assert leader.protocol_type == "consumer"
    assert leader.protocol_name == "range"
    assert world.reply(follower).assignment == b"two"
    assert world.state() == "Stable"


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment(world):
    leader, second = world.stable(2)
    world.send_join(leader)
    world.join(second)
    late = world.send_sync(second, 3)
    world.sync(leader, 3, {leader: b"all", "stranger": b"?"})
    assert world.reply(late).assignment == b""


def test_no_member_gets_a_response_before_the_generation_is_stored(world):
    joined = world.join()
    world.hold_writes = True
    request = world.send_sync(joined.member_id, 1, {joined.member_id: b"a"})
    assert world.reply(request) is None
    assert world.state() == "CompletingRebalance"
    world.release()
    assert world.reply(request).assignment == b"a"


def test_a_generation_that_cannot_be_stored_is_joined_again(world):
    joined = world.join()
    world.hold_writes = True
    request = world.send_sync(joined.member_id, 1, {joined.member_id: b"a"})
    world.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.reply(request).error is ErrorCode.NOT_COORDINATOR
    assert world.state() == "PreparingRebalance"
    world.release()
    assert world.join(joined.member_id).generation == 2


def test_a_rebalance_overtakes_the_storing_of_a_generation(world):
    joined = world.join()
    world.hold_writes = True
    request = world.send_sync(joined.member_id, 1, {joined.member_id: b"a"})
    world.send_join()
    assert world.reply(request).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.release()
    assert world.state() == "PreparingRebalance"
    assert world.join(joined.member_id).generation == 2


def test_a_sync_in_a_stable_group_repeats_the_assignment(world):
    (leader,) = world.stable()
    assert world.sync(leader, 1).assignment == b"alone"


def test_a_sync_repeated_while_it_waits_answers_the_first_one_too(world):
    first = world.join()
    waiting = world.send_join()
    world.join(first.member_id)
    second = world.reply(waiting).member_id
    early, late = world.send_sync(second, 2), world.send_sync(second, 2)
    assert world.reply(early).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.sync(first.member_id, 2, {second: b"x"})
    assert world.reply(late).assignment == b"x"


def test_a_leaders_repeated_sync_is_answered_once_each(world):
    joined = world.join()
    world.hold_writes = True
    requests = [world.send_sync(joined.member_id, 1, {joined.member_id: b"a"}) for _ in range(3)]
    world.release()
    errors = [world.reply(one).error for one in requests]
    again = ErrorCode.REBALANCE_IN_PROGRESS
    assert errors == [again, again, ErrorCode.NONE]
    assert world.state() == "Stable"


def test_the_sync_checks_member_generation_and_protocol(world):
    (leader,) = world.stable()
    assert world.sync("nobody", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(leader, 1, group="other").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(leader, 2).error is ErrorCode.ILLEGAL_GENERATION
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(leader, 1, protocol_type="connect").error is wrong
    assert world.sync(leader, 1, protocol_name="sticky").error is wrong
    right = world.sync(leader, 1, protocol_type="consumer", protocol_name="range")
    assert right.error is ErrorCode.NONE


def test_a_sync_during_the_join_phase_is_asked_to_join(world):
    (leader,) = world.stable()
    world.send_join()
    assert world.sync(leader, 1).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_in_time_are_out(world):
    leader, second = world.stable(2, session_timeout_ms=600_000)
    world.send_join(leader, session_timeout_ms=600_000)
    world.join(second, session_timeout_ms=600_000)
    waiting = world.send_sync(second, 3)
    world.advance(30)
    assert world.reply(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(leader, 3) is ErrorCode.UNKNOWN_MEMBER_ID
    rejoined = world.join(second, session_timeout_ms=600_000)
    assert (rejoined.generation, rejoined.leader) == (4, second)


def test_a_follower_that_never_syncs_is_out_of_a_stable_group(world):
    leader, second = world.stable(2, session_timeout_ms=600_000)
    world.send_join(leader, session_timeout_ms=600_000)
    world.join(second, session_timeout_ms=600_000)
    world.sync(leader, 3, {})
    assert world.state() == "Stable"
    world.advance(30)
    assert world.heartbeat(second, 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(leader, 3) is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeats_keep_a_member_alive(world):
    (leader,) = world.stable()
    for _ in range(5):
        world.advance(9)
        assert world.heartbeat(leader, 1) is ErrorCode.NONE
    world.advance(11)
    assert world.heartbeat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.state() == "Empty"


def test_a_heartbeat_checks_member_and_generation(world):
    (leader,) = world.stable()
    assert world.heartbeat(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(leader, 1, group="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(leader, 1, group="") is ErrorCode.INVALID_GROUP_ID
    assert world.heartbeat(leader, 1, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_before_the_sync_is_fine(world):
    joined = world.join()
    assert world.heartbeat(joined.member_id, 1) is ErrorCode.NONE


def test_a_member_that_waits_is_not_taken_for_dead(world):
    leader, second = world.stable(2, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    rejoin = world.send_join(second, topics=("x",), rebalance_timeout_ms=60_000)
    for _ in range(5):
        world.advance(9)
        world.heartbeat(leader, 2)
    assert world.reply(rejoin) is None
    world.join(leader)
    assert world.reply(rejoin).error is ErrorCode.NONE


def test_a_member_without_heartbeats_makes_the_others_rebalance(world):
    leader, second = world.stable(2)
    world.advance(9)
    world.heartbeat(leader, 2)
    world.advance(2)
    assert world.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(second, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [m.member_id for m in world.join(leader).members] == [leader]


def test_leaving_rebalances_the_rest(world):
    leader, second = world.stable(2)
    assert world.leave(leader).members[0].error is ErrorCode.NONE
    assert world.heartbeat(second, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(second).leader == second


def test_the_last_to_leave_empties_the_group(world):
    leader, second = world.stable(2)
    left = world.leave(leader, second)
    assert [m.error for m in left.members] == [ErrorCode.NONE, ErrorCode.NONE]
    assert world.state() == "Empty"


def test_each_leaving_member_has_its_own_error(world):
    (leader,) = world.stable()
    left = world.leave("nobody", leader)
    assert left.error is ErrorCode.NONE
    assert [m.error for m in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    unknown = world.leave("x", group="other")
    assert unknown.members[0].error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_is_answered(world):
    first = world.join()
    waiting = world.send_join()
    world.join(first.member_id)
    second = world.reply(waiting).member_id
    sync = world.send_sync(second, 2)
    world.leave(second)
    assert world.reply(sync).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_that_is_overtaken_before_its_turn_is_not_stored(world):
    world.commit({world.tp("t"): 1})
    joined = world.join()
    world.hold_writes = True
    # An offset's deletion is under way, so the leader's sync waits for its turn.
    world.delete_topics("t")
    world.send_sync(joined.member_id, 1, {joined.member_id: b"a"})
    world.send_join()
    world.release()
    assert world.restarted().coordinator.list_groups() == (ErrorCode.NONE, [])


def test_an_assignment_stored_late_is_not_taken_for_that_of_the_next_generation(world):
    joined = world.join()
    world.hold_writes = True
    world.send_sync(joined.member_id, 1, {joined.member_id: b"old"})
    second = world.send_join()
    world.send_join(joined.member_id)
    assert world.reply(second).generation == 2
    world.release()
    assert world.state() == "CompletingRebalance"
    assert world.sync(joined.member_id, 2, {joined.member_id: b"new"}).assignment == b"new"

from typing import Any

import pytest

from moldau.coordination.group_topics import ImageTopics
from moldau.groups.config import GroupConfig
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.events import CommitOffsets, Heartbeat, Join, Sync
from moldau.metadata.image import EMPTY_IMAGE
from moldau.model.errors import ConfigError, ErrorCode
from moldau.model.ids import TimestampMs


def test_members_survive_a_restart_without_a_rebalance(world):
    leader, second = world.stable(2)
    again = world.restarted()
    assert again.state() == "Stable"
    assert again.heartbeat(leader, 2) is ErrorCode.NONE
    assert again.heartbeat(second, 2) is ErrorCode.NONE
    assert again.sync(second, 2).assignment == b"part 1"
    assert again.commit({again.tp("t"): 3}, second, 2) is ErrorCode.NONE
    assert again.join(second).generation == 2


def test_sessions_begin_again_after_loading(world):
    leader, second = world.stable(2)
    again = world.restarted()
    again.advance(9)
    assert again.heartbeat(leader, 2) is ErrorCode.NONE
    again.advance(2)
    assert again.heartbeat(second, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unfinished_rebalance_falls_back_to_the_stored_generation(world):
    leader, second = world.stable(2)
    world.send_join(leader)
    world.join(second)
    again = world.restarted()
    assert again.heartbeat(second, 2) is ErrorCode.NONE
    assert again.sync(second, 3).error is ErrorCode.ILLEGAL_GENERATION


def test_an_empty_group_keeps_its_generation_over_a_restart(world):
    world.leave(*world.stable(2))
    again = world.restarted()
    assert again.state() == "Empty"
    assert again.join().generation == 4


def test_a_restored_group_is_described_like_before(world):
    world.stable(2, client_id="billing", instance_id=None)
    before = world.coordinator.describe("g")
    assert world.restarted().coordinator.describe("g") == before
    assert before.protocol_type == "consumer"
    assert before.protocol_name == "range"
    assert [m.client_id for m in before.members] == ["billing", "billing"]
    assert [m.assignment for m in before.members] == [b"part 0", b"part 1"]
    assert before.members[0].subscription == world.subscription("t")


def test_groups_are_listed_by_state_and_type(world):
    world.stable(group="a")
    world.commit({world.tp("t"): 1}, group="b")

    def listed(**filters):
        error, groups = world.coordinator.list_groups(**filters)
        assert error is ErrorCode.NONE
        return [(one.group_id, one.state.value, one.protocol_type) for one in groups]

    assert listed() == [("a", "Stable", "consumer"), ("b", "Empty", "")]
    assert listed(states=["stable"]) == [("a", "Stable", "consumer")]
    assert listed(states=["Dead"]) == []
    assert listed(group_types=["consumer"]) == []
    assert len(listed(group_types=["Classic"])) == 2


NO_TOPICS = ImageTopics(lambda: EMPTY_IMAGE)


def make_loading() -> GroupCoordinator:
    return GroupCoordinator(GroupConfig(), lambda client: client, lambda: TimestampMs(0), NO_TOPICS)


def test_a_coordinator_that_loads_says_so():
    coordinator = make_loading()
    assert not coordinator.loaded

    def error(event):
        reply: Any
        (reply,) = coordinator.handle(0.0, event)
        return reply.result.error

    join = Join(
        request_id=1,
        group_id="g",
        member_id="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )
    assert error(join) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    sync = Sync(request_id=2, group_id="g", member_id="m", generation=1)
    assert error(sync) is ErrorCode.REBALANCE_IN_PROGRESS
    heartbeat = Heartbeat(request_id=3, group_id="g", member_id="m", generation=1)
    assert error(heartbeat) is ErrorCode.NONE
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.fetch_offsets("g").error is loading
    assert coordinator.describe("g").error is loading
    assert coordinator.list_groups() == (loading, [])
    assert coordinator.next_deadline() is None


def test_closing_answers_everything_that_waits(world):
    leader, second = world.stable(2)
    join = world.send_join(second, topics=("x",))
    world.hold_writes = True
    commits = [world.send_commit({world.tp("t"): n}, leader, 2) for n in range(3)]
    world.take(world.coordinator.close(world.now))
    assert world.reply(join).error is ErrorCode.NOT_COORDINATOR
    for request in commits:
        assert world.reply(request).errors[0][1] is ErrorCode.NOT_COORDINATOR
    refused = CommitOffsets(request_id=999, group_id="g")
    (reply,) = world.coordinator.handle(world.now, refused)
    assert reply.request_id == 999
    assert world.coordinator.next_deadline() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_rebalance_delay_ms": -1},
        {"session_timeout_ms_min": 10, "session_timeout_ms_max": 9},
        {"group_size_max": 0},
        {"member_bytes_max": 0},
        {"groups_bytes_max": 0},
        {"offset_metadata_bytes_max": 40_000},
    ],
)
def test_a_wrong_setting_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=list(wrong)[-1]):
        GroupConfig(**wrong)

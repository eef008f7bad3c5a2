"""Members of queue groups: they get no partitions, keep to themselves, and say how long they may be
silent."""

import pytest

from moldau.groups.assignors.queue import QueueAssignor
from moldau.groups.coordinator import BUILT_IN_ASSIGNORS, GroupCoordinator
from moldau.model.errors import ErrorCode


@pytest.fixture
def world(make_world):
    world = make_world()
    world.t = world.topics.create("t", 4)
    world.coordinator = GroupCoordinator(
        world.config,
        lambda client: client,
        world.wall_ms,
        world.topics,
        [*BUILT_IN_ASSIGNORS, QueueAssignor()],
    )
    world.load()
    return world


def test_members_of_a_queue_are_given_no_partitions(world):
    for member in ("a", "b"):
        joined = world.beat(member, 0, assignor="queue")
        assert (joined.error, joined.assignment) == (ErrorCode.NONE, {})
    assert world.beat("a", 1).error is ErrorCode.NONE
    assert world.coordinator.describe_consumers("g").assignor == "queue"


def test_the_queue_assignor_is_not_a_default(world):
    assert world.beat("a", 0).assignment == {world.t: frozenset(range(4))}
    assert world.coordinator.describe_consumers("g").assignor == BUILT_IN_ASSIGNORS[0].name


@pytest.mark.parametrize(("first", "second"), [("queue", "uniform"), (None, "queue")])
def test_members_that_share_messages_and_partitions_do_not_mix(world, first, second):
    world.beat("a", 0, assignor=first)
    assert world.beat("b", 0, assignor=second).error is ErrorCode.GROUP_ID_NOT_FOUND
    # Nor by changing one's mind.
    assert world.beat("b", 0, assignor=first).error is ErrorCode.NONE
    assert world.beat("b", 2, assignor=second).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.consumers()[2].keys() == {"a", "b"}


def test_a_member_may_pause_its_heartbeats_for_as_long_as_it_asked_for(world):
    world.beat("short", 0, session_timeout_ms=10_000)
    world.beat("long", 0, session_timeout_ms=100_000)
    world.beat("usual", 0)
    world.advance(9)
    assert world.consumers()[2].keys() == {"short", "long", "usual"}
    world.advance(2)
    assert world.consumers()[2].keys() == {"long", "usual"}
    world.advance(50)
    assert world.consumers()[2].keys() == {"long"}
    # It holds for every heartbeat after that, also under another coordinator.
    world = world.restarted()
    world.beat("long", world.coordinator.consumer("g", "long").epoch)
    world.advance(99)
    assert world.consumers()[2].keys() == {"long"}
    world.advance(2)
    assert not world.consumers()[2]


def test_a_member_that_comes_back_has_the_usual_session(world):
    world.beat("a", 0, session_timeout_ms=10_000)
    world.advance(11)
    world.beat("a", 0)
    world.advance(30)
    assert world.consumers()[2].keys() == {"a"}


def test_one_member_can_be_looked_at(world):
    world.beat("a", 0)
    world.beat("b", 0)
    world.beat("a", 1)
    found = world.coordinator.consumer("g", "a")
    assert found.assigned == {world.t: frozenset({0, 1})}
    assert found.revoking == {world.t: frozenset({2, 3})}
    assert world.coordinator.consumer("g", "x") is None
    assert world.coordinator.consumer("other", "a") is None


def test_a_member_with_a_short_session_has_to_send_heartbeats_more_often(world):
    assert world.beat("usual", 0).heartbeat_interval_ms == 5_000
    assert (
        world.beat("short", 0, group="h", session_timeout_ms=6_000).heartbeat_interval_ms == 2_000
    )
    assert (
        world.beat("long", 0, group="i", session_timeout_ms=60_000).heartbeat_interval_ms == 5_000
    )

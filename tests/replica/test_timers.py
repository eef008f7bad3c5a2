"""The timers of all groups share one of the loop, and forgive a process that stood still."""

import asyncio

import pytest
from raft_brokers import make_group

from harness.virtual_loop import run_virtually
from moldau.raft.progress import FOREVER
from moldau.replica.raft_group import RaftGroup
from moldau.replica.timers import GroupTimers


class Watch:
    """A clock that the test sets, and the groups that came due."""

    def __init__(self) -> None:
        self.now = 0
        self.due: list[tuple[RaftGroup, int]] = []
        self.timers = GroupTimers(
            loop=asyncio.get_running_loop(), now=lambda: self.now, on_due=self.on_due
        )

    def on_due(self, group: RaftGroup, now: int) -> None:
        self.due.append((group, now))

    def fire(self, now: int) -> list[RaftGroup]:
        """As the loop would, once the time has come."""
        self.now = now
        self.due.clear()
        self.timers._fire()
        return [group for group, _ in self.due]


def test_groups_come_due_in_order_and_only_once() -> None:
    async def scenario() -> None:
        watch = Watch()
        one, two, three = (make_group(number) for number in range(3))
        watch.timers.set(two, 200)
        watch.timers.set(one, 100)
        watch.timers.set(three, 300)
        assert watch.fire(210) == [one, two]
        assert one.timer_at == FOREVER
        assert watch.fire(320) == [three]
        watch.timers.stop()

    run_virtually(scenario())


def test_a_timer_that_was_set_earlier_since_fires_once_at_the_earlier_time() -> None:
    async def scenario() -> None:
        watch = Watch()
        group = make_group(0)
        watch.timers.set(group, 300)
        watch.timers.set(group, 100)
        assert watch.fire(120) == [group]
        assert watch.fire(320) == []
        watch.timers.stop()

    run_virtually(scenario())


def test_after_a_standstill_others_are_judged_only_after_as_long_again() -> None:
    async def scenario() -> None:
        watch = Watch()
        group, other = make_group(0), make_group(1)
        watch.timers.set(group, 100)
        assert watch.fire(400) == []
        # What becomes due meanwhile waits as well: what would have moved it stood still, too.
        watch.timers.set(other, 500)
        assert watch.timers._timer_at == 700
        assert watch.fire(705) == [group, other]
        watch.timers.stop()

    run_virtually(scenario())


def test_a_process_that_is_always_late_judges_all_the_same() -> None:
    async def scenario() -> None:
        watch = Watch()
        group = make_group(0)
        watch.timers.set(group, 100)
        assert [watch.fire(at) for at in (5000, 9000, 13000)] == [[], [], []]
        assert watch.fire(17000) == [group]
        # In time once, it is forgiven again.
        watch.timers.set(group, 17100)
        assert watch.fire(17110) == [group]
        watch.timers.set(group, 17200)
        assert watch.fire(25000) == []
        watch.timers.stop()

    run_virtually(scenario())


def test_a_removed_group_does_not_come_due() -> None:
    async def scenario() -> None:
        watch = Watch()
        group = make_group(0)
        watch.timers.set(group, 100)
        group.is_removed = True
        assert watch.fire(120) == []
        watch.timers.stop()

    run_virtually(scenario())


def test_an_internal_error_leaves_the_timers_of_the_others_running() -> None:
    async def scenario() -> None:
        watch = Watch()
        one, two = make_group(0), make_group(1)
        watch.timers.set(one, 100)
        watch.timers.set(two, 110)

        def broken(group: RaftGroup, now: int) -> None:
            raise LookupError

        watch.timers._on_due = broken
        with pytest.raises(LookupError):
            watch.fire(120)
        watch.timers._on_due = watch.on_due
        assert watch.timers._timer is not None
        assert watch.fire(130) == [two]
        watch.timers.stop()

    run_virtually(scenario())

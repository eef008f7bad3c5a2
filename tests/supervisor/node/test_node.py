"""Supervision of a node, with small stand-in processes in place of brokers."""

import logging
import os
import signal
import sys
from collections.abc import Callable

import pytest
from supervised_world import SERVE

from moldau.supervisor.child import Child
from moldau.supervisor.node.node import DEATHS_MAX, Node, Start
from moldau.supervisor.node.signals import Signals
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


class World:
    """A node that is stepped by hand; `scripts` say what a process does."""

    def __init__(self, clusters: list[bool], removed: tuple[int, ...] = ()) -> None:
        self.scripts: dict[int, str] = {}
        self.starts: list[tuple[int, int | None]] = []
        self.children: dict[int, Child] = {}
        self.left: set[int] = set()
        self.skipped = 0.0
        self.node = Node(
            clusters,
            removed,
            start=self.start,
            was_removed=self.left.__contains__,
            now=lambda: self.skipped,
        )

    def start(self, start: Start) -> Child:
        self.starts.append((start.number, start.through))
        script = self.scripts.get(start.number, SERVE).replace("{id}", str(start.number))
        self.children[start.number] = child = Child([sys.executable, "-S", "-c", script])
        return child

    def until(self, condition: Callable[[], object]) -> None:
        def holds() -> bool:
            if not condition():
                self.node.step()
            return bool(condition())

        wait_until(holds, "it is so", describe=lambda: self.starts)


@pytest.fixture
def world():
    made: list[World] = []

    def make(*clusters: bool, removed: tuple[int, ...] = ()) -> World:
        found = World(list(clusters), removed)
        made.append(found)
        return found

    yield make
    for one in made:
        one.node.close()


def test_the_first_founds_and_the_others_join_it_once_it_is_ready(world):
    w = world(False, False, False)
    w.node.step()
    assert w.starts == [(1, None)]
    w.until(lambda: w.node.is_ready)
    assert w.starts == [(1, None), (2, 1), (3, 1)]


def test_members_of_a_cluster_start_all_at_once(world):
    w = world(True, True)
    w.node.step()
    assert w.starts == [(1, None), (2, None)]


@pytest.mark.safety
def test_a_first_process_that_lost_its_data_joins_the_others_and_founds_nothing(world):
    w = world(False, True)
    w.node.step()
    assert w.starts == [(2, None)]
    w.until(lambda: w.node.is_ready)
    assert w.starts == [(2, None), (1, 2)]


def test_a_process_that_dies_is_restarted_later_each_time(world):
    w = world(True, True)
    w.until(lambda: w.node.is_ready)
    os.kill(w.children[2].pid, signal.SIGKILL)
    w.until(lambda: not w.node.is_ready)
    w.node.step()
    assert len(w.starts) == 2
    w.skipped += 0.5
    w.until(lambda: w.node.is_ready)
    assert w.starts[2:] == [(2, None)]


def test_one_that_dies_again_and_again_stops_the_node_with_its_code(world, caplog):
    w = world(True, True)
    w.scripts[2] = "raise SystemExit(70)"

    def skip() -> bool:
        w.skipped += 30
        return bool(w.node._stopping)

    w.until(skip)
    assert [number for number, _ in w.starts].count(2) == DEATHS_MAX
    w.until(lambda: w.children[1].poll() is not None)
    assert "process 2 exited with code 70 for the 5th time: the node stops" in (caplog.text)
    assert w.node._exit_code == 70


@pytest.mark.parametrize("code", [2, 74, 78])
def test_one_that_cannot_work_stops_the_node_at_once_with_its_code(world, code):
    w = world(True, True)
    w.until(lambda: w.node.is_ready)
    w.node.close()
    w = world(True, True)
    w.scripts[2] = f"raise SystemExit({code})"
    with Signals() as signals:
        assert w.node.run(signals, lambda _: None) == code
    assert w.children[1].poll() is not None


def test_one_that_cannot_join_yet_is_tried_again_while_others_serve(world):
    w = world(False, False)
    w.scripts[2] = "raise SystemExit(78)"

    def ended() -> bool:
        return 2 in w.children and w.node._processes[1].backoff.deaths == 1

    w.until(ended)
    assert not w.node._stopping
    w.scripts[2] = SERVE
    w.skipped += 0.5
    w.until(lambda: w.node.is_ready)


def test_one_that_can_never_join_leaves_those_that_serve_alone(world):
    w = world(False, False)
    w.scripts[2] = "raise SystemExit(78)"

    def ended_often() -> bool:
        w.skipped += 30
        return bool(w.node._processes[1].backoff.deaths > DEATHS_MAX)

    w.until(ended_often)
    assert not w.node._stopping
    assert w.children[1].poll() is None


def test_a_process_that_ended_by_itself_is_restarted(world):
    w = world(True, True)
    w.until(lambda: w.node.is_ready)
    os.kill(w.children[1].pid, signal.SIGTERM)
    w.until(lambda: not w.node.is_ready)
    w.skipped += 0.5
    w.until(lambda: w.node.is_ready)
    assert w.starts[2:] == [(1, None)]


def test_a_broker_that_was_removed_stays_down_and_the_others_go_on(world):
    w = world(True, True)
    w.until(lambda: w.node.is_ready)
    w.left.add(2)
    os.kill(w.children[2].pid, signal.SIGTERM)
    w.until(lambda: w.children[2].poll() is not None)
    w.node.step()
    w.skipped += 1000
    w.node.step()
    assert len(w.starts) == 2
    assert w.node.is_ready
    assert not w.node._stopping


def test_without_any_broker_left_the_node_ends(world):
    w = world(True, True, removed=(2,))
    w.until(lambda: w.node.is_ready)
    assert w.starts == [(1, None)]
    w.left.add(1)
    os.kill(w.children[1].pid, signal.SIGTERM)
    with Signals() as signals:
        assert w.node.run(signals, lambda _: None) == 0


@pytest.mark.parametrize(
    ("clusters", "removed", "named"),
    [((True, False), 1, "process 1"), ((False, True), 2, "process 2")],
)
def test_a_node_that_can_start_nothing_says_so_and_stops(world, caplog, clusters, removed, named):
    w = world(*clusters, removed=(removed,))
    with Signals() as signals:
        assert w.node.run(signals, lambda _: None) == 78
    assert w.starts == []
    assert f"nothing of this node can start: the broker of {named} was removed" in caplog.text


def test_a_node_whose_first_process_leaves_before_others_join_stops_when_they_gave_up(world):
    w = world(False, False)
    w.scripts[2] = "import time\ntime.sleep(600)"
    w.until(lambda: 2 in w.children)
    w.left.add(1)
    os.kill(w.children[1].pid, signal.SIGTERM)
    w.until(lambda: w.node._processes[0].is_removed)
    w.node.step()
    assert not w.node._stopping
    os.kill(w.children[2].pid, signal.SIGKILL)
    w.until(lambda: w.node._stopping)
    assert w.node._exit_code == 78


def test_an_empty_process_waits_for_one_that_can_start(world):
    w = world(True, True, False, removed=(1,))
    w.until(lambda: w.node.is_ready)
    assert w.starts == [(2, None), (3, 2)]


def test_all_stop_one_after_the_other_the_first_one_last(world, caplog):
    caplog.set_level(logging.INFO)
    w = world(True, True, True)
    w.until(lambda: w.node.is_ready)
    ended: list[int] = []
    w.node._stop_all(0)

    def down() -> bool:
        ended.extend(
            number
            for number, child in w.children.items()
            if number not in ended and child.poll() is not None
        )
        return len(ended) == 3

    w.until(down)
    assert ended == [3, 2, 1]


def test_a_stop_while_processes_begin_is_a_clean_one(world, caplog):
    w = world(True, True)
    w.scripts[1] = w.scripts[2] = "import time\ntime.sleep(600)"
    w.node.step()
    w.node._stop_all(0)
    w.until(lambda: not w.node._running)
    assert [child.poll() for child in w.children.values()] == [-signal.SIGTERM] * 2
    assert w.node._exit_code == 0
    assert "while it stopped" not in caplog.text


def test_a_crash_while_it_stops_is_no_clean_end(world, caplog):
    w = world(True, True)
    w.until(lambda: w.node.is_ready)
    w.node._stop_all(0)
    os.kill(w.children[2].pid, signal.SIGKILL)
    w.until(lambda: not w.node._running)
    assert w.node._exit_code == 70
    assert "process 2 (broker 2) killed by SIGKILL while it stopped" in caplog.text


@pytest.mark.safety
def test_one_that_does_not_stop_holds_up_the_others_for_a_while_and_is_killed(world, caplog):
    w = world(True, True)
    w.scripts[2] = SERVE.replace("signal.sigwait({signal.SIGTERM})", "signal.pause()")
    w.until(lambda: w.node.is_ready)
    w.node._stop_all(0)
    w.node.step()
    w.node.step()
    assert w.children[1].poll() is None
    w.skipped += 5
    w.until(lambda: w.children[1].poll() is not None)
    assert w.children[2].poll() is None
    w.skipped += 40
    w.until(lambda: w.children[2].poll() is not None)
    w.node.step()
    assert "process 2 (broker 2) did not stop within" not in caplog.text
    assert "process 2 did not stop within 40 s: killing it" in caplog.text
    assert w.node._exit_code == 70


def test_a_process_that_cannot_be_started_is_tried_again(world, caplog):
    w = world(True, True)
    failing = True
    start = w.start

    def fail(one: Start) -> Child:
        if failing and one.number == 2:
            raise OSError(11, "no more processes")
        found: Child = start(one)
        return found

    w.node._start = fail
    w.node.step()
    assert "cannot start process 2: no more processes" in caplog.text
    failing = False
    w.skipped += 0.5
    w.until(lambda: w.node.is_ready)


def test_a_signal_stops_all_and_the_end_is_clean(world):
    w = world(True, True)
    said: list[int] = []

    def ready(children: list[Child]) -> None:
        said.extend(child.broker_id or 0 for child in children)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert w.node.run(signals, ready) == 0
    assert said == [1, 2]
    assert signal.getsignal(signal.SIGTERM) is before
    assert all(child.poll() == 0 for child in w.children.values())

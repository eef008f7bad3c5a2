"""Supervision, with small stand-in processes in place of brokers."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised_world import READY, SERVE, World, cluster

from moldau.client.processes import is_running, started_at
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.state import (
    load_state,
    locked,
    orphaned_brokers,
    save_state,
)

pytestmark = pytest.mark.system


@pytest.fixture
def world(tmp_path):
    made: list[World] = []

    def make(count: int = 3, **scripts: str) -> World:
        world = World(tmp_path, count)
        made.append(world)
        return world

    yield make
    for one in made:
        one.supervisor.close()


def test_the_first_founds_and_the_others_join_it_once_it_is_ready(world):
    w = world()
    w.supervisor.step(0.01)
    assert w.states == ["starting", "waiting", "waiting"]
    w.until(lambda: w.all("ready"))
    assert w.joins == [(1, None), (2, "127.0.0.1:3"), (3, "127.0.0.1:3")]
    assert w.state.cluster_id == "C"
    state = load_state(w.directory)
    assert state is not None
    assert state.brokers == w.state.brokers


def test_members_of_a_cluster_start_all_at_once(world):
    w = world()
    for member in w.state.brokers:
        member.joined = True
    w.supervisor.step(0.01)
    # Each is told of another one, by which it could learn lost metadata again.
    assert [join for _, join in w.joins] == ["127.0.0.1:3"] * 3


def test_a_broker_alone_needs_no_other_to_return(world):
    w = world(1)
    w.state.brokers[0].joined = True
    w.supervisor.step(0.01)
    assert w.joins == [(1, None)]


def test_a_broker_that_dies_is_started_again_later_each_time(world):
    w = world(1)
    w.scripts[1] = READY + "; raise SystemExit(70)"
    delays = []
    for number in range(8):
        w.until(lambda n=number: sum("crashed" in line for line in w.said) > n)
        delays.append(float(w.said[-1].rpartition("in ")[2].removesuffix(" s")))
        w.skipped += delays[-1]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_broker_that_was_well_for_a_while_is_started_again_soon(world):
    w = world(1)
    w.until(lambda: w.all("ready"))
    for _ in range(3):
        w.skipped += 100
        os.kill(w.state.brokers[0].pid, signal.SIGKILL)
        w.until(lambda: w.all("restarting"))
        assert w.said[-1] == "broker 1 crashed (killed by SIGKILL); restarting in 0.5 s"
        w.skipped += 1
        w.until(lambda: w.all("ready"))


@pytest.mark.parametrize("code", [2, 74, 78])
def test_a_broker_that_cannot_work_is_left_down_with_its_own_words(world, code):
    w = world(2)
    w.scripts[2] = (
        "import sys; print('error: no such luck\\nhint:  none', file=sys.stderr); "
        f"print('noise'); sys.exit({code})"
    )
    w.until(lambda: w.supervisor.is_settled)
    assert w.states == ["ready", "failed"]
    reason = w.state.brokers[1].reason
    assert reason == f"exited with code {code}\nerror: no such luck\nhint:  none"
    w.skipped += 1000
    w.supervisor.step(0.05)
    assert w.states == ["ready", "failed"]


def test_a_bootstrap_broker_that_fails_leaves_no_broker_waiting_for_it(world):
    w = world(3)
    w.scripts[1] = "raise SystemExit(78)"
    w.until(lambda: w.supervisor.is_settled)
    assert w.states == ["failed", "waiting", "waiting"]


def test_a_broker_that_was_stopped_stays_stopped(world):
    w = world(1)
    w.until(lambda: w.all("ready"))
    os.kill(w.state.brokers[0].pid, signal.SIGTERM)
    w.until(lambda: w.all("stopped"))
    assert "signal" in w.state.brokers[0].reason


@pytest.mark.safety
def test_a_killed_broker_stays_down_until_it_is_restarted(world):
    w = world()
    w.until(lambda: w.all("ready"))
    key = w.state.brokers[1].process
    assert "error" not in w.ask("kill", id=2)
    w.until(lambda: w.state.brokers[1].pid is None)
    assert not is_running(key)
    w.skipped += 1000
    w.supervisor.step(0.05)
    assert w.states == ["ready", "killed", "ready"]
    assert "is not running" in w.ask("kill", id=2)["error"]
    w.ask("restart", id=2)
    w.until(lambda: w.all("ready"))
    assert w.joins[-1] == (2, "127.0.0.1:3")


def test_a_restart_stops_a_running_broker_cleanly_first(world):
    w = world(1)
    w.scripts[1] = SERVE.replace("sys.exit(0)", "(print('clean', flush=True), sys.exit(0))")
    w.until(lambda: w.all("ready"))
    pid = w.state.brokers[0].pid
    w.ask("restart", id=1)
    w.until(lambda: w.all("ready") and w.state.brokers[0].pid != pid)
    assert "clean" in (w.directory / "broker-1.log").read_text()


def test_a_further_broker_joins_with_a_number_of_its_own(world):
    w = world(2)
    w.until(lambda: w.all("ready"))
    w.ask("add")
    w.until(lambda: len(w.states) == 3 and w.all("ready"))
    assert w.joins[-1] == (3, "127.0.0.1:3")
    assert w.state.next_id == 4
    ports = w.state.brokers[2].ports
    assert len({ports.kafka, ports.raft, ports.http}) == 3


def test_a_port_that_is_taken_is_refused_and_nothing_is_added(world):
    w = world(1)
    assert "is the port of another broker" in w.ask("add", kafka=1)["error"]
    assert len(w.state.brokers) == 1


@pytest.mark.parametrize(
    "request_",
    [{"verb": "kill", "id": 9}, {"verb": "dance", "id": 1}, {"verb": "kill"}, {"id": "x"}, {}],
)
def test_what_makes_no_sense_is_refused(world, request_):
    assert "error" in world(1).supervisor._handle(request_)


def test_all_are_stopped_in_order_the_bootstrap_broker_last(world):
    w = world()
    w.until(lambda: w.all("ready"))
    w.ask("stop")
    w.until(lambda: w.supervisor.is_down)
    assert [line for line in w.said if line.endswith(" stopped")] == [
        "broker 3 stopped",
        "broker 2 stopped",
        "broker 1 stopped",
    ]
    assert "is stopping" in w.ask("restart", id=1)["error"]


@pytest.mark.safety
def test_a_broker_that_does_not_stop_is_killed(world):
    w = world(1)
    w.scripts[1] = SERVE.replace("signal.sigwait({signal.SIGTERM})", "signal.pause()")
    w.until(lambda: w.all("ready"))
    w.ask("stop", id=1)
    w.supervisor.step(0.05)
    assert w.states == ["stopping"]
    w.skipped += 100
    w.until(lambda: w.all("stopped"))
    assert "did not stop within 40 s; killing it" in w.said[-2]


def test_after_the_end_nothing_runs_and_the_file_says_so(world):
    w = world()
    w.until(lambda: w.all("ready"))
    keys = [member.process for member in w.state.brokers]
    w.supervisor.close()
    assert not any(map(is_running, keys))
    state = load_state(w.directory)
    assert state is not None
    assert (state.supervisor_pid, state.supervisor_started, state.control) == (None, None, "")
    assert {member.state for member in state.brokers} == {"stopped"}
    assert all(member.joined for member in state.brokers)


def test_a_full_disk_does_not_end_the_brokers(world, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    w = world(2)
    with monkeypatch.context() as patch:
        patch.setattr("moldau.supervisor.supervisor.save_state", full)
        w.until(lambda: w.all("ready"))
    assert [line for line in w.said if "No space" in line] == [
        "cannot write cluster.json (No space left on device); retrying"
    ]
    w.supervisor.step(0.01)
    state = load_state(w.directory)
    assert state is not None
    assert state.brokers == w.state.brokers


def test_a_broker_that_cannot_be_started_is_tried_again(world):
    w = world(1)
    w.supervisor._command_of = lambda *arguments: ["/no/such/program"]
    w.until(lambda: w.all("restarting"))
    assert "No such file" in w.said[-1]
    w.supervisor._command_of = w.command
    w.skipped += 1
    w.until(lambda: w.all("ready"))


def test_requests_reach_the_supervisor_through_its_socket(world):
    import threading

    w = world(1)
    replies: list[Any] = []
    path = w.state.control
    thread = threading.Thread(target=lambda: replies.append(send_request(path, "status")))
    thread.start()
    w.until(lambda: replies)
    thread.join()
    state = state_of(replies[0])
    assert (state.supervisor_pid, state.supervisor_started) == (
        os.getpid(),
        started_at(os.getpid()),
    )
    w.supervisor.close()
    assert send_request(path, "status") is None


def test_a_directory_with_a_long_name_has_a_socket_in_another_place(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    w = World(deep, 1)
    path = Path(w.state.control)
    assert path.exists()
    assert deep not in path.parents
    w.supervisor.close()
    assert not path.parent.exists()


def test_only_one_holds_a_cluster(tmp_path):
    with locked(tmp_path), pytest.raises(SupervisorError, match="already running"):  # noqa: SIM117
        with locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_another_process_with_the_pid_of_a_broker_is_not_taken_for_it(tmp_path):
    state = cluster(1)
    state.brokers[0].pid, state.brokers[0].started = os.getpid(), started_at(os.getpid())
    assert len(orphaned_brokers(state)) == 1
    state.brokers[0].started = "another:time"
    assert orphaned_brokers(state) == []


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "\xff"])
def test_a_damaged_file_is_said(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text, encoding="latin-1")
    with pytest.raises(SupervisorError, match=r"cluster\.json is corrupt"):
        load_state(tmp_path)


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    state = cluster(1)
    state.format = 2
    save_state(tmp_path, state)
    with pytest.raises(SupervisorError, match="has format 2"):
        load_state(tmp_path)

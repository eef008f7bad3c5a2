"""Faults on purpose: pauses that end by themselves, and requests that hit who sends them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised_world import World

from moldau.model.play import NO_FAULTS, CutLink, SlowDisk
from moldau.supervisor.play_faults import FaultsReader
from moldau.supervisor.state import load_state

pytestmark = pytest.mark.system

Make = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Make]:
    made: list[World] = []

    def make(count: int = 3) -> World:
        world = World(tmp_path, count)
        made.append(world)
        world.until(lambda: world.all("ready"))
        return world

    yield make
    for one in made:
        one.supervisor.close()


def process_state(pid: int | None) -> str:
    """T: stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pid_of(w: World, broker: int) -> int | None:
    return w.state.brokers[broker - 1].pid


def left_ms(w: World, broker: int) -> Any:
    return w.ask("status")["play"]["resumes_in_ms"].get(str(broker))


def test_a_paused_broker_goes_on_by_itself(world: Make) -> None:
    w = world()
    pid = pid_of(w, 2)
    assert "error" not in w.ask("pause", id=2, seconds=7, by="ann")
    assert w.states == ["ready", "paused", "ready"]
    w.until(lambda: process_state(pid) == "T")
    w.skipped += 6
    w.supervisor.step(0.01)
    assert (process_state(pid), left_ms(w, 2)) == ("T", 1000)
    assert w.supervisor.is_settled
    w.skipped += 1
    w.until(lambda: process_state(pid) != "T")
    assert w.all("ready")
    assert pid_of(w, 2) == pid
    assert left_ms(w, 2) is None
    assert "pause broker 2 for 7 s: requested by ann" in w.said


def test_a_pause_is_ended_by_a_request_and_lasts_as_long_as_the_last_one_says(world: Make) -> None:
    w = world(1)
    pid = pid_of(w, 1)
    assert "is not paused" in w.ask("resume", id=1)["error"]
    w.ask("pause", id=1, seconds=5)
    w.ask("pause", id=1, seconds=100)
    w.skipped += 50
    w.supervisor.step(0.01)
    assert w.all("paused")
    w.ask("resume", id=1)
    w.until(lambda: process_state(pid) != "T")
    assert w.all("ready")


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_a_paused_broker_is_stopped_cleanly(world: Make, verb: str) -> None:
    w = world(1)
    pid = pid_of(w, 1)
    w.ask("pause", id=1, seconds=120)
    w.until(lambda: process_state(pid) == "T")
    w.ask(verb, id=1)
    wanted = "stopped" if verb == "stop" else "ready"
    w.until(lambda: w.all(wanted) and pid_of(w, 1) != pid)
    # Time stands still: it was not killed for being late.
    assert not any("killing" in line for line in w.said)


@pytest.mark.safety
def test_a_paused_broker_can_be_killed(world: Make) -> None:
    w = world(2)
    w.ask("pause", id=2, seconds=120)
    w.ask("kill", id=2)
    w.until(lambda: pid_of(w, 2) is None)
    assert w.states == ["ready", "killed"]
    assert left_ms(w, 2) is None


def test_all_stop_although_one_is_paused(world: Make) -> None:
    w = world()
    w.ask("pause", id=3, seconds=120)
    w.ask("stop")
    w.until(lambda: w.supervisor.is_down)
    assert w.all("stopped")


@pytest.mark.parametrize("seconds", [0, -1, 121, 10**9])
def test_a_pause_has_a_bound(world: Make, seconds: int) -> None:
    w = world(1)
    assert "1 to 120 s" in w.ask("pause", id=1, seconds=seconds)["error"]
    assert w.all("ready")


def test_a_broker_that_does_not_run_cannot_be_paused(world: Make) -> None:
    w = world(2)
    w.ask("kill", id=2)
    w.until(lambda: pid_of(w, 2) is None)
    assert "is not running" in w.ask("pause", id=2)["error"]
    assert "no broker 9" in w.ask("pause", id=9)["error"]


@pytest.mark.parametrize("verb", ["kill", "pause"])
def test_who_asks_for_its_own_end_gets_an_answer_first(world: Make, verb: str) -> None:
    w = world(1)
    pid = pid_of(w, 1)
    assert w.ask(verb, id=1, after_seconds=0.3, by="it")["state"]["brokers"][0]["state"] == "ready"
    w.supervisor.step(0.01)
    assert w.all("ready")
    w.skipped += 0.3
    w.until(lambda: pid_of(w, 1) is None if verb == "kill" else process_state(pid) == "T")
    assert w.all("killed" if verb == "kill" else "paused")


def test_desired_faults_are_in_a_file_until_they_end(world: Make) -> None:
    w = world()
    reader = FaultsReader(w.directory)
    assert reader.faults() == NO_FAULTS
    w.ask("link", id=3, other=1, is_cut=True)
    w.ask("link", id=1, other=3, is_cut=True)
    w.ask("link", id=1, other=2, is_cut=True)
    w.ask("disk", id=2, delay_ms=50)
    w.ask("disk", id=2, delay_ms=70)
    found = reader.faults()
    assert found.links == (CutLink(1, 2), CutLink(1, 3))
    assert found.disks == (SlowDisk(broker=2, delay_ms=70),)
    assert w.ask("status")["play"]["faults"]["disks"][0]["delay_ms"] == 70
    w.ask("link", id=2, other=1, is_cut=False)
    w.ask("disk", id=2, delay_ms=0)
    assert reader.faults().links == (CutLink(1, 3),)
    assert reader.faults().disks == ()
    # A broker that leaves takes its faults with it.
    w.ask("forget", id=3)
    assert reader.faults() == NO_FAULTS
    assert not (w.directory / "play.json").exists()


def test_impossible_faults_are_refused(world: Make) -> None:
    w = world(2)
    assert "between two brokers" in w.ask("link", id=1, other=1, is_cut=True)["error"]
    assert "no broker 7" in w.ask("link", id=1, other=7, is_cut=True)["error"]
    assert "invalid request" in w.ask("link", id=1, other="x", is_cut=True)["error"]
    for delay in (-1, 5001):
        assert "0 to 5000 ms" in w.ask("disk", id=1, delay_ms=delay)["error"]
    assert not (w.directory / "play.json").exists()


@pytest.mark.safety
def test_faults_do_not_outlive_the_supervisor(world: Make, tmp_path: Path) -> None:
    w = world(2)
    w.ask("link", id=1, other=2, is_cut=True)
    assert (tmp_path / "play.json").exists()
    w.supervisor.close()
    assert not (tmp_path / "play.json").exists()
    # Of one that was killed.
    (tmp_path / "play.json").write_text('{"links":[[1,2]],"disks":[]}')
    world(2)
    assert not (tmp_path / "play.json").exists()


def test_all_is_well_again_by_one_request(world: Make) -> None:
    w = world()
    w.ask("kill", id=1)
    w.ask("pause", id=2, seconds=120)
    w.ask("kill", id=3, after_seconds=0.3)
    w.ask("link", id=1, other=2, is_cut=True)
    w.until(lambda: pid_of(w, 1) is None)
    w.ask("heal", by="bob")
    w.skipped += 1
    w.until(lambda: w.all("ready"))
    assert FaultsReader(w.directory).faults() == NO_FAULTS
    assert "end all faults, and start what is down: requested by bob" in w.said


def test_who_requested_it_cannot_write_lines_of_the_log(world: Make) -> None:
    w = world(1)
    w.ask("pause", id=1, by="eve\n12:00 broker 1 is ready\x1b[2J" + "x" * 1000)
    line = next(line for line in w.said if "requested by" in line)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 300


def test_the_state_file_shows_a_pause(world: Make) -> None:
    w = world(1)
    w.ask("pause", id=1, seconds=9)
    w.supervisor.step(0.01)
    state = load_state(w.directory)
    assert state is not None
    assert (state.brokers[0].state, state.brokers[0].reason) == ("paused", "for 9 s")

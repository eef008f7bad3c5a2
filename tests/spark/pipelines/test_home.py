"""The folder of a pipeline."""

import fcntl
import json
import os
import stat
import subprocess
import sys

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.home import BusyError, Home, homes
from moldau.spark.pipelines.record import Record
from moldau.spark.pipelines.spec import State
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "root" / "lake")


def test_two_cannot_hold_it_and_the_second_learns_who_does(home):
    with home.held():
        assert home.process().pid == os.getpid()
        with pytest.raises(BusyError, match=f"process {os.getpid()}"), Home(home.path).held():
            pass
        with pytest.raises(BusyError):
            home.check_idle()
    assert home.process() is None
    home.check_idle()
    with home.held():
        pass


@pytest.mark.safety
def test_a_holder_that_is_killed_holds_it_no_longer(home):
    code = (
        "import os, sys, pathlib\n"
        "from moldau.spark.pipelines.home import Home\n"
        "with Home(pathlib.Path(sys.argv[1])).held():\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(home.path)], check=False, timeout=wait_seconds_max()
    )
    assert (home.path / "pid.json").exists()
    assert home.process() is None
    with home.held():
        pass


def test_one_whose_last_threads_are_just_ending_is_waited_for(home, monkeypatch):
    home.create()
    with open(home.path / "lock", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr("moldau.spark.pipelines.home._KILLED_SECONDS_MAX", 0.1)
        with pytest.raises(BusyError, match="is running already"), home.held():
            pass
        monkeypatch.setattr("moldau.spark.pipelines.home._KILLED_SECONDS_MAX", wait_seconds_max())
        # Closed by the first look at who holds it.
        monkeypatch.setattr(home, "process", other.close)
        with home.held():
            pass


def test_a_process_that_got_the_same_number_is_not_taken_for_the_pipeline(home):
    home.create()
    (home.path / "pid.json").write_text(json.dumps({"pid": os.getpid(), "started": "long ago"}))
    assert home.process() is None
    (home.path / "pid.json").write_text("half a fi")
    assert home.process() is None


def test_nobody_else_can_read_what_is_kept(home):
    home.create()
    home.write_spec({"kind": "count"})
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((home.path / "spec.json").stat().st_mode) == 0o600
    assert home.read_spec() == {"kind": "count"}


def test_a_state_comes_back_and_damage_is_as_good_as_nothing(home):
    home.create()
    assert home.read_state() is None
    record = Record(name="lake", kind="count", state=State.RUNNING, pid=4)
    home.write_state(record)
    assert home.read_state() == record
    (home.path / "state.json").write_text('{"name": "la')
    assert home.read_state() is None


def test_a_reset_keeps_every_checkpoint_that_there_was(home):
    home.create()
    assert home.reset({"t": {"0": 1}}) is None
    for content in ("first", "second"):
        home.checkpoint.mkdir()
        (home.checkpoint / "metadata").write_text(content)
        moved = home.reset({"t": {"0": 2}})
        assert (moved / "metadata").read_text() == content
    assert len(list((home.path / "old").iterdir())) == 2
    assert home.read_start() == {"t": {"0": 2}}


def test_a_running_pipeline_is_not_reset(home):
    with home.held(), pytest.raises(BusyError):
        home.reset({"t": {"0": 1}})
    assert home.read_start() is None


def test_homes_are_folders_in_which_a_pipeline_ran(home):
    root = home.path.parent
    assert homes(root) == []
    home.create()
    home.write_spec({})
    (root / "no pipeline").mkdir()
    (root / "empty").mkdir()
    assert [found.name for found in homes(root)] == ["lake"]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "-x", "ä", "x" * 101])
def test_names_that_are_no_folder_or_no_group_are_refused(tmp_path, name):
    from moldau.spark.pipelines.home import check_name

    with pytest.raises(InvalidArgumentError):
        check_name(name)

"""The folder of a pipeline."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.home import BusyError, Home
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "root" / "lake")


def test_two_cannot_hold_it_and_nothing_is_made_by_asking(home):
    home.check_idle()
    assert not Path(home.location).exists()
    with home.held():
        with pytest.raises(BusyError, match="lake is running on this machine") as busy:
            Home(home.location).check_idle()
        assert "moldau pipeline status lake" in busy.value.hint
        with pytest.raises(BusyError), Home(home.location).held():
            pass
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
        [sys.executable, "-c", code, home.location], check=False, timeout=wait_seconds_max()
    )
    assert Path(home.location, "lock").exists()
    with home.held():
        pass


def test_nobody_else_can_read_what_is_kept(home):
    with home.held():
        home.write_spec({"kind": "count"})
    assert stat.S_IMODE(Path(home.location).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(home.location, "spec.json").stat().st_mode) == 0o600
    assert home.read_spec() == {"kind": "count"}


def test_a_reset_keeps_every_checkpoint_that_there_was(home):
    assert home.reset({"t": {"0": 1}}) is None
    for content in ("first", "second"):
        home.checkpoint.write("metadata", content.encode())
        moved = home.reset({"t": {"0": 2}})
        assert Path(moved, "metadata").read_text() == content
    assert len(list(Path(home.location, "old").iterdir())) == 2
    assert home.read_start() == {"t": {"0": 2}}


def test_a_running_pipeline_is_not_reset(home):
    with home.held(), pytest.raises(BusyError):
        home.reset({"t": {"0": 1}})
    assert home.read_start() is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "-x", "ä", "x" * 101])
def test_names_that_are_no_folder_or_no_group_are_refused(tmp_path, name):
    from moldau.spark.pipelines.home import check_name

    with pytest.raises(InvalidArgumentError):
        check_name(name)

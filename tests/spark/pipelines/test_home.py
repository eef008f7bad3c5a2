"""The folder of a pipeline, and the checkpoint in it."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.home import (
    BusyError,
    CheckpointError,
    Home,
    batches_in,
    check_name,
    committed_positions,
    query_id,
)
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "root" / "lake")


def test_two_cannot_hold_it_and_nothing_is_made_by_asking(home):
    home.check_idle()
    assert not Path(home.location).exists()
    with home.locked():
        with pytest.raises(BusyError, match="lake is already running on this machine") as busy:
            Home(home.location).check_idle()
        assert "moldau pipeline status lake" in busy.value.hint
        with pytest.raises(BusyError), Home(home.location).locked():
            pass
    home.check_idle()
    with home.locked():
        pass


@pytest.mark.safety
def test_a_holder_that_is_killed_holds_it_no_longer(home):
    code = (
        "import os, sys, pathlib\n"
        "from moldau.spark.pipelines.home import Home\n"
        "with Home(pathlib.Path(sys.argv[1])).locked():\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, home.location], check=False, timeout=wait_seconds_max()
    )
    assert Path(home.location, "lock").exists()
    with home.locked():
        pass


def test_no_other_user_can_read_what_is_kept(home):
    home.reset({"t": {"0": 1}})
    assert stat.S_IMODE(Path(home.location).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(home.location, "start.json").stat().st_mode) == 0o600


def test_a_reset_keeps_every_checkpoint_that_there_was(home):
    assert home.reset({"t": {"0": 1}}) is None
    for content in ("first", "second"):
        home.checkpoint.write("metadata", content.encode())
        moved = home.reset({"t": {"0": 2}})
        assert Path(moved, "metadata").read_text() == content
    assert len(list(Path(home.location, "old").iterdir())) == 2
    assert home.read_start() == {"t": {"0": 2}}


def test_a_running_pipeline_is_not_reset(home):
    with home.locked(), pytest.raises(BusyError):
        home.reset({"t": {"0": 1}})
    assert home.read_start() == {}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "-x", "ä", "x" * 101])
def test_names_that_are_no_folder_or_no_group_are_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError):
        check_name(name)


# -- checkpoints


def write(folder, number, *lines, done):
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join(("v1", "{}", *lines)))
    if done:
        (folder / "commits" / str(number)).write_text("v1\n{}")


def at(topic, partition):
    return TopicPartition(topic, PartitionIndex(partition))


def test_the_last_batch_that_is_done_counts(tmp_path):
    for number in (8, 9, 10):
        line = json.dumps({"t": {"0": number, "1": 2 * number}, "@ids": {"t": 1}})
        write(tmp_path, number, line, done=number < 10)
    assert committed_positions(folder_at(str(tmp_path), {})) == {at("t", 0): 9, at("t", 1): 18}


def test_nothing_is_known_before_the_first_batch_is_done(tmp_path):
    assert committed_positions(folder_at(str(tmp_path / "none"), {})) == {}
    write(tmp_path, 0, '{"t": {"0": 5}}', done=False)
    assert committed_positions(folder_at(str(tmp_path), {})) == {}
    write(tmp_path, 0, '{"logOffset": 3}', done=True)
    assert committed_positions(folder_at(str(tmp_path), {})) == {}, "it was no topic"


def test_a_query_is_known_by_its_checkpoint(tmp_path):
    checkpoint = folder_at(str(tmp_path), {})
    with pytest.raises(CheckpointError, match="has no query"):
        query_id(checkpoint)
    checkpoint.write("metadata", b"{")
    with pytest.raises(CheckpointError, match="is corrupt"):
        query_id(checkpoint)
    checkpoint.write("metadata", b'{"id": "abc"}')
    assert query_id(checkpoint) == "abc"


def test_batches_are_known_by_their_numbers(tmp_path):
    checkpoint = folder_at(str(tmp_path), {})
    assert batches_in(checkpoint, "commits") == []
    for name in ("9", "10", ".9.crc", "metadata"):
        checkpoint.write(f"commits/{name}", b"v1")
    assert batches_in(checkpoint, "commits") == [9, 10]

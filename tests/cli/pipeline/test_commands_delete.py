"""`moldau pipeline delete` against a real broker."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.cli.errors import ExitCode
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import PipelineStatus, StatusTopic, now_ms

pytestmark = pytest.mark.system


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def root(tmp_path):
    return tmp_path / "homes"


@pytest.fixture
def delete(cli, root, brokers, monkeypatch):
    monkeypatch.setenv("MOLDAU_PIPELINES_HOME", str(root))
    monkeypatch.setenv("MOLDAU_BROKERS", brokers)
    return lambda *words: cli("pipeline", "delete", *words)


@pytest.fixture
def ended(root, brokers):
    """Make a pipeline that ran here and that the brokers know of."""

    def make(name):
        home = Home(root / name)
        record = PipelineStatus(
            name=name, kind="count", state=PipelineState.FINISHED, updated_at=now_ms()
        )
        home.checkpoint.write("offsets/0", b"v1")
        with StatusTopic(brokers) as board:
            board.publish(record)
        return home

    return make


def published(brokers, name):
    with StatusTopic(brokers) as board:
        return board.read().get(name)


def test_a_pipeline_that_is_deleted_is_in_no_list_and_has_no_folder(
    cli, delete, ended, brokers, new_name
):
    gone, kept = ended(new_name("gone")), ended(new_name("kept"))
    asked = delete(gone.name)
    assert asked.code == ExitCode.USAGE
    assert gone.location in asked.err
    assert gone.exists

    deleted = delete(gone.name, "-y")
    assert (deleted.code, deleted.out) == (0, f"deleted {gone.name}\n")
    assert not Path(gone.location).exists()
    assert published(brokers, gone.name) is None
    listed = cli("pipeline", "list", "-o", "name").out.split()
    assert kept.name in listed
    assert gone.name not in listed
    assert kept.checkpoint.read("offsets/0")
    assert delete(gone.name, "-y").code == ExitCode.NOT_FOUND


def test_several_are_deleted_together_or_not_at_all(delete, ended, brokers, new_name):
    one, other = ended(new_name("one")), ended(new_name("other"))
    refused = delete(one.name, "nowhere", other.name, "-y")
    assert refused.code == ExitCode.NOT_FOUND
    assert "pipeline nowhere does not exist; nothing was deleted" in refused.err
    assert delete(one.name, "a/b", "-y").code == ExitCode.FAILED
    with other.locked():
        assert delete(one.name, other.name, "-y").code == ExitCode.FAILED
    assert one.checkpoint.read("offsets/0")
    assert published(brokers, one.name) is not None
    asked = delete(one.name, other.name)
    assert f"Delete {one.name}, {other.name}?" in asked.err

    deleted = delete(one.name, other.name, one.name, "-y")
    assert (deleted.code, deleted.out) == (0, f"deleted {one.name}\ndeleted {other.name}\n")
    for home in (one, other):
        assert not Path(home.location).exists()
        assert published(brokers, home.name) is None


def test_one_that_runs_here_is_not_deleted(delete, ended, new_name):
    home = ended(new_name("busy"))
    with home.locked():
        refused = delete(home.name, "-y")
    assert refused.code == ExitCode.FAILED
    assert f"{home.name} is already running on this machine" in refused.err
    assert home.checkpoint.read("offsets/0")


def test_what_only_brokers_know_is_deleted_unless_it_runs(delete, brokers, new_name):
    name = new_name("elsewhere")
    record = PipelineStatus(
        name=name,
        kind="count",
        state=PipelineState.RUNNING,
        host="another",
        pid=1,
        updated_at=now_ms(),
    )
    with StatusTopic(brokers) as board:
        board.publish(record)
    refused = delete(name, "-y")
    assert refused.code == ExitCode.FAILED
    assert "is running on another" in refused.err
    with StatusTopic(brokers) as board:
        board.publish(record.changed(state=PipelineState.STOPPED))
    assert delete(name, "-y").code == 0
    assert published(brokers, name) is None


def test_a_folder_is_deleted_where_no_broker_answers(delete, ended, nobody, new_name):
    home = ended(new_name("alone"))
    deleted = delete(home.name, "-y", "-b", nobody)
    assert deleted.code == 0
    assert "no broker responds" in deleted.err
    assert not Path(home.location).exists()


@pytest.mark.parametrize("name", ["../homes", "..", "a/b"])
def test_nothing_but_the_folder_of_a_pipeline_is_deleted(delete, ended, root, new_name, name):
    home = ended(new_name("safe"))
    assert delete(name, "-y").code == ExitCode.FAILED
    assert home.exists
    # A table, say.
    table = root / new_name("table") / "part.parquet"
    table.parent.mkdir()
    table.write_bytes(b"rows")
    assert "does not exist" in delete(table.parent.name, "-y").err
    assert [path.name for path in table.parent.iterdir()] == [table.name]

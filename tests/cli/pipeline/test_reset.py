"""What a reset is to ready-made pipelines: known to plans, refused where it means nothing."""

import json

import pytest

from moldau.cli.errors import ExitCode
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import PipelineStatus, StatusTopic

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _spark_packages():
    """Not in a test: the import of them makes loggers that stay."""
    for module in ("pyspark", "pyarrow"):
        pytest.importorskip(module, reason="the extra moldau[spark] is not installed")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "homes"


@pytest.fixture
def moldau(cli, root, moldau_session_broker, monkeypatch):
    monkeypatch.setenv("MOLDAU_PIPELINES_HOME", str(root))
    monkeypatch.setenv("MOLDAU_BROKERS", moldau_session_broker.bootstrap)
    return cli


def test_what_has_no_position_is_not_reset(moldau, root, moldau_session_broker, new_name):
    home = Home(root / new_name("replayed"))
    with home.locked(), StatusTopic(moldau_session_broker.bootstrap) as board:
        board.publish(PipelineStatus(name=home.name, kind="replay", state=PipelineState.FINISHED))
    refused = moldau("pipeline", "reset", home.name, "--to", "latest", "-y")
    assert refused.code == ExitCode.FAILED
    assert f"moldau pipeline delete {home.name}" in refused.err
    assert home.read_start() == {}


@pytest.mark.usefixtures("_spark_packages")
def test_a_plan_knows_of_a_reset_and_what_is_read_newly_begins_at_its_beginning(
    moldau, root, tmp_path, new_name
):
    topic, other = new_name("begun"), new_name("other")
    for name in (topic, other):
        assert moldau("topic", "create", name, "-p", 1).code == 0
        assert moldau("produce", name, *("-m", "a", "-m", "b", "-m", "c")).code == 0

    def rows(*topics):
        words = [word for name in topics for word in ("--topic", name)]
        told = moldau(
            *("pipeline", "plan", "archive", *words, "--to", tmp_path / "lake"),
            *("--name", "begun", "-o", "json"),
        )
        assert told.code == 0, told.err
        steps = json.loads(told.out)["steps"]
        return {step["what"]: step["rows"] for step in steps if step["what"].startswith("read ")}

    assert rows(topic) == {f"read {topic}": 3}
    Home(root / "begun").reset({topic: {"0": 2}})
    assert rows(topic) == {f"read {topic}": 1}
    assert rows(topic, other) == {f"read {topic}": 1, f"read {other}": 3}
    # Of others, the reset said nothing.
    assert rows(other) == {f"read {other}": 3}

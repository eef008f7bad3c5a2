"""Projects of Spark Declarative Pipelines: what is written, what is refused, and two runs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.client import KafkaClient
from moldau.spark.pipelines import project, project_run
from moldau.spark.pipelines.project_template import OWN_FOLDER
from moldau.spark.sessions import ExtraMissingError
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.spark


def spec(folder: Path) -> Any:
    return yaml.safe_load((folder / "spark-pipeline.yml").read_text())


def test_a_project_says_broker_and_topics_in_one_place(tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    written = project.init(folder, bootstrap="host:9092", source="in", target="out")
    assert all(path.is_file() for path in written)
    assert project.spec_of(folder) in written
    found = spec(folder)
    assert found["name"] == "clicks"
    assert found["storage"] == f"file://{folder}/{OWN_FOLDER}/storage"
    assert found["configuration"] == {
        "spark.moldau.bootstrap": "host:9092",
        "spark.moldau.source": "in",
        "spark.moldau.target": "out",
    }
    for path in written:
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")
            assert "host:9092" not in path.read_text()


@pytest.mark.parametrize("name", ['it\'s "mine"', "a: b", "# none", "50 %", "Vltava–Moldau"])
def test_any_folder_can_be_a_project(tmp_path: Path, name: str) -> None:
    project.init(tmp_path / name, bootstrap="h:1", source="in", target="out")
    assert spec(tmp_path / name)["name"] == name


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="there already, and not empty"):
        project.init(tmp_path, bootstrap="h:1", source="in", target="out")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_project_that_would_feed_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="both source and target"):
        project.init(tmp_path / "loop", bootstrap="h:1", source="in", target="in")


def test_a_folder_without_a_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no spark-pipeline\.yml") as raised:
        project.run(tmp_path)
    assert "moldau pipeline init" in raised.value.hint
    for name in ("spark-pipeline.yml", "spark-pipeline.yaml"):
        (tmp_path / name).write_text("name: x\n")
    with pytest.raises(InvalidArgumentError, match="two files"):
        project.dry_run(tmp_path)


def test_a_wrong_master_and_a_missing_spark_are_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.init(tmp_path / "p", bootstrap="h:1", source="in", target="out")
    with pytest.raises(InvalidArgumentError, match="no master of Spark"):
        project.run(tmp_path / "p", master="lokal")
    monkeypatch.setattr("moldau.spark.sessions._is_installed", lambda name: False)
    with pytest.raises(ExtraMissingError):
        project.run(tmp_path / "p")


def test_the_catalog_is_in_the_folder_and_the_door_open_to_this_machine_only(
    tmp_path: Path,
) -> None:
    own = tmp_path / "a folder"
    found = project_run.settings(own, 4711)
    assert found["spark.sql.catalogImplementation"] == "hive"
    assert f"databaseName={own}/metastore" in found["spark.hadoop.javax.jdo.option.ConnectionURL"]
    assert found["spark.driver.extraJavaOptions"] == f'"-Dderby.system.home={own}"'
    assert found["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert found["spark.connect.grpc.binding.port"] == "4711"


def as_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Runs this instead of Spark."""
    start = subprocess.Popen

    def popen(command: list[str], **more: Any) -> Any:
        return start([sys.executable, "-c", code], **more)

    monkeypatch.setattr(project.subprocess, "Popen", popen)
    monkeypatch.setattr(project, "check_installed", lambda: None)
    monkeypatch.setattr(project, "check_connect", lambda: None)
    monkeypatch.setattr(project, "find_java", lambda: None)


def test_lines_come_as_they_are_said_and_the_exit_code_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.init(tmp_path / "p", bootstrap="h:1", source="in", target="out")
    as_program(monkeypatch, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    said: list[str] = []
    assert project.run(tmp_path / "p", on_line=said.append) == 3
    assert sorted(said) == ["one", "two"]


def test_a_run_that_says_nothing_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.init(tmp_path / "p", bootstrap="h:1", source="in", target="out")
    as_program(monkeypatch, "import signal; signal.pause()")
    assert project.run(tmp_path / "p", is_stopping=lambda: True) != 0


@pytest.mark.safety
def test_no_run_outlives_who_reads_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.init(tmp_path / "p", bootstrap="h:1", source="in", target="out")
    as_program(monkeypatch, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    pids: list[int] = []

    def fail(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project.run(tmp_path / "p", on_line=fail)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_java_that_was_just_starting_is_ended_too() -> None:
    code = (
        "import subprocess, sys\n"
        "from moldau.spark.pipelines import project_run\n"
        "def run(*_):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
        "project_run.run = run\n"
        "sys.exit(project_run.main())\n"
    )
    command = [sys.executable, "-c", code, "local[2]", "spec.yml", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        java = int(process.stdout.readline())
        process.terminate()
        assert process.wait(wait_seconds_max()) == 143
    wait_until(lambda: not Path(f"/proc/{java}").exists(), "the Java process has ended")


def test_two_runs_at_once_are_refused_with_a_word(tmp_path: Path) -> None:
    own = tmp_path / OWN_FOLDER
    own.mkdir()
    with (
        project_run._alone(own / "lock"),
        pytest.raises(Exception, match="is running already"),
        project_run._alone(own / "lock"),
    ):
        pass


@pytest.mark.safety
@pytest.mark.skipif(
    "MOLDAU_TEST_PROJECT" not in os.environ,
    reason="two runs of a project take a minute: MOLDAU_TEST_PROJECT=1 has them run",
)
def test_the_second_run_goes_on_where_the_first_ended(
    tmp_path: Path, broker: Any, client: KafkaClient, new_name: Any, fill: Any, table: Any
) -> None:
    topic, target = new_name("project"), new_name("project-out")
    # What `fill` writes is of 2023: it must not be deleted between two runs.
    client.create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
    client.create_topic(target, partitions=1)
    folder = tmp_path / "two runs"
    project.init(folder, bootstrap=broker.bootstrap, source=topic, target=target)
    said: list[str] = []
    fill(topic, count=5)
    assert project.run(folder, master="local[2]", on_line=said.append) == 0, said
    fill(topic, count=4, first=5)
    assert project.run(folder, master="local[2]", on_line=said.append) == 0, said
    rows = table(subscribe=target, isolation="read_committed").selectExpr("CAST(key AS STRING) k")
    assert sorted(row.k for row in rows.collect()) == [f"k{number}" for number in range(9)]

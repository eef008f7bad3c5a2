"""`moldau pipeline` against a real broker, with a kind that needs no Spark."""

import json
import os
import re
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from counting_cli import add_count
from prometheus_client.parser import text_string_to_metric_families
from tab_key import complete, offered

from moldau.cli.errors import ExitCode
from moldau.cli.pipeline.run import _check_spark
from moldau.client.wire.client import KafkaClient
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.settings.stream import StreamSettings
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import TOPIC, PipelineStatus, StatusTopic, now_ms
from moldau.spark.pipelines.streaming import resolve_start
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

COUNT = ("count", "--topic", "clicks")

HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.fixture(autouse=True)
def _kind(monkeypatch):
    """The kind `count`, for this process and those that it starts."""
    add_count(monkeypatch)
    paths = [str(HELPERS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def root(tmp_path):
    return tmp_path / "homes"


@pytest.fixture
def pipeline(cli, root, brokers, monkeypatch):
    """`moldau pipeline …` here, with this broker."""
    monkeypatch.setenv("MOLDAU_PIPELINES_HOME", str(root))
    monkeypatch.setenv("MOLDAU_BROKERS", brokers)
    return lambda *words: cli("pipeline", *words)


@pytest.fixture
def going_on(spawn, root, brokers):
    """A pipeline in a process of its own that goes on, and that brokers know to run."""

    def begin(name, *words):
        process = spawn(
            *("pipeline", "run", *COUNT, "--trigger", "1s", "--name", name, *words),
            *("--home", root, "-b", brokers),
            module="counting_cli",
        )
        wait_until(
            lambda: (r := published(brokers, name)) and r.state is PipelineState.RUNNING and r,
            "it runs",
        )
        return process

    return begin


def published(brokers, name):
    with StatusTopic(brokers) as board:
        return board.read().get(name)


def turns(process):
    """How often it has waited for something so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


# -- run


def test_a_run_goes_to_the_end_and_says_so_to_all(pipeline, root, brokers, new_name):
    name = new_name("run")
    outcome = pipeline("run", *COUNT, "--name", name)
    assert (outcome.code, outcome.out) == (0, "counted to the end\n")
    assert f"{name} running" in outcome.err
    record = published(brokers, name)
    assert record.state is PipelineState.FINISHED
    assert record.outcome.rows == record.progress.rows == 10
    assert record.progress.dead_letters == 2
    assert record.settings["topics"] == ["clicks"]


def test_a_pipeline_is_named_by_what_it_reads(pipeline, root):
    assert pipeline("run", *COUNT, "--topic", "orders").code == 0
    assert (root / "count-clicks-orders").is_dir()


def test_what_is_not_well_is_exit_code_1_and_the_outcome_comes_as_json(pipeline, new_name):
    outcome = pipeline("run", *COUNT, "--name", new_name("ill"), "--ill", "-o", "json")
    assert outcome.code == ExitCode.FAILED
    assert json.loads(outcome.out)["rows"] == 10
    assert "error" not in outcome.err


def test_a_failure_is_reported_with_its_hint_and_kept(pipeline, brokers, new_name):
    name = new_name("late")
    outcome = pipeline("run", *COUNT, "--name", name, "--fail", "late")
    assert outcome.code == ExitCode.FAILED
    assert "error: it cannot go on\nhint:  count less\n" in outcome.err
    record = published(brokers, name)
    assert (record.state, record.error, record.hint) == (
        PipelineState.FAILED,
        "it cannot go on",
        "count less",
    )
    shown = pipeline("status", name)
    assert shown.code == ExitCode.FAILED
    assert "it cannot go on" in shown.out
    assert "count less" in shown.out


def test_ctrl_c_ends_a_run_in_order_and_a_script_can_tell(spawn, root, brokers, new_name):
    name = new_name("interrupted")
    process = spawn(
        *("pipeline", "run", *COUNT, "--rows", 100_000, "--name", name),
        *("--home", root, "-b", brokers),
        module="counting_cli",
    )
    state = wait_until(
        lambda: (r := published(brokers, name)) and r.progress.rows and r, "rows are counted"
    )
    assert state.state is PipelineState.RUNNING
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == ExitCode.INTERRUPTED
    assert out == "counted for a while\n"
    assert "the same command continues it" in err
    assert published(brokers, name).state is PipelineState.STOPPED


def test_a_second_ctrl_c_ends_it_at_once(spawn, root, brokers, new_name):
    name = new_name("twice")
    process = spawn(
        *("pipeline", "run", *COUNT, "--fail", "deaf", "--name", name),
        *("--home", root, "-b", brokers),
        module="counting_cli",
    )
    wait_until(lambda: (r := published(brokers, name)) and r.progress.rows, "rows are counted")
    process.send_signal(signal.SIGINT)
    # Two signals that come before it looks would be one to it.
    before = turns(process)
    wait_until(lambda: turns(process) > before + 30, "it has heard of the first one")
    assert process.poll() is None, "the first one is an order, not the end"
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=wait_seconds_max())[1]
    assert process.returncode == ExitCode.INTERRUPTED
    assert "the next run repeats it" in err
    assert published(brokers, name).state is PipelineState.STOPPED


def test_errors_are_reported_without_a_trace_by_default(pipeline, new_name):
    name = new_name("logged")
    words = ("run", *COUNT, "--name", name, "--fail", "refused")
    assert "Traceback" not in pipeline(*words).err
    told = pipeline(*words, "--verbose").err
    assert "InvalidArgumentError: it cannot count that" in told
    assert "error: it cannot count that\nhint:  use --rows\n" in told


# -- going on


def test_one_with_a_trigger_goes_on_until_it_is_terminated(pipeline, going_on, brokers, new_name):
    name = new_name("continuous")
    process = going_on(name)
    document = json.loads(pipeline("status", name, "-o", "json").out)
    assert document["state"] == "running"
    assert document["uptime_seconds"] >= 0
    assert document["pid"] == process.pid
    assert document["settings"]["trigger_seconds"] == 1.0
    assert document["progress"]["lag"] == 7
    shown = pipeline("status", name)
    assert shown.code == 0
    assert f"{name} (count): running for" in shown.out
    assert "100 rows/s" in shown.out

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, err
    assert out == "counted for a while\n"
    assert f"{name} running" in err
    assert published(brokers, name).state is PipelineState.STOPPED


def test_prometheus_reads_how_a_pipeline_is(going_on, new_name):
    name, (port,) = new_name("metered"), free_ports(1)
    going_on(name, "--metrics-port", port)

    def ask(path):
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=wait_seconds_max()) as answer:
            return answer.read().decode()

    samples = {
        (sample.name, sample.labels.get("state")): sample
        for family in text_string_to_metric_families(ask("/metrics"))
        for sample in family.samples
    }
    rows = samples["moldau_pipeline_rows_total", None]
    assert rows.value >= 1
    assert rows.labels == {"pipeline": name, "kind": "count"}
    assert samples["moldau_pipeline_lag_records", None].value == 7
    assert samples["moldau_pipeline_state", "running"].value == 1
    assert ask("/healthz") == f"{name} running\n"


def test_a_port_that_is_taken_is_reported_before_anything_runs(pipeline, brokers, root, new_name):
    name, port = new_name("taken"), brokers.rpartition(":")[2]
    outcome = pipeline("run", *COUNT, "--name", name, "--metrics-port", port)
    assert outcome.code == ExitCode.FAILED
    assert f"cannot listen on 127.0.0.1:{port} for metrics" in outcome.err
    assert "--metrics-port" in outcome.err
    assert not (root / name).exists()


def test_a_name_runs_once_at_a_time_here(pipeline, going_on, root, new_name):
    name = new_name("once")
    going_on(name)
    for words in (
        ("run", *COUNT, "--name", name),
        ("reset", name, "--to", "earliest", "-y"),
        ("delete", name, "-y"),
    ):
        outcome = pipeline(*words)
        assert outcome.code == ExitCode.FAILED
        assert f"pipeline {name} is already running on this machine" in outcome.err
    assert Home(root / name).exists
    # From another folder it is the brokers who know.
    other = pipeline("run", *COUNT, "--name", name, "--home", root / "other")
    assert "is already running, on" in other.err
    assert "--force" in other.err


def test_a_name_that_runs_on_another_machine_needs_force(pipeline, brokers, new_name):
    name = new_name("elsewhere")
    record = PipelineStatus(
        name=name,
        kind="count",
        state=PipelineState.RUNNING,
        host="far.example",
        pid=1,
        updated_at=now_ms(),
        started_at=now_ms(),
    )
    with StatusTopic(brokers) as board:
        board.publish(record)
    assert "on far.example as process 1" in pipeline("run", *COUNT, "--name", name).err
    assert pipeline("run", *COUNT, "--name", name, "--force").code == 0


@pytest.mark.safety
def test_one_that_was_killed_is_lost_and_can_be_started_again(pipeline, going_on, new_name):
    name = new_name("killed")
    process = going_on(name)
    process.kill()
    process.wait(wait_seconds_max())
    shown = pipeline("status", name)
    assert shown.code == ExitCode.FAILED
    assert f"{name} (count): lost" in shown.out
    assert pipeline("run", *COUNT, "--name", name).code == 0


def test_a_watch_goes_on_until_ctrl_c(going_on, spawn, brokers, new_name):
    name = new_name("watched")
    going_on(name)
    watch = spawn("pipeline", "status", name, "--watch", "-o", "json", "-b", brokers)
    assert json.loads(watch.stdout.readline())["state"] == "running"
    assert json.loads(watch.stdout.readline())["state"] == "running"
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=wait_seconds_max())
    assert watch.returncode == 0


# -- list


def test_list_has_what_the_brokers_know(pipeline, new_name):
    names = {new_name("one"), new_name("two")}
    for name in names:
        assert pipeline("run", *COUNT, "--name", name).code == 0
    rows = {row["name"]: row for row in json.loads(pipeline("list", "-o", "json").out)}
    assert {rows[name]["state"] for name in names} == {"finished"}
    assert names <= set(pipeline("list", "-o", "name").out.split())
    assert "NAME" in pipeline("list").out


def test_an_unreachable_broker_is_an_error(pipeline, nobody):
    assert pipeline("list", "-b", nobody).code == ExitCode.UNREACHABLE
    assert pipeline("status", "none", "-b", nobody).code == ExitCode.UNREACHABLE


def test_an_unknown_pipeline_is_not_found(pipeline):
    for words in (("status",), ("delete", "-y"), ("reset", "--to", "earliest")):
        outcome = pipeline(words[0], "nobodys", *words[1:])
        assert outcome.code == ExitCode.NOT_FOUND
        assert "moldau pipeline list" in outcome.err


def test_a_broker_that_is_away_does_not_stop_a_pipeline(pipeline, nobody, new_name, monkeypatch):
    monkeypatch.setattr("moldau.spark.pipelines.runner.FINAL_STATUS_SECONDS_MAX", 0.5)
    name = new_name("brokerless")
    outcome = pipeline("run", *COUNT, "--name", name, "-b", nobody)
    assert (outcome.code, outcome.out) == (0, "counted to the end\n")


# -- plan, files


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_what_needs_brokers_says_at_once_that_there_are_none(
    pipeline, root, nobody, tmp_path, verb, new_name
):
    name = new_name("none")
    words = ("--topic", "clicks", "--to", str(tmp_path / "lake"), "--name", name)
    outcome = pipeline(verb, "archive", *words, "-b", nobody)
    assert outcome.code == ExitCode.UNREACHABLE
    assert "cannot reach" in outcome.err
    # Told before it began: the library itself would wait for a minute.
    assert "starting" not in outcome.err
    assert not (root / name).exists()
    assert not (tmp_path / "lake").exists()


def test_without_java_nothing_is_begun(pipeline, root, tmp_path, new_name, monkeypatch):
    monkeypatch.setattr("moldau.cli.pipeline.run._check_spark", _check_spark)
    monkeypatch.setattr("moldau.spark.sessions.check_installed", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    name, target = new_name("javaless"), new_name("again")
    outcome = pipeline(
        *("run", "replay", "--topic", TOPIC, "--to", target, "--create", "--name", name)
    )
    assert outcome.code == ExitCode.FAILED
    assert "JAVA_HOME cannot be used" in outcome.err
    assert not (root / name).exists()


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_master_that_is_none_is_refused_before_anything_is_made(pipeline, root, verb, new_name):
    name = new_name("master")
    outcome = pipeline(verb, *COUNT, "--name", name, "--master", "bogus")
    assert outcome.code == ExitCode.FAILED
    assert "'bogus' is not a valid Spark master" in outcome.err
    assert not (root / name).exists()


def test_settings_that_do_not_fit_together_are_refused_before_anything_is_made(
    pipeline, root, new_name
):
    name = new_name("contradicts")
    words = ("--table", "/lake", "--drop-tombstones", "--name", name)
    outcome = pipeline("run", "compact", *words)
    assert "--drop-tombstones needs --latest-per-key" in outcome.err
    assert not (root / name).exists()


def test_a_plan_says_what_would_run(pipeline, root):
    outcome = pipeline("plan", *COUNT)
    assert outcome.code == 0
    for text in ("count-clicks", "topic clicks", "nowhere", "WHAT"):
        assert text in outcome.out
    assert "warning: it only counts" in outcome.err
    document = json.loads(pipeline("plan", *COUNT, "-o", "json").out)
    assert document["steps"] == [{"what": "count", "rows": 10, "bytes": None}]
    assert not root.exists(), "a plan changes nothing"


def test_a_pipeline_is_declared_in_a_file(pipeline, root, tmp_path, new_name, monkeypatch):
    name = new_name("declared")
    file = tmp_path / "count.yml"
    file.write_text(
        f"kind: count\nname: {name}\ntopics: [clicks]\nrows: 4\n"
        "options:\n  my.password: x${COUNT_PW}x\n"
    )
    missing = pipeline("run", "-f", file)
    assert "needs the environment variable COUNT_PW" in missing.err
    monkeypatch.setenv("COUNT_PW", "hunter2")
    assert json.loads(pipeline("plan", "--file", file, "-o", "json").out)["settings"]["rows"] == 4
    outcome = pipeline("run", "-f", file, "-o", "json")
    assert json.loads(outcome.out)["rows"] == 4
    told = pipeline("status", name, "-o", "json").out
    for text in (told, *(path.read_text() for path in (root / name).iterdir())):
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: cuont\nname: x\n", "unknown kind of pipeline 'cuont'"),
        ("kind: count\nname: x\ntopics: [a]\nrwos: 4\n", "unknown setting 'rwos'"),
        ("kind: count\nname: x\ntopics: [a]\nrows: many\n", "rows: Expected `int`"),
        ("kind: count\nname: x\n", "missing required field `topics`"),
        ("kind: count\ntopics: [a]\n", "does not name the pipeline"),
        ("name: x\n", "unknown kind of pipeline None"),
        ("- a\n", "does not declare a pipeline"),
        ("a: [", "is neither YAML nor JSON"),
    ],
)
def test_a_file_that_is_wrong_is_explained(pipeline, tmp_path, text, said):
    file = tmp_path / "wrong.yml"
    file.write_text(text)
    outcome = pipeline("run", "-f", file)
    assert outcome.code in (ExitCode.FAILED, ExitCode.USAGE)
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_settings_of_spark_come_from_files_and_words_and_the_last_counts(pipeline, tmp_path):
    conf = tmp_path / "spark.conf"
    conf.write_text("spark.a 1\nspark.b=1\nspark.c 1\n")
    words = ("--conf-file", conf, "--conf", "spark.b=2", "--conf", "spark.b=3")

    def told(*more):
        return json.loads(pipeline("plan", *more, "-o", "json").out)["settings"]["conf"]

    assert told(*COUNT, *words) == {"spark.a": "1", "spark.b": "3", "spark.c": "1"}
    file = tmp_path / "count.yml"
    file.write_text("kind: count\nname: n\ntopics: [x]\nconf: {spark.a: 0, spark.d: true}\n")
    whole = {"spark.a": "1", "spark.b": "3", "spark.c": "1", "spark.d": "true"}
    assert told("-f", file, *words) == whole
    wrong = pipeline("run", *COUNT, "--conf", "executor.memory=1g")
    assert wrong.code == ExitCode.FAILED
    assert "'executor.memory' is not a valid Spark setting" in wrong.err
    conf.write_text("spark.x\n")
    assert "line 1 of" in pipeline("plan", "-f", file, *words).err
    file.write_text("kind: count\nname: n\ntopics: [x]\nconf: many\n")
    assert "conf: Expected `object`" in pipeline("plan", "-f", file).err


def test_what_always_ends_by_itself_takes_no_trigger(pipeline, tmp_path):
    file = tmp_path / "compact.yml"
    file.write_text(f"kind: compact\nname: x\ntable: {tmp_path}\n")
    outcome = pipeline("plan", "-f", file, "--trigger", "5s")
    assert outcome.code == ExitCode.USAGE
    assert "compact cannot run continuously" in outcome.err
    assert "--trigger" in pipeline("plan", "compact", "--table", "x", "--trigger", "5s").err


def test_hints_name_the_form_with_a_file_as_it_is_typed(pipeline, tmp_path):
    outcome = pipeline("run", "-f", str(tmp_path / "nowhere.yml"))
    assert outcome.code == ExitCode.USAGE
    assert "moldau pipeline run -f FILE --help" in outcome.err


def test_kinds_are_in_the_help_and_typos_get_a_suggestion(pipeline):
    assert re.search(r"count +Count, and do nothing else\.", pipeline("run", "--help").out)
    shown = pipeline("plan", "count", "--help").out
    assert "moldau pipeline plan count --topic clicks --ill" in shown
    assert "did you mean `moldau pipeline run count`?" in pipeline("run", "cuont").err


@pytest.mark.parametrize("name", ["a/b", "..", "ä", ""])
def test_a_name_that_cannot_be_a_folder_is_refused(pipeline, name):
    outcome = pipeline("run", *COUNT, "--name", name or "-")
    assert "is not a valid pipeline name" in outcome.err


# -- reset


@pytest.fixture
def stopped(pipeline, root, brokers, cli, new_name):
    """A pipeline that has read 3 of 5 records of both partitions of its topic."""
    name = new_name("reset")
    assert cli("topic", "create", name, "-p", 2, "-b", brokers).code == 0
    for partition in (0, 1):
        words = [word for number in range(5) for word in ("-m", number)]
        assert cli("produce", name, "-p", partition, "-b", brokers, *words).code == 0
    assert pipeline("run", "count", "--topic", name, "--name", name).code == 0
    checkpoint = root / name / "checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    for batch, offset in ((8, 1), (9, 3), (10, 5)):
        positions = json.dumps({name: {"0": offset, "1": offset}, "@ids": {name: 7}})
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{positions}")
    (checkpoint / "commits" / "9").write_text("v1\n{}")
    return name


@pytest.fixture
def starts(root, brokers):
    """Where a stream of this name and topic starts without a checkpoint."""

    def find(name):
        settings = StreamSettings(
            name=name, bootstrap=brokers, home=str(root / name), topics=(name,), start="latest"
        )
        return resolve_start(settings, None)[name]

    return find


def test_a_reset_shows_the_change_and_moves_the_checkpoint_aside(pipeline, root, stopped, starts):
    name = stopped
    preview = pipeline("reset", name, "--to", "earliest", "--dry-run", "-o", "json")
    assert [(row["now"], row["new"]) for row in json.loads(preview.out)] == [(3, 0), (3, 0)]
    assert "6 records will be read and written again" in preview.err
    asked = pipeline("reset", name, "--to", "earliest")
    assert asked.code == ExitCode.USAGE
    assert "confirm with -y" in asked.err
    assert (root / name / "checkpoint").exists()

    done = pipeline("reset", name, "--to", "earliest", "-y")
    assert done.code == 0
    assert not (root / name / "checkpoint").exists()
    (old,) = (root / name / "old").iterdir()
    assert str(old) in done.err
    assert (old / "commits" / "9").exists()
    assert starts(name) == {"0": 0, "1": 0}


def test_a_reset_to_the_end_to_offsets_and_to_a_time(pipeline, stopped, starts):
    name = stopped
    outcome = pipeline("reset", name, "--to", "latest", "-y")
    assert "4 records will be skipped" in outcome.err
    assert starts(name) == {"0": 5, "1": 5}
    assert pipeline("reset", name, "--to", f"{name}:1=2", "-y").code == 0
    assert starts(name) == {"0": 0, "1": 2}
    assert pipeline("reset", name, "--to", "2020-01-01T00:00", "-y").code == 0
    assert starts(name) == {"0": 0, "1": 0}
    assert pipeline("reset", name, "--to", "@-0s", "-y").code == 0
    assert starts(name) == {"0": 5, "1": 5}


def test_partitions_that_come_after_a_reset_are_read_from_their_beginning(
    pipeline, cli, brokers, stopped, starts
):
    assert pipeline("reset", stopped, "--to", "latest", "-y").code == 0
    assert cli("topic", "alter", stopped, "--partitions", 3, "-b", brokers).code == 0
    assert starts(stopped) == {"0": 5, "1": 5, "2": 0}


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ("yesterday", "is not earliest, latest"),
        ("{name}:0=99", "has no offset 99"),
        ("{name}:7=0", "has partitions 0 to 1, not 7"),
        ("nothing-here:0=0", "nothing-here"),
    ],
)
def test_a_reset_to_nowhere_is_refused(pipeline, root, stopped, position, said):
    outcome = pipeline("reset", stopped, "--to", position.format(name=stopped), "-y")
    assert outcome.code != 0
    assert said in outcome.err
    assert (root / stopped / "checkpoint").exists()
    assert not (root / stopped / "start.json").exists()


# -- the board


def test_the_board_is_a_compacted_topic_that_lists_hide(pipeline, cli, brokers, new_name):
    assert pipeline("run", *COUNT, "--name", new_name("board")).code == 0
    with KafkaClient(brokers) as client:
        assert len(client.layout(TOPIC).leaders) == 1
    described = json.loads(cli("topic", "describe", TOPIC, "-o", "json", "-b", brokers).out)
    assert "compact" in json.dumps(described)
    assert TOPIC not in cli("topic", "list", "-b", brokers).out


def test_names_are_completed(pipeline, brokers, nobody, new_name):
    name = new_name("tabbed")
    assert pipeline("run", *COUNT, "--name", name).code == 0

    here = {"MOLDAU_BROKERS": brokers}
    assert name in offered(["moldau", "pipeline", "status", name[:-1]], here)
    assert complete(["moldau", "pipeline", "reset", name[:-1]], {"MOLDAU_BROKERS": nobody}) == []
    assert complete(["moldau", "pipeline", "run", "comp"], here) == ["compact"]

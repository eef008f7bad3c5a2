"""`moldau cluster` where nothing has to be started, or only stand-ins."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from tab_key import complete

from moldau.cli.cluster.start import prepare
from moldau.cli.errors import ExitCode
from moldau.client.processes import ProcessKey, started_at
from moldau.model.topology import Topology, TopologyPartition, TopologyTopic
from moldau.supervisor.state import ClusterState, Member, Ports, load_state, locked, save_state
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

FREE = ("--kafka-port", "0", "--raft-port", "0", "--http-port", "0")


def never(*arguments, **named):
    raise AssertionError(f"the supervisor is asked for nothing: {arguments} {named}")


@pytest.fixture
def sleeper():
    """A process that is no broker of ours."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def write_state(directory, *, pid=None, started=None, state="ready", reason="") -> None:
    directory.mkdir(exist_ok=True)
    member = Member(
        id=1,
        ports=Ports(kafka=1, raft=2, http=3),
        directory="broker-1",
        joined=True,
        state=state,
        reason=reason,
        pid=pid,
        started=started,
    )
    cluster = ClusterState(
        ports=Ports(kafka=0, raft=0, http=0), replication_factor=1, next_id=2, brokers=[member]
    )
    save_state(directory, cluster)


@pytest.mark.parametrize("verb", [["status"], ["stop"], ["kill", "1"], ["restart", "1"], ["add"]])
def test_without_a_cluster_every_command_says_how_to_start_one(cli, tmp_path, verb):
    outcome = cli("cluster", *verb, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.NOT_FOUND
    assert f"there is no cluster in {tmp_path}" in outcome.err
    assert "moldau cluster start" in outcome.err


@pytest.mark.parametrize("verb", [["kill", "1"], ["restart", "1"], ["add"], ["remove", "1"]])
def test_a_cluster_that_is_down_can_only_be_started(cli, tmp_path, verb):
    write_state(tmp_path)
    outcome = cli("cluster", *verb, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == (
        f"error: the cluster in {tmp_path} is not running\n"
        f"hint:  start it: moldau cluster start --data-dir {tmp_path}\n"
    )


def test_the_status_of_a_cluster_that_is_down_is_a_problem(cli, tmp_path):
    write_state(tmp_path)
    outcome = cli("cluster", "status", "--data-dir", tmp_path, "-o", "json")
    document = json.loads(outcome.out)
    assert outcome.code == ExitCode.UNREACHABLE
    assert [broker["state"] for broker in document["brokers"]] == ["stopped"]
    (found,) = document["problems"]
    assert found["remedy"] == f"start it: moldau cluster start --data-dir {tmp_path}"
    assert cli("cluster", "stop", "--data-dir", tmp_path).code == 0


def test_ports_that_are_taken_are_all_named_before_anything_is_made(cli, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        outcome = cli(
            "cluster", "start", "--data-dir", tmp_path / "c", *FREE[2:], "--kafka-port", port
        )
    assert outcome.code == ExitCode.CONFIG
    assert outcome.out == ""
    expected = (
        f"error: kafka port {port} of broker 1 is in use: another program listens on 127.0.0.1:"
    )
    assert outcome.err.startswith(expected)
    assert "--kafka-port" in outcome.err.splitlines()[-1]
    assert load_state(tmp_path / "c") is None


def test_a_cluster_stays_as_playful_as_it_was_started(tmp_path):
    ports = [0, 0, 0, 0]
    for given, kept in ((None, True), (False, False), (None, False), (True, True)):
        asked = ports if load_state(tmp_path) is None else [None] * 4
        state = prepare(tmp_path, None, asked, [], play=given)
        assert state.play is kept
        stored = load_state(tmp_path)
        assert stored is not None
        assert stored.play is kept


def test_ports_that_would_meet_are_refused(cli, tmp_path):
    arguments = ("--kafka-port", "20000", "--raft-port", "20001", "--http-port", "0")
    outcome = cli("cluster", "start", "-n", "2", "--data-dir", tmp_path / "c", *arguments)
    assert outcome.code == ExitCode.CONFIG
    text = "kafka port 20001 of broker 2 is the port of the raft listener of broker 1"
    assert text in outcome.err


def test_settings_are_checked_once_before_anything_is_started(cli, tmp_path):
    outcome = cli("cluster", "start", "--data-dir", tmp_path / "c", *FREE, "--set", "log.flsh=no")
    assert outcome.code == ExitCode.CONFIG
    assert "unknown key log.flsh" in outcome.err
    assert "did you mean log.flush?" in outcome.err
    assert load_state(tmp_path / "c") is None


@pytest.mark.parametrize("key", ["broker_id", "kafka.addr", "data_dir", "port"])
def test_what_differs_from_broker_to_broker_cannot_be_set_for_all(cli, tmp_path, key):
    outcome = cli("cluster", "start", "--data-dir", tmp_path / "c", *FREE, "--set", f"{key}=1")
    assert outcome.code == ExitCode.USAGE
    assert f"{key} is specific to one broker" in outcome.err


def test_a_directory_that_holds_something_else_is_left_alone(cli, tmp_path):
    (tmp_path / "precious").write_text("")
    outcome = cli("cluster", "start", "--data-dir", tmp_path, *FREE)
    assert outcome.code == ExitCode.CONFIG
    assert "is not empty and contains no cluster" in outcome.err


def test_a_cluster_is_started_as_it_is_or_not_at_all(cli, tmp_path):
    write_state(tmp_path)
    outcome = cli("cluster", "start", "-n", "3", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "has 1 broker, not 3" in outcome.err
    assert "moldau cluster add" in outcome.err
    outcome = cli("cluster", "start", "--kafka-port", "9999", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "cannot be changed (they start at 1)" in outcome.err


@pytest.mark.safety
def test_a_cluster_that_runs_is_not_started_twice(cli, tmp_path):
    write_state(tmp_path)
    with locked(tmp_path):
        outcome = cli("cluster", "start", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert "is already running" in outcome.err
    assert "moldau cluster status" in outcome.err


def test_brokers_without_a_supervisor_are_seen_and_stopped(cli, tmp_path, sleeper):
    key = ProcessKey(sleeper.pid, str(started_at(sleeper.pid)))
    write_state(tmp_path, pid=key.pid, started=key.started)
    outcome = cli("cluster", "status", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.UNREACHABLE
    assert "unsupervised" in outcome.out
    assert "the supervisor is not running" in outcome.err
    for verb in (["start"], ["kill", "1"]):
        outcome = cli("cluster", *verb, "--data-dir", tmp_path)
        assert outcome.code == ExitCode.FAILED
        assert "moldau cluster stop" in outcome.err
    assert sleeper.poll() is None
    outcome = cli("cluster", "stop", "--data-dir", tmp_path)
    assert (outcome.code, sleeper.wait(wait_seconds_max())) == (0, -signal.SIGTERM)
    assert "stopped 1 broker" in outcome.err


def test_a_paused_broker_without_a_supervisor_is_stopped(cli, tmp_path, sleeper):
    """Nobody else would end its pause, and it would get no SIGTERM."""
    sleeper.send_signal(signal.SIGSTOP)
    write_state(tmp_path, pid=sleeper.pid, started=str(started_at(sleeper.pid)), state="paused")
    outcome = cli("cluster", "stop", "--data-dir", tmp_path)
    assert (outcome.code, sleeper.wait(wait_seconds_max())) == (0, -signal.SIGTERM)
    assert "killing" not in outcome.err


def test_the_status_names_a_paused_broker_and_how_it_goes_on(cli, tmp_path, sleeper, monkeypatch):
    started = str(started_at(sleeper.pid))
    write_state(tmp_path, pid=sleeper.pid, started=started, state="paused", reason="for 9 s")
    monkeypatch.setattr("moldau.cli.cluster.commands.live", lambda at: (load_state(at), True))
    outcome = cli("cluster", "status", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.UNREACHABLE
    assert "paused" in outcome.out
    assert "problem: broker 1 is paused for 9 s" in outcome.err
    assert f"moldau cluster resume 1 --data-dir {tmp_path}" in outcome.err


def test_another_process_with_the_pid_of_a_broker_is_not_touched(cli, tmp_path, sleeper):
    write_state(tmp_path, pid=sleeper.pid, started="another:start")
    assert "stopped" in cli("cluster", "status", "--data-dir", tmp_path).out
    assert "is not running" in cli("cluster", "stop", "--data-dir", tmp_path).err
    assert sleeper.poll() is None


def test_restart_wants_to_know_which(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    write_state(tmp_path)
    outcome = cli("cluster", "restart", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "brokers: 1" in outcome.err
    assert cli("cluster", "restart", "1", "--all", "--data-dir", tmp_path).code == ExitCode.USAGE


@pytest.mark.parametrize("options", [["1", "--down"], ["--all", "--down"]])
def test_restart_takes_one_way_to_say_which(cli, tmp_path, monkeypatch, options):
    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", never)
    write_state(tmp_path)
    outcome = cli("cluster", "restart", *options, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "--all or --down" in outcome.err


def test_restart_down_leaves_alone_what_runs(cli, tmp_path, monkeypatch, sleeper):
    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", never)
    key = ProcessKey(sleeper.pid, str(started_at(sleeper.pid)))
    write_state(tmp_path, pid=key.pid, started=key.started)
    outcome = cli("cluster", "restart", "--down", "--data-dir", tmp_path)
    assert (outcome.code, outcome.err) == (ExitCode.OK, "all brokers are running\n")


def test_restart_down_starts_what_does_not_run(cli, tmp_path, monkeypatch):
    asked = []

    def ask(directory, verb, **arguments):
        asked.append((verb, arguments))
        return load_state(directory)

    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", ask)
    write_state(tmp_path)
    outcome = cli("cluster", "restart", "--down", "--no-wait", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.OK
    assert asked == [("restart", {"id": 1})]


@pytest.mark.safety
@pytest.mark.parametrize("options", [[], ["1", "--leader-of", "orders"]])
def test_kill_wants_to_know_whom_and_once(cli, tmp_path, monkeypatch, options):
    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", never)
    write_state(tmp_path)
    outcome = cli("cluster", "kill", *options, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "N or --leader-of" in outcome.err
    assert "brokers: 1" in outcome.err


def topology_with(*topics):
    return Topology(
        cluster_id="c", version=1, controller=1, answered_by=1, brokers=(), topics=topics
    )


def topic_led_by(name, *leaders):
    partitions = tuple(
        TopologyPartition(
            partition=number, leader=leader, leader_epoch=1, replicas=(1,), in_sync=(1,)
        )
        for number, leader in enumerate(leaders)
    )
    return TopologyTopic(name=name, id="0" * 32, internal=False, partitions=partitions)


class Asked:
    """Answers for the brokers."""

    def __init__(self, *topics):
        self.topics = topics

    def topology(self, names):
        return topology_with(*(topic for topic in self.topics if topic.name in names))


@pytest.mark.safety
def test_kill_leader_of_kills_who_leads_the_first_partition(cli, tmp_path, monkeypatch):
    asked = []

    def ask(directory, verb, **arguments):
        asked.append((verb, arguments))

    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", ask)
    client = Asked(topic_led_by("others", 3), topic_led_by("orders", 1, 2))
    monkeypatch.setattr("moldau.cli.cluster.commands.client_of", lambda state: client)
    write_state(tmp_path)
    outcome = cli("cluster", "kill", "--leader-of", "orders", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.OK
    assert asked == [("kill", {"id": 1})]
    assert outcome.err.startswith("killed broker 1 ")


@pytest.mark.safety
@pytest.mark.parametrize(
    ("topics", "code", "text"),
    [
        ([], ExitCode.NOT_FOUND, "topic orders does not exist"),
        ([topic_led_by("orders", -1, 1)], ExitCode.FAILED, "orders-0 has no leader"),
    ],
)
def test_kill_leader_of_kills_no_broker_where_there_is_no_leader(
    cli, tmp_path, monkeypatch, topics, code, text
):
    monkeypatch.setattr("moldau.cli.cluster.commands.supervised_state", load_state)
    monkeypatch.setattr("moldau.cli.cluster.commands._request", never)
    monkeypatch.setattr("moldau.cli.cluster.commands.client_of", lambda state: Asked(*topics))
    write_state(tmp_path)
    outcome = cli("cluster", "kill", "--leader-of", "orders", "--data-dir", tmp_path)
    assert outcome.code == code
    assert text in outcome.err


def test_numbers_of_brokers_are_completed(tmp_path):
    write_state(tmp_path)
    words = ["moldau", "cluster", "kill", "--data-dir", str(tmp_path), ""]
    assert complete(words) == ["1"]

"""`moldau cluster` where nothing has to be started, or only stand-ins."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from moldau.cli.errors import ExitCode
from moldau.cli.supervise_process import process_key
from moldau.cli.supervise_state import ClusterState, Member, Ports, load_state, locked, save_state

FREE = ("--kafka-port", "0", "--raft-port", "0", "--http-port", "0")


@pytest.fixture
def sleeper():
    """A process that is no broker of ours."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def write_state(directory, *, pid=None, started=None) -> None:
    directory.mkdir(exist_ok=True)
    member = Member(
        id=1,
        ports=Ports(kafka=1, raft=2, http=3),
        directory="broker-1",
        joined=True,
        state="ready",
        pid=pid,
        started=started,
    )
    state = ClusterState(
        ports=Ports(kafka=0, raft=0, http=0), replication_factor=1, next_id=2, brokers=[member]
    )
    save_state(directory, state)


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
    assert outcome.code == ExitCode.FAILED
    assert [broker["state"] for broker in document["brokers"]] == ["stopped"]
    assert len(document["problems"]) == 1
    assert cli("cluster", "stop", "--data-dir", tmp_path).code == 0


def test_ports_that_are_taken_are_all_named_before_anything_is_made(cli, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        outcome = cli(
            "cluster", "start", "--data-dir", tmp_path / "c", *FREE[2:], "--kafka-port", port
        )
    assert outcome.code == ExitCode.CONFIG
    assert outcome.out == ""
    expected = f"error: kafka port {port} of broker 1 is taken: something listens on 127.0.0.1:"
    assert outcome.err.startswith(expected)
    assert "--kafka-port" in outcome.err.splitlines()[-1]
    assert load_state(tmp_path / "c") is None


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
    assert f"{key} differs from broker to broker" in outcome.err


def test_a_directory_that_holds_something_else_is_left_alone(cli, tmp_path):
    (tmp_path / "precious").write_text("")
    outcome = cli("cluster", "start", "--data-dir", tmp_path, *FREE)
    assert outcome.code == ExitCode.CONFIG
    assert "is not empty and holds no cluster" in outcome.err


def test_a_cluster_is_started_as_it_is_or_not_at_all(cli, tmp_path):
    write_state(tmp_path)
    outcome = cli("cluster", "start", "-n", "3", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "has 1 broker, not 3" in outcome.err
    assert "moldau cluster add" in outcome.err
    outcome = cli("cluster", "start", "--kafka-port", "9999", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "keeps its kafka ports, from 1 on" in outcome.err


def test_a_cluster_that_runs_is_not_started_twice(cli, tmp_path):
    write_state(tmp_path)
    with locked(tmp_path):
        outcome = cli("cluster", "start", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert "is running already" in outcome.err
    assert "moldau cluster status" in outcome.err


def test_brokers_without_a_supervisor_are_seen_and_stopped(cli, tmp_path, sleeper):
    key = process_key(sleeper.pid)
    write_state(tmp_path, pid=key.pid, started=key.started)
    outcome = cli("cluster", "status", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert "unsupervised" in outcome.out
    assert "nobody supervises the brokers" in outcome.err
    for verb in (["start"], ["kill", "1"]):
        outcome = cli("cluster", *verb, "--data-dir", tmp_path)
        assert outcome.code == ExitCode.FAILED
        assert "moldau cluster stop" in outcome.err
    assert sleeper.poll() is None
    outcome = cli("cluster", "stop", "--data-dir", tmp_path)
    assert (outcome.code, sleeper.wait(10)) == (0, -signal.SIGTERM)
    assert "stopped 1 broker" in outcome.err


def test_a_stranger_with_the_number_of_a_broker_is_not_touched(cli, tmp_path, sleeper):
    write_state(tmp_path, pid=sleeper.pid, started="another:start")
    assert "stopped" in cli("cluster", "status", "--data-dir", tmp_path).out
    assert "is not running" in cli("cluster", "stop", "--data-dir", tmp_path).err
    assert sleeper.poll() is None


def test_restart_wants_to_know_which(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("moldau.cli.cluster.supervised_state", load_state)
    write_state(tmp_path)
    outcome = cli("cluster", "restart", "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert "its brokers: 1" in outcome.err
    assert cli("cluster", "restart", "1", "--all", "--data-dir", tmp_path).code == ExitCode.USAGE


def test_numbers_of_brokers_are_completed(tmp_path):
    write_state(tmp_path)
    words = ["moldau", "cluster", "kill", "--data-dir", str(tmp_path), ""]
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "moldau"],
        env={**os.environ, **line, "_MOLDAU_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "plain,1\n"

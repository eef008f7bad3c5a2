"""`moldau dev` and `moldau broker start` as processes."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys

import pytest

from moldau.cli.broker import _shifted_ports
from moldau.cli.errors import ExitCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


def ready(process):
    line = process.stdout.readline()
    match = re.fullmatch(
        r"moldau \S+ ready on (127\.0\.0\.1:\d+) \(broker (\d+), cluster (\S+), data in (.+)\): "
        r"Kafka \1, gRPC (\S+), HTTP (http://\S+), Raft (\S+), "
        r"console \6/ui/\n",
        line,
    )
    assert match, line + process.stderr.read()
    return match


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dev_is_ready_says_what_to_type_and_stops_cleanly(cli, spawn, tmp_path, number):
    process = spawn("dev", "--port", "0", "--data-dir", tmp_path / "data")
    address = ready(process)[1]
    text = "".join(process.stdout.readline() for _ in range(8))
    for command in ("topic create greetings", "produce greetings", "consume greetings", "ui"):
        assert f"moldau {command}" in text
    assert f"-b {address}" in text
    assert cli("produce", "greetings", "-m", "hello", "-b", address).code == 0
    outcome = cli("consume", "greetings", "--from-beginning", "-n", "1", "-b", address)
    assert outcome.out == "hello\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_two_run_side_by_side_when_one_has_a_port_of_its_own(spawn, tmp_path):
    processes = [spawn("dev", "--port", "0", "--data-dir", tmp_path / name) for name in "ab"]
    assert len({ready(process)[1] for process in processes}) == 2


@pytest.mark.parametrize(
    ("port", "others"),
    [
        ("9092", [19092, 8080, 8000]),
        ("9192", [19192, 8180, 8100]),
        ("0", [0, 0, 0]),
        ("60000", [0, 58988, 58908]),
        ("99999999", [0, 0, 0]),
    ],
)
def test_the_other_ports_move_along(port, others):
    keys = ("raft.addr", "http.addr", "grpc.addr")
    expected = {key: f"127.0.0.1:{number}" for key, number in zip(keys, others, strict=True)}
    assert _shifted_ports(port) == expected
    assert _shifted_ports(None) == _shifted_ports("x") == {}


def test_what_a_broker_was_sent_is_there_after_a_restart(cli, spawn, tmp_path):
    for expected in (["one"], ["one", "two"]):
        process = spawn("dev", "--port", "0", "--data-dir", tmp_path / "data")
        address = ready(process)[1]
        cli("produce", "kept", "-m", expected[-1], "-b", address)
        outcome = cli("consume", "kept", "--from-beginning", "-e", "-b", address)
        assert outcome.out.split() == expected
        process.terminate()
        assert process.wait(wait_seconds_max()) == 0


def test_broker_start_takes_flags_over_the_file(spawn, tmp_path):
    path = tmp_path / "broker.toml"
    free = "\n".join(
        f'{listener}.addr = "127.0.0.1:0"' for listener in ("kafka", "raft", "http", "grpc")
    )
    path.write_text(f"broker_id = 5\n{free}\n")
    data = tmp_path / "data"
    flags = ("--id", "7", "--data-dir", data, "--bootstrap")
    found = ready(spawn("broker", "start", "--config", path, *flags))
    assert (found[2], found[4]) == ("7", str(data))


def test_a_port_that_is_taken_is_an_error_and_no_trace(spawn, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = spawn("dev", "--port", port, "--data-dir", tmp_path / "data")
        out, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == ExitCode.CONFIG
    assert out == ""
    assert "Traceback" not in err
    assert f"127.0.0.1:{port}" in err
    assert err.splitlines()[0].startswith("error: ")
    assert "another port: --set kafka.addr=127.0.0.1:PORT" in err


def test_a_data_dir_in_use_is_an_error_and_the_first_broker_goes_on(cli, spawn, tmp_path):
    data = tmp_path / "data"
    first = spawn("dev", "--port", "0", "--data-dir", data)
    address = ready(first)[1]
    second = spawn("dev", "--port", "0", "--data-dir", data)
    _, err = second.communicate(timeout=wait_seconds_max())
    assert second.returncode in (ExitCode.CONFIG, ExitCode.STORAGE)
    assert "Traceback" not in err
    assert str(data) in err
    assert cli("topic", "list", "-b", address).code == 0
    report = cli("doctor", "--set", f"data_dir={data}", "--set", "port=0").out
    assert f"in use by process {first.pid}" in report


def test_settings_that_one_broker_cannot_meet_are_warned_of_at_the_start(cli, tmp_path):
    settings = {"TOPIC__REPLICATION_FACTOR": "3", "LOGGING__LEVEL": "warning"}
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        assert "WARNING" in broker.output
        assert "topic.replication_factor is 3, but this is the only broker" in broker.output
        assert "or topic.replication_factor is 1" in broker.output
        # What is warned of is so.
        assert cli("topic", "create", "t", "-b", broker.bootstrap).code == ExitCode.FAILED
        assert cli("topic", "create", "t", "-r", "1", "-b", broker.bootstrap).code == 0


@pytest.mark.parametrize("on_terminal", [True, False])
def test_the_option_of_the_supervisor_is_no_way_to_start_a_node(on_terminal):
    command = [sys.executable, "-m", "moldau", "broker", "start", "--node-process", "4"]
    ends = pty.openpty() if on_terminal else ()
    try:
        found = subprocess.run(
            command,
            stdin=ends[1] if ends else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
        )
    finally:
        for end in ends:
            os.close(end)
    assert found.returncode == ExitCode.USAGE, found.stderr
    assert "error: --node-process is only for the supervisor of a node" in found.stderr
    assert "moldau broker start --processes N" in found.stderr
    assert "Traceback" not in found.stderr


def test_one_letter_less_of_processes_is_no_option(cli):
    outcome = cli("broker", "start", "--process", "4")
    assert outcome.code == ExitCode.USAGE
    assert "--processes" in outcome.err


def test_a_data_dir_that_is_a_file_is_an_error(spawn, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    process = spawn("dev", "--port", "0", "--data-dir", path)
    _, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode != 0
    assert "Traceback" not in err
    assert err.startswith("error: ")

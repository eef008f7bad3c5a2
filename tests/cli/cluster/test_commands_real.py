"""`moldau cluster` with real brokers: one life of a cluster, from start to stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from moldau.cli.errors import ExitCode
from moldau.client.processes import is_running
from moldau.supervisor.state import load_state
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

FREE = ("--kafka-port", "0", "--raft-port", "0", "--http-port", "0")


class Cluster:
    """Commands on one cluster, each in a process of its own."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.brokers = self.http = ""

    def moldau(self, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
        if self.brokers:
            environment |= {"MOLDAU_BROKERS": self.brokers, "MOLDAU_HTTP": self.http}
        return subprocess.run(
            [sys.executable, "-m", "moldau", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
            env=environment,
        )

    def do(self, *arguments: object, stdin: str = "") -> str:
        done = self.moldau(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def cluster(self, *arguments: object) -> str:
        return self.do("cluster", *arguments, "--data-dir", self.directory)

    def learn(self, printed: str) -> None:
        lines = dict(
            line.removeprefix("export ").split("=")
            for line in printed.splitlines()
            if line.startswith("export ")
        )
        self.brokers, self.http = lines["MOLDAU_BROKERS"], lines.get("MOLDAU_HTTP", self.http)

    def status(self) -> Any:
        done = self.moldau("cluster", "status", "-o", "json", "--data-dir", self.directory)
        return json.loads(done.stdout)

    def until_well(self) -> Any:
        def well() -> Any:
            status = self.status()
            return None if status["problems"] else status

        return wait_until(
            well,
            "the cluster has no problems",
            describe=lambda: f"{self.status()['problems']}{self.logs()}",
        )

    def logs(self) -> str:
        """The end of every log, for who reads a failure."""
        return "".join(
            f"\n--- {path.name}\n{path.read_text()[-2000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )

    def numbers(self, topic: str) -> list[int]:
        return [int(line) for line in self.do("consume", topic, "--from-beginning", "-e").split()]

    def end(self) -> None:
        self.moldau("cluster", "stop", "--data-dir", self.directory)
        state = load_state(self.directory)
        for process in [member.process for member in state.brokers] if state else []:
            if process is not None and is_running(process):
                os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path / "c")
    yield made
    made.end()


def lines(first: int, last: int) -> str:
    return "".join(f"{number}\n" for number in range(first, last))


@pytest.mark.safety
def test_a_cluster_lives_through_a_kill_a_join_a_move_and_a_farewell(cluster):
    printed = cluster.cluster("start", "-n", "3", "-d", *FREE)
    cluster.learn(printed)
    assert [row.split()[-1] for row in printed.splitlines()[1:4]] == ["ready"] * 3
    cluster.do("topic", "create", "orders", "-p", "3")
    cluster.do("produce", "orders", stdin=lines(0, 300))
    before = cluster.until_well()
    assert (before["replication_factor"], before["partitions"]) == (3, 3)

    # One dies; nothing is lost, and what is wrong is said.
    cluster.cluster("kill", "2")
    cluster.do("produce", "orders", stdin=lines(300, 600))
    status = cluster.status()
    assert [one["state"] for one in status["brokers"]] == ["ready", "killed", "ready"]
    assert any("moldau cluster restart 2" in each["remedy"] for each in status["problems"])
    cluster.cluster("restart", "2")
    assert sorted(cluster.numbers("orders")) == list(range(600))

    # A fourth joins and takes over from the first, which leaves.
    cluster.learn(cluster.cluster("add"))
    cluster.do("partition", "move", "orders", "--to", "2,3,4", "-y")
    described = json.loads(cluster.do("topic", "describe", "orders", "-o", "json"))
    assert {tuple(sorted(one["replicas"])) for one in described["partitions"]} == {(2, 3, 4)}
    cluster.learn(cluster.cluster("remove", "1", "-y"))
    status = cluster.until_well()
    assert [one["id"] for one in status["brokers"]] == [2, 3, 4]
    cluster.do("produce", "orders", stdin=lines(600, 700))
    assert sorted(cluster.numbers("orders")) == list(range(700))

    # Stopped and started again, it is the same one.
    ports = [one["kafka"] for one in status["brokers"]]
    cluster.cluster("stop")
    cluster.cluster("start", "-d")
    assert [one["kafka"] for one in cluster.until_well()["brokers"]] == ports
    assert sorted(cluster.numbers("orders")) == list(range(700))


@pytest.mark.safety
def test_a_broker_that_lost_its_disk_is_replaced_by_a_new_one(cluster):
    cluster.learn(cluster.cluster("start", "-n", "3", "-d", *FREE))
    cluster.do("topic", "create", "orders", "-p", "2")
    cluster.do("produce", "orders", stdin=lines(0, 200))
    cluster.cluster("kill", "2")
    shutil.rmtree(cluster.directory / "broker-2")

    # Under its old number it is refused, and founds nothing of its own either.
    refused = cluster.moldau("cluster", "restart", "2", "--data-dir", cluster.directory)
    assert refused.returncode == ExitCode.FAILED
    assert "Broker id 2 belongs to another data directory" in refused.stderr
    assert [one["state"] for one in cluster.status()["brokers"]] == ["ready", "failed", "ready"]

    cluster.learn(cluster.cluster("add"))
    cluster.learn(cluster.cluster("remove", "2", "-y"))
    status = cluster.until_well()
    assert [one["id"] for one in status["brokers"]] == [1, 3, 4]
    described = json.loads(cluster.do("topic", "describe", "orders", "-o", "json"))
    assert {tuple(sorted(one["replicas"])) for one in described["partitions"]} == {(1, 3, 4)}
    assert sorted(cluster.numbers("orders")) == list(range(200))


def test_in_the_foreground_a_broker_that_dies_comes_back_and_ctrl_c_ends_all(cluster, spawn):
    process = spawn("cluster", "start", "-n", "1", "--data-dir", cluster.directory, *FREE)
    printed = [process.stdout.readline() for _ in range(3)]
    assert printed[1].split()[-1] == "ready", [*printed, cluster.logs()]
    assert printed[2].startswith("export MOLDAU_BROKERS=127.0.0.1:")

    def member() -> Any:
        state = load_state(cluster.directory)
        assert state is not None
        return state.brokers[0]

    first = member().process
    os.kill(first.pid, signal.SIGKILL)

    def successor():
        found = member()
        return found if found.state == "ready" and found.pid != first.pid else None

    now = wait_until(successor, "the broker is back", describe=cluster.logs)
    again = cluster.moldau("cluster", "start", "--data-dir", cluster.directory)
    assert again.returncode == ExitCode.FAILED
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, err
    assert "restarting in 0.5 s" in err
    assert "Traceback" not in err
    assert not is_running(now.process)


def test_a_first_broker_that_cannot_start_is_an_error_with_its_own_words(cluster):
    cluster.cluster("start", "-n", "1", "-d", *FREE)
    cluster.cluster("stop")
    (cluster.directory / "broker-1").rename(cluster.directory / "moved")
    (cluster.directory / "broker-1").write_text("no directory")
    done = cluster.moldau("cluster", "start", "-d", "--data-dir", cluster.directory)
    assert done.returncode == ExitCode.FAILED
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "broker-1" in done.stderr

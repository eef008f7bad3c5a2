"""`moldau top` on a cluster of three: printed, live in a terminal, and while a broker dies."""

import json
import re
import signal
from xml.etree import ElementTree

import pytest
from pseudo_terminal import Terminal

from moldau.cli.errors import ExitCode
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=3) as made, KafkaClient(made.bootstrap) as client:
        client.create_topic("orders", 3)
        yield made


@pytest.fixture
def top(spawn, cluster):
    opened = []

    def start(*arguments: object, **options) -> Terminal:
        address = cluster.brokers[1].http_address
        opened.append(Terminal(spawn, "top", "--http", address, *arguments, whole=True, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_figures_of_all_brokers_are_found_through_one(cli, cluster):
    assert cli("produce", "orders", "-m", "x" * 1000, "-b", cluster.bootstrap).code == 0
    address = cluster.brokers[2].http_address
    wait_until(
        lambda: cli("broker", "status", "--http", address).code == 0, "all replicas are in sync"
    )
    outcome = cli("top", "--once", "-i", "0.2", "-o", "json", "--http", address)
    document = json.loads(outcome.out)
    assert (outcome.code, document["health"]) == (0, "healthy"), outcome
    assert document["brokers_responding"] == 3
    (orders,) = [each for each in document["topics"] if each["topic"] == "orders"]
    assert orders["size_bytes"] > 3000, "the logs of three replicas"
    assert orders["written_bytes"] is not None
    for broker in document["brokers"]:
        assert broker["cpu_cores"] is not None
        assert broker["disk_total_bytes"] > 0


def test_frames_are_printed_without_a_terminal(cli, cluster, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = cli("top", "-n", 2, "-i", "0.2", "--http", cluster.brokers[1].http_address)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("healthy: all 3 brokers respond") == 2
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "\x1b" not in outcome.out


def test_a_frame_is_a_picture_that_needs_no_other_host(cli, cluster, tmp_path):
    path = tmp_path / "top.svg"
    address = cluster.brokers[1].http_address
    outcome = cli("top", "-i", "0.2", "--svg", path, "--http", address)
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    picture = path.read_text()
    text = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert "healthy: all 3 brokers respond" in text
    assert "url(http" not in picture.replace('"', "")
    assert "<image" not in picture


def test_it_lives_through_the_death_of_a_broker(top, cluster):
    shown = top("-i", "0.3", size=(120, 30))
    shown.read_until("healthy")
    shown.type("2")
    shown.read_until("TOPIC")
    assert "\x1b[32m" in shown.seen or "\x1b[1;32m" in shown.seen, "it is coloured"

    victim = cluster.brokers[3]
    victim.kill()
    shown.type("1")
    shown.read_until("broker 3 is not alive")
    shown.read_until("down")
    shown.forget()
    shown.read_until("ok")
    assert shown.process.poll() is None

    victim.start()
    shown.forget()
    shown.read_until("healthy")
    shown.type("q")
    code, _ = shown.end()
    assert code == ExitCode.OK
    assert "Traceback" not in shown.seen
    assert "\x1b[?1049l" in shown.seen, "the screen is as it was"


def test_no_color_and_ctrl_c(top):
    shown = top("--view", "raft", size=(80, 20), NO_COLOR="1")
    shown.read_until("ELECTIONS")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.seen)
    widths = [len(line) for line in _CONTROL.sub("", shown.seen).split("\n")]
    assert max(widths) <= 81
    shown.process.send_signal(signal.SIGINT)
    assert shown.end()[0] == ExitCode.OK


def test_a_cluster_that_does_not_respond_is_an_error(cli, nobody):
    outcome = cli("top", "--http", nobody)
    assert outcome.code == ExitCode.UNREACHABLE
    assert outcome.err.startswith(f"error: cannot reach {nobody} (connection refused)")


def test_a_column_that_does_not_exist_is_an_error(cli, nobody):
    outcome = cli("top", "--sort", "speed", "--http", nobody)
    assert outcome.code == ExitCode.USAGE
    assert "columns: broker, state, leaders" in outcome.err


def test_it_logs_in_as_other_commands_do(cli, secured):
    command = ("top", "--once", "-i", "0.2", "--http", secured.http_address)
    refused = cli(*command)
    assert (refused.code, refused.out) == (ExitCode.FAILED, "")
    assert "Not authorized to describe the cluster" in refused.err
    assert "moldau acl add" in refused.err
    outcome = cli(*command, "--data-dir", secured.data_dir)
    assert outcome.code == 0, outcome.err
    assert "healthy: the broker responds" in outcome.out

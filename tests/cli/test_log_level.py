"""`moldau broker log-level`, with a broker that logs JSON."""

import json
from collections.abc import Iterator

import pytest
from tab_key import complete

from moldau.cli.errors import ExitCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"LOGGING__FORMAT": "json", "LOGGING__LEVELS": "net=warning"}
    with Broker(settings=settings) as started:
        yield started


@pytest.fixture
def log_level(cli, broker):
    def call(*arguments: str):
        return cli("broker", "log-level", *arguments, "--http", broker.http_address)

    return call


def levels(outcome) -> dict[str, str]:
    assert outcome.code == 0, outcome.err
    return {row["component"]: row["level"] for row in json.loads(outcome.out)}


def lines(broker: Broker) -> list[dict[str, object]]:
    """The log; the ready line on stdout is no JSON."""
    return [
        json.loads(line) for line in broker.output.splitlines() if not line.startswith("moldau")
    ]


def of_connections(broker: Broker) -> list[dict[str, object]]:
    return [
        line for line in lines(broker) if (line["component"], line["level"]) == ("net", "debug")
    ]


def test_a_level_changes_at_run_time_and_back(cli, log_level, broker):
    found = levels(log_level("-o", "json"))
    assert (found["default"], found["net"], found["kafka"]) == ("info", "warning", "info")
    assert levels(log_level("net", "debug", "-o", "json")) == {"net": "debug"}
    assert "log-level-changed" in {line.get("event") for line in lines(broker)}
    assert not of_connections(broker)
    cli("topic", "list", "-b", broker.bootstrap)
    wait_until(lambda: of_connections(broker), "the end of a connection in the log")
    assert all({"time", "level", "component", "message"} <= line.keys() for line in lines(broker))
    assert levels(log_level("net", "reset", "-o", "json")) == {"net": "warning"}
    outcome = log_level("raft", "info", "--broker", "1")
    assert outcome.out.split()[-7:-4] == ["1", "raft", "info"]
    assert "logging.levels" in outcome.err


def test_a_mistake_is_explained(log_level):
    outcome = log_level("rafft", "debug")
    assert outcome.code == ExitCode.USAGE
    assert "no component 'rafft'" in outcome.err
    assert "raft" in outcome.err.partition("hint:")[2]
    assert log_level("raft", "loud").code == ExitCode.USAGE
    assert "no broker 7" in log_level("raft", "--broker", "7").err


def test_components_and_levels_are_completed():
    assert complete(["moldau", "broker", "log-level", "ra"]) == ["raft"]
    assert complete(["moldau", "broker", "log-level", "raft", "de"]) == ["debug"]


def test_a_start_that_fails_is_a_line_of_json(spawn, broker, tmp_path):
    process = spawn(
        *("broker", "start", "--bootstrap", "--data-dir", str(tmp_path / "other")),
        *("--kafka-addr", broker.bootstrap, "--set", "logging.format=json"),
    )
    _, err = process.communicate()
    first = json.loads(err.splitlines()[0])
    assert (first["event"], first["level"]) == ("start-failed", "critical")
    assert broker.bootstrap in first["message"]

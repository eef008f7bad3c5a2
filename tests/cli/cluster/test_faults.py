"""`moldau cluster pause`, `resume`, `cut`, `slow` and `heal`: what they ask of the supervisor."""

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.cli.errors import ExitCode

Asked = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def asked(monkeypatch) -> Asked:
    """By a supervisor that does everything."""
    found: Asked = []

    def ask(control: str, verb: str, **arguments: Any) -> dict[str, Any]:
        found.append((verb, arguments))
        return {}

    monkeypatch.setattr(
        "moldau.cli.cluster.faults.supervised_state", lambda directory: SimpleNamespace(control="c")
    )
    monkeypatch.setattr("moldau.cli.cluster.faults.send_request", ask)
    return found


@pytest.mark.parametrize(
    ("words", "verb", "arguments", "next_step"),
    [
        (["pause", "2"], "pause", {"id": 2, "seconds": 10}, "moldau cluster resume 2"),
        (["pause", "2", "--for", "1m"], "pause", {"id": 2, "seconds": 60}, "for 60 s"),
        (["resume", "2"], "resume", {"id": 2}, "goes on"),
        (["cut", "1", "2"], "link", {"id": 1, "other": 2, "is_cut": True}, "cut 1 2 --mend"),
        (["cut", "1", "2", "--mend"], "link", {"id": 1, "other": 2, "is_cut": False}, "mended"),
        (["slow", "3"], "disk", {"id": 3, "delay_ms": 200}, "slow 3 --by 0"),
        (["slow", "3", "--by", "1s"], "disk", {"id": 3, "delay_ms": 1000}, "1000 ms longer"),
        (["slow", "3", "--by", "0"], "disk", {"id": 3, "delay_ms": 0}, "not delayed"),
        (["heal"], "heal", {}, "all faults have ended"),
    ],
)
def test_each_command_is_one_request(cli, asked, tmp_path, words, verb, arguments, next_step):
    outcome = cli("cluster", *words, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.OK, outcome.err
    assert asked == [(verb, {"by": "the command line", **arguments})]
    assert next_step in outcome.err


@pytest.mark.parametrize("seconds", ["0", "121s", "1h"])
def test_a_pause_has_a_bound(cli, asked, tmp_path, seconds):
    outcome = cli("cluster", "pause", "1", "--for", seconds, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.USAGE
    assert asked == []


@pytest.mark.parametrize("words", [["pause", "1"], ["cut", "1", "2"], ["slow", "1"], ["heal"]])
def test_without_a_cluster_each_says_how_to_start_one(cli, tmp_path, words):
    outcome = cli("cluster", *words, "--data-dir", tmp_path)
    assert outcome.code == ExitCode.NOT_FOUND
    assert "moldau cluster start" in outcome.err

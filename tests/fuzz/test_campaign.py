"""Workers run under atheris, and what they find is reported."""

from pathlib import Path

import pytest

from fuzz import campaign
from fuzz.targets import load

pytestmark = pytest.mark.system


@pytest.mark.skipif(bool(campaign.can_fuzz()), reason=campaign.can_fuzz() or "it can")
def test_a_worker_executes_inputs_guided_by_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(campaign, "FOLDER", tmp_path / "findings")
    monkeypatch.setattr(campaign, "grown_of", lambda target: tmp_path)
    outcome = campaign.run_target(load("wire-headers"), seconds=2, seed=7)
    assert (outcome.findings, outcome.problem) == ((), "")
    assert outcome.executed > 100
    assert outcome.covered > 10


def test_an_input_that_ended_a_worker_becomes_a_finding(tmp_path: Path) -> None:
    target = load("wire-headers")
    log, left = tmp_path / "log", tmp_path / "wire-headers-timeout-abc"
    log.write_text("ALARM: working on the last Unit")
    left.write_bytes(b"input")
    found = campaign._as_finding(target, left, log, tmp_path)
    assert (found.kind, found.inputs) == ("hang", (b"input",))
    assert not left.exists()
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_the_summary_says_what_was_found_and_what_failed() -> None:
    outcomes = [
        campaign.Outcome(target="a", seconds=2.0, executed=100, covered=5, corpus=3),
        campaign.Outcome(
            target="bb", seconds=1.0, executed=0, covered=0, corpus=0, problem="no worker"
        ),
    ]
    head, first, second = campaign.table(outcomes)
    assert head.split() == ["target", "inputs", "per", "s", "edges", "corpus", "found"]
    assert first.split() == ["a", "100", "50", "5", "3", "0"]
    assert second.split()[-1] == "failed"
    assert "no worker" in campaign.describe(outcomes[1])

"""Worlds in two trees: what they leave is compared, whatever runs in the other one."""

from pathlib import Path

import pytest

from sim.__main__ import main
from sim.plan import Plan
from sim.twins import described_pair, footprint

SECONDS = 2.0


def test_a_footprint_is_of_the_seed_alone() -> None:
    one, again, other = (footprint(Plan.draw(seed, SECONDS)) for seed in (3, 3, 5))
    assert one.differences(again) == []
    assert {"sent", "disks", "trace"} <= set(one.differences(other))
    assert "the same interpreted and compiled" in described_pair(one, again)
    told = described_pair(one, other)
    assert f"sent: {one.sent}, compiled {other.sent}" in told
    assert "--seed 3 --trace" in told


def test_a_tree_that_is_not_there_is_named_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--same-as", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: there is no compiled tree in {tmp_path}: make compile\n"
    )


def test_mistakes_are_planted_in_no_compiled_tree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sim.__main__.is_compiled", lambda: True)
    for asked in (["--mutants"], ["--mutant", "FlushesNothing"], ["--statements", "1"]):
        assert main(asked) == 2
        assert "leave PYTHONPATH out" in capsys.readouterr().err

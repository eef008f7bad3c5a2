"""The command behind `make sim` and `make sim-long`."""

import pytest

from moldau.testing.simulation import __main__ as command
from moldau.testing.simulation.mutants import AcksBeforeFlush
from moldau.testing.simulation.world import World


def test_one_seed_is_run_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "5", "--steps", "600", "--kind", "disk"]) == 0
    assert "seed=5 kind=disk" in capsys.readouterr().out


def test_the_trace_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "5", "--steps", "600", "--trace"]) == 0
    assert "leader epoch=0" in capsys.readouterr().out


def test_a_violation_prints_its_seed_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*, seed: int, kind: str) -> World:
        return World(seed=seed, kind=kind, core_class=AcksBeforeFlush)

    monkeypatch.setattr(command, "World", broken)
    assert command.main(["--seed", "3", "--steps", "3000"]) == 1
    assert capsys.readouterr().out.startswith("seed=3 ")
    assert command.main(["--seconds", "0.2", "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert "seed=3 kind=memory" in out
    assert " seeds, " in out

"""Whole clusters with clients and faults, each under a seed of its own.

A failure names its seed: `make sim SEED=…` plays the same world again.
"""

import pytest
from effort import seeds

from sim.__main__ import main, run_one
from sim.mutants import Mutant, planted
from sim.mutants.hunt import ALL, hunt, plan_for
from sim.plan import Plan
from sim.shrink import shrink
from sim.world import World

SECONDS = 12.0
SEEDS = seeds(14)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_everything_comes_to_its_end(seed: int) -> None:
    _, failure = run_one(Plan.draw(seed, SECONDS))
    assert failure is None, f"seed={seed}: {failure}"


def test_the_same_seed_gives_the_same_world() -> None:
    def play(seed: int) -> tuple[int, int, int]:
        world = World(Plan.draw(seed, 5.0))
        world.run()
        return world.trace, world.scheduler.events, world.network.pieces

    played = [play(seed) for seed in (3, 5)]
    assert played == [play(seed) for seed in (3, 5)]
    assert played[0] != played[1]


def mutant(name: str) -> Mutant:
    return next(mutant for mutant in ALL if mutant.name == name)


@pytest.mark.parametrize(
    "name", ["AcksBeforeFlush", "AnswersBeforeTheCommit", "FlushesNothing", "TakesDuplicates"]
)
def test_a_planted_mistake_is_found(name: str) -> None:
    """All of them are hunted by `make sim-mutants`."""
    assert hunt(mutant(name), events_max=400_000) is not None


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in ALL]
    assert len(names) == len(set(names))


def test_a_failing_world_is_made_smaller() -> None:
    planted_mutant = mutant("AcksBeforeFlush")
    with planted(planted_mutant):
        plan = next(
            plan
            for seed in range(1, 10)
            if run_one(plan := plan_for(planted_mutant, seed))[1] is not None
        )
        small = shrink(plan, seconds_max=5.0, report=lambda _: None)
        world, failure = run_one(small, trace=True)
    assert failure is not None
    assert small.seconds <= plan.seconds
    assert len(small.faults) <= len(plan.faults)
    assert any("power cut" in line or "blackout" in line for line in world.lines or ())


def test_one_world_is_run_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--virtual-seconds", "3", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "is the metadata leader" in out
    assert "seed=3: " in out


def test_what_is_wrong_is_reported_with_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(mutant("SkipsNoop")):
        assert main(["--seed", "3", "--virtual-seconds", "3"]) == 1
    out = capsys.readouterr().out
    assert "VIOLATION: " in out
    assert "--shrink" in out


def test_a_mistake_can_be_planted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutant", "FlushesNothing", "--seed", "1"]) == 1
    assert "--mutant FlushesNothing --seed 1 --trace" in capsys.readouterr().out
    assert main(["--mutant", "FlushNothing"]) == 2
    assert "FlushesNothing" in capsys.readouterr().err
    assert main(["--mutant", "CommitsOldEpochs"]) == 2
    assert "a script does" in capsys.readouterr().err


def test_a_world_that_does_not_fail_cannot_be_made_smaller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seed", "3", "--virtual-seconds", "3", "--shrink"]) == 2
    assert "does not fail" in capsys.readouterr().err

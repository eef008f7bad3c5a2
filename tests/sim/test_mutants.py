"""Every planted mistake is found: by random runs with the faults it needs, or by a scenario.

A mutant that lives means that the checks or the faults have a hole, so each of these tests fails
when what should catch its mutant is broken.
"""

from pathlib import Path

import pytest

from moldau.raft.core import RaftCore
from moldau.testing.simulation import mutants
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.rates import Rates
from moldau.testing.simulation.scenario import run_scenario
from moldau.testing.simulation.world import World

SCENARIOS = Path(__file__).parent.parent / "scenarios"
SEEDS_MAX = 600
STEPS = 3000

ANY = None
"""Rates as drawn per seed."""
DIVERGENCE = Rates(
    isolate_ms=1500, heal_ms=1500, stall=0.5, stall_ms=1500, propose_ms=20, delay_ms=5
)
STALE_LEADERS = Rates(isolate_ms=3000, heal_ms=4000, read_ms=20, propose_ms=30, delay_ms=5)
SLOW_MESSAGES = Rates(
    isolate_ms=2000,
    heal_ms=1500,
    slow=0.3,
    slow_ms=5000,
    transfer_ms=500,
    propose_ms=50,
    delay_ms=5,
    duplicate=0.2,
)
MANY_CHANGES = Rates(
    isolate_ms=2000,
    cut_ms=1000,
    heal_ms=2000,
    members_ms=30,
    propose_ms=200,
    delay_ms=5,
    kill_ms=3000,
    down_ms=2000,
)
LOST_DISKS = Rates(
    wipe_ms=1000,
    kill_ms=1500,
    down_ms=1500,
    isolate_ms=2000,
    heal_ms=1500,
    propose_ms=20,
    delay_ms=5,
)

FOUND_BY_CHANCE: list[tuple[type[RaftCore] | type[SimBroker], Rates | None]] = [
    (mutants.AcksBeforeFlush, ANY),
    (mutants.CountsOwnBeforeFlush, ANY),
    (mutants.CountsReceived, ANY),
    (mutants.SendsVoteAtOnce, ANY),
    (mutants.VotesTwice, ANY),
    (mutants.VotesForStaleLogs, ANY),
    (mutants.VotesWithAnyLog, LOST_DISKS),
    (mutants.StandsWithAnyLog, LOST_DISKS),
    (mutants.CommitsOldEpochs, ANY),
    (mutants.SkipsNoop, ANY),
    (mutants.TruncatesOnDuplicates, ANY),
    (mutants.TruncatesToMessage, ANY),
    (mutants.NeverTruncates, DIVERGENCE),
    (mutants.CountsLateFlushes, DIVERGENCE),
    (mutants.AcksOwnEnd, DIVERGENCE),
    (mutants.CommitsOwnEnd, DIVERGENCE),
    (mutants.KeepsAgreement, ANY),
    (mutants.SkipsPreviousEpoch, DIVERGENCE),
    (mutants.CommitsWithMinority, ANY),
    (mutants.ChangesMembersAtOnce, MANY_CHANGES),
    (mutants.ReadsWithoutAsking, STALE_LEADERS),
    (mutants.ForgetsVotes, ANY),
    (mutants.ReportsEndAsFlushed, ANY),
]
FOUND_BY_SCENARIO: list[tuple[type[RaftCore], str]] = [
    (mutants.CommitsOldEpochs, "figure_8"),
    (mutants.TruncatesOnDuplicates, "stale_append"),
    (mutants.TruncatesToMessage, "stale_append"),
    (mutants.VotesTwice, "vote_then_crash"),
    (mutants.SendsVoteAtOnce, "vote_then_crash"),
    (mutants.CountsLateFlushes, "flush_aba"),
    (mutants.TakesStaleAnswers, "old_answers"),
    (mutants.ComparesLengthOnly, "longer_log_loses"),
    (mutants.KeepsTruncatedMembers, "leader_removal"),
    (mutants.ChangesMembersEarly, "early_members"),
    (mutants.PreVoteIgnoresLog, "lagging_candidate"),
    (mutants.PreVoteIgnoresLeader, "rejoin"),
    (mutants.NeverStepsDown, "isolated_leader"),
    (mutants.NeverStepsDown, "one_way_leader"),
    (mutants.TransfersForever, "transfer"),
    (mutants.SearchesOneByOne, "figure_7"),
    (mutants.VotesForStaleLogs, "wiped_disk"),
    (mutants.ReadsWithoutAsking, "isolated_leader"),
]


def _name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else ""


def find(mutant: type[RaftCore] | type[SimBroker], rates: Rates | None) -> str:
    """What the first violation says."""
    for seed in range(SEEDS_MAX):
        world = World(
            seed=seed,
            rates=rates,
            brokers=5 if rates is MANY_CHANGES else 3 if rates else None,
            voters=3 if rates else None,
            core_class=mutant if issubclass(mutant, RaftCore) else RaftCore,
            broker_class=mutant if issubclass(mutant, SimBroker) else SimBroker,
        )
        try:
            world.run(STEPS)
        except Violation as violation:
            return f"seed={seed}: {violation}"
    return ""


@pytest.mark.parametrize(("mutant", "rates"), FOUND_BY_CHANCE, ids=_name)
def test_random_runs_find_the_mutant(
    mutant: type[RaftCore] | type[SimBroker], rates: Rates | None
) -> None:
    assert find(mutant, rates)


@pytest.mark.parametrize(("mutant", "scenario"), FOUND_BY_SCENARIO)
def test_the_scenario_finds_the_mutant(mutant: type[RaftCore], scenario: str) -> None:
    written = (SCENARIOS / f"{scenario}.txt").read_text()
    assert run_scenario(written, mutant) != written


def test_every_mutant_is_looked_for() -> None:
    planted = {
        value
        for value in vars(mutants).values()
        if isinstance(value, type)
        and value.__module__ == mutants.__name__
        and issubclass(value, (RaftCore, SimBroker))
    }
    looked_for = {mutant for mutant, _ in FOUND_BY_CHANCE}
    looked_for.update(mutant for mutant, _ in FOUND_BY_SCENARIO)
    assert planted == looked_for


@pytest.mark.parametrize("rates", [DIVERGENCE, STALE_LEADERS, SLOW_MESSAGES, MANY_CHANGES])
def test_the_same_faults_do_no_harm_to_the_real_core(rates: Rates) -> None:
    for seed in range(6):
        world = World(seed=seed, rates=rates, brokers=5 if rates is MANY_CHANGES else 3, voters=3)
        try:
            world.run(STEPS)
            world.settle()
        except Violation as violation:
            pytest.fail(f"seed={seed}: {violation}")

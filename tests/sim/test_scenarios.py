"""The scenarios in tests/scenarios happen as written, and a core with a mistake makes a difference.

To write them anew after a wanted change: MOLDAU_REWRITE_SCENARIOS=1 pytest
tests/sim/test_scenarios.py, and read the difference.
"""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from moldau.raft.core import RaftCore
from moldau.replica import driver
from sim.mutants import cores, planted, storage
from sim.scenario import ScenarioError, run_scenario

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))

FOUND: list[tuple[type[RaftCore], str]] = [
    (cores.CommitsOldEpochs, "figure_8"),
    (cores.TruncatesOnDuplicates, "stale_append"),
    (cores.TruncatesToMessage, "stale_append"),
    (cores.VotesTwice, "vote_then_crash"),
    (cores.SendsVoteAtOnce, "vote_then_crash"),
    (cores.TakesStaleAnswers, "old_answers"),
    (cores.ComparesLengthOnly, "longer_log_loses"),
    (cores.KeepsTruncatedMembers, "leader_removal"),
    (cores.ChangesMembersEarly, "early_members"),
    (cores.PreVoteIgnoresLog, "lagging_candidate"),
    (cores.PreVoteIgnoresLeader, "rejoin"),
    (cores.NeverStepsDown, "isolated_leader"),
    (cores.NeverStepsDown, "one_way_leader"),
    (cores.TransfersForever, "transfer"),
    (cores.SearchesOneByOne, "figure_7"),
    (cores.VotesForStaleLogs, "longer_log_loses"),
    (cores.ReadsWithoutAsking, "isolated_leader"),
    (cores.VotesWithAnyLog, "wiped_disk"),
    (cores.StandsWithAnyLog, "wiped_disk"),
    (cores.KeepsAgreement, "flush_aba"),
    (cores.SkipsPreviousEpoch, "lower_epoch_wins"),
    (cores.ChangesMembersAtOnce, "members"),
]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_happens_as_written(path: Path) -> None:
    written = path.read_text()
    happened = run_scenario(written)
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == written


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 15


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ScenarioError, match="explode"):
        run_scenario("cluster 3\nexplode 2\n----\n")


def test_votes_that_are_forgotten_are_seen() -> None:
    (path,) = (path for path in SCENARIOS if path.stem == "vote_then_crash")
    written = path.read_text()
    (mutant,) = (mutant for mutant in storage.MUTANTS if mutant.name == "ForgetsVotes")
    with planted(mutant):
        assert run_scenario(written) != written


@pytest.mark.parametrize(("core", "scenario"), FOUND)
def test_the_scenario_shows_the_mistake(core: type[RaftCore], scenario: str) -> None:
    (path,) = (path for path in SCENARIOS if path.stem == scenario)
    written = path.read_text()
    with patch.object(driver, "RaftCore", core):
        assert run_scenario(written) != written

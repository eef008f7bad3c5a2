"""The scenarios in tests/scenarios happen as written, and a core with a mistake makes a difference.

To write them anew after a wanted change: MOLDAU_REWRITE_SCENARIOS=1 pytest
tests/sim/test_scenarios.py, and read the difference.
"""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from sim.mutants import Mutant
from sim.mutants.hunt import ALL, hunt
from sim.scenario import ScenarioError, run_scenario

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))

FOUND = [(mutant, scenario) for mutant in ALL for scenario in mutant.scenarios]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_happens_as_written(path: Path) -> None:
    written = path.read_text()
    happened = run_scenario(written).text
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == written


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 15


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ScenarioError, match="explode"):
        run_scenario("cluster 3\nexplode 2\n----\n")


@pytest.mark.parametrize(
    ("mutant", "scenario"), FOUND, ids=[f"{mutant.name}-{scenario}" for mutant, scenario in FOUND]
)
def test_the_scenario_shows_the_mistake(mutant: Mutant, scenario: str) -> None:
    found = hunt(replace(mutant, faults=None, scenarios=(scenario,)))
    assert found is not None
    assert found.by == f"{scenario}.txt"

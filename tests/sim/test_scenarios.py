"""The scenarios in tests/scenarios happen as written. To write them anew after a wanted change:

MOLDAU_REWRITE_SCENARIOS=1 pytest tests/sim/test_scenarios.py, and read the difference.
"""

import os
from pathlib import Path

import pytest

from moldau.testing.simulation.scenario import ScenarioError, run_scenario

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_happens_as_written(path: Path) -> None:
    written = path.read_text()
    happened = run_scenario(written)
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == written
    assert "violation" not in happened


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 15


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ScenarioError, match="explode"):
        run_scenario("cluster 3\nexplode 2\n----\n")

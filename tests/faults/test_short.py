"""The most telling faults, few times each: what is acked stays, and the harness sees loss."""

from pathlib import Path

import pytest

from faults.__main__ import play
from faults.catalogue import ONE_BROKER
from faults.report import line

pytestmark = pytest.mark.system

BY_NAME = {scenario.name: scenario for scenario in ONE_BROKER}


@pytest.mark.parametrize("name", ["3", "4", "15", "16", "control"])
def test_a_scenario_passes(name: str, tmp_path: Path) -> None:
    scenario = BY_NAME[name]
    if missing := scenario.missing(tmp_path):
        pytest.skip(missing)
    played = play(scenario, tmp_path / "run", quick=True)
    assert played.status == "passed", line(played)
    assert played.result is not None
    assert played.result.proofs
    assert played.result.verdict.acked > 0

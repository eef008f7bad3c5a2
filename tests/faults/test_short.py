"""The most telling faults, few times each: what is acked stays, and the harness sees loss."""

from pathlib import Path

import pytest

from faults.__main__ import play
from faults.catalogue import ONE_BROKER, THREE_BROKERS, Scenario
from faults.report import line

pytestmark = pytest.mark.system

ONE = {scenario.name: scenario for scenario in ONE_BROKER}
THREE = {scenario.name: scenario for scenario in THREE_BROKERS}


@pytest.mark.safety
@pytest.mark.parametrize("name", ["4", "15", "16", "control"])
def test_a_scenario_passes(name: str, tmp_path: Path) -> None:
    check(ONE[name], tmp_path)


@pytest.mark.safety
def test_what_workers_of_a_queue_settle_stays_settled(tmp_path: Path) -> None:
    check(THREE["25"], tmp_path)


@pytest.mark.safety
def test_what_a_secured_cluster_acks_stays(tmp_path: Path) -> None:
    check(THREE["1"], tmp_path, secured=True)


def check(scenario: Scenario, tmp_path: Path, *, secured: bool = False) -> None:
    if missing := scenario.missing(tmp_path):
        pytest.skip(missing)
    played = play(scenario, tmp_path / "run", quick=True, secured=secured)
    assert played.status == "passed", line(played)
    assert played.result is not None
    assert played.result.proofs
    assert played.result.verdict.acked > 0

"""The lists of scenarios."""

from faults.catalogue import SECURED, THREE_BROKERS


def test_a_secured_run_plays_scenarios_of_three_brokers() -> None:
    assert set(SECURED) <= {scenario.name for scenario in THREE_BROKERS}

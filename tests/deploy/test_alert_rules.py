"""The alerts in deploy/prometheus, by Prometheus' own tool."""

import subprocess
from pathlib import Path

import pytest
from prometheus_server import CONFIG, RULES_TEST, need

pytestmark = pytest.mark.system


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [need("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_the_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", CONFIG)


def test_the_alerts_do_what_their_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULES_TEST)

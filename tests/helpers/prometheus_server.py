"""A real Prometheus for tests, with short intervals, and the rules of deploy/ made as short."""

import json
import math
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
CONFIG: Final = ROOT / "deploy" / "prometheus" / "prometheus.yml"
RULES_TEST: Final = RULES.with_name("alerts_test.yml")
SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
AGES: Final = (
    "moldau_group_lag_seconds",
    "moldau_transactions_oldest_open_seconds",
    "moldau_pipeline_status_age_seconds",
)
"""Metrics whose limits are durations, too, in seconds."""


def rules() -> list[dict[str, Any]]:
    """All alerts of deploy/."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def need(program: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test without it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    return path


def shortened(rules: str, by: int) -> str:
    """The rules with all their durations divided: `for: 5m`, `[15m]`, `offset 10m`, and limits of
    AGES."""

    def duration(found: re.Match[str]) -> str:
        milliseconds = int(found[2]) * SECONDS[found[3]] * 1000 // by
        return f"{found[1]}{milliseconds}ms"

    def age(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) / by}"

    rules = re.sub(r"(for: |\[|offset )(\d+)([smh])\b", duration, rules)
    return re.sub(rf"((?:{'|'.join(AGES)})\)? > )(\d+)", age, rules)


Alert = tuple[str, ...]
"""Its name without Moldau, and what it is about: the values of its labels SUBJECTS."""


class PrometheusServer:
    """Scrapes each job's targets every second, and evaluates the rules as often."""

    def __init__(self, home: Path, *, jobs: dict[str, list[str]], rules: str) -> None:
        self._program = need("prometheus")
        self._home = home
        self._home.mkdir()
        (home / "alerts.yml").write_text(rules)
        # What operators use, with other targets and intervals.
        config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
        (scrape,) = config["scrape_configs"]
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [
            {**scrape, "job_name": job, "static_configs": [{"targets": targets}]}
            for job, targets in jobs.items()
        ]
        (home / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._home / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._home / 'data'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(
            lambda: self._get("/-/ready"),
            "Prometheus is ready",
            describe=(self._home / "log").read_text,
            ignoring=OSError,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _get(self, path: str, **parameters: str) -> str:
        text = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(
            f"http://{self.address}{path}?{text}", timeout=wait_seconds_max()
        ) as response:
            return str(response.read().decode())

    def query(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The samples now, by their labels, without those that are no numbers."""
        found = json.loads(self._get("/api/v1/query", query=query))
        return {
            tuple(sorted(each["metric"].items())): float(each["value"][1])
            for each in found["data"]["result"]
            if math.isfinite(float(each["value"][1]))
        }

    def firing(self) -> set[Alert]:
        return {_alert(dict(labels)) for labels in self.query('ALERTS{alertstate="firing"}')}

    def failed_scrapes(self) -> dict[str, str]:
        """Why the last scrape of a target failed."""
        targets = json.loads(self._get("/api/v1/targets"))["data"]["activeTargets"]
        return {
            each["labels"]["instance"]: each["lastError"] for each in targets if each["lastError"]
        }


SUBJECTS: Final = ("instance", "group", "pipeline", "file")


def _alert(labels: dict[str, str]) -> Alert:
    about = [labels[name] for name in SUBJECTS if name in labels]
    return labels["alertname"].removeprefix("Moldau"), *about

"""`python -m benchmarks.lighthouse`: Lighthouse on pages of the web console.

Exit code 1 if a page is slow, or somebody cannot use it. Without Node or Chromium nothing is
measured. A page whose score is too low is measured again: other work of the machine counts, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker

VERSION: Final = "12.8.2"
"""The last one that runs on Node 20."""
FOLDER: Final = Path("build/lighthouse")
SCORE_MIN: Final = 95
TRIES_MAX: Final = 3
MESSAGES: Final = 20_000
PAGES: Final = {
    "overview": "/ui/",
    "messages": "/ui/topics/orders?tab=messages",
    "settings": "/ui/settings",
}
FORMS: Final = {"phone": [], "desktop": ["--preset=desktop"]}
JUDGED: Final = ("performance", "accessibility")
_SECONDS_MAX: Final = 300
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> int:
    browser = os.environ.get("MOLDAU_TEST_BROWSER") or next(
        filter(None, map(shutil.which, _BROWSERS)), None
    )
    missing = [
        name
        for name, is_there in {"Node": shutil.which("npm"), "Chromium": browser}.items()
        if not is_there
    ]
    if missing or browser is None:
        print(f"skipped: there is no {' and no '.join(missing)} to run Lighthouse")
        return 0
    if not (program := install()):
        print(f"skipped: Lighthouse {VERSION} cannot be installed by npm")
        return 0
    with Broker() as broker:
        fill(broker)
        results = {
            (page, form): measure(program, browser, f"http://{broker.http_address}{path}", options)
            for page, path in PAGES.items()
            for form, options in FORMS.items()
        }
    print(table(results))
    low = low_scores(results)
    print("\n".join(low) or f"all scores are {SCORE_MIN} or more")
    return 1 if low else 0


def install() -> Path | None:
    """Once, outside the packages of the console."""
    program = FOLDER / "node_modules/lighthouse/cli/index.js"
    known = FOLDER / "node_modules/lighthouse/package.json"
    if not known.exists() or json.loads(known.read_text())["version"] != VERSION:
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", ".", "--silent", "--no-audit", "--no-fund"]
        done = subprocess.run([*command, f"lighthouse@{VERSION}"], cwd=FOLDER, check=False)
        if done.returncode:
            return None
    return program


def fill(broker: Broker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("orders", partitions=6, replication_factor=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for number in range(MESSAGES):
        order = {"id": number, "customer": "anna", "items": [{"name": "lamp", "count": 2}]}
        producer.produce("orders", json.dumps(order), key=f"order-{number}")
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def measure(program: Path, browser: str, url: str, options: list[str]) -> dict[str, Any]:
    """The best of up to three."""
    reports: list[dict[str, Any]] = []
    while len(reports) < TRIES_MAX:
        reports.append(measure_once(program, browser, url, options))
        if min(scores(reports[-1]).values()) >= SCORE_MIN:
            break
    return max(reports, key=lambda report: min(scores(report).values()))


def measure_once(program: Path, browser: str, url: str, options: list[str]) -> dict[str, Any]:
    command = [
        *("node", str(program), url, "--quiet", "--output=json"),
        "--chrome-flags=--headless=new --no-sandbox",
        f"--only-categories={','.join(JUDGED)}",
        *options,
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "CHROME_PATH": browser},
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: Lighthouse failed on {url}:\n{done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def scores(report: dict[str, Any]) -> dict[str, int]:
    """From 0 to 100; 0 for what could not be judged."""
    return {name: round(100 * (report["categories"][name]["score"] or 0)) for name in JUDGED}


def table(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    audits = {
        "first paint": "first-contentful-paint",
        "largest paint": "largest-contentful-paint",
        "blocked for": "total-blocking-time",
    }
    lines = [f"| page | on a | {' | '.join([*JUDGED, *audits])} |"]
    lines.append("|---|---|" + "---|" * (len(JUDGED) + len(audits)))
    for (page, form), report in results.items():
        found = [str(score) for score in scores(report).values()]
        found += [
            report["audits"][name]["displayValue"].replace("\xa0", " ") for name in audits.values()
        ]
        lines.append(f"| {page} | {form} | {' | '.join(found)} |")
    return "\n".join(lines)


def low_scores(results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    return [
        f"{page} on a {form}: {name} is {score}, which is below {SCORE_MIN}"
        for (page, form), report in results.items()
        for name, score in scores(report).items()
        if score < SCORE_MIN
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Clients of other languages, on request: MOLDAU_TEST_LANGUAGES=java,node,go (any of them).

They are fetched by maven, npm and go, so they need these tools and take a minute; that is why they
do not run by default. The programs in languages/ check what they read; 0 means that all is well.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "languages"
WANTED = set(os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split())

BUILDS = {
    "java": [
        "mvn -q dependency:copy-dependencies -DoutputDirectory=lib",
        "javac -cp lib/* -d . Client.java",
    ],
    "node": ["npm install --silent --no-audit --no-fund"],
    "go": ["go mod tidy", "go build -o client ."],
}
RUNS = {"java": "java -cp .:lib/* Client", "node": "node client.js", "go": "./client"}


@pytest.mark.parametrize("language", BUILDS)
def test_a_client_of_another_language_writes_and_reads(
    broker: Broker, tmp_path: Path, language: str
) -> None:
    if language not in WANTED:
        pytest.skip(f"fetches packages; wanted with MOLDAU_TEST_LANGUAGES={language}")
    place = tmp_path / language
    shutil.copytree(PROGRAMS / language, place)
    for command in [*BUILDS[language], f"{RUNS[language]} {broker.bootstrap}"]:
        done = subprocess.run(
            command.split(),
            cwd=place,
            capture_output=True,
            text=True,
            timeout=5 * wait_seconds_max(),
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

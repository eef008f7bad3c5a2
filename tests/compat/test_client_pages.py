"""The programs of docs/clients work as pasted.

Python's always; those of other languages on request, since they are fetched and built by maven, go,
npm and cargo: MOLDAU_TEST_LANGUAGES=java,node,go,rust (any of them).
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from doc_pages import ROOT

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(900)]

WANTED = set(os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split())


@dataclass(frozen=True)
class Language:
    """How a page becomes a program: its blocks by kind as files, and the commands after that."""

    files: dict[str, str]
    build: list[str]
    run: str


LANGUAGES = {
    "java": Language(
        {"xml": "pom.xml", "java": "Client.java"},
        [
            "mvn -q dependency:copy-dependencies -DoutputDirectory=lib",
            "javac -cp lib/* -d . Client.java",
        ],
        "java -cp .:lib/* Client",
    ),
    "go": Language(
        {"go": "main.go"}, ["go mod init client", "go mod tidy", "go build -o client ."], "./client"
    ),
    "node": Language(
        {"js": "client.mjs"},
        ["npm install --silent --no-audit --no-fund kafkajs"],
        "node client.mjs",
    ),
    "rust": Language(
        {"toml": "Cargo.toml", "rust": "src/main.rs"},
        ["cargo build --quiet"],
        "target/debug/client",
    ),
}


def programs(language: str) -> list[tuple[str, str]]:
    """The blocks of a page, each with its kind."""
    page = (ROOT / "docs" / "clients" / f"{language}.md").read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S)


def run(command: list[str], place: Path) -> str:
    done = subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=10 * wait_seconds_max(),
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_programs_in_python_read_what_they_wrote(broker: Broker, tmp_path: Path) -> None:
    said = [
        run([sys.executable, "-c", text.replace("localhost:9092", broker.bootstrap)], tmp_path)
        for _, text in programs("python")
    ]
    assert said == ["Vltava\n", "Lipno\n"]


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_program_in_another_language_reads_what_it_wrote(
    broker: Broker, tmp_path: Path, name: str
) -> None:
    if name not in WANTED:
        pytest.skip(f"fetches packages; wanted with MOLDAU_TEST_LANGUAGES={name}")
    language = LANGUAGES[name]
    blocks = programs(name)
    assert [kind for kind, _ in blocks] == list(language.files)
    for kind, text in blocks:
        file = tmp_path / language.files[kind]
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("localhost:9092", broker.bootstrap))
    for command in language.build:
        run(command.split(), tmp_path)
    assert "Vltava" in run(language.run.split(), tmp_path).splitlines()


def test_every_page_about_a_language_is_tested() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "clients").glob("*.md")}
    assert pages == {"index", "python", *LANGUAGES}

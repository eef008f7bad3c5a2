"""Snippets and the reference of the Python client run as they are, but for the address."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from moldau import ConsumerConfig, ProducerConfig
from moldau.testing.broker import Broker

ROOT = Path(__file__).parent.parent.parent
SNIPPETS = ROOT / "examples" / "snippets"
REFERENCE = ROOT / "docs" / "reference" / "python.md"


def run(name: str, broker: Broker) -> str:
    code = (SNIPPETS / name).read_text()
    assert "'localhost:9092'" in code
    return run_code(code.replace("localhost:9092", broker.bootstrap))


def run_code(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_snippet_runs_one_after_the_other(moldau_broker: Broker) -> None:
    said = {
        name: run(name, moldau_broker)
        for name in ("quick_start.py", "configuration.py", "manual_offsets.py", "backpressure.py")
    }
    assert set(said) == {path.name for path in SNIPPETS.glob("*.py")}
    assert int(said["configuration.py"].split()[0]) > 0
    manual = said["manual_offsets.py"].splitlines()
    assert manual[0] == "0 Hello World"
    # Through the last that was processed, by the number of that message itself.
    assert manual[-1] == f"done through {{('events', 0): {len(manual) - 2}}}"
    assert "1000 events done" in said["backpressure.py"]
    assert "paused 0 times" not in said["backpressure.py"]


def test_the_blocks_of_the_reference_run_as_pasted(moldau_session_broker: Broker) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text(), flags=re.M | re.S)
    assert len(blocks) == 2
    first, transaction = (
        run_code(block.replace("localhost:9092", moldau_session_broker.bootstrap))
        for block in blocks
    )
    assert "b'customer-1' {'id': 7}" in first
    assert transaction == ""


def test_the_reference_names_every_setting() -> None:
    text = REFERENCE.read_text()
    names = {field.name for kind in (ProducerConfig, ConsumerConfig) for field in fields(kind)}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []

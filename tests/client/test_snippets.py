"""Snippets run as they were given but for the import line; so do the blocks of the reference."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from moldau import (
    AckMode,
    Admin,
    Consumer,
    ConsumerConfig,
    Message,
    OffsetResetPolicy,
    Producer,
    ProducerConfig,
)
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

ROOT = Path(__file__).parent.parent.parent
SNIPPETS = ROOT / "examples" / "snippets"
GIVEN = Path(__file__).parent / "snippets_as_given.md"
REFERENCE = ROOT / "docs" / "reference" / "python.md"
ADDRESS = "localhost:9092"


def given() -> dict[str, str]:
    """The snippets by their file, word for word."""
    found = re.findall(r"^## (\S+)\n\n```python\n(.*?)^```$", GIVEN.read_text(), flags=re.M | re.S)
    return dict(found)


def run(name: str, broker: Broker) -> str:
    code = (SNIPPETS / name).read_text()
    assert f"'{ADDRESS}'" in code
    return run_code(code.replace(ADDRESS, broker.bootstrap))


def run_code(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        env={key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", given())
def test_a_snippet_holds_what_was_given_word_for_word_but_for_the_import_line(name: str) -> None:
    as_given = given()[name]
    expected = re.sub(r"^from client\.\w+ import", "from moldau import", as_given, flags=re.M)
    changed = sum(a != b for a, b in zip(as_given.split("\n"), expected.split("\n"), strict=True))
    assert changed <= 1
    code = (SNIPPETS / name).read_text()
    assert code.count(expected) == 1
    # What stands around it is said in the docstring.
    assert "as given" in code.split('"""')[1].lower()


def test_there_is_no_snippet_that_was_not_given() -> None:
    assert set(given()) == {path.name for path in SNIPPETS.glob("*.py")}
    assert len(given()) == 6


def test_every_snippet_runs_one_after_the_other(moldau_broker: Broker) -> None:
    said = {name: run(name, moldau_broker) for name in given()}
    assert said["quick_start.py"] == ""
    assert said["high_throughput_producer.py"] == "1000 events sent\n"
    manual = said["manual_offsets.py"].splitlines()
    assert manual[0] == "0 Hello World"
    # Through the last that was processed, by the number of that message itself.
    assert manual[-1] == f"done through {{('events', 0): {len(manual) - 2}}}"
    assert "0 more while paused" in said["backpressure.py"]
    assert "True once resumed" in said["backpressure.py"]


def test_the_configurations_make_clients_that_work(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    names = {
        kind.__name__: kind for kind in (AckMode, ConsumerConfig, OffsetResetPolicy, ProducerConfig)
    }
    sending, reading = (
        eval(given()[name].replace(ADDRESS, moldau_session_broker.bootstrap), names)
        for name in ("producer_configuration.py", "consumer_configuration.py")
    )
    assert (sending.acks, sending.batch_size, sending.linger_ms) == (AckMode.ALL, 16384, 10)
    assert (sending.retries, sending.enable_idempotence) == (3, True)
    with Producer(sending) as producer:
        producer.send_many(moldau_topic, [str(number) for number in range(100)])
    assert (reading.group_id, reading.max_poll_records) == ("my-group", 500)
    with Consumer(reading) as consumer:
        consumer.subscribe([moldau_topic])
        assert consumer.poll(wait_seconds_max())[0].text == "0"


class ProcessingQueue(list[Message]):
    """Work to do, with the methods that the snippet asks for."""

    def full(self) -> bool:
        return len(self) >= 60

    def size(self) -> int:
        return len(self)


class CountingConsumer(Consumer):
    """Counts pauses and what it resumes after one."""

    paused = pauses = resumes = 0

    def pause(self, partitions: Any) -> None:
        super().pause(partitions)
        self.paused, self.pauses = 1, self.pauses + 1

    def resume(self, partitions: Any) -> None:
        super().resume(partitions)
        self.resumes += self.paused
        self.paused = 0


@pytest.mark.safety
def test_backpressure_pauses_and_resumes_and_loses_nothing(moldau_broker: Broker) -> None:
    Admin(moldau_broker.bootstrap).create_topic("events", partitions=2)
    with Producer(moldau_broker.bootstrap) as producer:
        for number in range(400):
            producer.send("events", str(number), partition=number % 2)
    snippet = compile(given()["backpressure.py"], "backpressure", "exec")
    queue = ProcessingQueue()
    done: list[int] = []
    with CountingConsumer(moldau_broker.bootstrap, group_id="g", max_poll_records=30) as consumer:
        consumer.subscribe(["events"])
        while len(consumer.assignment()) < 2:
            queue += consumer.poll()
        while len(done) < 400:
            exec(snippet, {"consumer": consumer, "processing_queue": queue, "threshold": 20})
            queue += consumer.poll(0.05)
            done += [int(message.text) for message in queue[:10]]
            del queue[:10]
        assert consumer.pauses > 0
        assert consumer.resumes > 0
    assert sorted(done) == list(range(400))


def test_the_blocks_of_the_reference_run_as_pasted(moldau_broker: Broker) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text(), flags=re.M | re.S)
    first, security, coroutines, transaction = (
        run_code(block.replace(ADDRESS, moldau_broker.bootstrap)) for block in blocks
    )
    assert "b'customer-1' {'id': 7}" in first
    assert "{'id': 8}" in coroutines
    assert security == ""
    assert transaction == ""


def test_the_reference_names_every_setting() -> None:
    text = REFERENCE.read_text()
    names = {field.name for kind in (ProducerConfig, ConsumerConfig) for field in fields(kind)}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []

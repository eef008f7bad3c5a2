"""Type checkers refuse settings and values that do not exist."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from moldau import ConsumerConfig, InvalidArgumentError, ProducerConfig
from moldau.client.kafka.consumer_config import ConsumerSettings
from moldau.client.kafka.producer_config import ProducerSettings
from moldau.client.queue.group_settings import connect_request

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]

RIGHT = """
from moldau import *
Producer("b:1", acks="all", linger_ms=5, compression_type="zstd")
Producer(ProducerConfig(acks=AckMode.LEADER))
Consumer(group_id="g", auto_offset_reset="latest", isolation_level="read_committed")
Consumer(auto_offset_reset=OffsetResetPolicy.NONE)
AsyncProducer(acks=1)
AsyncConsumer(group_protocol="consumer")
Admin("b:1", extra={"client.id": "me"})
QueueClient("b:1", timeout=5).connect("g", "t", mode="ordered", start="latest", attempts=3)
QueueClient().work("g", ["t"], print, visibility=60.0, backoff=1)
QueueClient().send("t", "v", acks="leader")
"""

WRONG = """
Producer(ack="all")
Producer(acks="most")
Producer(linger_ms="5")
Producer(compression_type="zip")
ProducerConfig(acks=2)
AsyncProducer(ack="all")
Consumer(group="g")
Consumer(auto_offset_reset="first")
AsyncConsumer(isolation_level="none")
Admin("b:1", timeout=5)
QueueClient(time_out=5)
AsyncQueueClient(timeouts=5)
QueueClient().connect("g", "t", mode="fifo")
QueueClient().connect("g", "t", start="first")
QueueClient().work("g", "t", print, mode="fifo")
QueueClient().work("g", "t", print, visible=60)
QueueClient().send("t", "v", acks="most")
""".strip().splitlines()


def test_mypy_refuses_settings_and_values_that_do_not_exist(tmp_path: Path) -> None:
    code = tmp_path / "program.py"
    code.write_text(RIGHT + "\n".join(WRONG) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
    )
    first = RIGHT.count("\n") + 1
    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert refused == set(range(first, first + len(WRONG))), done.stdout + done.stderr


def test_every_setting_may_be_given_by_name() -> None:
    for config, settings in (
        (ProducerConfig, ProducerSettings),
        (ConsumerConfig, ConsumerSettings),
    ):
        assert {field.name for field in fields(config)} == set(settings.__annotations__)


def test_an_unknown_setting_of_a_group_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown setting 'modes'"):
        connect_request("g", "t", "c", {"modes": "queue"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidArgumentError, match="unknown mode 'fifo'"):
        connect_request("g", "t", "c", {"mode": "fifo"})  # type: ignore[typeddict-item]

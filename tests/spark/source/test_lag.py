"""The lag that Structured Streaming tells of is the lag that `moldau group lag` shows."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.cli.main import run
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.spark


class Gate:
    """Holds each batch until it is let through."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._through = threading.Semaphore(0)
        self.rows = 0

    def __call__(self, frame: Any, number: int) -> None:
        self.rows += frame.count()
        self._arrived.release()
        assert self._through.acquire(timeout=wait_seconds_max())

    def wait(self) -> None:
        """Until a batch is here."""
        assert self._arrived.acquire(timeout=wait_seconds_max())

    def let_through(self) -> None:
        self._through.release()

    def open(self) -> None:
        self._through.release(1000)


def told_by_spark(query: Any, topic: str) -> dict[int, int]:
    """What lies between the end of the last batch and the end of the topic, by partition."""
    (source,) = query.lastProgress["sources"]
    latest = json.loads(source["latestOffset"])[topic]
    end = json.loads(source["endOffset"])[topic]
    return {int(partition): latest[partition] - end[partition] for partition in latest}


@pytest.fixture
def told_by_group(
    broker: Broker, capfd: pytest.CaptureFixture[str]
) -> Callable[[str, str], dict[int, int]]:
    def ask(group: str, topic: str) -> dict[int, int]:
        capfd.readouterr()
        assert run(["group", "lag", group, "-o", "json", "-b", broker.bootstrap]) == 0
        rows = json.loads(capfd.readouterr().out)
        return {row["partition"]: row["lag"] for row in rows if row["topic"] == topic}

    return ask


def test_the_lag_that_spark_reports_is_that_of_the_group(
    stream: Callable[..., Any],
    topic: str,
    fill: Callable[..., None],
    told_by_group: Callable[[str, str], dict[int, int]],
    tmp_path: Path,
) -> None:
    fill(topic, 0, count=100)
    gate = Gate()
    frame = stream(subscribe=topic, groupId=f"{topic}-group", maxOffsetsPerTrigger="30")
    writer = frame.writeStream.foreachBatch(gate).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="0 seconds").start()
    seen = []
    try:
        gate.wait()
        for partition, count in ((1, 50), (0, 7)):
            # While a batch is under way. The next one sees it, and tells when it is done, too.
            fill(topic, partition, count=count)
            for _ in range(2):
                gate.let_through()
                gate.wait()
            seen.append(told_by_spark(query, topic))
            assert told_by_group(f"{topic}-group", topic) == seen[-1]
        gate.open()
        query.processAllAvailable()
        none = {0: 0, 1: 0}
        wait_until(
            lambda: told_by_group(f"{topic}-group", topic) == none, "the group is up to date"
        )
        wait_until(lambda: told_by_spark(query, topic) == none, "Spark tells of no lag")
    finally:
        gate.open()
        query.stop()
    # There was something to tell: 150 less two batches of 30, then 157 less four.
    assert [sum(lags.values()) for lags in seen] == [90, 37]
    assert all(lag > 0 for lags in seen for lag in lags.values())
    assert gate.rows == 157

"""Loads of the comparison with Kafka move what they say, on real servers."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import servers
from benchmarks.harness import run_client
from benchmarks.sides import placed_topic

pytestmark = pytest.mark.system

KEYED = {"topic": "bench", "producers": 3, "size_min": 100, "size_max": 1024}


@pytest.mark.parametrize(
    ("kind", "spec", "messages_min"),
    [
        ("kafka-keyed", {"count": 3000, "chunk": 25, "pending_max": 250}, 3000),
        ("kafka-paced", {"rate": 500, "seconds": 1.0}, 250),
        ("kafka-transactions", {"seconds": 0.5, "producers": 2}, 100),
    ],
)
def test_a_load_of_each_shape_runs(
    kind: str, spec: dict[str, Any], messages_min: int, tmp_path: Path
) -> None:
    with servers.mock_cluster(tmp_path, 6) as mock:
        full = {**KEYED, "bootstrap": mock.bootstrap, "port": mock.port, **spec}
        sample = run_client(kind, full, mock.server)
    assert sample.messages >= messages_min
    assert sample.bytes >= 100 * sample.messages
    if kind == "kafka-paced":
        # What warms the producers up is not counted.
        assert sum(sample.detail["histogram"].values()) == sample.messages
        assert sample.detail["p50_us"] <= sample.detail["max_us"]


def test_a_backlog_is_drained_while_others_produce(tmp_path: Path) -> None:
    with servers.moldau(tmp_path) as running, placed_topic(running, 4, 1) as topic:
        spec = {
            **KEYED,
            "topic": topic,
            "partitions": 4,
            "port": running.port,
            "bootstrap": running.bootstrap,
            "size": 1024,
            "batch_bytes": 16_384,
            "count": 3000,
        }
        filled = run_client("kafka-raw-produce", spec, running.server)
        own = {**spec, "count": filled.messages, "readers": 3, "rate": 500}
        drained = run_client("kafka-drain", own, running.server)
        cold = run_client("kafka-fetch-cold", {**spec, "count": filled.messages}, running.server)
    assert drained.messages >= filled.messages
    assert cold.messages >= filled.messages

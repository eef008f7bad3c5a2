"""Produce: our broker beside librdkafka's in-memory mock, with the same clients, taking turns."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic

BATCHES = {"1MB": 1_000_000, "16KB": 16_384}
STEPS = 4


def run(bench: Bench) -> None:
    with (
        servers.moldau(bench.directory) as moldau,
        servers.mock_cluster(bench.directory, PARTITIONS) as mock,
    ):
        for size in (1024, 100):
            megabytes = bench.scale(400, 100) if size == 1024 else bench.scale(150, 40)
            for batch, batch_bytes in BATCHES.items():
                bench.step(f"produce {size} B, batches of {batch}")
                spec = {
                    "size": size,
                    "count": megabytes * 1_000_000 // size,
                    "partitions": PARTITIONS,
                    "batch_bytes": batch_bytes,
                    "acks": 1,
                }
                for _ in range(bench.repetitions):
                    _compare(bench, moldau, mock, f"produce.{size}.{batch}", spec)
                bench.done()


def _compare(
    bench: Bench,
    moldau: servers.Running,
    mock: servers.Running,
    metric: str,
    spec: dict[str, int],
) -> None:
    """One turn of each system with each client; a ratio is taken within the turn."""
    # confluent-kafka's Python bounds that client: a third of the load says as much.
    light = {**spec, "count": spec["count"] // 3}
    loads = (("kafka-produce", "rdkafka", spec), ("kafka-produce-confluent", "confluent", light))
    for kind, client, load in loads:
        with topic(moldau) as name:
            ours = bench.load(f"{metric}.{client}.moldau", kind, moldau, topic=name, **load)
        theirs = bench.load(f"{metric}.{client}.mock", kind, mock, topic="bench", **load)
        bench.record(f"{metric}.{client}.ratio", ours.mb_per_s / theirs.mb_per_s)
    with topic(moldau) as name:
        bench.load(f"{metric}.raw.moldau", "kafka-raw-produce", moldau, topic=name, **spec)
    bench.load(f"{metric}.raw.mock", "kafka-raw-produce", mock, topic="bench", **spec)

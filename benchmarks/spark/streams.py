"""Streams of small batches: what one costs, and what one costs that reads of many partitions."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.spark import decode
from moldau.client.wire.client import KafkaClient

SMALL_BATCHES = 25
SMALL_ROWS = 100
MANY_PARTITIONS = 500
MANY_ROWS = 2000
MANY_MS_MAX = 500
_FIRST = 3
"""Batches that warm up."""


def fill_many(bootstrap: str, topic: str, batches: int) -> None:
    """Rows for so many batches of a stream, in all partitions."""
    data = bytes(decode.made(100, MANY_ROWS // MANY_PARTITIONS, varied=False))
    with KafkaClient(bootstrap) as client:
        client.create_topic(topic, partitions=MANY_PARTITIONS, configs={"retention.ms": "-1"})
        for partition in range(MANY_PARTITIONS):
            for _ in range(batches):
                client.produce(topic, partition, data)


def durations(frame: Any, batches: int) -> list[dict[str, float]]:
    """What Spark says each batch took and for what, in ms, the first ones left out."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            deadline = time.monotonic() + 120
            found: dict[int, dict[str, float]] = {}
            while len(found) < batches and time.monotonic() < deadline and query.isActive:
                time.sleep(0.2)
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        found[progress["batchId"]] = dict(progress["durationMs"])
        finally:
            query.stop()
    return [took for _, took in sorted(found.items())][_FIRST:]


def median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(took.get(name, 0.0) for took in found)


def stream(spark: Any, bootstrap: str, topic: str, rows: int) -> Any:
    return (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .load()
    )


def measured(spark: Any, bootstrap: str, verdict: Callable[..., str]) -> dict[str, Any]:
    """Small batches beside those of a source in Python that does nothing, and of one built in."""
    builtin = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=SMALL_ROWS)
    frames = {
        "topic": stream(spark, bootstrap, "bench-100", SMALL_ROWS),
        "idle": spark.readStream.format("bench-idle").options(rows=SMALL_ROWS, tasks=1).load(),
        "rate": builtin.options(numPartitions=2).load(),
    }
    small: dict[str, list[float]] = {name: [] for name in frames}
    for _ in range(2):
        for name, frame in frames.items():
            small[name].append(median(durations(frame, SMALL_BATCHES), "triggerExecution"))
    best = {name: min(times) for name, times in small.items()}
    print("batches of 100 rows: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in best.items()))
    print(
        f"  of idle {best['topic'] / best['idle']:.2f}, of rate {best['topic'] / best['rate']:.2f}"
    )

    fill_many(bootstrap, "bench-many", SMALL_BATCHES)
    found = durations(stream(spark, bootstrap, "bench-many", MANY_ROWS), SMALL_BATCHES)
    many = {name: median(found, name) for name in found[0]}
    print(f"batches of {MANY_ROWS} rows of {MANY_PARTITIONS} partitions, ms:", end="")
    print("".join(f" {name} {ms:.0f}" for name, ms in many.items()))
    print(f"  in all {verdict(many['triggerExecution'], MANY_MS_MAX, at_most=True)}", flush=True)
    return {"small batches ms": best, "many partitions ms": many}

"""`python -m benchmarks.spark`: reads topics with Spark and prints ratios to what Spark can take.

Needs the extra `spark` and Java. Everything that is compared runs in turns in one session, and the
best round of each counts: other programs on the machine only ever make a round slower. Ratios are
those of rows per second of one core, of Spark's JVM and its Python workers together: the clock also
shows what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import ROOT, process_tree
from benchmarks.spark import archiving, connector, decode
from moldau.client.kafka.client import KafkaClient
from moldau.testing.broker import Broker

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Workers import the sources of this package.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

TASKS = 2


class Cost(NamedTuple):
    wall: float
    cpu: float


class Rate(NamedTuple):
    """Rows per second of the wall clock, and of one core's time."""

    wall: float
    cpu: float


FILL_RECORDS = 1000
SMALL_BATCHES = 25
SMALL_ROWS = 100
CEILING_MIN = 0.6
TUPLES_MIN = 3.0
OVERHEAD_MAX = 1.25
ARCHIVE_MIN = 0.8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows")
    parser.add_argument("--rounds", type=int, default=4, help="of each load (default 4)")
    parser.add_argument(
        "--connector",
        metavar="GROUP:NAME:VERSION",
        default=connector.package(),
        help="read with Spark's Kafka connector, too, if it can be fetched (default %(default)s); "
        "none leaves it out",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to a file")
    return parser.parse_args()


def session(cores: int, package: str | None) -> Any:
    from pyspark.sql import SparkSession

    from benchmarks.spark.sources import Ceiling, Idle, Tuples

    builder = SparkSession.builder
    if package is not None:
        builder = builder.config("spark.jars.packages", package)
    found = (
        builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("OFF")
    for source in (Ceiling, Idle, Tuples):
        found.dataSource.register(source)
    return found


def fill(bootstrap: str, topic: str, *, size: int, rows: int) -> None:
    """Batches as a producer under load makes them, alike in all partitions."""
    data = bytes(decode.made(size, FILL_RECORDS, varied=False))
    with KafkaClient(bootstrap) as client:
        # Its records are of a day long gone: none may be deleted while they are read.
        client.create_topic(topic, partitions=TASKS, configs={"retention.ms": "-1"})
        for partition in range(TASKS):
            for _ in range(rows // TASKS // FILL_RECORDS):
                for placed in decode.whole_batches(memoryview(data)):
                    end = placed.position + placed.header.size
                    client.produce(topic, partition, data[placed.position : end])


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its descendants, those that have ended included."""
    ticks = 0
    for found in process_tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{found}/stat").read_text().rpartition(")")[2].split()
            # User and system, then the same of children that were waited for.
            ticks += sum(int(fields[number]) for number in range(11, 15))
    return ticks / os.sysconf("SC_CLK_TCK")


def costs(spark: Any, work: Callable[[], None]) -> Cost:
    """What Spark took: its JVM and the Python workers below it, but not the broker."""
    jvm = spark.sparkContext._gateway.proc.pid
    began, cpu = time.perf_counter(), tree_cpu_seconds(jvm)
    work()
    return Cost(time.perf_counter() - began, tree_cpu_seconds(jvm) - cpu)


def noop(frame: Any) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def reading(
    spark: Any, bootstrap: str, size: int, rows: int, rounds: int, *, connector: bool
) -> dict[str, Rate]:
    """Rows per second of each way, the best of the rounds."""
    ready = {"rows": str(rows), "size": str(size), "tasks": str(TASKS)}
    topic = {"kafka.bootstrap.servers": bootstrap, "subscribe": f"bench-{size}"}
    # Tuples are slow: a part of the rows shows it as well.
    few = rows // 5
    part = {str(number): few // TASKS for number in range(TASKS)}
    some = {**topic, "endingOffsets": json.dumps({f"bench-{size}": part})}
    loads = {
        "topic": (spark.read.format("moldau").options(**topic).load(), rows),
        "ceiling": (spark.read.format("bench-ceiling").options(**ready).load(), rows),
        "tuples": (spark.read.format("bench-tuples").options(**some).load(), few),
    }
    if connector:
        loads["connector"] = (spark.read.format("kafka").options(**topic).load(), rows)
    best = dict.fromkeys(loads, Rate(0.0, 0.0))
    for number in range(rounds + 1):
        for name, (frame, count) in loads.items():
            took = costs(spark, noop(frame))
            if number:  # The first round warms up the JVM and the workers.
                before = best[name]
                best[name] = Rate(
                    max(before.wall, count / took.wall), max(before.cpu, count / took.cpu)
                )
    return best


def trigger_ms(frame: Any, batches: int) -> float:
    """The median time of a batch of few rows, the first ones left out."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            deadline = time.monotonic() + 120
            found: dict[int, float] = {}
            while len(found) < batches and time.monotonic() < deadline and query.isActive:
                time.sleep(0.2)
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        finally:
            query.stop()
    return statistics.median([took for number, took in sorted(found.items())][3:])


def overhead(spark: Any, bootstrap: str) -> dict[str, float]:
    """Times of small batches in ms: ours, those of a source in Python that does nothing, and those
    of the source that is built into Spark."""
    topic = (
        spark.readStream.format("moldau")
        .options(
            **{
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": "bench-100",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(SMALL_ROWS),
            }
        )
        .load()
    )
    rate = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=SMALL_ROWS, numPartitions=TASKS)
        .load()
    )
    idle = spark.readStream.format("bench-idle").options(rows=SMALL_ROWS, tasks=1).load()
    best: dict[str, float] = {}
    for _ in range(2):
        for name, frame in (("topic", topic), ("idle", idle), ("rate", rate)):
            best[name] = min(best.get(name, math.inf), trigger_ms(frame, SMALL_BATCHES))
    return best


def verdict(value: float, target: float, *, at_most: bool = False) -> str:
    met = value <= target if at_most else value >= target
    bound = f"{'at most' if at_most else 'at least'} {target:g}"
    return f"{value:5.2f}  ({bound}: {'met' if met else 'MISSED'})"


def tell(load: str, found: dict[str, Rate]) -> None:
    topic, ceiling, tuples = found["topic"], found["ceiling"], found["tuples"]
    for unit, rates in (
        ("rows/s of a core", {name: rate.cpu for name, rate in found.items()}),
        ("rows/s", {name: rate.wall for name, rate in found.items()}),
    ):
        print(f"{load}, {unit}:" + "".join(f"{k:>10} {v:10,.0f}" for k, v in rates.items()))
    print(f"  of the ceiling {verdict(topic.cpu / ceiling.cpu, CEILING_MIN)}", end="")
    print(f"   by the clock {topic.wall / ceiling.wall:.2f}")
    print(f"  of tuples      {verdict(topic.cpu / tuples.cpu, TUPLES_MIN)}", end="")
    print(f"   by the clock {topic.wall / tuples.wall:.2f}", flush=True)


def tell_archive(found: dict[str, list[tuple[int, Cost]]]) -> dict[str, Rate]:
    best = {
        name: Rate(
            max(rows / took.wall for rows, took in rounds), max(r / t.cpu for r, t in rounds)
        )
        for name, rounds in found.items()
    }
    ours, theirs = best["archive"], best["arrow files"]
    rates = "".join(f"{name:>14} {rate.cpu:10,.0f}" for name, rate in best.items())
    print(f"to Parquet, rows/s of a core:{rates}")
    print(f"  of arrow files {verdict(ours.cpu / theirs.cpu, ARCHIVE_MIN)}", end="")
    print(f"   by the clock {ours.wall / theirs.wall:.2f}")
    return best


def tell_decoding() -> dict[str, Any]:
    results: dict[str, Any] = {}
    print("record batches to Arrow columns, records/s of one core")
    for size, count, varied in ((100, 30_000, False), (100, 30_000, True), (1024, 6_000, False)):
        data = decode.made(size, count, varied=varied)
        found = {
            "ours": decode.rate(decode.ours, data),
            "compiled": decode.rate(decode.compiled, data),
            "one by one": decode.rate(decode.one_by_one, data),
        }
        name = f"{'up to ' if varied else ''}{size} B"
        results[f"decode {name}"] = found
        print(f"  {name:12}" + "".join(f"{k:>14} {v:12,.0f}" for k, v in found.items()), flush=True)
    return results


def tell_overhead(found: dict[str, float]) -> None:
    times = ", ".join(f"{name} {took:.0f} ms" for name, took in found.items())
    print(f"small batches: {times}")
    print(f"  of rate        {verdict(found['topic'] / found['rate'], OVERHEAD_MAX, at_most=True)}")
    print(f"  of idle        {found['topic'] / found['idle']:5.2f}", flush=True)


def main() -> int:
    options = arguments()
    scale = 5 if options.quick else 1
    package = None if options.connector == "none" else options.connector
    if package is not None and not connector.is_there(package):
        print(f"skipped: Spark's Kafka connector ({package}) could not be fetched")
        package = None
    results = tell_decoding()
    rows = {100: 2_000_000 // scale, 1024: 500_000 // scale}
    load = os.getloadavg()[0]
    print(f"load of the machine at the start: {load:.1f} on {os.cpu_count()} cores", flush=True)
    results["load"] = load
    with Broker(settings={"LOG__FLUSH": "never"}) as broker:
        for size, count in rows.items():
            fill(broker.bootstrap, f"bench-{size}", size=size, rows=count)
        for cores in (1, 2):
            spark = session(cores, package)
            for size, count in rows.items():
                found = reading(
                    spark,
                    broker.bootstrap,
                    size,
                    count,
                    options.rounds,
                    connector=package is not None,
                )
                results[f"local[{cores}] {size} B"] = found
                tell(f"local[{cores}], {size} B into noop", found)
            if cores == TASKS:
                results["small batches ms"] = small = overhead(spark, broker.bootstrap)
                tell_overhead(small)
                took = archiving.compared(
                    spark, costs, broker.bootstrap, "bench-100", options.rounds
                )
                results["to Parquet"] = tell_archive(took)
            spark.stop()
    for size in rows:
        one, two = results[f"local[1] {size} B"], results[f"local[2] {size} B"]
        print(f"from local[1] to local[2], {size} B: {two['topic'].wall / one['topic'].wall:.2f} x")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

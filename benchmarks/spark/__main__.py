"""`python -m benchmarks.spark`: reads topics with Spark and prints ratios to what Spark can take.

Needs the extra `spark` and Java. Everything that is compared runs in turns in one session, warm,
and the median of the rounds' ratios counts. Ratios are those of rows per second of one core, of
Spark's JVM and its Python workers together: the clock also shows what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import ROOT, process_tree
from benchmarks.spark import archiving, connector, decode, streams
from moldau.client.wire.client import KafkaClient
from moldau.spark.source import record_decoder
from moldau.spark.source.fetched_batches import whole_batches
from moldau.testing.broker import Broker

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Workers import the sources of this package.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

TASKS = 2
FILL_RECORDS = 1000
CEILING_MIN = {100: 0.8, 1024: 0.75}
CONNECTOR_MIN = {100: 2.0, 1024: 1.5}
ARCHIVE_MIN = 0.8
WARM_UP_ROUNDS = 2
"""Of the JVM's compiler and the workers; not counted."""


class Cost(NamedTuple):
    """Seconds of the clock, and of one core."""

    wall: float
    cpu: float


Rounds = dict[str, list[Cost]]
"""What each way to read the same rows took, round by round."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows")
    parser.add_argument("--rounds", type=int, default=5, help="of each load (default 5)")
    parser.add_argument(
        "--only",
        choices=["decode", "read", "stream", "archive"],
        help="a part of it (default: everything)",
    )
    parser.add_argument("--no-connector", action="store_true", help="without Spark's own one")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to a file")
    return parser.parse_args()


def session(cores: int, settings: Sequence[str] = ()) -> Any:
    from pyspark.sql import SparkSession

    from benchmarks.spark.sources import Ceiling, Idle

    builder = SparkSession.builder
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    found = (
        builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("OFF")
    for source in (Ceiling, Idle):
        found.dataSource.register(source)
    return found


def stop(spark: Any) -> None:
    """With its JVM: a second context in it could not load the connector again."""
    context = type(spark.sparkContext)
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    context._gateway = context._jvm = None


def fill(bootstrap: str, topic: str, *, size: int, rows: int) -> None:
    """Batches as a producer under load makes them, alike in all partitions."""
    data = bytes(decode.made(size, FILL_RECORDS, varied=False))
    with KafkaClient(bootstrap) as client:
        # Its records are of a day long gone: none may be deleted while they are read.
        client.create_topic(topic, partitions=TASKS, configs={"retention.ms": "-1"})
        for partition in range(TASKS):
            for _ in range(rows // TASKS // FILL_RECORDS):
                for placed in whole_batches(memoryview(data)):
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


def reading(spark: Any, bootstrap: str, size: int, rows: int, rounds: int, ways: str) -> Rounds:
    """The same rows from a topic, ready ones, and those of Spark's connector."""
    ready = {"rows": str(rows), "size": str(size), "tasks": str(TASKS)}
    topic = {"kafka.bootstrap.servers": bootstrap, "subscribe": f"bench-{size}"}
    options = {"moldau": topic, "bench-ceiling": ready, "kafka": topic}
    frames = {way: spark.read.format(way).options(**options[way]).load() for way in ways.split()}
    took: Rounds = {way: [] for way in frames}
    for number in range(rounds + WARM_UP_ROUNDS):
        for way, frame in frames.items():
            cost = costs(spark, noop(frame))
            if number >= WARM_UP_ROUNDS:
                took[way].append(cost)
    return took


def verdict(value: float, target: float, *, at_most: bool = False) -> str:
    met = value <= target if at_most else value >= target
    bound = f"{'at most' if at_most else 'at least'} {target:g}"
    return f"{value:5.2f}  ({bound}: {'met' if met else 'MISSED'})"


def times_as_fast(took: Rounds, first: str, second: str) -> Cost:
    """The median over the rounds: by the clock, and of a core's time."""
    pairs = list(zip(took[first], took[second], strict=True))
    return Cost(
        statistics.median(two.wall / one.wall for one, two in pairs),
        statistics.median(two.cpu / one.cpu for one, two in pairs),
    )


def report(load: str, rows: int, took: Rounds, targets: dict[str, float]) -> None:
    ours, *others = took
    print(f"{load}, µs of a core for a row, and rows/s by the clock:")
    for way, rounds in took.items():
        cpu = statistics.median(cost.cpu for cost in rounds)
        wall = statistics.median(cost.wall for cost in rounds)
        print(f"  {way:14} {cpu / rows * 1e6:6.2f} {rows / wall:12,.0f}")
    for way in others:
        found = times_as_fast(took, ours, way)
        print(f"  of {way:14} {verdict(found.cpu, targets[way])}", end="")
        print(f"   by the clock {found.wall:.2f}", flush=True)


def tell_decoding() -> dict[str, Any]:
    results: dict[str, Any] = {}
    print(f"record batches to Arrow columns, records/s of one core; ours: {record_decoder.KIND}")
    for size, count, varied in ((100, 30_000, False), (100, 30_000, True), (1024, 6_000, False)):
        data = decode.made(size, count, varied=varied)
        found = {
            "ours": decode.rate(decode.ours, data),
            "numpy": decode.rate(decode.by_numpy, data),
            "aiokafka": decode.rate(decode.by_aiokafka, data),
            "one by one": decode.rate(decode.one_by_one, data),
        }
        name = f"{'up to ' if varied else ''}{size} B"
        results[f"decode {name}"] = found
        print(f"  {name:12}" + "".join(f"{k:>14} {v:12,.0f}" for k, v in found.items()), flush=True)
    return results


def main() -> int:
    options = arguments()
    parts = [options.only] if options.only else ["decode", "read", "stream", "archive"]
    results: dict[str, Any] = {"load": os.getloadavg()[0]}
    print(f"load of the machine: {results['load']:.1f} on {os.cpu_count()} cores", flush=True)
    if "decode" in parts:
        results |= tell_decoding()
    if parts == ["decode"]:
        return 0
    scale = 5 if options.quick else 1
    rows = {100: 2_000_000 // scale, 1024: 500_000 // scale}
    with Broker(settings={"LOG__FLUSH": "never"}) as broker:
        for size, count in rows.items():
            fill(broker.bootstrap, f"bench-{size}", size=size, rows=count)
        for cores in (1, 2) if "read" in parts else ():
            spark = session(cores, options.conf)
            ways = "moldau bench-ceiling"
            if not options.no_connector:
                version = connector.add_to(spark)
                ways += " kafka" if version else ""
                print(
                    f"Spark {spark.version}, its Kafka connector {version}"
                    if version
                    else "skipped: Spark's Kafka connector could not be fetched"
                )
            for size, count in rows.items():
                took = reading(spark, broker.bootstrap, size, count, options.rounds, ways)
                results[f"local[{cores}] {size} B"] = took
                targets = {"bench-ceiling": CEILING_MIN[size], "kafka": CONNECTOR_MIN[size]}
                report(f"local[{cores}], {size} B", count, took, targets)
            stop(spark)
        if "stream" in parts or "archive" in parts:
            spark = session(TASKS, options.conf)
            if "stream" in parts:
                results |= streams.measured(spark, broker.bootstrap, verdict)
            if "archive" in parts:
                rounds = archiving.compared(
                    spark, costs, broker.bootstrap, "bench-100", options.rounds
                )
                results["to Parquet"] = rounds
                report("to Parquet", rows[100], rounds, {"arrow files": ARCHIVE_MIN})
            stop(spark)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

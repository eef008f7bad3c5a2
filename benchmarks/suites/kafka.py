"""Our brokers beside Apache Kafka, one and three of each: the same clients, loads and policies.

Two servers are alive at a time, ours and Kafka with the same policy, and take turns; each load is
warmed up first, because Java compiles while it runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import sides
from benchmarks.apache_kafka import Distribution, UnavailableError, distribution
from benchmarks.bench import Bench
from benchmarks.beside import (
    CASES,
    COMPILED,
    KAFKA,
    MB,
    PARTITIONS,
    ROWS,
    SHAPES,
    STEADY,
    Case,
    Unit,
)
from benchmarks.harness import BenchmarkError, Sample
from benchmarks.sides import (
    Side,
    Started,
    kafka_side,
    ours,
    placed_topic,
    sample_of,
)

STEPS = len(CASES)
Running = list[tuple[Side, Started]]
"""All sides, Kafka first."""
CLUSTER_SHARE = 0.4
"""Of a load, where three brokers share the machine of one."""
TRANSACTION_SECONDS, TRANSACTION_SECONDS_QUICK = 4.0, 1.0


def run(bench: Bench) -> None:
    found = available(bench)
    if found is None:
        for _ in range(STEPS):
            bench.done()
        return
    play(
        bench,
        found,
        CASES,
        lambda case, running: measure(bench, case, running, specification(bench, case)),
    )


def play(
    bench: Bench,
    found: Distribution,
    cases: Sequence[Case],
    measured: Callable[[Case, Running], None],
) -> None:
    """Measure all cases of the same servers one after another. One that fails ends no other."""
    failed = []
    for brokers, flush in dict.fromkeys((case.brokers, case.flush) for case in cases):
        bench.step(f"starting {brokers} × Kafka, flush={flush}")
        with started(bench, found, flush, brokers) as running:
            for case in cases:
                if (case.brokers, case.flush) != (brokers, flush):
                    continue
                bench.step(case.row.name)
                try:
                    measured(case, running)
                except BenchmarkError as error:
                    failed.append(f"{case.name}: {error}")
                bench.done()
    if failed:
        raise BenchmarkError("; ".join(failed))


def available(bench: Bench) -> Distribution | None:
    """Kafka, fetched if need be; or a note why there is none."""
    bench.step("fetching Apache Kafka, once")
    try:
        found = distribution()
    except UnavailableError as error:
        bench.note(f"Apache Kafka was skipped: {error}.")
        return None
    bench.versions["Apache Kafka"] = found.version
    bench.versions["Java"] = found.java_version
    if COMPILED not in {variant.key for variant in ours()}:
        bench.note(
            "Ours was measured interpreted alone: nothing fresh was compiled (make compile)."
        )
    bench.note(
        "Beside Apache Kafka: acks=all everywhere; Kafka runs with its own defaults, 1 GB of heap "
        "and G1. flush=never is Kafka's default, which never syncs by itself; flush=always is its "
        "log.flush.interval.messages=1. Ours syncs internal topics under both. On three brokers "
        "ours replies when a majority has a message, Kafka when all replicas in sync have it."
    )
    return found


@contextlib.contextmanager
def started(bench: Bench, found: Distribution, flush: str, brokers: int) -> Iterator[Running]:
    """All sides, Kafka first."""
    with contextlib.ExitStack() as stack:
        everyone = [kafka_side(found), *(variant.side() for variant in ours())]
        yield [
            (side, stack.enter_context(side.start(bench.directory, flush, brokers)))
            for side in everyone
        ]


def measure(
    bench: Bench,
    case: Case,
    running: Running,
    spec: dict[str, Any],
    before: Callable[[Started], None] = lambda _: None,
) -> None:
    """Warm every side up, then let them take turns; `before` prepares a server for a load."""
    with contextlib.ExitStack() as stack:
        # A load that writes has a topic of its own each time: an old log would be written back.
        topics: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, Any]]]] = {}
        for side, server in running:
            if case.row.is_filled:
                own = stack.enter_context(_filled(bench, case, server, spec))
                topics[side.key] = functools.partial(_same, own)
            else:
                topics[side.key] = functools.partial(fresh, case, server, spec)
            warm_up(bench, case, side, server, topics[side.key])
        for turn in range(bench.repetitions):
            samples = {}
            for side, server in running[:: 1 if turn % 2 else -1]:
                with topics[side.key]() as own:
                    metric = f"{case.metric}.{side.key}"
                    before(server)
                    samples[side.key] = bench.load(metric, case.row.kind, server.target, **own)
            record_ratios(bench, case, samples)


@contextlib.contextmanager
def fresh(case: Case, server: Started, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The load with an empty topic."""
    with placed_topic(
        server.target, spec["partitions"], case.brokers, on_first=case.row.on_first
    ) as topic:
        yield {**spec, "topic": topic}


@contextlib.contextmanager
def _same(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield spec


@contextlib.contextmanager
def _filled(
    bench: Bench, case: Case, server: Started, spec: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The load with a topic that holds what it is to read."""
    with fresh(case, server, spec) as own:
        whole = {"batch_bytes": MB, **own}
        filled = bench.load("beside.fill", "kafka-raw-produce", server.target, **whole)
        yield {**own, "count": filled.messages}


def warm_up(
    bench: Bench,
    case: Case,
    side: Side,
    server: Started,
    topic: Callable[[], contextlib.AbstractContextManager[dict[str, Any]]],
) -> None:
    """Kafka until it is steady. Ours once: it does not compile while it runs."""

    def load() -> Sample:
        with topic() as own:
            return sample_of(case.row.kind, server.target, own)

    if side.key != KAFKA:
        load()
        return
    is_first = case.row in (ROWS[0], SHAPES[0])
    limits = sides.QUICK if bench.quick else sides.warming(case.brokers, is_first=is_first)
    bench.record(STEADY, float(sides.is_steady(sides.warm_up(load, limits))))


def specification(bench: Bench, case: Case) -> dict[str, Any]:
    row = case.row
    spec = {**row.spec, "partitions": PARTITIONS, "acks": -1}
    if row.unit is Unit.TRANSACTIONS:
        seconds = TRANSACTION_SECONDS_QUICK if bench.quick else TRANSACTION_SECONDS
        return {**spec, "partitions": spec["producers"], "seconds": seconds}
    share = 1.0 if case.brokers == 1 else CLUSTER_SHARE
    return {**spec, "count": int(bench.scale(*row.count) * share)}


def record_ratios(bench: Bench, case: Case, samples: dict[str, Sample]) -> None:
    """Of each of our sides to Kafka within one turn."""
    theirs = samples[KAFKA]
    for key, mine in samples.items():
        if key == KAFKA:
            continue
        metric = f"{case.metric}.{key}"
        bench.record(f"{metric}.ratio", mine.messages_per_s / theirs.messages_per_s)
        bench.record(f"{metric}.cpu_ratio", mine.cpu_us_per_message / theirs.cpu_us_per_message)
        for name in ("p50", "p99"):
            if f"{name}_us" in mine.detail:
                ratio = mine.detail[f"{name}_us"] / theirs.detail[f"{name}_us"]
                bench.record(f"{metric}.{name}_ratio", ratio)

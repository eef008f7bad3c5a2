"""Shapes of the OpenMessaging benchmark, on one broker of ours and one of Kafka's.

Many producers whose keys spread few messages over many partitions, readers of a backlog while
producers go on, a reader of what only the disk has, and a fixed rate for minutes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from benchmarks.bench import Bench
from benchmarks.beside import COLD, KAFKA, PACED, SHAPE_CASES, SHAPE_PARTITIONS, Case
from benchmarks.latencies import summary
from benchmarks.page_cache import drop
from benchmarks.sides import Started, sample_of
from benchmarks.suites import kafka
from benchmarks.suites.kafka import Running

STEPS = len(SHAPE_CASES)
SLICE_SECONDS_MAX = 60.0
"""Of the long run: then it is the turn of the other server."""
PACED_WARM_SECONDS, PACED_WARM_SECONDS_QUICK = 15.0, 3.0
CACHED_SHARE_MAX = 0.1


def run(bench: Bench) -> None:
    found = kafka.available(bench)
    if found is None:
        for _ in range(STEPS):
            bench.done()
        return
    kafka.play(bench, found, SHAPE_CASES, lambda case, running: _measure(bench, case, running))


def _measure(bench: Bench, case: Case, running: Running) -> None:
    spec = {**kafka.specification(bench, case), "partitions": SHAPE_PARTITIONS}
    if case.row is PACED:
        _long_run(bench, case, running, spec)
    elif case.row is COLD:
        kafka.measure(bench, case, running, spec, before=lambda one: _make_cold(bench, one))
    else:
        kafka.measure(bench, case, running, spec)


def _make_cold(bench: Bench, server: Started) -> None:
    cached = drop(server.data_dirs)
    if cached > CACHED_SHARE_MAX:
        bench.note(
            f"DOUBTFUL: {cached:.0%} of the files of {server.target.server.name} stayed in memory "
            "when they were to be read from the disk."
        )


def slices(minutes: float) -> list[float]:
    """The seconds of a long run in equal parts, none longer than a minute, and at least two."""
    seconds = minutes * 60
    count = max(2, -(-int(seconds) // int(SLICE_SECONDS_MAX)))
    return [seconds / count] * count


def _long_run(bench: Bench, case: Case, running: Running, spec: dict[str, Any]) -> None:
    """Both servers in turns at the same rate; each keeps its topic, its log grows."""
    histograms: dict[str, Counter[int]] = {side.key: Counter() for side, _ in running}
    used = dict.fromkeys(histograms, 0.0)
    sent = dict.fromkeys(histograms, 0)
    metric = {side.key: f"{case.metric}.{side.key}" for side, _ in running}
    with contextlib.ExitStack() as stack:
        topics = {
            side.key: stack.enter_context(kafka.fresh(case, server, spec))
            for side, server in running
        }
        warm = PACED_WARM_SECONDS_QUICK if bench.quick else PACED_WARM_SECONDS
        for side, server in running:
            sample_of(case.row.kind, server.target, {**topics[side.key], "seconds": warm})
        for turn, seconds in enumerate(slices(bench.minutes)):
            for side, server in running[:: 1 if turn % 2 else -1]:
                own = {**topics[side.key], "seconds": seconds}
                sample = sample_of(case.row.kind, server.target, own)
                histogram = sample.detail["histogram"]
                histograms[side.key].update({int(at): n for at, n in histogram.items()})
                used[side.key] += sample.server_cpu_s
                sent[side.key] += sample.messages
    found = {key: summary(histogram) for key, histogram in histograms.items()}
    for key in found:
        for name, value in found[key].items():
            bench.record(f"{metric[key]}.{name}", value)
        bench.record(f"{metric[key]}.cpu_us_msg", used[key] * 1e6 / sent[key])
        if key != KAFKA:
            for name in ("p50", "p99", "p999", "max"):
                ratio = found[key][f"{name}_us"] / found[KAFKA][f"{name}_us"]
                bench.record(f"{metric[key]}.{name}_ratio", ratio)
            cpu = (used[key] / sent[key]) / (used[KAFKA] / sent[KAFKA])
            bench.record(f"{metric[key]}.cpu_ratio", cpu)
    bench.note(
        f"Long run: {bench.minutes:g} minutes on each server, in slices of at most a minute, in "
        f"turns; {case.row.spec['rate']:,} messages a second. Latency is from the call until the "
        "acknowledgement, as librdkafka counts it."
    )

"""The life of a cluster: idle with a thousand partitions, restarted, and without its leaders."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, topic
from benchmarks.cluster import (
    BROKERS,
    RunningCluster,
    await_spread,
    cluster,
    leaders,
    sent_between,
)
from benchmarks.failover import seconds_until_writable
from benchmarks.harness import cpu_seconds, median

STEPS = 3
GROUPS_FEW, GROUPS_MANY = 10, 1_000
FAILOVER_PARTITIONS = 12
SETTLE_S = 6.0


def run(bench: Bench) -> None:
    with cluster(bench.directory, name="life") as running:
        _failover(bench, running)
    with cluster(bench.directory, name="many") as running:
        _idle(bench, running)


# --- leaders that die -----------------------------------------------------------------------------


def _failover(bench: Bench, running: RunningCluster) -> None:
    """Kill the broker that leads most; each partition that it led is one value."""
    kills = bench.scale(20, 3)
    bench.step(f"SIGKILL of a leader, {kills} times")
    waits: list[float] = []
    with topic(running, FAILOVER_PARTITIONS, replicas=BROKERS) as name:
        for turn in range(kills):
            # Each broker in its turn, and always one that leads as much as the others do.
            await_spread(running, name)
            victim = running.cluster.brokers[turn % BROKERS + 1]
            led = [
                part for part, leader in leaders(running, name).items() if leader == victim.number
            ]
            survivors = [broker.port for broker in running.cluster.brokers if broker is not victim]
            waits += seconds_until_writable(victim, survivors, name, led)
            victim.kill()
            victim.start()
            running.cluster.wait_ready()
    waits.sort()
    bench.record("failover.p50_s", median(waits))
    bench.record("failover.p99_s", waits[len(waits) * 99 // 100])
    bench.record("failover.max_s", waits[-1])
    bench.note(
        f"A leader was killed {kills} times; {len(waits)} partitions that it led were tried with "
        "acks=all on both other brokers every 10 ms until one took a message. The longest took "
        f"{waits[-1]:.2f} s."
    )
    bench.done()


# --- a thousand partitions ------------------------------------------------------------------------


def _idle(bench: Bench, running: RunningCluster) -> None:
    seconds = bench.scale(15, 5)
    bench.step(f"idle with {GROUPS_FEW} partitions")
    with topic(running, GROUPS_FEW, replicas=BROKERS):
        few = _watch(bench, running, "idle.few", seconds)
    bench.step(f"idle with {GROUPS_MANY:,} partitions × {BROKERS}")
    begun = time.perf_counter()
    with topic(running, GROUPS_MANY, replicas=BROKERS):
        bench.record("idle.create_s", time.perf_counter() - begun)
        running.cluster.wait_ready()
        many = _watch(bench, running, "idle.many", seconds)
        if few is not None and many is not None:
            bench.record("idle.frames_ratio", many / few)
        bench.done()
        _restart(bench, running)


def _watch(bench: Bench, running: RunningCluster, metric: str, seconds: int) -> float | None:
    """CPU of each broker, and frames a second between all of them."""
    time.sleep(SETTLE_S)
    brokers = list(running.cluster.brokers)
    cpu = [cpu_seconds(broker.pid) for broker in brokers]
    sent, begun = sent_between(running), time.perf_counter()
    time.sleep(seconds)
    wall, after = time.perf_counter() - begun, sent_between(running)
    shares = [
        (cpu_seconds(broker.pid) - start) / wall for broker, start in zip(brokers, cpu, strict=True)
    ]
    for share in shares:
        bench.record(f"{metric}.cpu_percent", share * 100)
    bench.record(f"{metric}.cpu_percent_max", max(shares) * 100)
    bench.record(f"{metric}.rss_mb", running.server.rss_bytes() / BROKERS / 1e6)
    if sent is None or after is None:
        bench.note("Frames between brokers were not counted: there is no `ss` (package iproute2).")
        return None
    frames = (after[0] - sent[0]) / wall
    bench.record(f"{metric}.frames_s", frames)
    bench.record(f"{metric}.bytes_s", (after[1] - sent[1]) / wall)
    return frames


def _restart(bench: Bench, running: RunningCluster) -> None:
    """A clean stop and a kill, each followed by a start: ready, and in sync with all partitions."""
    bench.step(f"restart with {GROUPS_MANY:,} partitions")
    broker = running.cluster.brokers[BROKERS]
    for _ in range(1 if bench.quick else bench.repetitions):
        for how in ("clean", "killed"):
            begun = time.perf_counter()
            if how == "clean":
                broker.stop()
                bench.record("cluster.restart.stop_s", time.perf_counter() - begun)
            else:
                broker.kill()
            begun = time.perf_counter()
            broker.start()
            bench.record(f"cluster.restart.{how}.ready_s", time.perf_counter() - begun)
            running.cluster.wait_ready()
            bench.record(f"cluster.restart.{how}_s", time.perf_counter() - begun)
    bench.done()

"""Three brokers beside one: what it costs that every message is on a majority of disks or memories.

Replication factor 3 and acks=all on the cluster, acks=1 on the single broker; all of them on the
same few cores, taking turns.
"""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.cluster import BROKERS, RunningCluster, await_leader, cluster
from benchmarks.harness import cpu_seconds

STEPS = 4
CONNECTIONS = 8
IN_FLIGHT = 5
LED_BY_FIRST = [1, 2, 3]


def run(bench: Bench) -> None:
    with (
        servers.moldau(bench.directory, name="single") as single,
        cluster(bench.directory, flush="never", name="cluster-never") as never,
        cluster(bench.directory, flush="always", name="cluster-always") as always,
    ):
        both = {"never": never, "always": always}
        _throughput(bench, single, both, "confluent", "kafka-produce-confluent")
        _throughput(bench, single, both, "rdkafka", "kafka-produce")
        _latency(bench, both)
        _small(bench, both)


def _throughput(
    bench: Bench,
    single: servers.Running,
    clusters: dict[str, RunningCluster],
    client: str,
    kind: str,
) -> None:
    bench.step(f"three brokers: 1 KiB, 1 MB batches, {client}")
    spec = {
        "size": 1024,
        "count": bench.scale(200, 50) * 1_000_000 // 1024,
        "partitions": PARTITIONS,
        "batch_bytes": 1_000_000,
    }
    for _ in range(bench.repetitions):
        with topic(single) as name:
            one = bench.load(f"cluster.single.{client}", kind, single, topic=name, acks=1, **spec)
        rates = {}
        for flush, running in clusters.items():
            with topic(running, replicas=BROKERS) as name:
                metric = f"cluster.{flush}.{client}"
                sample = bench.load(metric, kind, running, topic=name, acks=-1, **spec)
                rates[flush] = sample.mb_per_s
        bench.record(f"cluster.{client}.ratio", rates["never"] / one.mb_per_s)
        bench.record(f"cluster.{client}.flush_ratio", rates["always"] / rates["never"])
    bench.done()


def _latency(bench: Bench, clusters: dict[str, RunningCluster]) -> None:
    bench.step("three brokers: one at a time")
    spec = {"size": 100, "count": bench.scale(5_000, 1_000), "acks": -1}
    for _ in range(bench.repetitions):
        for flush, running in clusters.items():
            with topic(running, 1, led_by=LED_BY_FIRST) as name:
                await_leader(running, name, LED_BY_FIRST[0])
                metric = f"cluster.lone.{flush}"
                sample = bench.load(metric, "kafka-raw-latency", running, topic=name, **spec)
                bench.record(f"{metric}.p50_ms", sample.detail["p50_us"] / 1e3)
    bench.done()


def _small(bench: Bench, clusters: dict[str, RunningCluster]) -> None:
    """All requests go to one leader: connection n writes to partition n modulo 6."""
    bench.step(f"three brokers: 100 B requests, {CONNECTIONS} connections")
    spec = {
        "size": 100,
        "count": bench.scale(150_000, 30_000),
        "partitions": PARTITIONS,
        "connections": CONNECTIONS,
        "in_flight": IN_FLIGHT,
        "acks": -1,
    }
    bench.note(
        f"Un-batched on three brokers: one broker leads all {PARTITIONS} partitions of the topic, "
        f"and each of the {CONNECTIONS} connections writes to one of them (connection n to "
        f"partition n modulo {PARTITIONS}); the other two brokers follow."
    )
    for _ in range(bench.repetitions):
        for flush, running in clusters.items():
            with topic(running, led_by=LED_BY_FIRST) as name:
                await_leader(running, name, LED_BY_FIRST[0])
                metric = f"cluster.small.{flush}"
                before = [cpu_seconds(broker.pid) for broker in running.cluster.brokers]
                sample = bench.load(metric, "kafka-raw-small", running, topic=name, **spec)
                spent = [
                    cpu_seconds(broker.pid) - start
                    for broker, start in zip(running.cluster.brokers, before, strict=True)
                ]
                bench.record(f"{metric}.leader_us", spent[0] * 1e6 / sample.messages)
                follower = sum(spent[1:]) / (BROKERS - 1)
                bench.record(f"{metric}.follower_us", follower * 1e6 / sample.messages)
    bench.done()

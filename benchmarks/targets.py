"""The targets of the product and where their measured values are found."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.beside import CASES, COMPILED, OURS, SHAPE_CASES, aims


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A metric, and the value that it must reach or not exceed."""

    name: str
    metric: str
    limit: float
    at_least: bool = False
    unit: str

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def text(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g} {self.unit}"


TARGETS = (
    *(
        Target(
            name=f"{load} 1 KiB, {batch} batches: TLS against plaintext, librdkafka",
            metric=f"tls.{load}.{batch}.ratio",
            limit=0.5,
            at_least=True,
            unit="×",
        )
        for load in ("produce", "consume")
        for batch in ("1MB", "16KB")
    ),
    Target(
        name="produce 1 KiB, 1 MB batches: MB/s against the mock, librdkafka (C)",
        metric="produce.1024.1MB.rdkafka.ratio",
        limit=0.75,
        at_least=True,
        unit="×",
    ),
    Target(
        name="produce 1 KiB, 1 MB batches: MB/s against the mock, confluent-kafka",
        metric="produce.1024.1MB.confluent.ratio",
        limit=0.75,
        at_least=True,
        unit="×",
    ),
    Target(
        name="produce 1 KiB, 1 MB batches: broker CPU",
        metric="produce.1024.1MB.rdkafka.moldau.cpu_ms_mb",
        limit=1.1,
        unit="ms/MB",
    ),
    Target(
        name="produce 1 KiB, 16 KB batches: broker CPU",
        metric="produce.1024.16KB.rdkafka.moldau.cpu_ms_mb",
        limit=2.8,
        unit="ms/MB",
    ),
    Target(
        name="consume 1 KiB: broker CPU, confluent-kafka",
        metric="consume.1024.confluent.moldau.cpu_ms_mb",
        limit=0.35,
        unit="ms/MB",
    ),
    Target(
        name="consume 100 B: broker CPU, confluent-kafka",
        metric="consume.100.confluent.moldau.cpu_ms_mb",
        limit=0.35,
        unit="ms/MB",
    ),
    Target(
        name="consume 1 KiB: broker CPU, raw fetches",
        metric="consume.1024.raw.moldau.cpu_ms_mb",
        limit=0.35,
        unit="ms/MB",
    ),
    Target(
        name="fetch of 1,000 partitions in a session, one has a new record: broker CPU",
        metric="consume.many.session_us",
        limit=150,
        unit="µs",
    ),
    Target(
        name="flush=always against never, 1 MB batches, acks=all: MB/s",
        metric="flush.ratio",
        limit=0.7,
        at_least=True,
        unit="×",
    ),
    Target(
        name="lone acks=all producer, flush=always: p50 above fdatasync's",
        metric="lone.over_fdatasync_ms",
        limit=0.4,
        unit="ms",
    ),
    Target(
        name="100 B requests, 8 connections × 5: broker CPU",
        metric="small.moldau.cpu_us_msg",
        limit=25,
        unit="µs each",
    ),
    Target(
        name="100 B requests, one at a time: p50",
        metric="latency.moldau.p50_us",
        limit=150,
        unit="µs",
    ),
    Target(
        name="start until the ready line: CPU",
        metric="start.cpu_s",
        limit=0.5,
        unit="s",
    ),
    Target(
        name="idle memory with 100 partitions: RSS",
        metric="memory.idle_mb",
        limit=70,
        unit="MB",
    ),
    Target(
        name="1,000 idle connections: more RSS",
        metric="memory.connections_mb",
        limit=20,
        unit="MB",
    ),
    Target(
        name="restart with 1 GB of log after a clean stop",
        metric="restart.clean_s",
        limit=1,
        unit="s",
    ),
    Target(
        name="restart with 1 GB of log after kill -9",
        metric="restart.killed_s",
        limit=5,
        unit="s",
    ),
    Target(
        name="100 members join 300 partitions, next-generation: stable after the last join",
        metric="groups.join.consumer.stable_s",
        limit=3,
        unit="s",
    ),
    Target(
        name="the same, classic",
        metric="groups.join.classic.stable_s",
        limit=3,
        unit="s",
    ),
    Target(
        name="1,000 groups commit 10 partitions every second: broker CPU",
        metric="groups.commit.core_percent",
        limit=30,
        unit="% of a core",
    ),
    Target(
        name="coordinator with 100,000 offsets: ready after its election",
        metric="groups.load.ready_s",
        limit=3,
        unit="s",
    ),
    Target(
        name="Python client, send of 100 B: time against confluent-kafka with a delivery callback",
        metric="client.send.ratio",
        limit=1.25,
        unit="×",
    ),
    Target(
        name="Python client, poll of 100 B from memory: time against confluent-kafka's consume",
        metric="client.poll.ratio",
        limit=1.25,
        unit="×",
    ),
    Target(
        name="queue over gRPC, batches of 100: sent, polled and acked",
        metric="queue.cycle.always.msg_s",
        limit=20_000,
        at_least=True,
        unit="messages/s",
    ),
    Target(
        name="100 workers on one partition: those that get work",
        metric="queue.share.with_work",
        limit=100,
        at_least=True,
        unit="workers",
    ),
    Target(
        name="redelivery after a lease of 2 s: against the lease",
        metric="queue.redeliver.times",
        limit=1.5,
        unit="×",
    ),
    Target(
        name="produce bodies of 1,000 messages over HTTP: rate against gRPC",
        metric="queue.http_ratio",
        limit=0.3,
        at_least=True,
        unit="×",
    ),
    Target(
        name="compaction, 1 KiB values, half of them superseded: per core of the worker",
        metric="compaction.none.core_mb_s",
        limit=40,
        at_least=True,
        unit="MB/s",
    ),
    Target(
        name="the same with lz4, before compression",
        metric="compaction.lz4.core_mb_s",
        limit=40,
        at_least=True,
        unit="MB/s",
    ),
    Target(
        name="produce during compaction against before: MB/s",
        metric="compaction.produce_ratio",
        limit=0.8,
        at_least=True,
        unit="×",
    ),
    Target(
        name="three brokers, acks=all, 1 KiB, 1 MB batches: MB/s against one broker with acks=1",
        metric="cluster.confluent.ratio",
        limit=0.5,
        at_least=True,
        unit="×",
    ),
    Target(
        name="the same: CPU of the three brokers together",
        metric="cluster.never.confluent.cpu_ms_mb",
        limit=4.5,
        unit="ms/MB",
    ),
    Target(
        name="the same with flush=always against never: MB/s",
        metric="cluster.confluent.flush_ratio",
        limit=0.7,
        at_least=True,
        unit="×",
    ),
    Target(
        name="three brokers, acks=all, one at a time, flush=never: p50",
        metric="cluster.lone.never.p50_ms",
        limit=0.6,
        unit="ms",
    ),
    Target(
        name="three brokers, acks=all, one at a time, flush=always: p50",
        metric="cluster.lone.always.p50_ms",
        limit=1.5,
        unit="ms",
    ),
    Target(
        name="three brokers, acks=all, 100 B requests, 8 × 5, flush=never: on one leader",
        metric="cluster.small.never.msg_s",
        limit=20_000,
        at_least=True,
        unit="requests/s",
    ),
    Target(
        name="three brokers, acks=all, 100 B requests, 8 × 5, flush=always: on one leader",
        metric="cluster.small.always.msg_s",
        limit=10_000,
        at_least=True,
        unit="requests/s",
    ),
    Target(
        name="1,000 partitions × 3 replicas, idle: CPU of the busiest broker",
        metric="idle.many.cpu_percent_max",
        limit=10,
        unit="% of a core",
    ),
    Target(
        name="the same: frames between brokers, against 10 partitions",
        metric="idle.frames_ratio",
        limit=1.2,
        unit="×",
    ),
    Target(
        name="restart with 1,000 partitions after a clean stop, until in sync with all",
        metric="cluster.restart.clean_s",
        limit=15,
        unit="s",
    ),
    Target(
        name="restart with 1,000 partitions after kill -9, until in sync with all",
        metric="cluster.restart.killed_s",
        limit=15,
        unit="s",
    ),
    Target(
        name="SIGKILL of a leader: its partitions writable again, p50",
        metric="failover.p50_s",
        limit=2,
        unit="s",
    ),
    Target(
        name="SIGKILL of a leader: its partitions writable again, p99",
        metric="failover.p99_s",
        limit=4,
        unit="s",
    ),
    Target(
        name="transactions of 100 messages against idempotent batches of 100, one producer, "
        "flush=always",
        metric="transactions.always.1.ratio",
        limit=0.5,
        at_least=True,
        unit="×",
    ),
    Target(
        name="transactions of 100 messages against idempotent batches of 100, eight producers, "
        "flush=always",
        metric="transactions.always.8.ratio",
        limit=0.5,
        at_least=True,
        unit="×",
    ),
    Target(
        name="the same with flush=never, where only transactions wait for the disk",
        metric="transactions.never.8.ratio",
        limit=0.5,
        at_least=True,
        unit="×",
    ),
)


TARGETS += tuple(
    Target(
        name=f"beside Apache Kafka{', compiled' * (side == COMPILED)}: {aim.name}",
        metric=f"{case.metric}.{side}.{aim.ratio}",
        limit=aim.limit,
        at_least=aim.at_least,
        unit="×",
    )
    for side in (OURS, COMPILED)
    for case in (*CASES, *SHAPE_CASES)
    for aim in aims(case)
)


def verdicts(bench: Bench) -> list[tuple[Target, float, bool]]:
    """The targets that this run has measured, their values, and whether they are met."""
    found = []
    for target in TARGETS:
        value = bench.value(target.metric)
        if value is not None:
            found.append((target, value, target.met(value)))
    return found

"""Consume: what reading a log from its start costs the broker."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic

STEPS = 2


def run(bench: Bench) -> None:
    with servers.moldau(bench.directory) as moldau:
        for size in (1024, 100):
            bench.step(f"consume {size} B")
            megabytes = bench.scale(400, 100) if size == 1024 else bench.scale(100, 30)
            with topic(moldau) as name:
                spec = {"topic": name, "size": size, "partitions": PARTITIONS}
                filled = bench.load(
                    f"fill.{size}",
                    "kafka-raw-produce",
                    moldau,
                    count=megabytes * 1_000_000 // size,
                    batch_bytes=1_000_000,
                    **spec,
                )
                for _ in range(bench.repetitions):
                    for kind, client in (
                        ("kafka-consume-confluent", "confluent"),
                        ("kafka-raw-fetch", "raw"),
                    ):
                        bench.load(
                            f"consume.{size}.{client}.moldau",
                            kind,
                            moldau,
                            count=filled.messages,
                            **spec,
                        )
            bench.done()

"""Small requests: one message each, where the cost of a request itself shows."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic

STEPS = 2
CONNECTIONS = 8
IN_FLIGHT = 5


def run(bench: Bench) -> None:
    with (
        servers.moldau(bench.directory) as moldau,
        servers.mock_cluster(bench.directory, PARTITIONS) as mock,
    ):
        spec = {"size": 100, "partitions": PARTITIONS, "acks": 1}
        bench.step(f"100 B requests, {CONNECTIONS} connections")
        pipelined = {
            **spec,
            "count": bench.scale(200_000, 40_000),
            "connections": CONNECTIONS,
            "in_flight": IN_FLIGHT,
        }
        for _ in range(bench.repetitions):
            with topic(moldau) as name:
                bench.load("small.moldau", "kafka-raw-small", moldau, topic=name, **pipelined)
            bench.load("small.mock", "kafka-raw-small", mock, topic="bench", **pipelined)
        bench.done()
        bench.step("100 B requests, one at a time")
        lone = {**spec, "count": bench.scale(10_000, 2_000)}
        for _ in range(bench.repetitions):
            with topic(moldau) as name:
                bench.load("latency.moldau", "kafka-raw-latency", moldau, topic=name, **lone)
            bench.load("latency.mock", "kafka-raw-latency", mock, topic="bench", **lone)
        bench.done()

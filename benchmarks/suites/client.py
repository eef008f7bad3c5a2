"""The Python client: what it adds to the confluent-kafka that it stands on."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import Bench, topic

LOADS = ("send", "poll", "async-send", "async-poll")
STEPS = len(LOADS)
SIZE = 100
COUNT = 10_000
"""Messages of a turn: tens of milliseconds."""


def run(bench: Bench) -> None:
    rounds = bench.scale(15, 7)
    with servers.moldau(bench.directory) as running:
        for load in LOADS:
            bench.step(f"{load} of the client and of confluent-kafka, in turns")
            for _ in range(bench.repetitions):
                with topic(running, 1) as name:
                    sample = bench.load(
                        f"client.{load}",
                        f"facade-{load}",
                        running,
                        topic=name,
                        size=SIZE,
                        count=COUNT,
                        rounds=rounds,
                    )
                for key in ("ratio", "cpu_ratio", "base_us", "ours_us"):
                    bench.record(f"client.{load}.{key}", sample.detail[key])
            bench.done()

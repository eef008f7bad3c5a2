"""TLS beside plaintext: the same loads by librdkafka, in turns."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic

BATCHES = {"1MB": 1_000_000, "16KB": 16_384}
SIZE = 1024
STEPS = 2


def run(bench: Bench) -> None:
    with (
        servers.moldau(bench.directory) as plain,
        servers.moldau_with_tls(bench.directory) as secure,
    ):
        for batch, batch_bytes in BATCHES.items():
            bench.step(f"TLS, batches of {batch}")
            for _ in range(bench.repetitions):
                _compare(bench, {"plain": plain, "tls": secure}, batch, batch_bytes)
            bench.done()


def _compare(bench: Bench, pair: dict[str, servers.Running], batch: str, batch_bytes: int) -> None:
    """One turn of each; a ratio is taken within the turn."""
    count = bench.scale(400, 100) * 1_000_000 // SIZE
    rates: dict[str, dict[str, float]] = {"produce": {}, "consume": {}}
    for name, running in pair.items():
        with topic(running) as created:
            spec = {"topic": created, "size": SIZE, "count": count, "partitions": PARTITIONS}
            made = bench.load(
                f"tls.produce.{batch}.{name}",
                "kafka-produce",
                running,
                batch_bytes=batch_bytes,
                acks=1,
                **spec,
            )
            read = bench.load(
                f"tls.consume.{batch}.{name}", "kafka-consume-confluent", running, **spec
            )
        rates["produce"][name], rates["consume"][name] = made.mb_per_s, read.mb_per_s
    for load, rate in rates.items():
        bench.record(f"tls.{load}.{batch}.ratio", rate["tls"] / rate["plain"])

"""Searches over HTTP through a whole topic, and how long others wait for the broker meanwhile."""

from __future__ import annotations

import random

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import free_port

CODECS = ("none", "lz4")
QUERIES = {
    "contains": "contains=needle",
    "json": "json=user.id%3D7000000",
    "path": "json=user.nowhere",
    "newest": "limit=1000",
}
"""Nothing matches the first three. Of `path`, all messages have the name, so each is decoded."""
STEPS = len(CODECS)
SIZE = 1024


def run(bench: Bench) -> None:
    port = free_port()
    settings = {"MOLDAU_HTTP__ADDR": f"127.0.0.1:{port}"}
    count = bench.scale(400_000, 50_000)
    with servers.moldau(bench.directory, settings=settings) as moldau:
        for codec in CODECS:
            bench.step(f"search of {count:,} messages of 1 KiB, {codec}")
            with topic(moldau, PARTITIONS) as name:
                _fill(moldau.bootstrap, name, count, codec)
                for _ in range(bench.repetitions):
                    for query, text in QUERIES.items():
                        bench.load(
                            f"search.{codec}.{query}",
                            "http-search",
                            moldau,
                            http_port=port,
                            topic=name,
                            query=text,
                            size=SIZE,
                            count=50_000 if query == "newest" else count,
                        )
            bench.done()


def _fill(bootstrap: str, name: str, count: int, codec: str) -> None:
    from confluent_kafka import Producer

    rng = random.Random(1)
    texts = [rng.randbytes(480).hex() for _ in range(1000)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "compression.type": codec,
            "queue.buffering.max.messages": count,
        }
    )
    for number in range(count):
        value = f'{{"user":{{"id":{number},"nowhereland":1}},"text":"{texts[number % 1000]}"}}'
        producer.produce(name, value[:-1].ljust(SIZE - 1) + "}", f"key-{number % 50}")
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()

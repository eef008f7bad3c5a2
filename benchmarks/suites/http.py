"""The HTTP server: records as JSON, many in a body and one by one."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import free_port

STEPS = 2
MESSAGES = 1000
CONNECTIONS = 4


def run(bench: Bench) -> None:
    port = free_port()
    settings = {"MOLDAU_HTTP__ADDR": f"127.0.0.1:{port}"}
    with servers.moldau(bench.directory, settings=settings) as moldau:
        bench.step(f"HTTP: bodies of {MESSAGES:,} messages")
        spec = {
            "http_port": port,
            "size": 100,
            "messages": MESSAGES,
            "connections": CONNECTIONS,
            "count": bench.scale(1_000_000, 200_000),
        }
        for _ in range(bench.repetitions):
            for metric, keyed in (("http.produce", False), ("http.produce.keyed", True)):
                with topic(moldau, PARTITIONS) as name:
                    bench.load(metric, "http-produce", moldau, topic=name, keyed=keyed, **spec)
        bench.done()
        bench.step("HTTP: one message at a time")
        lone = {"http_port": port, "size": 100, "count": bench.scale(5_000, 1_000)}
        for _ in range(bench.repetitions):
            with topic(moldau, PARTITIONS) as name:
                bench.load("http.one", "http-produce-one", moldau, topic=name, **lone)
        bench.done()

"""Other systems on the same load: six streams on disk, one connection, whole pipeline windows.

Each is driven by a client written for it on plain sockets with frames prepared beforehand, so that
no client library is measured; ours is driven through librdkafka and through such a client.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.servers import Running

SIZES = (1024, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    key: str
    name: str
    durability: str
    client: str
    start: Callable[[Path], AbstractContextManager[Running]]
    share: float = 1.0
    """Of the load: a slow system shows its rate with less."""


PEERS = (
    Peer(
        key="rabbitmq",
        name="RabbitMQ stream",
        durability="never synced",
        client="rabbitmq",
        start=lambda directory: servers.rabbitmq(directory, "stream"),
    ),
    Peer(
        key="rabbitmq-quorum",
        name="RabbitMQ quorum queue",
        durability="fsync always",
        client="amqp",
        start=lambda directory: servers.rabbitmq(directory, "quorum"),
        share=0.15,
    ),
    Peer(
        key="nats",
        name="NATS JetStream, file",
        durability="synced every 2 min",
        client="nats",
        start=servers.nats,
    ),
    Peer(
        key="redis",
        name="Redis stream, AOF",
        durability="fsync every second",
        client="redis",
        start=lambda directory: servers.redis(directory, "everysec"),
    ),
    Peer(
        key="redis-always",
        name="Redis stream, AOF",
        durability="fsync always",
        client="redis",
        start=lambda directory: servers.redis(directory, "always"),
    ),
)
STEPS = len(SIZES) * 2 + 1


def run(bench: Bench) -> None:
    with ExitStack() as stack:
        bench.step("starting other systems")
        peers = []
        for peer in PEERS:
            reason = servers.missing(peer.key)
            if reason:
                bench.note(f"{peer.name} ({peer.durability}) was skipped: {reason}.")
                continue
            peers.append((peer, stack.enter_context(peer.start(bench.directory))))
        moldau = stack.enter_context(servers.moldau(bench.directory))
        durable = stack.enter_context(
            servers.moldau(bench.directory, flush="always", name="moldau-always")
        )
        for size in SIZES:
            _throughput(bench, peers, moldau, durable, size)
        bench.step("one at a time, all systems")
        lone = {"size": 100, "count": bench.scale(3000, 1000)}
        for _ in range(bench.repetitions):
            for peer, running in peers:
                bench.load(f"peers.latency.{peer.key}", f"{peer.client}-latency", running, **lone)
            for key, running in (("moldau", moldau), ("moldau-always", durable)):
                with topic(running) as name:
                    bench.load(
                        f"peers.latency.{key}",
                        "kafka-raw-latency",
                        running,
                        topic=name,
                        acks=-1,
                        **lone,
                    )
        bench.done()


def _throughput(
    bench: Bench,
    peers: list[tuple[Peer, Running]],
    moldau: Running,
    durable: Running,
    size: int,
) -> None:
    megabytes = bench.scale(150, 50) if size == 1024 else bench.scale(50, 15)
    count = megabytes * 1_000_000 // size
    bench.step(f"all systems: {size} B")
    for _ in range(bench.repetitions):
        for peer, running in peers:
            spec = {"size": size, "partitions": PARTITIONS}
            produced = bench.load(
                f"peers.produce.{size}.{peer.key}",
                f"{peer.client}-produce",
                running,
                count=int(count * peer.share),
                **spec,
            )
            bench.load(
                f"peers.consume.{size}.{peer.key}",
                f"{peer.client}-consume",
                running,
                count=produced.messages,
                **spec,
            )
        for key, running in (("moldau", moldau), ("moldau-always", durable)):
            _ours(bench, key, running, size, count)
    bench.done()
    bench.done()


def _ours(bench: Bench, key: str, running: Running, size: int, count: int) -> None:
    spec = {"size": size, "partitions": PARTITIONS, "acks": -1}
    batches = (("", 1_000_000), ("-16KB", 16_384))
    for suffix, batch_bytes in batches:
        with topic(running) as name:
            load = {**spec, "topic": name, "batch_bytes": batch_bytes, "count": count}
            bench.load(f"peers.produce.{size}.{key}{suffix}", "kafka-produce", running, **load)
            # Every partition took one message more while the client warmed up.
            reading = {**load, "count": count + PARTITIONS}
            bench.load(f"peers.consume.{size}.{key}{suffix}", "kafka-raw-fetch", running, **reading)

"""Consume: what reading a log from its start costs the broker, and a fetch of many partitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from moldau.client.wire.connection import KafkaConnection
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

STEPS = 3
MANY_PARTITIONS = 1_000
FETCH_VERSION = 12
PRODUCE_VERSION = 9


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
        _many_partitions(bench, moldau)


def _many_partitions(bench: Bench, moldau: servers.Running) -> None:
    """CPU of the broker for a fetch that names many partitions, one of which has a new record;
    without what the record costs."""
    bench.step(f"fetches of {MANY_PARTITIONS:,} partitions")
    rounds = bench.scale(4_000, 800)
    with (
        topic(moldau, MANY_PARTITIONS) as name,
        KafkaConnection("127.0.0.1", moldau.port, client_id="bench") as connection,
    ):
        reader = ManyPartitions(connection, name)
        kinds = {"nothing": lambda _: None, "full": reader.full, "session": reader.in_session}
        for _ in range(bench.repetitions):
            found = {}
            for kind, fetch in kinds.items():
                reader.catch_up()
                begun = moldau.server.cpu_seconds()
                # A full fetch costs so much that fewer are enough.
                count = rounds // 4 if kind == "full" else rounds
                reader.run(count, fetch)
                found[kind] = (moldau.server.cpu_seconds() - begun) / count * 1e6
            for kind in ("full", "session"):
                bench.record(f"consume.many.{kind}_us", found[kind] - found["nothing"])
    full = bench.value("consume.many.full_us")
    bench.note(
        f"A fetch that names {MANY_PARTITIONS:,} partitions, without a session, costs the broker "
        f"{full or 0:,.0f} µs; what the new record costs is not counted in either."
    )
    bench.done()


class ManyPartitions:
    """Appends to one partition after another, and fetches from all of them."""

    def __init__(self, connection: KafkaConnection, name: str) -> None:
        self._connection = connection
        self._topic = name
        self._offsets = [0] * MANY_PARTITIONS
        self._turns = itertools.count()
        self._session = (0, 0)
        self._changed: list[int] = []

    def run(self, rounds: int, fetch: Callable[[int], None]) -> None:
        for _ in range(rounds):
            index = next(self._turns) % MANY_PARTITIONS
            self._append(index)
            fetch(index)

    def catch_up(self) -> None:
        """With full fetches, each of which opens a session."""
        self._session = (0, 0)
        while self._ask(range(MANY_PARTITIONS)):
            self._session = (0, 0)
        self._session = (self._session[0], 1)
        self._changed = []

    def full(self, index: int) -> None:
        self._session = (0, -1)
        self._check(index, self._ask(range(MANY_PARTITIONS)))

    def in_session(self, index: int) -> None:
        number, epoch = self._session
        self._check(index, self._ask(self._changed))
        self._changed = [index]
        self._session = (number, epoch + 1)

    def _check(self, index: int, found: list[int]) -> None:
        if found != [index]:
            raise RuntimeError(f"partitions {found} have data; {index} should")

    def _append(self, index: int) -> None:
        data = build_batch([Record(Offset(0), TimestampMs(0), None, bytes(100), [])])
        partition = ProducePartition(index=index, records=data)
        topics = [ProduceTopic(name=self._topic, topic_id=bytes(16), partitions=[partition])]
        request = ProduceRequest(acks=1, timeout_ms=10_000, topics=topics)
        self._connection.request(request, ProduceResponse, PRODUCE_VERSION)

    def _ask(self, indexes: Iterable[int]) -> list[int]:
        """The partitions that have data."""
        number, epoch = self._session
        partitions = [
            FetchPartition(
                partition=index, fetch_offset=self._offsets[index], partition_max_bytes=1 << 20
            )
            for index in indexes
        ]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_id=number,
            session_epoch=epoch,
            topics=[FetchTopic(topic=self._topic, partitions=partitions)] if partitions else [],
        )
        response = self._connection.request(request, FetchResponse, FETCH_VERSION)
        self._session = (response.session_id, epoch)
        found = []
        for each in response.topics:
            for partition in each.partitions:
                if partition.records:
                    found.append(partition.partition_index)
                    self._offsets[partition.partition_index] = partition.high_watermark
        return found

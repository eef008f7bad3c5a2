"""A compacted topic on a real broker: every client steps over what is gone; kills lose nothing."""

import asyncio
import random
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.structs import TopicPartition

from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.records.batch import read_header
from moldau.records.compact import is_filler
from moldau.records.record import read_records
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system
TOPIC = "compacted"
SETTINGS = {"LOG__COMPACTION_CHECK_MS": "100"}
KEYS = 20
Found = list[tuple[int, bytes, bytes | None]]


def create(broker: Broker | Cluster, copies: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        **config,
    }
    topic = NewTopic(TOPIC, num_partitions=1, replication_factor=copies, config=settings)
    admin.create_topics([topic])[TOPIC].result(wait_seconds_max())


def new_producer(broker: Broker | Cluster, **more: object) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 7,
            **more,
        }
    )


def replay(found: Found) -> dict[bytes, bytes]:
    """The values of the keys that are left."""
    values: dict[bytes, bytes] = {}
    for _, key, value in found:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


class Writer:
    """Writes keys at random and remembers what was acknowledged, with its offset."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.acked: dict[int, tuple[bytes, bytes | None]] = {}

    def write(self, producer: confluent_kafka.Producer, count: int, *, quiet: bool = False) -> None:
        for _ in range(count):
            key = b"key-%d" % self.rng.randrange(KEYS)
            value = (
                None if self.rng.random() < 0.1 else self.rng.randbytes(self.rng.choice((9, 400)))
            )
            producer.produce(TOPIC, value, key, on_delivery=self._note)
            producer.poll(0)
        left = producer.flush(wait_seconds_max())
        assert quiet or left == 0

    def _note(self, error: object, message: Any) -> None:
        if error is None:
            self.acked[message.offset()] = (message.key(), message.value())

    def last(self, end: int | None = None) -> dict[bytes, bytes]:
        """The values of all keys, or what they were at an offset."""
        offsets = sorted(offset for offset in self.acked if end is None or offset < end)
        return replay([(offset, *self.acked[offset]) for offset in offsets])

    def check(self, found: Found, end: int | None = None) -> None:
        """Offsets and contents as they were acknowledged; every key's last value is there."""
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        for offset, key, value in found:
            assert self.acked.get(offset, (key, value)) == (key, value)
        assert replay(found) == self.last(end)


def read_confluent(broker: Broker | Cluster, start: int = 0, **more: object) -> Found:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"reader-{time.monotonic_ns()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **more,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, start)])
    found: Found = []
    try:
        while True:
            message: Any = consumer.poll(wait_seconds_max())
            assert message is not None, f"no end after {len(found)} messages"
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def read_kafka_python(broker: Broker, start: int, end: int) -> Found:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="none", enable_auto_commit=False
    )
    place = TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek(place, start)
    found: Found = []

    def is_at_the_end() -> bool:
        for messages in consumer.poll(timeout_ms=500).values():
            found.extend((m.offset, m.key, m.value) for m in messages)
        return bool(consumer.position(place) >= end)

    try:
        wait_until(is_at_the_end, "kafka-python has read all")
    finally:
        consumer.close()
    return found


async def read_aiokafka(broker: Broker, start: int, end: int) -> Found:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="none", enable_auto_commit=False
    )
    await consumer.start()
    place = aiokafka.TopicPartition(TOPIC, 0)
    found: Found = []
    try:
        consumer.assign([place])
        consumer.seek(place, start)
        async with asyncio.timeout(wait_seconds_max()):
            while await consumer.position(place) < end:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [(m.offset, m.key, m.value) for m in messages]
    finally:
        await consumer.stop()
    return found


def read_kcat(broker: Broker, start: int) -> Found:
    command = ["kcat", "-C", "-b", broker.bootstrap, "-t", TOPIC, "-p", "0", "-o", str(start)]
    output = subprocess.run(
        [*command, "-e", "-q", "-f", "%o %k %S\n"],
        capture_output=True,
        timeout=wait_seconds_max(),
        check=True,
    ).stdout
    found: Found = []
    for line in output.splitlines():
        offset, key, size = line.split()
        found.append((int(offset), key, None if int(size) < 0 else size))
    return found


def cleaned_files(broker: Broker, topic: str = TOPIC) -> list[Path]:
    """Segments that a cleaning wrote; their names carry its number."""
    found = (broker.data_dir / "topics" / topic).glob("*/*/*.log")
    return [path for path in found if path.name.count(".") == 2]


def empty_batches(broker: Broker) -> tuple[int, int]:
    """How many there are that only stand for offsets, and how many that name a producer."""
    fillers = named = 0
    for path in cleaned_files(broker):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # Cleaned once more meanwhile.
            continue
        position = 4096
        while position + 61 <= len(data):
            header = read_header(data, position)
            if is_filler(header):
                fillers += 1
            elif not header.record_count:
                named += 1
            position += header.size
    return fillers, named


def is_cleaned(broker: Broker) -> bool:
    """Whether the broker has nothing left to compact: what it holds stays as it is."""
    with urllib.request.urlopen(
        f"http://{broker.http_address}/metrics", timeout=wait_seconds_max()
    ) as answer:
        told = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
    return float(told["moldau_compaction_due_partitions"]) == 0


@pytest.mark.safety
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_every_client_reads_a_compacted_topic_from_every_offset(codec: str, tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data", settings=SETTINGS)
    with broker:
        create(broker)
        producer = new_producer(broker, **{"compression.type": codec})
        writer = Writer(1)
        writer.write(producer, 600)
        wait_until(lambda: cleaned_files(broker), "something is compacted")
        # Twice cleaned, so that there are runs of what was emptied before.
        writer.write(producer, 600)
        first = set(cleaned_files(broker))
        wait_until(lambda: set(cleaned_files(broker)) != first, "it is compacted once more")
        wait_until(lambda: empty_batches(broker)[0] > 0, "batches are empty")
        # The producer goes on where it was: its numbers are known.
        writer.write(producer, 50)
        wait_until(lambda: is_cleaned(broker), "all is compacted")
        found = read_confluent(broker)
        writer.check(found)
        assert len(found) < 600
        end = max(writer.acked) + 1
        holes = [o for o in range(end) if o not in {offset for offset, _, _ in found}]
        rng = random.Random(2)
        starts = [0, holes[len(holes) // 2], holes[-1], *rng.sample(range(end), 2)]
        for start in starts:
            newest = read_confluent(broker, start)
            assert newest == [m for m in newest if m[0] >= start]
            writer_view = [m for m in found if m[0] >= start]
            # A cleaning may have come between: then there is less, and never anything else.
            assert set(newest) <= set(writer_view)
            for other in (
                read_kafka_python(broker, start, end),
                asyncio.run(read_aiokafka(broker, start, end)),
            ):
                assert set(other) <= set(writer_view)
                assert {key for _, key, _ in other} == {key for _, key, _ in newest}
            if shutil.which("kcat"):
                offsets = [offset for offset, _, _ in read_kcat(broker, start)]
                assert set(offsets) <= {offset for offset, _, _ in writer_view}
                assert len(offsets) > 0 or not newest


@pytest.mark.safety
def test_a_compacted_topic_survives_kills_in_the_middle_of_it(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data", settings=SETTINGS)
    writer = Writer(3)
    rng = random.Random(4)
    broker.start()
    create(broker)
    broker.kill()
    seen: set[int] = set()
    turns = 0
    while turns < 2 or len(seen) <= 300:
        turns += 1
        broker.start()
        try:
            producer = new_producer(broker)
            before = set(cleaned_files(broker))
            writer.write(producer, 400)
            time.sleep(rng.random() * 0.6)
            if turns > 2:
                # A slow machine is never done so soon: it would be killed for ever.
                await_compaction(broker, before)
        finally:
            broker.kill()
        broker.start()
        try:
            found = read_confluent(broker)
            writer.check(found)
            # What was gone once does not come back.
            present = {offset for offset, _, _ in found}
            assert not present & seen
            seen |= set(writer.acked) - present
        finally:
            broker.kill()


def await_compaction(broker: Broker, before: set[Path]) -> None:
    wait_until(
        lambda: set(cleaned_files(broker)) - before and is_cleaned(broker), "all is compacted"
    )


def stored(broker: Broker) -> tuple[Found, int]:
    """The records in the log of a broker that does not run, and its end; its batches are dense."""
    (path,) = (broker.data_dir / "topics" / TOPIC).glob("*/0")
    log = open_disk_log(OsFiles(path.parent), path.name, LogConfig())
    found: Found = []
    offset = log.start_offset
    for batch in log.batches(offset):
        header = read_header(batch)
        assert header.base_offset == offset
        offset = header.next_offset
        found += [(r.offset, r.key or b"", r.value) for r in read_records(batch)]
    assert offset == log.end_offset
    return found, offset


def read_to_the_last(cluster: Cluster, writer: Writer) -> Found:
    """All that was acknowledged: a leader just elected may not know yet how far that is.

    With tombstones that go at once, a reader may have seen a value before both went: it reads
    again. A key that came back for good is found by the next reading, too.
    """

    def whole() -> Found | None:
        found = read_confluent(cluster)
        is_whole = bool(found) and found[-1][0] >= max(writer.acked)
        return found if is_whole and not replay(found).keys() - writer.last().keys() else None

    found = wait_until(whole, "the last record is there, and no key is back")
    assert found is not None
    return found


@pytest.mark.safety
def test_replicas_that_compact_each_for_itself_stay_one_log(tmp_path: Path) -> None:
    """Whoever dies, whoever leads: the others may have compacted more, or less, or nothing."""
    writer = Writer(5)
    rng = random.Random(6)
    seen: set[int] = set()
    with Cluster(brokers=3, data_dir=tmp_path, settings=SETTINGS) as cluster:
        create(cluster, copies=3)
        producer = new_producer(cluster, **{"log_level": 0, "message.timeout.ms": 120_000})
        turn = 0
        while turn < 2 or len(seen) <= 500:
            turn += 1
            writer.write(producer, 300)
            leader = cluster.leader(TOPIC, 0)
            others = cluster.followers(TOPIC, 0)
            victim = rng.choice(others) if turn % 2 else leader
            victim.kill()
            writer.write(producer, 500)
            # Those that are left compact what the third one does not have.
            time.sleep(rng.random())
            if turn > 2:
                await_compaction(cluster.leader(TOPIC, 0), set())
            victim.start()
            cluster.wait_ready()
            found = read_to_the_last(cluster, writer)
            writer.check(found)
            present = {offset for offset, _, _ in found}
            seen |= set(writer.acked) - present
        wait_until(
            lambda: all(cleaned_files(broker) for broker in cluster.brokers), "all have compacted"
        )
        cluster.wait_ready()
        brokers = list(cluster.brokers)
        cluster.stop()
        ends: list[int] = []
        for broker in brokers:
            found, end = stored(broker)
            # One that was started last may be stopped before it has caught up with the others.
            writer.check(found, end)
            ends.append(end)
        assert sorted(ends)[1] > max(writer.acked)


@pytest.mark.safety
def test_committed_offsets_outlive_the_compaction_of_their_topic(tmp_path: Path) -> None:
    settings = SETTINGS | {"LOG__SEGMENT_BYTES": "4096"}
    broker = Broker(data_dir=tmp_path / "data", settings=settings)
    broker.start()
    place = confluent_kafka.TopicPartition(TOPIC, 0)
    groups = ["one", "two", "three"]
    try:
        create(broker)
        consumers = {
            group: confluent_kafka.Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": group}
            )
            for group in groups
        }
        for number in range(40):
            for group in groups:
                offset = confluent_kafka.TopicPartition(TOPIC, 0, number * 10 + len(group))
                consumers[group].commit(offsets=[offset], asynchronous=False)
        wait_until(lambda: cleaned_files(broker, "__consumer_offsets"), "commits are compacted")
        for consumer in consumers.values():
            consumer.close()
    finally:
        broker.kill()
    with broker:
        for group in groups:
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": group}
            )
            (found,) = consumer.committed([place], timeout=wait_seconds_max())
            assert found.offset == 390 + len(group)
            consumer.close()

"""A backup under load, and its restore on a new cluster: identical up to the backup's offsets.

Restores as docs/operate/backup.md says.
"""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest
from backup_commands import failing, run, succeeding
from queue_worker import CALL_SECONDS, Worker, door

from moldau.client.backup.manifests import Manifest, load_manifest, manifest_numbers
from moldau.client.backup.stores import DirectoryStore
from moldau.client.errors import RejectedError
from moldau.client.kafka.admin import Admin
from moldau.client.queue.sync_client import QueueClient
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.wire.group_offsets import GroupOffsets
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.proto.v1 import queue_pb2 as pb
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.system, pytest.mark.safety]

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "sales": {},
    "keyed": {"cleanup.policy": "compact"},
    "trimmed": {},
}
PARTITIONS = 2
GROUP, QUEUE = "readers", "workers"


class Load:
    """Producers, one of them with transactions, and a consumer that commits, until it is ended."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self.rounds = [0, 0, 0]
        self.failures: list[BaseException] = []
        works = (self._produce, self._transact, self._consume)
        self._threads = [
            threading.Thread(target=self._run, args=(number, work))
            for number, work in enumerate(works)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(wait_seconds_max())
        assert not self.failures, self.failures

    def _run(self, number: int, work: Callable[[int], None]) -> None:
        try:
            work(number)
        except BaseException as error:
            self.failures.append(error)

    def _produce(self, number: int) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
            }
        )
        while not self._ended.is_set():
            at = self.rounds[number]
            for each in range(200):
                key = f"k{each % 7}"
                headers: list[tuple[str, str | bytes | None]] = [("round", b"%d" % at)]
                for topic in ("plain", "keyed", "trimmed"):
                    producer.produce(topic, b"%d" % each, key, headers=headers)
            assert producer.flush(wait_seconds_max()) == 0
            self.rounds[number] += 1

    def _transact(self, number: int) -> None:
        """Two that overlap: one is open whenever the other one ends, and each third is aborted."""
        producers = [
            confluent_kafka.Producer(
                {"bootstrap.servers": self._bootstrap, "transactional.id": f"t{each}"}
            )
            for each in range(2)
        ]
        for producer in producers:
            producer.init_transactions(wait_seconds_max())
        producers[0].begin_transaction()
        while not self._ended.is_set():
            at = self.rounds[number]
            ending, beginning = producers[at % 2], producers[(at + 1) % 2]
            for producer in (ending, beginning):
                if producer is beginning:
                    producer.begin_transaction()
                for each in range(20):
                    producer.produce("sales", b"%d-%d" % (at, each), f"s{each}")
                producer.flush(wait_seconds_max())
            if at % 3:
                ending.commit_transaction(wait_seconds_max())
            else:
                ending.abort_transaction(wait_seconds_max())
            self.rounds[number] += 1

    def _consume(self, number: int) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["plain", "sales"])
        while not self._ended.is_set():
            if consumer.consume(100, 0.2):
                consumer.commit(asynchronous=False)
                self.rounds[number] += 1
        consumer.close()


class World(NamedTuple):
    source: Broker
    target: Cluster
    place: Path
    manifest: Manifest
    settled: set[bytes]
    """Messages of the queue that were acknowledged before the backup."""


def prepare(source: Broker) -> set[bytes]:
    admin = Admin(f"{source.host}:{source.port}")
    admin.create_topic(QUEUE, partitions=1)
    for name, config in TOPICS.items():
        admin.create_topic(name, partitions=PARTITIONS, config=config)
    channel, stub = door(source.grpc_address)
    with channel:
        messages = [pb.OutgoingMessage(value=b"job%d" % number) for number in range(10)]
        request = pb.SendBatchRequest(topic=QUEUE, messages=messages)
        for answer in stub.SendBatch(iter([request]), timeout=CALL_SECONDS):
            assert not answer.failures
    with Worker(source.grpc_address, "jobs", QUEUE, mode=pb.QUEUE) as worker:
        polled = worker.poll(6, wait_ms=5000)
        assert worker.ack(*polled[::2]) == []
        return {message.value for message in polled[::2]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("backups") / "main"
    with Broker() as source, Cluster(brokers=3) as target:
        settled = prepare(source)
        with Load(f"{source.host}:{source.port}") as load:
            wait_until(lambda: min(load.rounds) > 2, "load")
            with KafkaClient(f"{source.host}:{source.port}") as client:
                end = client.list_offset("trimmed", 0)
            assert end > 0
            trim(source, "trimmed", 0, end - 7)
            backup("create", place, source)
            first = list(load.rounds)
            wait_until(lambda: min(map(int.__sub__, load.rounds, first)) > 2, "more load")
            # The second copies only what is new.
            backup("create", place, source)
        store = DirectoryStore(place)
        assert manifest_numbers(store) == [1, 2]
        manifest = load_manifest(store, 2)
        succeeding("backup", "restore", str(place), "--http", http_of(target))
        yield World(source, target, place, manifest, settled)


def trim(source: Broker, topic: str, partition: int, offset: int) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"{source.host}:{source.port}"})
    place = confluent_kafka.TopicPartition(topic, partition, offset)
    for future in admin.delete_records([place]).values():
        future.result(wait_seconds_max())


def http_of(target: Cluster) -> str:
    return target.brokers[2].http_address


def backup(command: str, place: Path, source: Broker, *more: str) -> str:
    return succeeding("backup", command, str(place), "--http", source.http_address, *more)


def records(bootstrap: str, topic: str, partition: int, end: int, isolation: str) -> list[object]:
    """What a consumer gets below an offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    place = confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)
    consumer.assign([place])
    found: list[object] = []
    while (message := consumer.poll(wait_seconds_max())) is not None:
        if message.error() is not None or (message.offset() or 0) >= end:
            break
        found.append(
            (
                message.offset(),
                message.timestamp(),
                message.key(),
                message.value(),
                message.headers(),
            )
        )
    consumer.close()
    return found


def test_every_batch_is_identical_in_the_new_cluster(world: World) -> None:
    said = backup("verify", world.place, world.source)
    assert "whole and undamaged" in said
    said = succeeding(
        "backup", "verify", str(world.place), "--against", "--http", http_of(world.target)
    )
    assert "identical in the cluster" in said
    said = backup("verify", world.place, world.source, "--against")
    assert "identical in the cluster" in said


def test_consumers_get_the_same_records_at_the_same_offsets(world: World) -> None:
    source = f"{world.source.host}:{world.source.port}"
    aborted = 0
    for copy in world.manifest.partitions:
        if copy.topic == "sales" or (copy.topic, copy.partition) == ("trimmed", 0):
            both = [
                [
                    records(bootstrap, copy.topic, copy.partition, copy.end, isolation)
                    for isolation in ("read_committed", "read_uncommitted")
                ]
                for bootstrap in (source, world.target.bootstrap)
            ]
            assert both[0] == both[1]
            assert both[0][1]
            aborted += len(both[0][1]) - len(both[0][0])
    assert aborted > 0


def test_starts_ends_and_committed_offsets_are_those_of_the_backup(world: World) -> None:
    with KafkaClient(world.target.bootstrap) as client:
        for copy in world.manifest.partitions:
            where = copy.topic, copy.partition
            assert client.list_offset(*where, OFFSET_EARLIEST) == copy.start, where
            end = copy.end + len(copy.markers)
            assert client.list_offset(*where) == end, where
            assert client.list_offset(*where, read_committed=True) == end, where
    assert any(copy.start > 0 for copy in world.manifest.partitions)
    assert any(copy.markers for copy in world.manifest.partitions)
    with GroupOffsets(world.target.bootstrap) as admin:
        for group in world.manifest.groups:
            assert [tuple(each) for each in admin.offsets(group.name)] == list(group.offsets)
    assert GROUP in {group.name for group in world.manifest.groups}


def test_a_queue_goes_on_where_it_was(world: World) -> None:
    address = world.target.brokers[1].grpc_address
    with QueueClient(address) as client, client.connect("jobs", QUEUE) as worker:
        got: set[bytes | None] = set()

        def has_all() -> bool:
            got.update(message.value for message in worker.poll(10))
            return len(got) == 7

        wait_until(has_all, "messages", describe=lambda: str(got))
    assert got == {b"job%d" % number for number in range(10)} - world.settled


def test_producers_write_after_the_restored_records(world: World) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": world.target.bootstrap, "enable.idempotence": True}
    )
    for number in range(100):
        producer.produce("sales", b"new", b"%d" % number)
    assert producer.flush(wait_seconds_max()) == 0


def test_existing_topics_are_not_overwritten(world: World) -> None:
    done = failing("backup", "restore", str(world.place), "--http", http_of(world.target))
    assert "exists already" in done
    assert "nothing was restored" in done
    # Nor is anything restored when a name is misspelt.
    for misspelt in ("--topic=plane", "--rename=plane=old"):
        words = ["--prefix", "x-", misspelt, "--http", http_of(world.target)]
        assert "has no topic plane" in failing("backup", "restore", str(world.place), *words)


def test_a_restore_that_was_killed_is_repeated_and_continues(world: World) -> None:
    words = ["--http", http_of(world.target), "--prefix", "again-", "--parallel", "1"]
    slow = subprocess.Popen(
        [
            *(sys.executable, "-m", "moldau", "backup", "restore", str(world.place)),
            *words,
            *("--mib-per-second", "0.01"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with KafkaClient(world.target.bootstrap) as client:

        def has_begun() -> bool:
            with suppress(Exception):
                return client.list_offset("again-plain", 0) > 0
            return False

        wait_until(has_begun, "the restore")
        slow.kill()
        slow.wait(wait_seconds_max())
        # Until it is complete, nobody else writes.
        record = Record(Offset(0), TimestampMs(0), b"", b"", [])
        with pytest.raises(RejectedError) as refused:
            client.produce("again-plain", 0, build_batch([record]))
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
    succeeding("backup", "restore", str(world.place), *words)
    said = succeeding("backup", "verify", str(world.place), "--against", *words)
    assert "identical in the cluster" in said


def test_a_backup_that_was_killed_is_continued(world: World, tmp_path: Path) -> None:
    place = tmp_path / "cut-short"
    words = ["--http", world.source.http_address, "--parallel", "1"]
    # Files of a compacted topic are not used again.
    creating = ["backup", "create", str(place), *words, "--topic", "plain"]
    slow = subprocess.Popen(
        [
            *(sys.executable, "-m", "moldau", *creating),
            *("--mib-per-second", "0.01"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: list(place.rglob("*.batches")), "the first file")
    slow.kill()
    slow.wait(wait_seconds_max())
    files = {file: file.stat().st_ino for file in place.rglob("*.batches")}
    assert "cut short" in failing("backup", "restore", str(place), *words)
    assert "cut short" in failing("backup", "verify", str(place), *words)
    succeeding(*creating)
    assert files.items() <= {file: file.stat().st_ino for file in place.rglob("*.batches")}.items()
    assert "whole and undamaged" in succeeding("backup", "verify", str(place))


def test_a_damaged_or_missing_file_is_named_with_its_topic(world: World, tmp_path: Path) -> None:
    place = tmp_path / "damaged"
    shutil.copytree(world.place, place)
    files = sorted(place.rglob("*.batches"), key=lambda file: file.stat().st_size)
    files[0].unlink()
    data = bytearray(files[-1].read_bytes())
    data[len(data) // 2] ^= 1
    files[-1].write_bytes(data)
    said = failing("backup", "restore", str(place), "--http", http_of(world.target))
    assert f"{files[0].name} is missing" in said
    (place / "manifests/000001.json").write_bytes(b"cut")
    listed = run("backup", "list", str(place))
    assert listed.returncode == 1
    assert "000001.json is damaged" in listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NUMBER", "2"]
    said = failing("backup", "verify", str(place))
    assert files[0].name in said
    assert f"{files[-1].name} is damaged" in said
    assert "2 partitions of" in said


def test_other_places_are_refused_with_the_reason(world: World, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    http = ["--http", world.source.http_address]
    assert "not empty and not a backup" in failing("backup", "create", str(tmp_path), *http)
    assert "is not a backup" in failing("backup", "restore", str(tmp_path), *http)
    target = ["--http", http_of(world.target)]
    assert "backups of cluster" in failing("backup", "create", str(world.place), *target)

"""Backups of a cluster of several brokers: each is asked, and one may be away."""

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from backup_commands import succeeding
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from moldau.client.backup.manifests import Manifest, load_manifest, manifest_numbers
from moldau.client.backup.stores import DirectoryStore
from moldau.client.kafka.admin import Admin
from moldau.client.queue.sync_client import QueueClient
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.system, pytest.mark.safety]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings={"LOG__COMPACTION_CHECK_MS": "100"}) as made:
        yield made


def create(cluster: Cluster, place: Path, *more: str) -> str:
    http = cluster.brokers[1].http_address
    return succeeding("backup", "create", str(place), "--http", http, *more)


def newest(place: Path) -> Manifest:
    store = DirectoryStore(place)
    return load_manifest(store, manifest_numbers(store)[-1])


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"%d" % (number % 5))
    assert producer.flush(wait_seconds_max()) == 0


def set_policy(cluster: Cluster, kind: ResourceType, of: str, value: str | None) -> None:
    name = "cleanup.policy" if kind is ResourceType.TOPIC else "log.cleanup.policy"
    how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    change = ConfigEntry(name, value, incremental_operation=how)
    resource = ConfigResource(kind, of, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(wait_seconds_max())


def test_a_topic_that_was_made_again_is_copied_whole_and_the_old_one_kept(
    cluster: Cluster, tmp_path: Path
) -> None:
    admin = Admin(cluster.bootstrap)
    words = ["--topic", "remade"]
    admin.create_topic("remade", partitions=1)
    produce(cluster, "remade", 10)
    create(cluster, tmp_path, *words)
    old = newest(tmp_path).partitions
    admin.delete_topic("remade")
    admin.create_topic("remade", partitions=1)
    produce(cluster, "remade", 30)
    create(cluster, tmp_path, *words)
    new = newest(tmp_path).partitions
    assert (old[0].end, new[0].end) == (10, 30)
    assert old[0].topic_id != new[0].topic_id
    assert new[0].segments[0].start == 0
    for number in ("1", "2"):
        assert "whole and undamaged" in succeeding(
            "backup", "verify", str(tmp_path), "--number", number
        )
    http = ["--http", cluster.brokers[1].http_address]
    assert "identical" in succeeding("backup", "verify", str(tmp_path), "--against", *http)


def test_each_broker_is_asked_which_topics_it_compacts(cluster: Cluster, tmp_path: Path) -> None:
    Admin(cluster.bootstrap).create_topic("by-default", partitions=1)
    words = ["--topic", "by-default"]
    set_policy(cluster, ResourceType.BROKER, "3", "compact")
    try:
        create(cluster, tmp_path, *words)
        (topic,) = newest(tmp_path).cluster.topics
        assert topic.compacted
    finally:
        set_policy(cluster, ResourceType.BROKER, "3", None)
    create(cluster, tmp_path, *words)
    (topic,) = newest(tmp_path).cluster.topics
    assert not topic.compacted


def test_a_topic_that_was_compacted_only_between_two_backups_is_copied_whole(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = {"segment.bytes": "500", "min.cleanable.dirty.ratio": "0.01"}
    Admin(cluster.bootstrap).create_topic("once", partitions=1, config=config)
    for _ in range(10):
        produce(cluster, "once", 10)
    words = ["--topic", "once"]
    create(cluster, tmp_path, *words)
    (first,) = newest(tmp_path).partitions
    set_policy(cluster, ResourceType.TOPIC, "once", "compact")
    with KafkaClient(cluster.bootstrap) as client:
        whole = len(client.fetch("once", 0, 0))
        wait_until(lambda: len(client.fetch("once", 0, 0)) < whole, "compaction")
        set_policy(cluster, ResourceType.TOPIC, "once", "delete")
        produce(cluster, "once", 10)
    create(cluster, tmp_path, *words)
    (topic,) = newest(tmp_path).cluster.topics
    assert topic.compacted
    (second,) = newest(tmp_path).partitions
    assert second.end == first.end + 10
    assert not set(first.segments) & set(second.segments)
    assert "whole and undamaged" in succeeding("backup", "verify", str(tmp_path))


def test_a_backup_is_complete_while_one_broker_of_three_is_away(
    cluster: Cluster, tmp_path: Path
) -> None:
    admin = Admin(cluster.bootstrap)
    admin.create_topic("orders", partitions=3)
    admin.create_topic("work", partitions=3)
    produce(cluster, "orders", 50)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers"}
    )
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    with QueueClient(cluster.brokers[1].grpc_address) as client:
        for number in range(6):
            client.send("work", b"%d" % number)
        with client.connect("workers", "work") as worker:
            assert worker.poll(1)
    words = ["--topic", "orders", "--topic", "work"]
    create(cluster, tmp_path, *words)
    before = newest(tmp_path)
    away = cluster.brokers[3]
    away.kill()
    # It still counts as alive, and what it led gets other leaders now.
    said = create(cluster, tmp_path, *words)
    made = newest(tmp_path)
    assert "0 B of it new" in said, said
    assert [each.end for each in made.partitions] == [each.end for each in before.partitions]
    assert "readers" in {group.name for group in made.groups}
    assert made.queues
    assert "whole and undamaged" in succeeding("backup", "verify", str(tmp_path))

"""A cluster that has lost the majority of its metadata for good goes on with what is left."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka as kafka
import pytest
from moldau_command import run_moldau

from moldau.model.topology import Endpoint
from moldau.testing.broker import BrokerFailedError
from moldau.testing.cluster import NOT_YET, Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system
COUNT = 60


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "moldau", *words],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )


def recovered(folder: Path, survivors: Sequence[ClusterBroker], lost: Sequence[int]) -> Path:
    """The plan, carried out for all survivors."""
    surveys = []
    for broker in survivors:
        surveys.append(str(folder / f"survivor-{broker.number}.json"))
        run_moldau(
            *("cluster", "recover", "collect", "--data-dir", str(broker.data_dir)),
            *("--file", surveys[-1]),
        )
    plan = folder / "plan.json"
    named = ",".join(map(str, lost))
    run_moldau("cluster", "recover", "plan", *surveys, "--lost", named, "--file", str(plan))
    for broker in survivors:
        run_moldau(
            *("cluster", "recover", "apply", str(plan), "--data-dir", str(broker.data_dir), "-y")
        )
    return plan


def produce(bootstrap: str, topic: str, values: Sequence[bytes], transaction: str = "") -> None:
    settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "acks": "all"}
    if transaction:
        settings["transactional.id"] = transaction
    producer = kafka.Producer(settings)
    failed = []
    if transaction:
        producer.init_transactions(wait_seconds_max())
        producer.begin_transaction()
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(wait_seconds_max()) == 0
    if transaction:
        producer.commit_transaction(wait_seconds_max())
    assert not failed


def consume(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    """That many from where the group stands, all committed."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
        return len(found) == count

    wait_until(read, f"{count} messages of {topic}", describe=lambda: f"{len(found)} so far")
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def values(word: bytes, count: int = COUNT) -> list[bytes]:
    return [word + b"%d" % number for number in range(count)]


def lose(brokers: Sequence[ClusterBroker]) -> None:
    for broker in brokers:
        broker.kill()
        shutil.rmtree(broker.data_dir)


def is_spread(cluster: Cluster, lost: Sequence[int]) -> bool:
    """Whether each partition has three replicas in sync, and the lost brokers are gone."""
    topology = cluster.topology()
    return not set(lost) & {each["id"] for each in topology["brokers"]} and all(
        len(partition["in_sync"]) == 3
        for topic in topology["topics"]
        for partition in topic["partitions"]
    )


def test_one_of_three_goes_on_with_all_that_it_has_and_others_join(tmp_path: Path) -> None:
    with Cluster(3, data_dir=tmp_path) as cluster:
        bootstrap = cluster.bootstrap
        address = ("-b", bootstrap)
        run_moldau("topic", "create", "orders", "-p", "4", "-r", "3", *address)
        run_moldau("topic", "create", "paid", "-p", "1", "-r", "3", *address)
        run_moldau("topic", "create", "jobs", "-p", "1", "-r", "3", *address)
        produce(bootstrap, "orders", values(b"o"))
        assert len(consume(bootstrap, "orders", "readers", COUNT)) == COUNT
        produce(bootstrap, "orders", values(b"late", 10))
        produce(bootstrap, "paid", values(b"p"), transaction="till")
        grpc = ("--grpc", cluster.brokers[1].grpc_address)
        for job in (b"j0", b"j1"):
            subprocess.run(
                [sys.executable, "-m", "moldau", "queue", "send", "jobs", *grpc],
                input=job,
                check=True,
                timeout=wait_seconds_max(),
            )
        cluster.wait_ready()
        survivor = cluster.brokers[1]
        lose([cluster.brokers[2], cluster.brokers[3]])
        survivor.kill()
        cluster_id = identity(survivor)["cluster_id"]

        recovered(tmp_path, [survivor], [2, 3])

        assert identity(survivor)["cluster_id"] != cluster_id
        survivor.start()
        alone = survivor.bootstrap
        assert consume(alone, "orders", "readers", 10)
        assert sorted(consume(alone, "orders", "others", COUNT + 10)) == sorted(
            values(b"o") + values(b"late", 10)
        )
        assert consume(alone, "paid", "accounting", COUNT) == values(b"p")
        produce(alone, "paid", values(b"again", 5), transaction="till")
        assert len(consume(alone, "paid", "accounting", 5)) == 5
        worked = run_moldau(
            *("queue", "work", "jobs", "-g", "crew", "--once", "--grpc", survivor.grpc_address),
            *("--", "cat"),
        )
        assert "j0" in worked
        assert "j1" in worked

        cluster.add()
        cluster.add()
        wait_until(
            lambda: is_spread(cluster, [2, 3]),
            "every partition has three replicas again",
            describe=lambda: json.dumps(cluster.topology()),
            ignoring=NOT_YET,
        )
        produce(alone, "orders", values(b"new", 5))


def identity(broker: ClusterBroker) -> dict[str, str]:
    found: dict[str, str] = json.loads((broker.data_dir / "broker.json").read_text())
    return found

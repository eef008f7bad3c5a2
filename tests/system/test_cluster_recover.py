"""A cluster that has lost the majority of its metadata for good goes on with what is left.

The commands are those of docs/operate/disaster.md.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
from doc_pages import ROOT, all_blocks
from moldau_command import run_moldau

from moldau.testing.broker import BrokerFailedError
from moldau.testing.cluster import NOT_YET, Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.system, pytest.mark.safety]
COUNT = 60


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "moldau", *words],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )


def from_page(step: str, folder: Path, *swaps: tuple[str, str]) -> None:
    """Run the command of the page for this step."""
    (block,) = [
        block
        for block in all_blocks(ROOT / "docs/operate/disaster.md")
        if f"moldau cluster recover {step} " in block.text
    ]
    text = block.text
    for old, new in swaps:
        assert old in text
        text = text.replace(old, new)
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def recovered(folder: Path, survivors: Sequence[ClusterBroker], lost: Sequence[int]) -> Path:
    """The plan, carried out for all survivors."""
    for broker in survivors:
        place = ("/var/lib/moldau", str(broker.data_dir))
        from_page("collect", folder, place, ("survivor-1", f"survivor-{broker.number}"))
    from_page("plan", folder, ("2,3", ",".join(map(str, lost))))
    for broker in survivors:
        place = ("/var/lib/moldau", f"{broker.data_dir} -y")
        from_page("apply", folder, place)
        # Nothing is left to be done.
        from_page("apply", folder, place)
    return folder / "plan.json"


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
        one = ("queue", "work", "jobs", "-g", "crew", "-n", "1", *grpc, "--", "cat")
        assert "j0" in run_moldau(*one)
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
        assert worked.split() == ["j1"]

        cluster.add()
        cluster.add()
        wait_until(
            lambda: is_spread(cluster, [2, 3]),
            "every partition has three replicas again",
            describe=lambda: json.dumps(cluster.topology()),
            ignoring=NOT_YET,
        )
        produce(alone, "orders", values(b"new", 5))


def test_two_of_five_with_different_logs_go_on_with_the_better_one(tmp_path: Path) -> None:
    with Cluster(5, data_dir=tmp_path) as cluster:
        first, fourth = cluster.brokers[1], cluster.brokers[4]
        run_moldau("topic", "create", "spread", "-p", "10", "-r", "3", "-b", cluster.bootstrap)
        produce(cluster.bootstrap, "spread", values(b"early"))
        assert len(consume(cluster.bootstrap, "spread", "before", COUNT)) == COUNT
        cluster.wait_ready()
        places = replicas_of(cluster, "spread")
        fourth.kill()
        run_moldau("topic", "create", "late", "-p", "4", "-r", "3", "-b", first.bootstrap)
        produce(first.bootstrap, "late", values(b"late"))
        lose([cluster.brokers[number] for number in (2, 3, 5)])
        first.kill()

        plan = json.loads(recovered(tmp_path, [first, fourth], [2, 3, 5]).read_text())

        assert plan["metadata_broker"] == 1
        outcome = next(each for each in plan["topics"] if each["topic"] == "spread")
        alive = [len({1, 4} & set(each)) for each in places]
        assert outcome["whole"] == [at for at, count in enumerate(alive) if count == 2]
        assert outcome["recovered"] == [at for at, count in enumerate(alive) if count == 1]
        assert outcome["empty"] == [at for at, count in enumerate(alive) if count == 0]
        first.launch()
        fourth.launch()
        first.wait_ready()
        fourth.wait_ready()
        ends = {each["partition"]: each for each in topic_of(cluster, "spread")["partitions"]}
        assert len(ends) == 10
        bootstrap = f"{first.bootstrap},{fourth.bootstrap}"
        produce(bootstrap, "spread", values(b"new"))
        produce(bootstrap, "late", values(b"new"))
        added = cluster.add()
        wait_until(
            lambda: is_spread(cluster, [2, 3, 5]),
            "every partition has three replicas again",
            describe=lambda: json.dumps(cluster.topology()),
            ignoring=NOT_YET,
        )
        held = [at for at, count in enumerate(alive) if count]
        early = read_partitions(added.bootstrap, "spread", held)
        assert {value for value in early if value.startswith(b"early")} <= {*values(b"early")}
        assert {*values(b"new")} <= {*read_partitions(added.bootstrap, "spread", range(10))}


def test_a_lost_broker_that_comes_back_is_refused(tmp_path: Path) -> None:
    with Cluster(3, data_dir=tmp_path) as cluster:
        survivor, second, third = cluster.brokers
        run_moldau("topic", "create", "t", "-p", "1", "-r", "3", "-b", cluster.bootstrap)
        produce(cluster.bootstrap, "t", values(b"old"))
        cluster.wait_ready()
        old_id = identity(survivor)["cluster_id"]
        for broker in cluster.brokers:
            broker.kill()
        recovered(tmp_path, [survivor], [2, 3])
        new_id = identity(survivor)["cluster_id"]
        survivor.start()
        produce(survivor.bootstrap, "t", values(b"new"))

        second.launch()
        refusal = f"its data directory belongs to cluster {old_id}, not to {new_id}"
        wait_until(lambda: refusal in second.output, "the lost broker logs that it is refused")
        wait_until(
            lambda: f"this broker belongs to cluster {new_id}, not {old_id}" in survivor.output,
            "the survivor says that it refuses the lost broker",
            describe=lambda: survivor.output[-3000:] + second.output[-3000:],
        )
        topology = survivor.ask("/api/v1/topology")
        assert topology["cluster_id"] == new_id
        assert not next(each for each in topology["brokers"] if each["id"] == 2)["alive"]
        produce(survivor.bootstrap, "t", values(b"newer"))
        assert {*read_partitions(survivor.bootstrap, "t", [0])} == {
            *values(b"old"),
            *values(b"new"),
            *values(b"newer"),
        }
        assert third.data_dir.exists()


def test_a_broker_does_not_start_in_the_midst_of_a_recovery(tmp_path: Path) -> None:
    with Cluster(1, data_dir=tmp_path) as cluster:
        broker = cluster.brokers[1]
        running = command(
            *("cluster", "recover", "collect", "--data-dir", str(broker.data_dir)),
            *("--file", str(tmp_path / "survivor.json")),
        )
        assert running.returncode != 0
        assert "in use by another broker" in running.stderr
        broker.stop()
        (broker.data_dir / "recovery.json").write_text("{}")
        with pytest.raises(BrokerFailedError) as failed:
            broker.start()
        assert "moldau cluster recover apply" in str(failed.value)


def read_partitions(bootstrap: str, topic: str, partitions: Iterable[int]) -> list[bytes]:
    found = []
    for partition in partitions:
        text = run_moldau(
            *("consume", topic, "-p", str(partition), "--from-beginning", "-e", "-b", bootstrap)
        )
        found += [line.encode() for line in text.split()]
    return found


def topic_of(cluster: Cluster, name: str) -> dict[str, Any]:
    topics: list[dict[str, Any]] = cluster.topology()["topics"]
    return next(each for each in topics if each["name"] == name)


def replicas_of(cluster: Cluster, topic: str) -> list[list[int]]:
    parts = sorted(topic_of(cluster, topic)["partitions"], key=lambda each: each["partition"])
    return [each["replicas"] for each in parts]


def identity(broker: ClusterBroker) -> dict[str, str]:
    found: dict[str, str] = json.loads((broker.data_dir / "broker.json").read_text())
    return found

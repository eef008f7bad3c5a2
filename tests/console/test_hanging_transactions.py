"""A transaction that no coordinator knows is aborted by the console, and readers go on.

It is put into the log of a partition as a restore from a backup would: nobody asks a coordinator.
"""

from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from console_page import console
from playwright.sync_api import Browser

from http_client import ask
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

TOPIC, HANGS, OTHER = "paid", 0, 1
WHO = (ProducerId(424_242), ProducerEpoch(3))
RESTORING = "moldau.restoring"
TRANSACTIONS = "/api/v1/transactions"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    small = {"TRANSACTION__STATE_PARTITIONS": "3", "GROUP__OFFSETS_PARTITIONS": "3"}
    with Cluster(settings=small) as started:
        yield started


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[Consumer]:
    """Reads what is committed."""
    found = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "auditors",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    yield found
    found.close()


def leave_hanging(cluster: Cluster) -> None:
    """One record of a transaction whose end is missing."""
    batch = build_batch(
        [Record(Offset(0), TimestampMs(1), None, b"hangs", [])],
        producer_id=WHO[0],
        producer_epoch=WHO[1],
        base_sequence=0,
        transactional=True,
    )
    connection = HTTPConnection(
        cluster.leader(TOPIC, HANGS).http_address, timeout=wait_seconds_max()
    )
    path = f"/api/v1/restore/topics/{TOPIC}/{HANGS}?offset=0"
    connection.request("POST", path, batch, {"content-type": "application/octet-stream"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == 200, body


def transactional(cluster: Cluster, name: str) -> Producer:
    """One that has begun."""
    found = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    found.init_transactions()
    found.begin_transaction()
    return found


def send(producer: Producer, partition: int, value: str) -> None:
    failed: list[Any] = []
    producer.produce(
        TOPIC, value, partition=partition, on_delivery=lambda error, _: failed.append(error)
    )
    assert producer.flush() == 0
    assert failed == [None]


def read(reader: Consumer, partition: int) -> list[bytes]:
    """From the beginning to the end of what is committed."""
    found: list[bytes] = []
    reader.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])

    def is_at_end() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
        return message is not None and message.error() is not None

    wait_until(is_at_end, "the end is reached", describe=lambda: found)
    return found


def lists(broker: ClusterBroker, *wanted: tuple[str, int, str]) -> bool:
    """Of all coordinators, exactly these are open: id, partition, state."""
    reply = ask(broker.http_address, "GET", TRANSACTIONS).body
    found = [
        (one["transactional_id"], one["partitions"][0]["partition"], one["state"])
        for one in reply["transactions"]
        if one["partitions"]
    ]
    return reply["silent"] == [] and found == [*wanted]


def test_what_no_coordinator_knows_is_aborted_in_its_partition(
    browser: Browser, cluster: Cluster, reader: Consumer
) -> None:
    first, asked = cluster.brokers[1].http_address, cluster.brokers[3]
    body = {"name": TOPIC, "partitions": 2, "configs": {RESTORING: "a backup"}}
    created = ask(first, "POST", "/api/v1/topics", body)
    assert created.status == 201, created.body
    leave_hanging(cluster)
    released = ask(
        first, "PATCH", f"/api/v1/topics/{TOPIC}/configs", {"configs": {RESTORING: None}}
    )
    assert released.status == 200, released.body
    known = transactional(cluster, "books")
    send(known, OTHER, "entry")
    plain = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    send(plain, HANGS, "later")
    unknown, open_one = ("", HANGS, "Hanging"), ("books", OTHER, "Ongoing")
    wait_until(lambda: lists(asked, unknown, open_one), "all coordinators respond")
    assert read(reader, HANGS) == []

    name = f"producer {WHO[0]}"
    with console(browser, asked.http_address) as tab:
        tab.go("Transactions")
        tab.see("known to no coordinator")
        (row,) = wait_until(
            lambda: [row for row in tab.rows("Transactions") if row[0] != "books"], "it is shown"
        )
        assert row[1] == "hanging"
        assert row[4] == f"{TOPIC}-{HANGS}"
        assert row[5].split() == [str(WHO[0]), "epoch", str(WHO[1])]
        tab.page.get_by_role("row", name="known to no coordinator").get_by_role("button").click()
        tab.dialog.get_by_text(f"It is open in {TOPIC}-{HANGS}, no coordinator knows it").wait_for()
        assert tab.button("Abort it", within=tab.dialog).is_disabled()
        tab.confirm(name, "Abort it")
        tab.see(f"The transaction of {name} has been aborted")
        tab.see_gone("known to no coordinator")
        wait_until(lambda: [row[0] for row in tab.rows("Transactions")] == ["books"], "one is left")
    for broker in cluster.brokers:
        wait_until(lambda broker=broker: lists(broker, open_one), "one is left in the cluster")
    # What it wrote is not seen, and what came after it is.
    wait_until(lambda: read(reader, HANGS) == [b"later"], "readers go on")
    again = {"topic": TOPIC, "partition": HANGS, "producer_id": WHO[0], "producer_epoch": WHO[1]}
    assert ask(first, "POST", f"{TRANSACTIONS}/hanging", again).status == 404

    # The other one, and the next in this partition, are not in the way of each other.
    assert read(reader, OTHER) == []
    known.commit_transaction()
    wait_until(lambda: read(reader, OTHER) == [b"entry"], "the other one was left alone")
    new = transactional(cluster, "more")
    send(new, HANGS, "new")
    new.commit_transaction()
    wait_until(lambda: read(reader, HANGS) == [b"later", b"new"], "the next one is committed")

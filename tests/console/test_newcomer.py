"""A newcomer with nothing but the page, on a cluster of three brokers."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser

from http_client import ask
from moldau import QueueClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

COUNT = 100_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"QUEUE__STATE_PARTITIONS": "3"}) as started:
        yield started


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Console]:
    with console(browser, cluster.brokers[1].http_address) as found:
        yield found


def create_topic(tab: Console, name: str, partitions: int) -> None:
    tab.go("Topics")
    tab.click("Create topic")
    tab.fill("Name", name)
    tab.fill("Partitions", str(partitions))
    tab.button("Create", within=tab.dialog).click()
    tab.page.get_by_role("heading", level=1, name=name).wait_for()


def produce(
    tab: Console, value: str, *, key: str = "", times: int = 1, compression: str = "none"
) -> None:
    tab.go("Produce")
    tab.choose("Compression", compression)
    if key:
        tab.page.get_by_label("With a key").check()
        tab.fill("Key", key)
    tab.page.get_by_role("textbox", name="Value", exact=True).fill(value)
    tab.fill("How many", str(times))
    tab.click("Produce" if times == 1 else f"Produce {times:,}")
    tab.see(f"{times:,} message{'' if times == 1 else 's'} stored.")


def test_watches_messages_as_they_come(tab: Console, cluster: Cluster, browser: Browser) -> None:
    create_topic(tab, "live", 3)
    tab.go("Messages")
    tab.see("There are no messages.")
    tab.click("Live")
    tab.see("Waiting for the next message.")
    with console(browser, cluster.brokers[2].http_address, "/topics/live?tab=produce") as other:
        produce(other, '{"n": {{n}}}', times=5)
        wait_until(lambda: len(tab.rows("Messages")) == 5, "the messages are shown")
        assert {json.loads(row[4])["n"] for row in tab.rows("Messages")} == set(range(5))
        tab.click("Pause")
        produce(other, "while it is paused")
        tab.see("1 waiting")
        assert len(tab.rows("Messages")) == 5
        tab.click("Go on")
        wait_until(lambda: len(tab.rows("Messages")) == 6, "the waiting message is shown")
    assert tab.rows("Messages")[0][4] == "while it is paused"


def test_finds_one_message_among_many(tab: Console, cluster: Cluster) -> None:
    create_topic(tab, "many", 6)
    produce(
        tab,
        '{"id": 900719925474099{{n}}, "customer": "c-{{n}}"}',
        key="k{{n}}",
        times=COUNT,
        compression="gzip",
    )
    topic = ask(cluster.brokers[1].http_address, "GET", "/api/v1/topics/many").body
    assert sum(one["log_bytes"] for one in topic["partitions"]) < COUNT * len('{"id": 1234567890}')
    tab.go("Messages")
    tab.fill("Text in the value", '"c-4711"')
    tab.click("Search")
    tab.see("Searched all.")
    (row,) = tab.rows("Messages")
    # Digit by digit: as a number of JavaScript it would be another one.
    assert row[3:] == ["k4711", '{"id": 9007199254740994711, "customer": "c-4711"}']
    tab.see(f"1 message found in {COUNT:,}")

    # The same by its JSON, and by its key, from the address alone.
    for query in (
        "json=id%3D9007199254740994711",
        "key=k4711",
        "json=customer%3Dc-4711&from=oldest",
    ):
        tab.open(f"/topics/many?tab=messages&{query}")
        tab.see("Searched all.")
        assert [found[3] for found in tab.rows("Messages")] == ["k4711"]

    tab.page.get_by_role("button", name="Open offset", exact=False).click()
    tab.dialog.get_by_text("9007199254740994711", exact=True).wait_for()
    tab.button("Edit and produce again", within=tab.dialog).click()
    tab.click("Produce")
    tab.see("1 message stored.")


def test_resets_a_group(tab: Console, cluster: Cluster) -> None:
    create_topic(tab, "read", 2)
    produce(tab, "m{{n}}", key="k{{n}}", times=20)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    ends = [
        reader.get_watermark_offsets(TopicPartition("read", partition))[1] for partition in (0, 1)
    ]
    offsets = [TopicPartition("read", partition, end) for partition, end in enumerate(ends)]
    reader.commit(offsets=offsets, asynchronous=False)
    reader.close()

    tab.go("Groups")
    tab.go("readers")
    tab.click("Reset offsets")
    tab.button("Preview", within=tab.dialog).click()
    tab.dialog.get_by_text("20 messages will be read again", exact=False).wait_for()
    tab.button("Reset offsets", within=tab.dialog).click()
    tab.see("Offsets of readers on 2 partitions of read have been reset.")
    wait_until(
        lambda: [row[2] for row in tab.rows("Offsets")] == ["0", "0"], "the page shows the offsets"
    )


def test_redrives_a_dead_letter(tab: Console, cluster: Cluster) -> None:
    failed = fail_jobs(tab, cluster, topic="jobs", group="resizers")
    assert {row[2] for row in tab.rows("Dead letters")} == {"no <b>such</b> picture"}
    tab.click("Redrive")
    tab.button("Preview", within=tab.dialog).click()
    tab.dialog.get_by_text("1 message would be sent", exact=False).wait_for()
    tab.button("Send them again", within=tab.dialog).click()
    tab.see("1 dead letter sent again.")
    tab.click("Redrive all")
    tab.button("Preview", within=tab.dialog).click()
    tab.button("Send them again", within=tab.dialog).click()
    tab.see("2 dead letters sent again.")

    with QueueClient(cluster.brokers[2].grpc_address) as client:
        worker = client.connect("resizers", "jobs")
        done: list[str] = []

        def work() -> bool:
            for message in worker.poll(10, wait=0.2):
                done.append(text(message.value))
                message.ack()
            return len(done) >= 3

        wait_until(work, "all jobs come again")
        worker.close()
    assert sorted(done) == sorted(failed)


def fail_jobs(tab: Console, cluster: Cluster, *, topic: str, group: str) -> list[str]:
    """Three, and opens the page of their dead letters."""
    create_topic(tab, topic, 3)
    produce(tab, "resize {{n}}", times=3)
    with QueueClient(cluster.brokers[2].grpc_address) as client:
        worker = client.connect(group, topic, attempts=1)
        failed: list[str] = []

        def fail() -> bool:
            for message in worker.poll(10, wait=0.2):
                failed.append(text(message.value))
                message.nack(reason="no <b>such</b> picture")
            return len(failed) == 3

        wait_until(fail, "all jobs fail")
        worker.close()
    tab.go("Queues")
    tab.go(group)
    tab.go("Dead letters")
    wait_until(lambda: letters(tab) == 3, "they are dead letters")
    return failed


def letters(tab: Console) -> int:
    tab.click("Look again")
    return len(tab.rows("Dead letters"))


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode()

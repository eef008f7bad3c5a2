"""A partition is moved by the console, and the move is cancelled half the way."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

TOPIC = "moved"


def send(broker: ClusterBroker, value: str) -> None:
    """Returns once it is stored. `broker`: one that is not paused."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    producer.produce(TOPIC, value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush() == 0
    assert failed == [None]


def read(cluster: Cluster, count: int) -> list[str]:
    found: list[str] = []
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "r", "log_level": 0})
    reader.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

    def is_read() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
        return len(found) == count

    wait_until(is_read, "all is read", describe=lambda: found)
    reader.close()
    return found


def partition(tab: Console) -> Any:
    (found,) = ask(tab.address, "GET", f"/api/v1/topics/{TOPIC}").body["partitions"]
    return found


def members(tab: Console) -> dict[int, str]:
    """Of the partition's group, as its leader knows them."""
    groups = ask(tab.address, "GET", f"/api/v1/raft?search={TOPIC}/0").body["groups"]
    return {one["broker"]: one["role"] for group in groups for one in group["members"]}


def has_log(broker: ClusterBroker) -> bool:
    folder: Path = broker.data_dir / "topics" / TOPIC
    return any(folder.glob("*/0"))


def move(tab: Console, old: int, new: list[int]) -> None:
    tab.click("Move partition 0")
    tab.dialog.get_by_label(f"Broker {old}").uncheck()
    for broker in new:
        tab.dialog.get_by_label(f"Broker {broker}").check()
    tab.button("Move", within=tab.dialog).click()
    tab.see(f"{TOPIC}-0 moves to broker {', '.join(map(str, new))}.")


def test_a_move_that_has_come_half_the_way_is_cancelled(browser: Browser) -> None:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic(TOPIC, partitions=1, replication_factor=1)
        leader = cluster.leader(TOPIC, 0)
        controller = cluster.topology()["controller"]
        others = [one for one in cluster.brokers if one.number != leader.number]
        # To pause the controller would stop moves altogether for a while.
        copying, paused = sorted(others, key=lambda one: one.number != controller)
        old, new = leader.number, [copying.number, paused.number]
        send(leader, "before")
        with console(browser, leader.http_address) as tab:
            paused.pause()
            tab.see(f"Broker {paused.number} is not alive")
            tab.open(f"/topics/{TOPIC}")
            move(tab, old, new)
            # One that has copied all, and one that cannot: the move cannot end.
            tab.see("moving to")
            wait_until(lambda: members(tab).get(copying.number) == "voter", "one has joined")
            tab.click("Move partition 0")
            tab.dialog.get_by_text(re.compile(rf"Broker {copying.number}:\s+it has all")).wait_for()
            bar = tab.dialog.get_by_label(f"Progress of broker {copying.number}")
            assert bar.get_attribute("value") == "1"
            waits = rf"Broker {paused.number}:\s+(not heard of yet|[\d,]+ entr\w+ left)"
            tab.dialog.get_by_text(re.compile(waits)).wait_for()
            moving = partition(tab)
            assert sorted(moving["adding"]) == sorted(new)
            assert moving["removing"] == [old]
            assert has_log(copying)
            send(leader, "during")

            tab.button("Cancel the move", within=tab.dialog).click()
            tab.see(f"The move of {TOPIC}-0 is cancelled.")
            wait_until(lambda: members(tab) == {old: "voter"}, "it is back where it was")
            at_rest = {"replicas": [old], "in_sync": [old], "adding": [], "removing": []}
            wait_until(
                lambda: partition(tab).items() >= at_rest.items(),
                "and nothing moves",
                describe=lambda: partition(tab),
            )
            assert partition(tab)["leader"] == old
            wait_until(lambda: not has_log(copying), "the copy is deleted")
            wait_until(
                lambda: [row[1:3] for row in tab.rows("Partitions")] == [[str(old)] * 2],
                "the page shows it",
            )
            send(leader, "after")

            # The broker that was away does not go on with it, and can be moved to.
            paused.resume()
            cluster.wait_ready()
            wait_until(lambda: not has_log(paused), "it keeps no replica")
            assert members(tab) == {old: "voter"}
            assert read(cluster, 3) == ["before", "during", "after"]
            move(tab, old, [paused.number])
            wait_until(lambda: members(tab) == {paused.number: "voter"}, "it moves now")
            wait_until(
                lambda: [row[1:3] for row in tab.rows("Partitions")] == [[str(paused.number)] * 2],
                "the page shows that, too",
            )
            wait_until(lambda: not has_log(leader), "nothing is left behind")
            assert read(cluster, 3) == ["before", "during", "after"]

"""Offsets of a group are reset by the console while its members read."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import pytest
from confluent_kafka import Producer
from console_page import Console, console
from group_member import Member, shared
from playwright.sync_api import Browser

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

PARTITIONS = (0, 1)
END, TARGET = 10, 4
SESSION_MS = 45_000
"""No member is removed because the machine is busy."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster, client: str) -> str:
    name = "reread-" + client.replace(" ", "-")
    with KafkaClient(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=len(PARTITIONS), replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(END * len(PARTITIONS)):
        producer.produce(name, f"m{number}", partition=number % len(PARTITIONS))
    assert producer.flush() == 0
    return name


def shown(cluster: Cluster, group: str) -> Any:
    return ask(cluster.brokers[1].http_address, "GET", f"/api/v1/groups/{group}").body


def committed(cluster: Cluster, group: str) -> dict[int, int]:
    return {one["partition"]: one["committed"] for one in shown(cluster, group)["offsets"]}


def read(members: list[Member], since: list[int]) -> dict[int, list[int]]:
    """Offsets by partition, in the order in which they came; `since`: how many of each are old."""
    new = [got for one, old in zip(members, since, strict=True) for got in one.got[old:]]
    new.sort(key=lambda got: (got[0], got[2]))
    return {
        partition: [offset for _, offset, _ in found]
        for partition, found in groupby(new, key=lambda got: got[0])
    }


def has_all(offsets: dict[int, list[int]], first: int) -> bool:
    return {partition: set(found) for partition, found in offsets.items()} == {
        partition: set(range(first, END)) for partition in PARTITIONS
    }


def see_preview(tab: Console) -> None:
    tab.button("Preview", within=tab.dialog).click()
    again = (END - TARGET) * len(PARTITIONS)
    tab.dialog.get_by_text(f"{again} messages will be read again, 0 will be skipped.").wait_for()
    expected = [[str(each) for each in (one, END, TARGET, END - TARGET, 0)] for one in PARTITIONS]
    assert tab.rows("What will change") == expected


@pytest.mark.parametrize("client", ["confluent", "confluent consumer"])
def test_members_are_in_the_way_of_a_reset_until_it_is_forced(
    browser: Browser, cluster: Cluster, topic: str, client: str
) -> None:
    group, ends = f"{topic}-readers", dict.fromkeys(PARTITIONS, END)
    with ExitStack() as ended:
        members = [
            ended.enter_context(
                Member(client, cluster.bootstrap, group, topic, session_ms=SESSION_MS)
            )
            for _ in range(2)
        ]
        wait_until(lambda: shared(members, len(PARTITIONS)), "each has a partition")
        wait_until(lambda: has_all(read(members, [0, 0]), 0), "all is read")
        wait_until(lambda: committed(cluster, group) == ends, "and committed")
        before = [len(member.got) for member in members]

        tab = ended.enter_context(console(browser, cluster.brokers[2].http_address))
        tab.open(f"/groups/{group}")
        tab.click("Reset offsets")
        tab.dialog.get_by_text("2 members are connected").wait_for()
        tab.choose("To", "offset")
        tab.fill("Offset", str(TARGET))
        tab.button("Preview", within=tab.dialog).click()
        tab.dialog.get_by_role("alert").get_by_text("has members").wait_for()
        assert tab.rows("What will change") == []
        assert committed(cluster, group) == ends

        tab.dialog.get_by_role("checkbox").check()
        see_preview(tab)
        assert committed(cluster, group) == ends
        assert shown(cluster, group)["member_count"] == 2
        assert read(members, before) == {}

        tab.button("Reset offsets", within=tab.dialog).click()
        tab.see(f"Offsets of {group} on 2 partitions of {topic} have been reset.")
        wait_until(lambda: has_all(read(members, before), TARGET), "it is read again")
        for found in read(members, before).values():
            assert found[0] == TARGET
        wait_until(lambda: shared(members, len(PARTITIONS)), "both are members again")
        wait_until(lambda: shown(cluster, group)["member_count"] == 2, "the group knows them")
        wait_until(lambda: committed(cluster, group) == ends, "they commit again")
        wait_until(lambda: len(tab.rows("Members")) == 2, "the page shows them")

"""What can be changed by the console, with the mouse and by the keyboard alone."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    small = {"QUEUE__STATE_PARTITIONS": "3", "GROUP__OFFSETS_PARTITIONS": "3"}
    with Cluster(settings=small) as started:
        yield started


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Console]:
    with console(browser, cluster.brokers[2].http_address) as found:
        yield found


def create(cluster: Cluster, name: str, *, partitions: int = 2, messages: int = 0) -> None:
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic(name, partitions=partitions, replication_factor=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(messages):
        producer.produce(name, f"m{number}", partition=number % partitions)
    assert producer.flush() == 0


def test_a_topic_grows_is_configured_trimmed_and_deleted(tab: Console, cluster: Cluster) -> None:
    create(cluster, "grown", messages=10)
    tab.open("/topics/grown")
    tab.click("Add partitions")
    tab.fill("Partitions afterwards", "4")
    tab.button("Add partitions", within=tab.dialog).click()
    tab.see("Topic grown has 4 partitions now.")
    wait_until(lambda: len(tab.rows("Partitions")) == 4, "they are shown")

    tab.go("Configuration")
    tab.click("Change retention.ms")
    tab.dialog.get_by_role("textbox").fill("nonsense")
    tab.button("Change", within=tab.dialog).click()
    tab.dialog.get_by_role("alert").get_by_text("retention.ms").wait_for()
    tab.dialog.get_by_role("textbox").fill("3600000")
    tab.button("Change", within=tab.dialog).click()
    tab.see("retention.ms is 3600000 now.")
    wait_until(
        lambda: setting(tab, "retention.ms")[2] == "set on this topic", "its source is shown"
    )
    tab.click("Change retention.ms")
    tab.button("Back to default", within=tab.dialog).click()
    tab.see("retention.ms is back to its default.")

    tab.click("Delete messages")
    tab.dialog.get_by_text("10 messages would be deleted.").wait_for()
    tab.dialog.get_by_label("Partition").select_option("0")
    tab.dialog.get_by_label("First offset to keep").fill("2")
    tab.confirm("grown", "Delete 2 messages")
    tab.see("2 messages of grown deleted.")

    tab.click("Delete")
    assert tab.button("Delete this topic", within=tab.dialog).is_disabled()
    tab.confirm("grown", "Delete this topic")
    tab.see("Topic grown has been deleted with all its messages.")
    tab.page.get_by_role("heading", level=1, name="Topics").wait_for()


def setting(tab: Console, name: str) -> list[str]:
    rows = tab.rows("Configuration")
    return next((row for row in rows if row[0].startswith(name)), [""] * 4)


def test_a_partition_moves_to_another_broker(tab: Console, cluster: Cluster) -> None:
    create(cluster, "moved", partitions=1)
    tab.open("/topics/moved")
    wait_until(lambda: len(tab.rows("Partitions")) == 1, "the partition is shown")
    old = [int(one) for one in tab.rows("Partitions")[0][2].split(",")]
    (free,) = {1, 2, 3} - set(old)
    tab.click("Move partition 0")
    for broker in old:
        tab.dialog.get_by_label(f"Broker {broker}").uncheck()
    tab.dialog.get_by_label(f"Broker {free}").check()
    tab.button("Move", within=tab.dialog).click()
    tab.see(f"moved-0 moves to broker {free}.")
    wait_until(
        lambda: [row[1:3] for row in tab.rows("Partitions")] == [[str(free)] * 2], "it has moved"
    )
    tab.click("Let preferred replicas lead")
    tab.see("The preferred replicas of moved lead already.")


def test_preferred_replicas_lead_again_everywhere(tab: Console, cluster: Cluster) -> None:
    create(cluster, "preferred", partitions=1)
    address, path = cluster.brokers[1].http_address, "/api/v1/topics/preferred"

    def partition() -> Any:
        return ask(address, "GET", path).body["partitions"][0]

    wait_until(
        lambda: partition()["leader"] == partition()["replicas"][0], "its first replica leads"
    )
    other = partition()["replicas"][::-1]
    assert ask(address, "POST", f"{path}/replicas", {"partitions": {"0": other}}).status == 200
    tab.open("/brokers")
    tab.click("Let preferred replicas lead")
    # The cluster does so by itself, too, some seconds later.
    tab.page.get_by_text(
        re.compile("The preferred replica(s lead already| leads .* more)")
    ).wait_for()
    wait_until(lambda: partition()["leader"] == other[0], "the other one leads")


def test_a_search_is_stopped_and_goes_on(tab: Console, cluster: Cluster) -> None:
    create(cluster, "searched", messages=250)
    tab.open("/topics/searched?tab=messages")
    tab.see("100 messages found in 100")
    tab.click("More")
    tab.see("200 messages found in 200")
    tab.click("More")
    tab.see("Searched all.")
    tab.see("250 messages found in 250")
    tab.page.get_by_label("Begin with").select_option("oldest")
    tab.click("Search")
    wait_until(
        lambda: [row[4] for row in tab.rows("Messages")[:1]] in (["m0"], ["m1"]),
        "the oldest come first",
    )
    assert "from=oldest" in tab.page.url
    with tab.page.expect_download() as saved:
        tab.click("NDJSON")
    assert saved.value.suggested_filename == "searched.ndjson"
    assert len(saved.value.path().read_text().splitlines()) == 100


def test_an_open_transaction_is_aborted(tab: Console, cluster: Cluster) -> None:
    create(cluster, "ledger")
    writer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "books", "log_level": 0}
    )
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce("ledger", "entry", partition=0)
    assert writer.flush() == 0
    tab.go("Transactions")
    tab.click("Abort")
    tab.confirm("books", "Abort it")
    tab.see("The transaction of books has been aborted, and its producer fenced.")
    tab.see("No transaction is open.")
    with pytest.raises(KafkaException, match="fenced"):
        writer.commit_transaction()


def test_a_group_is_deleted(tab: Console, cluster: Cluster) -> None:
    create(cluster, "forgotten", messages=2)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "forgetful"})
    reader.commit(offsets=[TopicPartition("forgotten", 0, 1)], asynchronous=False)
    reader.close()
    tab.go("Groups")
    tab.go("forgetful")
    tab.click("Delete")
    tab.confirm("forgetful", "Delete this group")
    tab.see("Group forgetful has been deleted with its committed offsets.")
    tab.page.get_by_role("heading", level=1, name="Groups").wait_for()
    wait_until(lambda: "forgetful" not in [row[0] for row in tab.rows("Groups")], "it is gone")


def test_offsets_are_reset_in_every_way(tab: Console, cluster: Cluster) -> None:
    create(cluster, "again", messages=20)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "rereaders"})
    committed = [TopicPartition("again", partition, 5) for partition in (0, 1)]
    reader.commit(offsets=committed, asynchronous=False)
    reader.close()
    tab.open("/groups/rereaders")
    tab.click("Reset offsets")
    for kind, label, value, again, skipped in (
        ("latest", "", "", 0, 10),
        ("time", "Time", "2020-01-01T00:00:00", 10, 0),
        ("time", "Time", "2100-01-01T00:00:00", 0, 10),
        ("offset", "Offset", "7", 0, 4),
        ("shift", "By how many", "-2", 4, 0),
    ):
        tab.choose("To", kind)
        if label:
            tab.fill(label, value)
        tab.button("Preview", within=tab.dialog).click()
        tab.dialog.get_by_text(
            f"{again} messages will be read again, {skipped} will be skipped."
        ).wait_for()
    tab.button("Reset offsets", within=tab.dialog).click()
    tab.see("Offsets of rereaders on 2 partitions of again have been reset.")
    wait_until(lambda: [row[2] for row in tab.rows("Offsets")] == ["3", "3"], "they are shown")


def test_the_log_level_of_another_broker_is_changed(tab: Console) -> None:
    tab.open("/settings?tab=log-levels&broker=3")
    tab.page.get_by_label("Level of raft").select_option("debug")
    tab.see("Broker 3 logs raft from debug on, until it restarts.")
    tab.click("Back to info")
    tab.see("Broker 3 logs raft from info on, until it restarts.")


def test_what_a_click_does_can_be_copied_as_a_command(tab: Console, cluster: Cluster) -> None:
    tab.open("/topics")
    tab.click("Create topic")
    tab.fill("Name", "copied")
    tab.button("Copy as …", within=tab.dialog).click()
    tab.click("Copy moldau")
    copied, brokers = tab.page.evaluate("navigator.clipboard.readText()").split(" -b ")
    assert copied == "moldau topic create copied --partitions 3 --replication-factor 3"
    assert set(brokers.split(",")) == set(cluster.bootstrap.split(","))


def test_a_topic_that_is_deleted_while_it_is_looked_at(tab: Console, cluster: Cluster) -> None:
    create(cluster, "gone", messages=1)
    tab.open("/topics/gone")
    tab.see("2 partitions, 2 replicas")
    ask(cluster.brokers[1].http_address, "DELETE", "/api/v1/topics/gone")
    tab.see("It was deleted while you looked at it.")
    tab.open("/topics/gone?tab=messages&live=true")
    tab.page.get_by_role("alert").get_by_text("gone").wait_for()


def test_a_topic_is_created_and_written_to_by_the_keyboard_alone(tab: Console) -> None:
    keyboard = tab.page.keyboard

    def tab_to(name: str, *, steps_max: int = 60) -> None:
        """Press Tab until the element of this name has the focus, and can be seen to have it."""
        for _ in range(steps_max):
            keyboard.press("Tab")
            if tab.page.evaluate(NAME_OF_FOCUS) == name:
                assert tab.page.evaluate(OUTLINE_OF_FOCUS) != "none"
                return
        pytest.fail(f"Tab does not come to {name!r}")

    tab_to("Topics")
    keyboard.press("Enter")
    tab.page.get_by_role("heading", level=1, name="Topics").wait_for()
    tab_to("Create topic")
    keyboard.press("Enter")
    tab.dialog.wait_for()
    keyboard.type("typed")
    keyboard.press("Enter")
    tab.page.get_by_role("heading", level=1, name="typed").wait_for()
    tab_to("Produce")
    keyboard.press("Enter")
    tab_to("Value")
    keyboard.type("by keys alone")
    tab_to("Produce")
    keyboard.press("Enter")
    tab.see("1 message stored.")


NAME_OF_FOCUS = """() => {
    const at = document.activeElement;
    return at.getAttribute("aria-label") ?? at.labels?.[0]?.innerText ?? at.innerText;
}"""
OUTLINE_OF_FOCUS = "getComputedStyle(document.activeElement).outlineStyle"

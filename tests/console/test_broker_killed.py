"""A broker is killed while somebody looks at the overview of another."""

from collections.abc import Iterator

import pytest
from console_page import Console, console
from playwright.sync_api import Browser

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.mark.safety
def test_the_overview_says_what_a_killed_broker_led_and_who_leads_now(browser: Browser) -> None:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic("orders", partitions=6, replication_factor=3)
        killed = cluster.leader("orders", 0)
        watched = next(one for one in cluster.brokers if one.number != killed.number)
        led = [part for part in range(6) if cluster.leader("orders", part).number == killed.number]
        with console(browser, watched.http_address) as tab:
            tab.see("All 3 brokers respond")
            killed.kill()
            tab.see(f"Broker {killed.number} is not alive")
            wait_until(lambda: told(tab, led, killed.number), "the new leaders are named")
            wait_until(lambda: state_of(tab, killed.number) == "does not answer", "its row says so")
            killed.restart()
            tab.see("All 3 brokers respond")
            wait_until(lambda: state_of(tab, killed.number) == "active", "its row says so")
            tab.see(f"Broker {killed.number} is alive again")


def told(tab: Console, partitions: list[int], before: int) -> bool:
    """Whether the last events name a new leader for each of the partitions."""
    events = [text for text in tab.page.locator(".events li").all_inner_texts() if "leader" in text]
    new = [text for text in events if not text.endswith(f"broker {before}") and "orders" in text]
    named = {part for part in partitions for text in new if str(part) in text.split("(")[-1]}
    return named == set(partitions)


def state_of(tab: Console, broker: int) -> str:
    states = {row[0].split()[0]: row[1] for row in tab.rows("Brokers")}
    return states.get(str(broker), "")


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    with Cluster(brokers=1, settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        yield cluster


def test_a_page_whose_broker_is_gone_says_so_and_comes_back(
    browser: Browser, alone: Cluster
) -> None:
    broker = alone.brokers[1]
    with console(browser, broker.http_address, "/topics") as tab:
        tab.see("No topic")
        broker.kill()
        tab.see("No connection to the broker at")
        assert tab.page.locator("header .health").inner_text() == "No connection to the broker"
        broker.restart()
        tab.see_gone("No connection to the broker at")
        with KafkaClient(alone.bootstrap) as client:
            client.create_topic("new", partitions=1)
        wait_until(lambda: [row[0] for row in tab.rows("Topics")] == ["new"], "the page goes on")


def test_a_live_view_says_what_it_missed_of_a_broker_that_hung(
    browser: Browser, alone: Cluster
) -> None:
    broker = alone.brokers[1]
    path = "/topics/watched?tab=messages&live=true"
    with KafkaClient(alone.bootstrap) as client:
        client.create_topic("watched", partitions=1)
    with console(browser, broker.http_address, path) as tab:
        tab.see("Live: new messages appear here.")
        broker.pause()
        try:
            tab.see("No connection to the broker at")
            tab.see("Interrupted since")
        finally:
            broker.resume()
        tab.see_gone("No connection to the broker at")
        tab.see("is not shown: the view was interrupted.")
        tab.page.get_by_role("button", name="Search from").click()
        tab.see("Searched all.")

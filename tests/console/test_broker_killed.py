"""A broker is killed while somebody looks at the overview of another."""

import pytest
from console_page import Console, console
from playwright.sync_api import Browser

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


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


def test_a_page_whose_broker_is_gone_says_so_and_comes_back(browser: Browser) -> None:
    with Cluster(brokers=1, settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        broker = cluster.brokers[1]
        tab = Console(browser, broker.http_address)
        tab.open("/topics")
        tab.see("No topic")
        broker.kill()
        tab.see("No connection to the broker")
        broker.restart()
        tab.see_gone("No connection to the broker")
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic("new", partitions=1)
        wait_until(lambda: [row[0] for row in tab.rows("Topics")] == ["new"], "the page goes on")
        tab.close()

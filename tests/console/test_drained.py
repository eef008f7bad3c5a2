"""A broker is drained by the console, kept after all, and then removed."""

import re

import pytest
from console_page import Console, console
from playwright.sync_api import Browser

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster

pytestmark = pytest.mark.system


def test_a_broker_is_drained_kept_and_at_last_removed(browser: Browser) -> None:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic("orders", partitions=6, replication_factor=2)
            client.create_topic("moved", partitions=1, replication_factor=1)
        controller = cluster.topology()["controller"]
        leader = cluster.leader("moved", 0)
        others = [one for one in cluster.brokers if one.number != controller]
        paused, drained = sorted(others, key=lambda one: one.number == leader.number)
        name = f"broker {drained.number}"
        with console(browser, cluster.brokers[controller].http_address) as tab:
            # What the two share with the controller cannot move while one of them is paused.
            paused.pause()
            tab.see(f"Broker {paused.number} is not alive")
            see_a_move(tab, [leader.number, paused.number])
            tab.open(f"/brokers/{drained.number}")
            tab.click("Drain and remove")
            tab.confirm(name, "Drain and remove")
            tab.see(f"{name} is draining")
            tab.click("Keep it")
            tab.see(f"{name} stays in the cluster.")
            paused.resume()
            tab.click("Drain and remove")
            tab.confirm(name, "Drain and remove")
            tab.see(f"The cluster has no {name}.")
            tab.go("Overview")
            tab.see(f"{name} left the cluster")
            tab.see("All 2 brokers respond")


def see_a_move(tab: Console, replicas: list[int]) -> None:
    """One that cannot end, as the second replica does not answer."""
    path = "/api/v1/topics/moved/replicas"
    reply = ask(tab.address, "POST", path, {"partitions": {"0": replicas}})
    assert reply.status == 200, reply.body
    tab.open("/topics/moved")
    tab.click("Move partition 0")
    left = re.compile(rf"Broker {replicas[1]}:\s+(not heard of yet|[\d,]+ entr\w+ left)")
    tab.dialog.get_by_text(left).wait_for()
    tab.button("Cancel the move", within=tab.dialog).click()
    tab.see("The move of moved-0 is cancelled.")

"""A broker is drained by the console, kept after all, and then removed."""

import pytest
from console_page import console
from playwright.sync_api import Browser

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster

pytestmark = pytest.mark.system


def test_a_broker_is_drained_kept_and_at_last_removed(browser: Browser) -> None:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic("orders", partitions=6, replication_factor=2)
        controller = cluster.topology()["controller"]
        paused, drained = (one for one in cluster.brokers if one.number != controller)
        name = f"broker {drained.number}"
        with console(browser, cluster.brokers[controller].http_address) as tab:
            # What the two share with the controller cannot move while one of them is paused.
            paused.pause()
            tab.see(f"Broker {paused.number} is not alive")
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

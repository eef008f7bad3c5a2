"""The pictures of docs/operate/console.md: a shop's cluster while it works.

make console-pictures writes them again; without that they are taken, and thrown away.
"""

import json
import math
import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from console_page import Console, console
from doc_pages import ROOT
from playwright.sync_api import Browser
from small_png import small_png

from http_client import ask
from moldau import QueueClient
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

IS_KEPT = bool(os.environ.get("MOLDAU_WRITE_PICTURES"))
ORDERS, POINTS = (8000, 40) if IS_KEPT else (1, 2)
"""A history that can be seen takes as long as it covers."""
PICTURES = ROOT / "docs/operate/pictures"
BYTES_MAX = 100_000
WIDE, NARROW = 1280, 390

TOPICS = {"orders": 6, "payments": 3, "clicks": 6, "shipments": 3, "pictures": 3}
LOOKS = {
    "console-overview": ("/", "light", WIDE, 1000),
    "console-overview-dark": ("/", "dark", WIDE, 1000),
    "console-overview-narrow": ("/", "light", NARROW, 900),
    "console-messages": (
        "/topics/orders?tab=messages&json=country%3DAT",
        "light",
        WIDE,
        720,
    ),
    "console-group": ("/groups/billing", "light", WIDE, 760),
    "console-queue": ("/queues/resizers/pictures", "light", WIDE, 640),
    "console-raft": ("/raft?group=orders/0", "dark", WIDE, 720),
    "console-brokers": ("/brokers", "light", WIDE, 460),
}


def history(address: str) -> list[int]:
    found: list[int] = ask(address, "GET", "/api/v1/overview").body["history"]["at_ms"]
    return found


class Shop:
    """Sends and reads until it is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._chance = random.Random(7)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "client.id": "web-shop", "linger.ms": 20}
        )
        self._billing = self._reader(cluster, "billing", "orders", "payments")
        self._shipping = self._reader(cluster, "shipping", "orders")
        self.number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _reader(cluster: Cluster, group: str, *topics: str) -> Consumer:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": f"{group}-1",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
        }
        reader = Consumer(settings)
        reader.subscribe(list(topics))
        return reader

    def _run(self) -> None:
        turn = 0
        while not self._ended.wait(0.1):
            turn += 1
            for _ in range(int(45 + 25 * math.sin(turn / 110) + self._chance.randrange(12))):
                self._order()
            self._producer.poll(0)
            self._billing.consume(2000, 0.01)
            # It is slower than the shop, and falls behind.
            self._shipping.consume(20, 0.01)

    def _order(self) -> None:
        self.number += 1
        customer = self._chance.choice(["anna", "bela", "clara", "david", "emil"])
        country = self._chance.choice(["AT", "CZ", "CZ", "CZ", "DE", "DE", "SK", "HU"])
        item = self._chance.choice(["lamp", "chair", "kettle", "umbrella"])
        order = {
            "id": 900_719_925_474_099_000 + self.number,
            "customer": customer,
            "country": country,
            "items": [{"name": item, "count": self._chance.randrange(1, 4)}],
        }
        key = f"order-{self.number}"
        self._producer.produce("orders", json.dumps(order), key=key, headers={"source": "web"})
        if self.number % 3 == 0:
            self._producer.produce("payments", json.dumps({"order": order["id"]}), key=key)
        for _ in range(2):
            self._producer.produce("clicks", json.dumps({"page": f"/{item}"}), key=customer)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._billing.close()
        self._shipping.close()
        assert self._producer.flush() == 0


@contextmanager
def working(cluster: Cluster) -> Iterator[Shop]:
    shop = Shop(cluster)
    try:
        yield shop
    finally:
        shop.close()


@contextmanager
def resizing(cluster: Cluster) -> Iterator[None]:
    """A queue with something in each state."""
    with QueueClient(cluster.brokers[1].grpc_address) as client:
        for number in range(7):
            client.send("pictures", f"resize {number}.png", key=f"{number}.png", delay=3600)
        jobs = [(f"{number}.png", f"resize {number}.png") for number in range(7, 60)]
        client.send_many("pictures", jobs)
        worker = client.connect("resizers", "pictures", attempts=1, visibility=600)
        done = 0

        def worked() -> bool:
            nonlocal done
            for message in worker.poll(5, wait=0.2):
                done += 1
                if done % 9 == 0:
                    message.nack(reason="the picture is empty")
                elif done % 4:
                    message.ack()
            return done >= 30

        wait_until(worked, "workers have pictures")
        yield
        worker.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"QUEUE__STATE_PARTITIONS": "3", "GROUP__OFFSETS_PARTITIONS": "3"}
    with Cluster(settings=settings) as started:
        with KafkaClient(started.bootstrap) as client:
            for name, partitions in TOPICS.items():
                client.create_topic(name, partitions=partitions, replication_factor=3)
        yield started


def test_pictures_show_a_cluster_that_works(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    folder, address = PICTURES if IS_KEPT else tmp_path, cluster.brokers[1].http_address
    blank = browser.new_page()
    with ExitStack() as tabs:
        shop = tabs.enter_context(working(cluster))
        tabs.enter_context(resizing(cluster))
        for least in range(0, ORDERS, 1000):
            wait_until(partial(lambda least: shop.number > least, least), "orders come")
        opened: dict[str, Console] = {}
        for name, (path, scheme, width, height) in LOOKS.items():
            size = {"width": width, "height": height}
            # A search takes its messages last, and no part in the charts.
            start = "/topics" if name == "console-messages" else path
            page = console(browser, address, start, color_scheme=scheme, viewport=size)
            opened[name] = tabs.enter_context(page)
        # Brokers sample, and charts are drawn, while somebody looks.
        for least in range(POINTS):
            drawn = partial(lambda least: len(history(address)) > least, least)
            wait_until(drawn, "charts are drawn")
        for name, tab in opened.items():
            if name == "console-messages":
                tab.open(LOOKS[name][0])
                tab.page.get_by_text("More", exact=True).wait_for()
            tab.settle()
            assert LOOKS[name][2] == NARROW or tab.wide_tables() == [], name
            picture = small_png(blank, tab.page.screenshot())
            assert len(picture) <= BYTES_MAX, name
            (folder / f"{name}.png").write_bytes(picture)
    blank.close()

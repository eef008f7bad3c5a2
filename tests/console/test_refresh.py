"""Pages load what they show again and again, and leave alone what their reader does meanwhile."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from console_page import Console, console
from playwright.sync_api import Browser

from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


class Reader:
    """A page, and the requests that it sends."""

    def __init__(self, tab: Console) -> None:
        self.tab = tab
        self.paths: list[str] = []
        tab.page.on("request", lambda request: self.paths.append(urlsplit(request.url).path))

    def wait_for_reloads(self, path: str) -> None:
        """Of `path`, two."""
        wanted = self.paths.count(path) + 2
        # Events come while playwright is at work.
        wait_until(
            lambda: self.tab.page.title() and self.paths.count(path) >= wanted, f"{path} is loaded"
        )


@pytest.fixture
def open_page(browser: Browser, moldau_session_broker: Broker) -> Iterator[Callable[[str], Reader]]:
    with console(browser, moldau_session_broker.http_address) as tab:
        reader = Reader(tab)

        def opened(path: str) -> Reader:
            tab.open(path)
            tab.settle()
            return reader

        yield opened


@pytest.fixture
def topic(moldau_session_broker: Broker, moldau_topic: str) -> str:
    producer = Producer({"bootstrap.servers": moldau_session_broker.bootstrap})
    for number in range(150):
        producer.produce(moldau_topic, f'{{"n": {number}}}')
    assert producer.flush() == 0
    return moldau_topic


def test_a_search_does_not_begin_again(open_page: Callable[[str], Reader], topic: str) -> None:
    page = open_page(f"/topics/{topic}?tab=messages")
    page.tab.click("More")
    page.tab.see("150 messages found")
    page.wait_for_reloads(f"/api/v1/topics/{topic}")
    assert page.paths.count(f"/api/v1/topics/{topic}/search") == 2
    page.tab.see("150 messages found")


def test_a_live_view_goes_on(open_page: Callable[[str], Reader], topic: str) -> None:
    page = open_page(f"/topics/{topic}?tab=messages&live=true")
    page.wait_for_reloads(f"/api/v1/topics/{topic}")
    assert page.paths.count(f"/api/v1/topics/{topic}/live") == 1


def test_what_is_typed_stays(open_page: Callable[[str], Reader], topic: str) -> None:
    page = open_page(f"/topics/{topic}")
    page.tab.click("Add partitions")
    amount = page.tab.dialog.get_by_role("spinbutton")
    amount.fill("77")
    page.wait_for_reloads(f"/api/v1/topics/{topic}")
    assert amount.input_value() == "77"


def test_brokers_that_are_chosen_stay(open_page: Callable[[str], Reader], topic: str) -> None:
    page = open_page(f"/topics/{topic}")
    page.tab.click("Move partition 0")
    page.tab.dialog.get_by_role("checkbox").uncheck()
    page.wait_for_reloads(f"/api/v1/topics/{topic}")
    assert not page.tab.dialog.get_by_role("checkbox").is_checked()


@pytest.mark.safety
def test_dead_letters_are_loaded_once(
    open_page: Callable[[str], Reader], moldau_session_broker: Broker, topic: str
) -> None:
    with QueueClient(moldau_session_broker.grpc_address) as client:
        client.connect(f"workers-{topic}", topic).close()
    path = f"/queues/workers-{topic}/{topic}"
    page = open_page(f"{path}?tab=dead")
    page.wait_for_reloads(f"/api/v1{path}")
    assert page.paths.count(f"/api/v1{path}/dead") == 1

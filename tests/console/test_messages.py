"""Messages in the console: their filters, one of their list, and what is said not to be shown."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import Producer
from console_page import Console, console
from playwright.sync_api import Browser, Page, Request, Route

from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

NARROW = {"width": 390, "height": 800}


IS_HIDDEN = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
CHANGED = "document.dispatchEvent(new Event('visibilitychange'))"


def look_away(page: Page) -> None:
    page.evaluate(f"{IS_HIDDEN % 'true'}; {CHANGED}")


def look_at(page: Page) -> None:
    page.evaluate(f"{IS_HIDDEN % 'false'}; {CHANGED}")


@pytest.fixture
def tab(browser: Browser, moldau_session_broker: Broker) -> Iterator[Console]:
    with console(browser, moldau_session_broker.http_address) as found:
        yield found


@pytest.fixture
def topic(moldau_session_broker: Broker, moldau_topic: str) -> str:
    producer = Producer({"bootstrap.servers": moldau_session_broker.bootstrap})
    for number in range(10):
        producer.produce(moldau_topic, f'{{"n": {number}}}', key=f"k{number}")
    assert producer.flush() == 0
    return moldau_topic


def query(tab: Console) -> dict[str, list[str]]:
    return parse_qs(urlsplit(tab.page.url).query)


def keys(tab: Console) -> list[str]:
    return [row[3] for row in tab.rows("Messages")]


def test_filters_are_in_the_address_and_come_back(tab: Console, topic: str) -> None:
    tab.open(f"/topics/{topic}?tab=messages")
    wait_until(lambda: len(keys(tab)) == 10, "all are shown")
    tab.fill("Key", "k8")
    tab.click("Search")
    wait_until(lambda: keys(tab) == ["k8"], "one is shown")
    tab.go("Consumers")
    tab.go("Messages")
    wait_until(lambda: keys(tab) == ["k8"], "the filter is there again")
    tab.fill("Key", "k7")
    tab.click("Live")
    tab.see("Live: new messages appear here.")
    assert (query(tab)["key"], query(tab)["live"]) == (["k7"], ["true"])
    tab.page.go_back()
    wait_until(lambda: keys(tab) == ["k8"], "the search before is there again")
    assert tab.page.get_by_label("Key", exact=True).input_value() == "k8"
    tab.choose("Begin with", "time")
    tab.fill("Time", "2026-01-02T03:04:05")
    tab.click("Search")
    wait_until(lambda: query(tab).get("time", [""])[0].endswith("Z"), "the time has its zone")
    assert tab.page.get_by_label("Time", exact=True).input_value() == "2026-01-02T03:04:05"


def test_what_is_no_filter_is_not_searched_for(tab: Console, topic: str) -> None:
    searches: list[str] = []
    tab.page.on("request", lambda one: searches.append(one.url) if "/search" in one.url else None)
    tab.open(f"/topics/{topic}?tab=messages&from=time&time=garbage")
    tab.see("This is no time.")
    tab.see("Nothing was searched.")
    assert searches == []
    tab.choose("Begin with", "newest")
    tab.fill("JSON path", "n>5")
    tab.click("Search")
    tab.see("“>5” is no part of a path.")
    assert searches == []
    tab.fill("JSON path", "n=5")
    tab.click("Search")
    wait_until(lambda: keys(tab) == ["k5"], "one is shown")


def test_a_message_is_followed_by_the_next(tab: Console, topic: str) -> None:
    searches: list[str] = []
    tab.page.on("request", lambda one: searches.append(one.url) if "/search" in one.url else None)
    tab.open(f"/topics/{topic}?tab=messages")
    tab.click("Open offset 8 of partition 0")
    tab.dialog.get_by_text(f"{topic}-0 · offset 8").wait_for()
    tab.page.keyboard.press("ArrowRight")
    tab.dialog.get_by_text("offset 7").wait_for()
    tab.button("Previous", within=tab.dialog).click()
    tab.dialog.get_by_text("offset 8").wait_for()
    tab.page.keyboard.press("ArrowLeft")
    tab.dialog.get_by_text("offset 9").wait_for()
    assert tab.button("Previous", within=tab.dialog).is_disabled()
    tab.page.get_by_label("Show as").select_option("hex")
    tab.dialog.get_by_text("00000000  7b 22").wait_for()
    assert len(searches) == 1
    # The same link shows the same message, also where a search does not find it.
    tab.open(f"/topics/{topic}?tab=messages&key=k1&open=0-9")
    tab.dialog.get_by_text("k9").wait_for()
    tab.page.keyboard.press("Escape")
    tab.dialog.wait_for(state="hidden")
    wait_until(lambda: keys(tab) == ["k1"] and "open" not in query(tab), "the list is left")
    tab.open(f"/topics/{topic}?tab=messages&open=0-99")
    tab.see("Offset 99 of partition 0 is not there (any more).")


def test_the_search_goes_on_for_the_next_message(
    tab: Console, topic: str, moldau_session_broker: Broker
) -> None:
    producer = Producer({"bootstrap.servers": moldau_session_broker.bootstrap})
    for _ in range(91):
        producer.produce(topic, "another")
    assert producer.flush() == 0
    tab.open(f"/topics/{topic}?tab=messages&open=0-1")
    tab.see("100 messages found in 100")
    tab.button("Next", within=tab.dialog).click()
    tab.dialog.get_by_text(f"{topic}-0 · offset 0").wait_for()
    tab.see("101 messages found in 101")


def test_markers_are_shown_and_what_is_hidden_is_said(
    tab: Console, topic: str, moldau_session_broker: Broker
) -> None:
    producer = Producer(
        {"bootstrap.servers": moldau_session_broker.bootstrap, "transactional.id": topic}
    )
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, "of a transaction")
        assert producer.flush() == 0
        end()
    tab.open(f"/topics/{topic}?tab=messages")
    tab.see("Messages of open and aborted transactions are not shown.")
    wait_until(lambda: len(keys(tab)) == 11, "what is committed is shown")
    tab.page.get_by_label("Also transaction markers").check()
    tab.click("Search")
    wait_until(lambda: len(keys(tab)) == 13, "markers are shown")
    assert [row[4] for row in tab.rows("Messages")][:2] == ["abort marker", "commit marker"]
    tab.page.get_by_text("What was searched").click()
    tab.see("partition 0: offset 0 to 13")


def test_of_many_partitions_the_first_are_searched(tab: Console, topic: str) -> None:
    def grown(route: Route) -> None:
        found = route.fetch()
        shown: dict[str, Any] = found.json()
        route.fulfill(response=found, json={**shown, "partition_count": 2000})

    asked: list[list[str]] = []

    def searched(route: Route) -> None:
        asked.append(parse_qs(urlsplit(route.request.url).query).get("partition", []))
        route.continue_(url=route.request.url.split("?")[0])

    tab.page.route(f"**/api/v1/topics/{topic}?*", grown)
    tab.page.route("**/search?*", searched)
    tab.open(f"/topics/{topic}?tab=messages")
    tab.see("Of 2,000 partitions the first 256 are searched: choose others above.")
    tab.choose("Partition", "1792-1999")
    tab.click("Search")
    wait_until(lambda: tab.page.title() and len(asked) == 2, "others are searched")
    assert asked[0] == [str(number) for number in range(256)]
    assert asked[1] == [str(number) for number in range(1792, 2000)]


@pytest.fixture
def send_large(moldau_session_broker: Broker, moldau_topic: str) -> Callable[[bytes], str]:
    def send(value: bytes) -> str:
        name, size = f"{moldau_topic}-large", "20000000"
        with KafkaClient(moldau_session_broker.bootstrap) as client:
            client.create_topic(name, configs={"max.message.bytes": size})
        settings = {"bootstrap.servers": moldau_session_broker.bootstrap, "message.max.bytes": size}
        producer = Producer({**settings, "compression.type": "lz4"})
        producer.produce(name, value)
        assert producer.flush() == 0
        return name

    return send


def test_a_value_of_megabytes_is_shown_in_parts(
    tab: Console, send_large: Callable[[bytes], str]
) -> None:
    name = send_large(json.dumps({"a": "z" * 10_000_000}).encode())
    tab.open(f"/topics/{name}?tab=messages&open=0-0")
    tab.button("Load all 9.54 MiB", within=tab.dialog).click()
    tab.dialog.get_by_text("It is too long to be shown as a tree").wait_for()
    tab.dialog.get_by_text("Only the first 100,000 characters are shown.").wait_for()
    tab.button("Show more", within=tab.dialog).click()
    tab.dialog.get_by_text("Only the first 200,000 characters are shown.").wait_for()
    tab.dialog.get_by_text("Values above 1 MiB cannot be edited here.").wait_for()


def test_a_phone_shows_keys_and_values(
    browser: Browser, topic: str, moldau_session_broker: Broker
) -> None:
    path = f"/topics/{topic}?tab=messages"
    with console(browser, moldau_session_broker.http_address, path, viewport=NARROW) as tab:
        box = tab.page.get_by_text('{"n": 9}').bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= NARROW["width"]


def test_tabs_share_one_stream_of_the_overview(tab: Console) -> None:
    streams: list[Request] = []

    def note(request: Request) -> None:
        if "/overview/stream" in request.url:
            streams.append(request)

    def forget(request: Request) -> None:
        if request in streams:
            streams.remove(request)

    tab.page.context.on("request", note)
    # One that was silent for too long is begun again.
    tab.page.context.on("requestfailed", forget)
    tab.page.context.on("requestfinished", forget)
    tab.open()
    tab.settle()
    others = [tab.page.context.new_page() for _ in range(8)]
    for page in others:
        page.goto(tab.page.url)
    for page in others:
        page.locator("header .health").wait_for()
    # The reload of the first tab ends its stream a moment after the next one has begun.
    wait_until(lambda: tab.page.title() and len(streams) == 1, "one stream is left")


def note_end(ended: list[Page], page: Page, request: Request) -> None:
    if "/live" in request.url:
        ended.append(page)


@pytest.mark.safety
def test_one_live_view_goes_on_while_nobody_looks(tab: Console, topic: str) -> None:
    pages = [tab.page, tab.page.context.new_page()]
    ended: list[Page] = []
    for page in pages:
        page.goto(f"http://{tab.address}/ui/topics/{topic}?tab=messages&live=true")
        page.get_by_text("Live: new messages appear here.").wait_for()
        page.on("requestfailed", partial(note_end, ended, page))
        look_away(page)
    wait_until(lambda: tab.page.title() and ended, "one has ended")
    for page in pages:
        look_at(page)
    pages[1].get_by_text("is not shown: the view was interrupted.").wait_for()
    assert ended == [pages[1]]
    assert pages[0].get_by_text("the view was interrupted").count() == 0

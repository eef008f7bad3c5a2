"""The form that produces: what is sent again stays what it was, and what is typed is not lost."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

DROP = """(selector) => {
    const data = new DataTransfer();
    data.items.add(new File(["of a file"], "one.txt"));
    const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
    return !document.querySelector(selector).dispatchEvent(event);
}"""


@pytest.fixture
def open_page(
    browser: Browser, moldau_session_broker: Broker
) -> Iterator[Callable[[str], Console]]:
    with console(browser, moldau_session_broker.http_address) as tab:

        def opened(path: str) -> Console:
            tab.open(path)
            tab.settle()
            return tab

        yield opened


def read(broker: Broker, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(count, timeout=wait_seconds_max())
    finally:
        consumer.close()
    assert len(found) == count
    return found


def test_a_message_that_is_produced_again_is_the_same(
    open_page: Callable[[str], Console], moldau_session_broker: Broker, moldau_topic: str
) -> None:
    producer = Producer({"bootstrap.servers": moldau_session_broker.bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [
        ("bytes", b"\xff"),
        ("text", b"/w=="),
        ("none", None),
    ]
    producer.produce(moldau_topic, b'{"at": "{{now}}"}', b"\xff\xff", headers=headers)
    assert producer.flush() == 0
    tab = open_page(f"/topics/{moldau_topic}?tab=messages")
    tab.click("Open offset 0 of partition 0")
    tab.click("Edit and produce again")
    tab.click("Produce")
    tab.see("1 message stored.")
    first, second = read(moldau_session_broker, moldau_topic, 2)
    assert (second.key(), second.value(), second.headers()) == (
        first.key(),
        first.value(),
        first.headers(),
    )


def test_what_is_typed_stays_and_a_file_is_taken_wherever_it_falls(
    open_page: Callable[[str], Console], moldau_session_broker: Broker, moldau_topic: str
) -> None:
    tab = open_page(f"/topics/{moldau_topic}?tab=produce")
    tab.fill("Value", '{"n":{{n}}}')
    tab.see("Drop a file on this page to send its bytes.")
    tab.click("Add header")
    tab.click("Produce")  # The header has no name: the browser asks for it.
    tab.fill("Name of header 1", "h")
    tab.go("Consumers")
    tab.go("Produce")
    assert tab.page.get_by_label("Name of header 1").input_value() == "h"
    assert tab.page.get_by_label("Value", exact=True).input_value() == '{"n":{{n}}}'
    tab.fill("How many", "2")
    tab.click("Produce 2")
    tab.see("2 messages stored.")
    assert tab.page.evaluate(DROP, "h1")
    tab.see("The value is one.txt, 9 B.")
    tab.fill("How many", "1")
    tab.click("Produce")
    tab.see("1 message stored.")
    values = [one.value() for one in read(moldau_session_broker, moldau_topic, 3)]
    assert values == [b'{"n":0}', b'{"n":1}', b"of a file"]

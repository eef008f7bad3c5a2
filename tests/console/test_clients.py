"""Clients in the console: what goes over their connections now, and over all of a client id."""

import pytest
from confluent_kafka import Producer
from console_page import console
from playwright.sync_api import Browser

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def test_clients_show_what_they_send_now_and_are_put_together(
    browser: Browser, moldau_session_broker: Broker, moldau_topic: str
) -> None:
    name = f"client-of-{moldau_topic}"
    settings = {"bootstrap.servers": moldau_session_broker.bootstrap, "client.id": name}
    producers = [Producer(settings) for _ in range(2)]

    def send() -> None:
        for producer in producers:
            producer.produce(moldau_topic, "x" * 10_000)
            assert producer.flush() == 0

    send()
    address = moldau_session_broker.http_address
    with console(browser, address, f"/clients?search={name}") as tab:
        tab.settle()
        before = len(tab.rows("Connections"))
        assert before >= 2

        def is_sending() -> bool:
            send()
            traffic = [row[5] for row in tab.rows("Connections")]
            return any(text.endswith("B/s") and text[0] != "0" for text in traffic)

        wait_until(is_sending, "what is sent is seen")
        tab.choose("Rows", "client")
        wait_until(lambda: len(tab.rows("Client ids")) == 1, "they are one client")
        (row,) = tab.rows("Client ids")
        assert (row[0], row[1]) == (name, str(before))
        tab.choose("Traffic", "total")
        wait_until(lambda: "iB" in tab.rows("Client ids")[0][6], "what they sent in all is shown")

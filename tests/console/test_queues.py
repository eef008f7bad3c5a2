"""Queues in the console: what is in them, and their dead letters."""

from typing import Any

import pytest
from console_page import Console, console
from playwright.sync_api import Browser, Route

from http_client import ask
from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def queue(moldau_session_broker: Broker, moldau_topic: str) -> str:
    """A group with one dead letter that was redriven, and one that was not."""
    group = f"workers-{moldau_topic}"
    address, path = moldau_session_broker.http_address, f"/api/v1/queues/{group}/{moldau_topic}"
    with QueueClient(moldau_session_broker.grpc_address) as client:
        worker = client.connect(group, moldau_topic, attempts=1)
        client.send(moldau_topic, "one")
        client.send(moldau_topic, "two")
        failed = 0

        def fail() -> bool:
            nonlocal failed
            for message in worker.poll(2, wait=0.2):
                message.nack(reason="bad")
                failed += 1
            return failed == 2

        wait_until(fail, "both fail")

    def letters() -> Any:
        return ask(address, "GET", f"{path}/dead").body["records"]

    wait_until(lambda: len(letters()) == 2, "both are dead letters")
    named = [{"partition": letters()[0]["partition"], "offset": letters()[0]["offset"]}]

    def redriven() -> Any:
        return ask(address, "POST", f"{path}/redrive", {"records": named}).body["redriven"]

    wait_until(redriven, "one is redriven")
    return group


def test_dead_letters_of_an_older_broker_are_shown(
    browser: Browser, moldau_session_broker: Broker, moldau_topic: str, queue: str
) -> None:
    def older(route: Route) -> None:
        found = route.fetch()
        shown = found.json()
        shown["records"] = [{**one, "history": None} for one in shown["records"]]
        route.fulfill(response=found, json=shown)

    with console(browser, moldau_session_broker.http_address) as tab:
        tab.page.route("**/dead?*", older)
        tab.open(f"/queues/{queue}/{moldau_topic}?tab=dead")
        wait_until(lambda: len(tab.rows("Dead letters")) == 1, "it is shown")


def listed(tab: Console) -> list[list[str]]:
    return [row[:6] for row in tab.rows("Queues")]


def test_a_list_counts_and_dead_letters_are_purged(
    browser: Browser, moldau_session_broker: Broker, moldau_topic: str, queue: str
) -> None:
    with console(browser, moldau_session_broker.http_address, f"/queues?search={queue}") as tab:
        tab.see("1 group that only notes which dead letters were redriven is not listed.")
        assert listed(tab) == [[queue, moldau_topic, "1", "0", "0", "1"]]
        tab.go("1")  # The dead letter.
        tab.page.get_by_role("heading", level=1, name=queue).wait_for()
        wait_until(lambda: len(tab.rows("Dead letters")) == 1, "it is shown")
        tab.click("Purge")
        tab.dialog.get_by_text(f"stay in the topic {queue}.dead until").wait_for()
        tab.confirm(queue, "Remove the dead letters")
        tab.see(f"1 dead letter of {queue} on {moldau_topic} removed.")
        wait_until(lambda: tab.rows("Dead letters") == [], "none is left")


def test_a_dead_letter_says_what_became_of_it_before_it_was_redriven(
    browser: Browser, moldau_session_broker: Broker, moldau_topic: str, queue: str
) -> None:
    with QueueClient(moldau_session_broker.grpc_address) as client:
        worker = client.connect(queue, moldau_topic)

        def fails_again() -> bool:
            for message in worker.poll(1, wait=0.2):
                message.nack(reason="worse <b>")
                return True
            return False

        wait_until(fails_again, "it fails again")
    path = f"/queues/{queue}/{moldau_topic}?tab=dead"
    with console(browser, moldau_session_broker.http_address, path) as tab:

        def both() -> bool:
            tab.click("Look again")
            return len(tab.rows("Dead letters")) == 2

        wait_until(both, "both are shown")
        row = tab.page.get_by_role("row").filter(has_text="worse <b>")
        row.get_by_text("1 earlier time").click()
        row.get_by_role("listitem").filter(has_text="bad (1 attempt)").wait_for()

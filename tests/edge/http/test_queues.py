"""Queue groups as a real broker shows them over HTTP."""

from typing import Any

import pytest

from http_client import ask
from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def test_queue_groups_come_in_pages_all_or_those_of_a_topic(moldau_broker: Broker) -> None:
    address = moldau_broker.http_address
    assert ask(address, "GET", "/api/v1/queues").body == {"queues": [], "next": None}
    with QueueClient(moldau_broker.grpc_address) as client:
        client.create_topic("jobs")
        client.create_topic("mails")
        client.connect("a", "jobs", visibility=7, attempts=2)
        client.connect("c", ["jobs", "mails"])
    first = ask(address, "GET", "/api/v1/queues?limit=1").body
    assert first["next"] == "a"
    assert first["queues"] == [
        {
            "group": "a",
            "topics": ["jobs"],
            "is_redrive": False,
            "visibility_ms": 7_000,
            "attempts_max": 2,
            "backoff_ms": 1_000,
            "backoff_ms_max": 60_000,
            "dead_letter_topic": "a.dead",
        }
    ]
    rest = ask(address, "GET", "/api/v1/queues?after=a").body
    assert [each["group"] for each in rest["queues"]] == ["c"]
    assert rest["next"] is None
    mails = ask(address, "GET", "/api/v1/queues?topic=mails").body
    assert [each["group"] for each in mails["queues"]] == ["c"]
    found = ask(address, "GET", "/api/v1/queues?search=MAIL").body
    assert [each["group"] for each in found["queues"]] == ["c"]


def test_queues_are_counted_if_wanted_and_redrives_are_marked(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    address = moldau_session_broker.http_address
    group = f"of-{moldau_topic}"
    with QueueClient(moldau_session_broker.grpc_address) as client:
        worker = client.connect(group, moldau_topic, attempts=1)
        for value in ("dies", "is leased", "waits"):
            client.send(moldau_topic, value)
        leased: list[Any] = []

        def lease() -> bool:
            leased.extend(worker.poll(2 - len(leased), wait=1))
            return len(leased) == 2

        wait_until(lease, "two are leased")
        leased[0].nack(reason="bad")

        def counts(group: str = group) -> Any:
            found = ask(address, "GET", f"/api/v1/queues?counts=true&search={group}").body
            return found["queues"][0].get("counts")

        shown = {"topic": moldau_topic, "ready": 1, "leased": 1, "delayed": 0, "dead": 1}
        wait_until(lambda: counts() == [shown], "all are counted")
        path = f"/api/v1/queues/{group}/{moldau_topic}"
        # One that is still on its way to the dead-letter topic counts, and cannot be redriven yet.
        wait_until(
            lambda: len(ask(address, "GET", f"{path}/dead").body["records"]) == 1,
            "the dead letter has moved",
        )

        def redriven() -> bool:
            # Its queue of redrives may still be loading: that is refused, and to be repeated.
            reply = ask(address, "POST", f"{path}/redrive", {"records": None})
            assert reply.body["redriven"] or reply.body["refused"], str(reply.body)
            return bool(reply.body["redriven"])

        wait_until(redriven, "the dead letter is redriven")
        assert counts() == [{**shown, "ready": 2, "dead": 0}]
        assert counts(f"{group}.redrive") == []
        client.connect(f"own-{group}.redrive", moldau_topic)
    listed = ask(address, "GET", f"/api/v1/queues?search={group}").body["queues"]
    assert {each["group"]: each["is_redrive"] for each in listed} == {
        group: False,
        f"{group}.redrive": True,
        f"own-{group}.redrive": False,
    }
    assert all("counts" not in each for each in listed)


def test_what_is_no_page_is_refused(moldau_session_broker: Broker) -> None:
    for query in ("limit=0", "limit=x", "after=a&after=b", "topics=t"):
        reply = ask(moldau_session_broker.http_address, "GET", f"/api/v1/queues?{query}")
        assert (reply.status, reply.body["status"]) == (400, 400)

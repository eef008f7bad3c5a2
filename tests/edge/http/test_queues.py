"""Queue groups as a real broker shows them over HTTP."""

import pytest

from http_client import ask
from moldau import QueueClient
from moldau.testing.broker import Broker

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


def test_what_is_no_page_is_refused(moldau_session_broker: Broker) -> None:
    for query in ("limit=0", "limit=x", "after=a&after=b", "topics=t"):
        reply = ask(moldau_session_broker.http_address, "GET", f"/api/v1/queues?{query}")
        assert (reply.status, reply.body["status"]) == (400, 400)

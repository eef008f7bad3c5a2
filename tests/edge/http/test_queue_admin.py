"""A queue over HTTP as a real broker shows it: shapes, encodings, and what is refused."""

from typing import Any

import pytest

from http_client import ask
from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.mark.safety
def test_a_dead_letter_is_shown_with_its_source_and_goes_back(moldau_broker: Broker) -> None:
    address = moldau_broker.http_address
    path = "/api/v1/queues/a/b/jobs"

    def get(rest: str = "") -> Any:
        reply = ask(address, "GET", path + rest)
        assert reply.status == 200, reply.body
        return reply.body

    with QueueClient(moldau_broker.grpc_address) as client:
        client.create_topic("jobs", partitions=1)
        worker = client.connect("a/b", "jobs", attempts=1, dead_letter="jobs.dead")
        assert get("/dead") == {"topic": "jobs.dead", "records": [], "next": None, "silent": []}
        assert get()["dead"] == 0
        client.send("jobs", b"\xff", key="k")
        client.send("jobs", '{"n": 1}')
        buried = 0

        def fail() -> bool:
            nonlocal buried
            for message in worker.poll(10, wait=0.2):
                message.nack(reason="bad")
                buried += 1
            return buried == 2

        wait_until(fail, "both fail")
        wait_until(lambda: len(get("/dead")["records"]) == 2, "both are dead letters")
    shown = get("/dead?limit=1")
    first = shown["records"][0]
    assert (first["key"], first["value"], first["value_base64"]) == ("k", None, "/w==")
    assert (first["partition"], first["value_bytes"], first["is_cut"]) == (0, 1, False)
    assert (first["reason"], first["attempts"], first["history"]) == ("bad", 1, [])
    assert first["source"] == {"topic": "jobs", "partition": 0, "offset": 0}
    assert first["died_at_ms"] > 1_600_000_000_000
    second = get(f"/dead?after={shown['next']}&value_encoding=json")
    assert [each["value"] for each in second["records"]] == [{"n": 1}]
    assert second["next"] is None
    queue = get()
    assert (queue["ready"], queue["leased"], queue["dead"], queue["topics"]) == (0, 0, 2, ["jobs"])
    assert queue["settings"]["dead_letter_topic"] == "jobs.dead"
    assert queue["partitions"][0]["acked_up_to"] == queue["partitions"][0]["end_offset"]

    body: dict[str, Any] = {"records": [{"partition": 0, "offset": 0}], "validate_only": True}
    preview = ask(address, "POST", path + "/redrive", body).body
    assert preview["records"] == [{"partition": 0, "offset": 0, "error": None, "target": None}]
    assert (preview["redriven"], preview["left"]) == (1, 0)
    done = ask(address, "POST", path + "/redrive", {**body, "validate_only": False}).body
    assert done == {
        "group": "a/b",
        "topic": "jobs",
        "target": "jobs",
        "validate_only": False,
        "redriven": 1,
        "failed": 0,
        "duplicates": 0,
        "left": 0,
        "is_complete": True,
        "records": [
            {
                "partition": 0,
                "offset": 0,
                "error": None,
                "target": {"topic": "jobs", "partition": 0, "offset": 2},
            }
        ],
        "refused": [],
        "silent": [],
    }

    with QueueClient(moldau_broker.grpc_address) as client:
        worker = client.connect("a/b", "jobs")

        def dies_again() -> bool:
            for message in worker.poll(10, wait=0.2):
                message.nack(reason="worse")
            return len(get("/dead")["records"]) == 2

        wait_until(dies_again, "it is a dead letter again")
        client.send("jobs", b"nobody wants it")
    (again,) = [one for one in get("/dead")["records"] if one["key"] == "k"]
    assert (again["reason"], again["attempts"]) == ("worse", 1)
    earlier = {"attempts": 1, "topic": "jobs", "reason": "bad"}
    assert again["history"] == [{**earlier, "died_at_ms": first["died_at_ms"]}]

    purged = ask(address, "POST", path + "/purge", {"confirm": "a/b", "what": "ready"}).body
    assert (purged["purged"], purged["what"], purged["is_complete"]) == (1, "ready", True)


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("GET", "?limit=0", None),
        ("GET", "?after=x", None),
        ("GET", "/dead?after=1", None),
        ("GET", "/dead?after=-1/0", None),
        ("GET", "/dead?contains=x", None),
        ("GET", "/dead?value_encoding=x", None),
        ("POST", "/redrive", {}),
        ("POST", "/redrive", {"records": []}),
        ("POST", "/redrive", {"records": [{"partition": -1, "offset": 0}]}),
        ("POST", "/redrive", {"records": None, "to": "x"}),
        ("POST", "/purge", {"confirm": "g"}),
        ("POST", "/purge", {"confirm": "g", "what": "all"}),
    ],
)
def test_what_is_misspelt_is_refused(
    moldau_session_broker: Broker, method: str, rest: str, body: object
) -> None:
    path = f"/api/v1/queues/none/none{rest}"
    reply = ask(moldau_session_broker.http_address, method, path, body)
    assert (reply.status, reply.body["status"]) == (400, 400)


def test_a_queue_that_does_not_exist_is_not_found(moldau_session_broker: Broker) -> None:
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/dead", None),
        ("POST", "/redrive", {"records": None}),
        ("POST", "/purge", {"confirm": "none", "what": "dead"}),
    ):
        path = f"/api/v1/queues/none/none{rest}"
        reply = ask(moldau_session_broker.http_address, method, path, body)
        assert (reply.status, reply.body["error"]) == (404, "GROUP_ID_NOT_FOUND")

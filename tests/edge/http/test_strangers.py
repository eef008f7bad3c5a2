"""Every route, by everyone who may not use it: nothing is given, and nothing is changed."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Final, NamedTuple

import pytest
from secured_broker import GROUP, PASSWORDS, SECRET, TOPIC, SecuredBroker, secured_broker

from moldau.edge.http.visits import PUBLIC
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


class Expected(NamedTuple):
    """The statuses for clients of different rights."""

    nobody: int
    powerless: int
    reader: int
    body: object = None
    hides: bool = False
    """A list: what a client may not see is not in it."""
    query: str = ""


_RECORDS: Final = {"records": [{"value": "from a stranger"}]}
_JOIN: Final = {
    "request": "e30=",
    "nonce": "A" * 43 + "=",
    "proof": "A" * 43 + "=",
}
_QUEUE: Final = {
    "group": GROUP,
    "topic": TOPIC,
    "state": {"partition": 0, "records": []},
    "end": 0,
}
_QUEUE_GROUP: Final = {
    "name": "stolen",
    "topics": [TOPIC],
    "visibility_ms": 1000,
    "attempts_max": 1,
    "backoff_ms": 1,
    "backoff_ms_max": 1,
    "dead_letter_topic": "dead",
    "starts_at_end": False,
}

_HANGING: Final = {"topic": TOPIC, "partition": 0, "producer_id": 1, "producer_epoch": 0}

EXPECTED: Final = {
    "GET /": Expected(401, 200, 200),
    "GET /healthz": Expected(200, 200, 200),
    "GET /readyz": Expected(200, 200, 200),
    "GET /metrics": Expected(401, 403, 403),
    "GET /api/v1/openapi.json": Expected(401, 200, 200),
    "POST /api/v1/login": Expected(401, 401, 401, {"user": "reader", "password": "wrong"}),
    "GET /api/v1/me": Expected(401, 200, 200),
    "GET /api/v1/topology": Expected(401, 200, 200, hides=True),
    "GET /api/v1/overview": Expected(401, 403, 403),
    "GET /api/v1/overview/stream": Expected(401, 403, 403),
    "GET /api/v1/report": Expected(401, 403, 403),
    "GET /api/v1/topics": Expected(401, 200, 200, hides=True),
    "POST /api/v1/topics": Expected(401, 403, 403, {"name": "stolen"}),
    "GET /api/v1/topics/{topic}": Expected(401, 403, 200),
    "DELETE /api/v1/topics/{topic}": Expected(401, 403, 403),
    # Documentation; what the broker has set is left out.
    "GET /api/v1/topic-settings": Expected(401, 200, 200),
    "PATCH /api/v1/topics/{topic}/configs": Expected(
        401, 403, 403, {"configs": {"retention.ms": "1"}}
    ),
    "POST /api/v1/topics/{topic}/partitions": Expected(401, 403, 403, {"count": 9}),
    "POST /api/v1/topics/{topic}/trim": Expected(401, 403, 403, {"partitions": {"0": None}}),
    "GET /api/v1/topics/{topic}/groups": Expected(401, 403, 200),
    "POST /api/v1/topics/{topic}/elect": Expected(401, 403, 403, {}),
    "POST /api/v1/topics/{topic}/replicas": Expected(401, 403, 403, {"partitions": {"0": [1]}}),
    "GET /api/v1/topics/{topic}/records": Expected(401, 403, 200),
    "POST /api/v1/topics/{topic}/records": Expected(401, 403, 403, _RECORDS),
    "GET /api/v1/topics/{topic}/search": Expected(401, 403, 200),
    "GET /api/v1/topics/{topic}/live": Expected(401, 403, 200),
    "GET /api/v1/topics/{topic}/tail": Expected(401, 403, 200),
    # Addresses, which every client needs.
    "GET /api/v1/brokers": Expected(401, 200, 200),
    "GET /api/v1/brokers/{broker}": Expected(401, 403, 403),
    "GET /api/v1/brokers/{broker}/connections": Expected(401, 403, 403),
    "GET /api/v1/brokers/{broker}/log-levels": Expected(401, 403, 403),
    "POST /api/v1/brokers/{broker}/log-levels": Expected(
        401, 403, 403, {"levels": {"raft": "debug"}}
    ),
    "GET /api/v1/raft": Expected(401, 403, 403),
    "GET /api/v1/groups": Expected(401, 200, 200, hides=True),
    "GET /api/v1/groups/{group}": Expected(401, 403, 200),
    # As in Kafka: who may use a group commits its offsets, and lets its members leave.
    "POST /api/v1/groups/{group}/reset": Expected(
        401, 403, 200, {"topic": TOPIC, "to": "latest", "validate_only": True}
    ),
    "DELETE /api/v1/groups/{group}": Expected(401, 403, 403),
    "GET /api/v1/queues": Expected(401, 200, 200, hides=True),
    # The group is no queue, which only those learn who may describe it.
    "GET /api/v1/queues/{group}/{topic}": Expected(401, 403, 404),
    "GET /api/v1/queues/{group}/{topic}/dead": Expected(401, 403, 404),
    "POST /api/v1/queues/{group}/{topic}/redrive": Expected(401, 403, 403, {"records": None}),
    "POST /api/v1/queues/{group}/{topic}/purge": Expected(
        401, 403, 404, {"confirm": GROUP, "what": "ready"}
    ),
    "GET /api/v1/transactions": Expected(401, 200, 200, hides=True),
    "POST /api/v1/transactions/{id}/abort": Expected(401, 403, 403, {}),
    "POST /api/v1/transactions/hanging": Expected(401, 403, 403, _HANGING),
    "GET /api/v1/pipelines": Expected(401, 403, 403),
    "GET /api/v1/play": Expected(401, 403, 403),
    "POST /api/v1/play/brokers/{broker}": Expected(401, 403, 403, {"action": "kill"}),
    "POST /api/v1/play/links": Expected(401, 403, 403, {"a": 1, "b": 2, "is_cut": True}),
    "POST /api/v1/play/disks": Expected(401, 403, 403, {"broker": 1, "delay_ms": 1}),
    "POST /api/v1/play/heal": Expected(401, 403, 403, {}),
    # It is a random number.
    "GET /api/v1/cluster/join/challenge": Expected(200, 200, 200),
    # Brokers have no user: the request itself must prove that it may be made.
    "POST /api/v1/cluster/join": Expected(403, 403, 403, _JOIN),
    "GET /api/v1/cluster/tokens": Expected(401, 403, 403),
    "POST /api/v1/cluster/tokens": Expected(401, 403, 403, {}),
    "DELETE /api/v1/cluster/tokens/{token}": Expected(401, 403, 403),
    "POST /api/v1/cluster/leave": Expected(401, 403, 403, {"broker": 1}),
    "POST /api/v1/cluster/keep": Expected(401, 403, 403, {"broker": 1}),
    "POST /api/v1/cluster/elect": Expected(401, 403, 403),
    "POST /api/v1/cluster/recover": Expected(401, 403, 403, {"lost": [2], "dry_run": True}),
    "GET /api/v1/backup/cluster": Expected(401, 403, 403),
    "GET /api/v1/backup/queues/{group}/{topic}": Expected(401, 403, 403),
    "POST /api/v1/restore/topics/{topic}/{partition}": Expected(
        401, 403, 403, b"a run", query="?offset=0"
    ),
    "POST /api/v1/restore/starts": Expected(
        401, 403, 403, {"topic": TOPIC, "partition": 0, "start": 1}
    ),
    "POST /api/v1/restore/cluster": Expected(401, 403, 403, {"producer_id_min": 1}),
    "POST /api/v1/restore/queues": Expected(401, 403, 403, _QUEUE),
    "POST /api/v1/restore/queue-groups": Expected(401, 403, 403, _QUEUE_GROUP),
}


READ_BY_READERS: Final = {
    "GET /api/v1/topics/{topic}/records",
    "GET /api/v1/topics/{topic}/search",
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as started:
        yield started


def state(secured: SecuredBroker) -> object:
    """All that a stranger could have changed."""
    topology = secured.read("/api/v1/topology")
    topic = secured.read(f"/api/v1/topics/{TOPIC}")
    return (
        [(broker["id"], broker["state"]) for broker in topology["brokers"]],
        sorted(each["name"] for each in topology["topics"]),
        topic["id"],
        [(each["start_offset"], each["end_offset"]) for each in topic["partitions"]],
        [(each["replicas"], each["adding"]) for each in topic["partitions"]],
        topic["configs"],
        secured.read(f"/api/v1/groups/{GROUP}")["offsets"],
    )


def routes(secured: SecuredBroker) -> list[str]:
    return ["GET /", *secured.read("/")["links"]]


def walk(secured: SecuredBroker, who: str) -> dict[str, tuple[int, str]]:
    found = {}
    for route in routes(secured):
        method, path = route.split(" ")
        where = path.format(topic=TOPIC, group=GROUP, broker=1, token="t", partition=0, id="t")
        where += EXPECTED[route].query
        body = EXPECTED[route].body
        if body is _JOIN:
            # With a real challenge, so that the proof is what is wrong.
            _, _, text = secured.ask(who, "GET", f"{path}/challenge")
            body = {**_JOIN, "challenge": json.loads(text)["challenge"]}
        status, _, text = secured.ask(who, method, where, body)
        found[route] = status, text
    return found


def test_every_route_has_a_rule_and_every_rule_a_route(secured):
    assert set(routes(secured)) == set(EXPECTED)
    open_to_all = {route for route, rule in EXPECTED.items() if rule.nobody == 200}
    served = {f"{method} {path}" for method, path in PUBLIC}
    assert served - open_to_all == {"POST /api/v1/login", "POST /api/v1/cluster/join"}
    assert open_to_all <= served


@pytest.mark.parametrize("who", ["nobody", "powerless", "reader"])
def test_nobody_gets_or_changes_more_than_they_may(secured, who):
    before = state(secured)
    found = walk(secured, who)
    expected = {route: getattr(rule, who) for route, rule in EXPECTED.items()}
    assert {route: status for route, (status, _) in found.items()} == expected
    for route, (_, text) in found.items():
        is_readable = who == "reader" and route in READ_BY_READERS
        assert (SECRET in text) == is_readable, route
        if EXPECTED[route].hides and who != "reader":
            assert TOPIC not in text, route
    assert state(secured) == before


@pytest.mark.parametrize(
    ("who", "topic", "status"),
    [
        ("powerless", TOPIC, 403),
        ("powerless", "none", 403),
        ("reader", TOPIC, 403),
        ("admin", "none", 404),
    ],
)
def test_records_that_nobody_will_store_are_not_waited_for(secured, who, topic, status):
    """Half-sent bodies of clients without rights took the memory for those of others."""
    connection = HTTPConnection(secured.broker.http_address, timeout=wait_seconds_max())
    connection.putrequest("POST", f"/api/v1/topics/{topic}/records")
    head = {"content-type": "application/json", "content-length": str(2**20)}
    for name, value in (head | secured.authorization(who)).items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    # Before the deadline of a request, which closes the connection without an answer.
    assert connection.getresponse().status == status
    connection.close()


def test_the_administrator_gets_through_where_others_are_refused(secured):
    """The walk means nothing if these requests fail for other reasons."""
    for route in ("GET /metrics", "GET /api/v1/brokers/{broker}", "POST /api/v1/cluster/keep"):
        method, path = route.split(" ")
        status, _, text = secured.ask("admin", method, path.format(broker=1), EXPECTED[route].body)
        assert status not in (401, 403), text
    status, _, _ = secured.ask("admin", "POST", "/api/v1/topics", {"name": "made"})
    assert status == 201
    assert secured.ask("admin", "DELETE", "/api/v1/topics/made")[0] == 200


def test_an_unknown_client_learns_nothing_from_paths_and_methods(secured):
    for method, path in (
        ("GET", "/nope"),
        ("PUT", "/api/v1/topics"),
        ("OPTIONS", "/"),
        ("HEAD", f"/api/v1/topics/{TOPIC}"),
        ("GET", "/healthz/"),
        ("GET", "//healthz"),
        ("GET", "/healthz/../api/v1/topics"),
        ("POST", "/healthz"),
        ("GET", "/api/v1/login"),
        ("GET", f"/api/v1/topics/{TOPIC}?x=/healthz"),
        ("GET", f"http://{secured.broker.http_address}/api/v1/topics"),
    ):
        status, response, text = secured.ask("nobody", method, path)
        assert status == 401, (method, path)
        schemes = [value.split()[0] for value in response.headers.get_all("www-authenticate")]
        assert schemes == ["Bearer", "Basic"]
        if text:
            assert json.loads(text)["error"] == "SASL_AUTHENTICATION_FAILED"
    assert secured.ask("nobody", "GET", f"http://{secured.broker.http_address}/healthz")[0] == 200


def test_what_exists_and_what_does_not_look_the_same_to_those_without_rights(secured):
    for kind in ("topics", "groups"):
        found = [
            secured.ask("powerless", "GET", f"/api/v1/{kind}/{name}")
            for name in (TOPIC if kind == "topics" else GROUP, "q" * len(TOPIC))
        ]
        assert [status for status, _, _ in found] == [403, 403]
        texts = [json.loads(text) for _, _, text in found]
        assert texts[0]["error"] == texts[1]["error"]


def test_a_login_gives_a_token_that_is_as_good_as_the_password(secured):
    body = {"user": "reader", "password": PASSWORDS["reader"]}
    status, response, text = secured.ask("nobody", "POST", "/api/v1/login", body)
    assert status == 200
    assert response.getheader("cache-control") == "no-store"
    assert response.getheader("set-cookie") is None
    token = json.loads(text)["token"]
    bearer = {"authorization": f"Bearer {token}"}
    path = f"/api/v1/topics/{TOPIC}/records"
    status, _, text = secured.ask("nobody", "GET", path, headers=bearer)
    assert (status, SECRET in text) == (200, True)
    assert secured.ask("nobody", "POST", path, _RECORDS, headers=bearer)[0] == 403
    changed = {"authorization": f"Bearer {token[:-4]}AAAA"}
    assert secured.ask("nobody", "GET", path, headers=changed)[0] == 401
    assert token not in secured.broker.output
    assert not any(each in secured.broker.output for each in PASSWORDS.values())


def test_nobody_logs_in_without_the_password(secured):
    for body in (
        {"user": "reader", "password": ""},
        {"user": "nobody", "password": PASSWORDS["reader"]},
        {"user": "moldau-admin", "password": "x"},
    ):
        assert secured.ask("nobody", "POST", "/api/v1/login", body)[0] == 401
    status, _, text = secured.ask(
        "nobody", "POST", "/api/v1/login", {"user": "moldau-admin", "password": secured.admin_token}
    )
    assert (status, secured.admin_token in text) == (400, False)


def test_a_read_only_listener_changes_nothing_even_for_the_administrator():
    with secured_broker() as secured:
        broker, path = secured.broker, f"/api/v1/topics/{TOPIC}/records"
        broker.settings |= {"HTTP__READ_ONLY": "true", "HTTP__PUBLIC_METRICS": "true"}
        broker.restart()
        secured = SecuredBroker(broker)
        assert secured.ask("admin", "POST", path, _RECORDS)[0] == 403
        assert secured.ask("admin", "DELETE", f"/api/v1/topics/{TOPIC}")[0] == 403
        status, _, text = secured.ask("admin", "GET", path)
        assert (status, SECRET in text) == (200, True)
        assert secured.ask("nobody", "GET", "/metrics")[0] == 200
        assert secured.ask("nobody", "GET", "/")[0] == 401

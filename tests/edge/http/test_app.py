"""The routes: what they ask the cluster, what they answer, and what they refuse."""

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest

from http_cluster import (
    JOIN,
    SECRET,
    FakeCluster,
    Served,
    partition,
    proven,
    served,
    topic,
    topology,
)
from moldau.api import metadata_changes
from moldau.edge.http import responses
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import Endpoint, JoinRefusal, JoinRequest, ProvenJoinRequest
from moldau.security.join_proof import Transcript, unseal
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.inprocess


@pytest.fixture(scope="module")
def listener() -> Iterator[Served]:
    with served() as world:
        yield world


@pytest.fixture
def world(listener: Served) -> Served:
    """One listener for all, with a cluster that has forgotten what it was told."""
    fresh = FakeCluster()
    listener.cluster.__dict__.update(fresh.__dict__)
    return listener


def test_the_root_leads_to_the_rest(world):
    status, headers, body = world.ask("GET", "/")
    assert status == 200
    assert (body["name"], body["broker"], body["cluster"]) == ("moldau", 1, "c")
    assert "GET /api/v1/topology" in body["links"]
    assert "POST /api/v1/cluster/join" in body["links"]
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_readiness_says_why_not(world):
    assert world.ask("GET", "/readyz")[::2] == (200, {"ready": True, "reasons": []})
    world.cluster.reasons = ["no leader of the metadata group", "catching up"]
    status, headers, body = world.ask("GET", "/readyz")
    assert status == 503
    assert headers["retry-after"] == "1"
    assert body == {"ready": False, "reasons": ["no leader of the metadata group", "catching up"]}
    assert world.ask("GET", "/healthz?probe=1")[::2] == (200, {"status": "ok"})


def test_a_probe_may_ask_for_the_head_only(world):
    status, headers, body = world.ask("HEAD", "/readyz")
    assert (status, body) == (200, None)
    assert int(headers["content-length"]) > 0


def test_the_topology_is_returned_in_full(world):
    world.cluster.shown = topology(
        topic("t", partition(0, leader=-1, replicas=(1, 2), in_sync=(1,), adding=(2,)))
    )
    status, _, body = world.ask("GET", "/api/v1/topology")
    assert status == 200
    assert body == msgspec.to_builtins(world.cluster.shown, str_keys=True) | {
        "voters": [1],
        "brokers": [
            {
                "id": 1,
                "kafka": ["127.0.0.1", 9092],
                "raft": ["127.0.0.1", 19092],
                "http": None,
                "rack": None,
                "state": "active",
                "alive": True,
                "epoch": 1,
                "leaders": 1,
                "replicas": 1,
                "is_controller": True,
                "is_me": True,
                "grpc": None,
                "machine": None,
            }
        ],
        "topics": [
            {
                "name": "t",
                "id": "00" * 16,
                "internal": False,
                "partitions": [
                    {
                        "partition": 0,
                        "leader": -1,
                        "leader_epoch": 3,
                        "replicas": [1, 2],
                        "in_sync": [1],
                        "adding": [2],
                        "removing": [],
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("query", "names"),
    [("", ["a", "b.c"]), ("?topic=b%2Ec", ["b.c"]), ("?topic=b.c&topic=a&topic=a", ["b.c", "a"])],
)
def test_the_topology_can_be_of_some_topics_only(world, query, names):
    status, _, body = world.ask("GET", f"/api/v1/topology{query}")
    assert status == 200
    assert [found["name"] for found in body["topics"]] == names


def test_a_topic_that_does_not_exist_is_not_found(world):
    status, _, body = world.ask("GET", "/api/v1/topology?topic=nope")
    assert status == 404
    assert body["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert "nope" in body["detail"]


def test_a_query_parameter_that_means_nothing_is_refused(world):
    status, _, body = world.ask("GET", "/api/v1/topology?topics=a")
    assert (status, body["error"]) == (400, "INVALID_REQUEST")
    assert "'topics'" in body["detail"]
    assert "topic" in body["detail"]


def to_join(world, request: bytes, secret: bytes = SECRET) -> ProvenJoinRequest:
    status, headers, offered = world.ask("GET", "/api/v1/cluster/join/challenge")
    assert (status, headers["cache-control"]) == (200, "no-store")
    return proven(base64.b64decode(offered["challenge"]), request, secret)


def ask_to_join(world, request: bytes, secret: bytes = SECRET):
    wanted = to_join(world, request, secret)
    return world.ask("POST", "/api/v1/cluster/join", msgspec.json.encode(wanted))


def test_a_broker_joins_with_what_it_said(world):
    wanted = msgspec.structs.replace(JOIN, rack="r", broker_id=2, http=Endpoint("::1", 8081))
    status, _, body = ask_to_join(world, msgspec.json.encode(wanted))
    assert status == 200
    assert world.cluster.asked == [wanted]
    assert list(body) == ["sealed"]
    assert world.cluster.image not in base64.b64decode(body["sealed"])


def test_a_joiner_of_a_newer_version_may_say_more(world):
    said = msgspec.to_builtins(JOIN) | {"zone": "unheard of"}
    status, _, _ = ask_to_join(world, json.dumps(said).encode())
    assert status == 200
    assert world.cluster.asked == [JOIN]


def test_a_joiner_that_proves_nothing_learns_nothing(world):
    status, _, body = ask_to_join(world, msgspec.json.encode(JOIN), b"another")
    assert (status, body["error"]) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    # As an older version asks.
    status, _, body = world.ask("POST", "/api/v1/cluster/join", msgspec.json.encode(JOIN))
    assert (status, body["error"]) == (400, "INVALID_REQUEST")
    assert world.cluster.asked == []


def test_leaving_is_accepted_and_can_be_taken_back(world):
    status, _, body = world.ask("POST", "/api/v1/cluster/leave", b'{"broker": 2}')
    assert (status, body) == (202, {"broker": 2, "state": "draining"})
    status, _, body = world.ask("POST", "/api/v1/cluster/keep", b'{"broker": 2}')
    assert (status, body) == (200, {"broker": 2, "state": "active"})
    assert world.cluster.asked == [("drain", 2), ("keep", 2)]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.INVALID_REGISTRATION, 400),
        (ErrorCode.INVALID_REQUEST, 400),
        (ErrorCode.INVALID_REPLICATION_FACTOR, 400),
        (ErrorCode.UNSUPPORTED_VERSION, 400),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, 404),
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, 409),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, 409),
        (ErrorCode.NOT_CONTROLLER, 503),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 503),
        (ErrorCode.LEADER_NOT_AVAILABLE, 503),
        (ErrorCode.REQUEST_TIMED_OUT, 503),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 500),
    ],
)
def test_a_refusal_carries_its_code_its_words_and_a_status(world, code, status):
    world.cluster.failure = RefusedError(code, "the words")
    world.cluster.failure.hint = "the hint"
    got, headers, body = world.ask("POST", "/api/v1/cluster/leave", b'{"broker": 2}')
    assert got == status
    assert headers["content-type"] == "application/problem+json"
    assert body == {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": "the words",
        "error": code.name,
        "hint": "the hint",
    }
    assert ("retry-after" in headers) == (status == 503)


def test_what_the_cluster_does_not_decide_in_time_is_to_be_tried_again(world, monkeypatch):
    monkeypatch.setattr(metadata_changes, "DECIDED_SECONDS_MAX", 0.1)
    world.cluster.hold = asyncio.Event()
    world.cluster.reasons = ["no majority is up"]
    status, headers, body = world.ask("POST", "/api/v1/cluster/leave", b'{"broker": 2}')
    assert (status, body["error"]) == (503, "REQUEST_TIMED_OUT")
    assert "no majority is up" in body["detail"]
    assert "retry-after" in headers
    # Not taken back: what has reached the metadata's log cannot be.
    assert world.cluster.decided == []
    world.loop.call_soon_threadsafe(world.cluster.hold.set)
    wait_until(lambda: world.cluster.decided, "it is decided")


def test_an_internal_error_is_logged_and_not_shown(world, caplog):
    world.cluster.failure = ZeroDivisionError("secret")
    status, _, body = world.ask("GET", "/api/v1/topology")
    assert (status, body["error"]) == (500, "UNKNOWN_SERVER_ERROR")
    assert "secret" not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)
    # Not by its text: Spark, in the same process, gives all logs another form.
    told = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert told == [world.cluster.failure]
    world.cluster.failure = None
    assert world.ask("GET", "/api/v1/topology")[0] == 200


@pytest.mark.parametrize(
    "path", ["/nope", "/healthz/", "/api/v1", "//", "/api/v2/topology", "/%00"]
)
def test_what_is_not_there_says_what_is(world, path):
    status, _, body = world.ask("GET", path)
    assert (status, body["error"]) == (404, "RESOURCE_NOT_FOUND")
    assert "POST /api/v1/cluster/join" in body["hint"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("DELETE", "/api/v1/topology", {"GET", "HEAD"}),
        ("GET", "/api/v1/cluster/join", {"POST"}),
        ("OPTIONS", "/api/v1/cluster/leave", {"POST"}),
    ],
)
def test_a_method_that_does_not_fit_says_which_do(world, method, path, allowed):
    status, headers, body = world.ask(method, path)
    assert (status, body["error"]) == (405, "INVALID_REQUEST")
    assert {name.strip() for name in headers["allow"].split(",")} == allowed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"broker": "2"}',
        b'{"broker": 2.5}',
        b'{"brokers": 2}',
        b'{"broker": 2} x',
        b"[" * 100_000,
        b'{"broker": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_does_not_fit_is_refused(world, body):
    status, _, answer = world.ask("POST", "/api/v1/cluster/leave", body)
    assert (status, answer["error"]) == (400, "INVALID_REQUEST")
    assert world.cluster.asked == []


@pytest.mark.parametrize("missing", ["incarnation", "process", "kafka", "raft", "http"])
def test_a_joiner_must_say_who_it_is(world, missing):
    said = msgspec.to_builtins(JOIN)
    del said[missing]
    wanted = to_join(world, json.dumps(said).encode())
    status, _, body = world.ask("POST", "/api/v1/cluster/join", msgspec.json.encode(wanted))
    # It proved the secret: what it is told is for it alone.
    transcript = Transcript("", wanted.nonce, wanted.challenge, wanted.request)
    told = unseal(SECRET, transcript, base64.b64decode(body["sealed"]))
    refusal = msgspec.msgpack.decode(told, type=JoinRefusal)
    assert (status, refusal.code) == (200, ErrorCode.INVALID_REQUEST)
    assert missing in refusal.message
    assert world.cluster.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": ""},
        {"content-encoding": "gzip"},
    ],
    ids=str,
)
def test_what_does_not_say_that_it_is_json_is_not_read(world, headers):
    status, _, _ = world.ask("POST", "/api/v1/cluster/leave", b'{"broker": 2}', headers)
    assert status == 415
    assert world.cluster.asked == []


@pytest.mark.parametrize("charset", ["UTF-8", '"utf-8"'])
def test_json_may_say_its_charset(world, charset):
    headers = {"content-type": f"Application/JSON; charset={charset}"}
    assert world.ask("POST", "/api/v1/cluster/leave", b'{"broker": 2}', headers)[0] == 202


def test_a_body_of_a_mebibyte_is_read_and_a_larger_one_is_not(world):
    padded = b'{"broker": 2}'.ljust(responses.BODY_BYTES_MAX)
    assert world.ask("POST", "/api/v1/cluster/leave", padded)[0] == 202
    status, _, body = world.ask("POST", "/api/v1/cluster/leave", padded + b" ")
    assert (status, body["error"]) == (413, "MESSAGE_TOO_LARGE")
    assert len(world.cluster.asked) == 1


def test_a_body_that_is_announced_too_large_is_not_waited_for(world):
    with world.connect() as sock:
        sock.sendall(
            b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 1048577\r\n\r\n"
        )
        assert sock.recv(12) == b"HTTP/1.1 413"


def test_a_large_body_in_chunks_is_not_read_to_its_end(world):
    with world.connect() as sock:
        sock.sendall(
            b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            sock.sendall(chunk)
        assert sock.recv(12) == b"HTTP/1.1 413"


def test_a_client_that_hangs_up_in_its_body_is_not_an_internal_error(world, caplog):
    with world.connect() as sock:
        sock.sendall(
            b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
    assert world.ask("GET", "/healthz")[0] == 200
    assert world.cluster.asked == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /api/v1/topology HTTP/1.1\r\nhost: evil.example:8080", 421),
        ("GET http://evil.example/api/v1/topology HTTP/1.1\r\nhost: localhost", 421),
        ("GET http://localhost/api/v1/topology HTTP/1.1\r\nhost: localhost", 200),
        ("GET /api/v1/topology HTTP/1.1\r\nhost: [::1]:8080", 200),
        ("GET /api/v1/topology HTTP/1.1\r\nhost: [", 400),
        ("GET /api/v1/topology HTTP/1.1\r\nhost: [::1", 400),
        ("GET /api/v1/topology HTTP/1.1\r\nhost: x y", 400),
        ("GET /api/v1/topology HTTP/1.1\r\nhost:", 400),
        ("GET /api/v1/topology HTTP/1.1\r\nhost: localhost\r\nhost: localhost", 400),
        ("GET /api/v1/topology HTTP/1.0", 400),
    ],
)
def test_a_request_is_served_under_the_names_of_the_broker_only(world, head, status):
    with world.connect() as sock:
        sock.sendall(f"{head}\r\nconnection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert (b'"topics"' in reply) == (status == 200)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/healthz"), ("GET", "/nope"), ("DELETE", "/"), ("HEAD", "/readyz")],
)
def test_browsers_may_run_frame_and_keep_nothing(world, method, path):
    _, headers, _ = world.ask(method, path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x10kafka?\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"GET /healthz HTTP/x.y\r\nhost: localhost\r\n\r\n",
    ],
    ids=["Kafka", "TLS", "no host", "a negative length", "another version"],
)
def test_bytes_that_are_not_http_are_refused_and_end_the_connection(world, sent):
    with world.connect() as sock:
        sock.sendall(sent)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["status"], problem["error"]) == (400, "INVALID_REQUEST")
    assert problem["hint"]
    assert world.ask("GET", "/healthz")[0] == 200


def test_an_error_does_not_repeat_all_that_was_sent(world):
    status, _, body = world.ask("GET", "/" + "x" * 20_000)
    assert (status, len(body["detail"])) == (404, responses.DETAIL_CHARS_MAX + 1)


def test_every_error_says_what_to_do_about_it(world):
    for code in ErrorCode:
        status = responses.status_of(code)
        assert responses.problem(status, code, "words").hint
    for method, path, body, headers in (
        ("GET", "/nope", None, {}),
        ("PUT", "/healthz", None, {}),
        ("POST", "/api/v1/cluster/leave", b"{", {}),
        ("POST", "/api/v1/cluster/leave", b"{}", {"content-type": "text/plain"}),
        ("POST", "/api/v1/cluster/leave", b" " * 2**21, {}),
        ("GET", "/api/v1/topology?topic=nope", None, {}),
    ):
        assert world.ask(method, path, body, headers)[2]["hint"]


def test_every_error_code_has_a_status():
    for code in ErrorCode:
        assert responses.status_of(code) in (400, 401, 403, 404, 409, 500, 503)


def test_the_request_to_join_reads_back_as_it_was_written():
    assert msgspec.json.decode(msgspec.json.encode(JOIN), type=JoinRequest) == JOIN


def test_the_reference_names_every_route(world):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()
    documented = set(re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) [^`]*)` \|", page, re.MULTILINE))
    assert documented == {"GET /", *world.ask("GET", "/")[2]["links"]}

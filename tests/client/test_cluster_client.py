"""The client of the HTTP interface: any address will do, and errors say what to do."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from http_cluster import JOIN, FakeCluster, proven, served
from moldau.client import http
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import BrokerActionResponse, Readiness
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def client_of(addresses: list[str]) -> ClusterClient:
    return ClusterClient(addresses, call_seconds_max=wait_seconds_max())


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """An address that stays free of listeners."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """Answers each connection with these bytes, whatever it asks, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock, contextlib.suppress(OSError):
                    sock.recv(65536)
                    sock.sendall(reply)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(wait_seconds_max())


def test_everything_is_asked_and_typed():
    with served() as world:
        client = client_of([world.address])
        assert client.topology() == world.cluster.shown
        assert [topic.name for topic in client.topology(["b.c"]).topics] == ["b.c"]
        assert client.ready() == Readiness(ready=True)
        assert client.leave(2) == BrokerActionResponse(broker=2, state="draining")
        assert client.keep(2) == BrokerActionResponse(broker=2, state="active")
        challenge = client.join_challenge().challenge
        assert client.join(proven(challenge, msgspec.json.encode(JOIN))).sealed
        assert world.cluster.asked == [("drain", 2), ("keep", 2), JOIN]


def test_a_broker_that_is_not_ready_says_why():
    cluster = FakeCluster()
    cluster.reasons = ["catching up"]
    with served(cluster) as world:
        found = client_of([world.address]).ready()
        assert found == Readiness(ready=False, reasons=("catching up",))


def test_topics_are_named_as_they_are():
    with served() as world, pytest.raises(NotFoundError, match="'a&topic=b/ü'"):
        client_of([world.address]).topology(["a&topic=b/ü"])


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_the_next_address_is_asked_when_one_does_not_answer(form):
    with closed_port() as dead, served() as world:
        client = client_of([dead, form.format(world.address)])
        assert client.topology().cluster_id == "c"


def test_the_next_address_is_asked_when_one_cannot_just_now():
    busy = FakeCluster()
    busy.failure = RefusedError(ErrorCode.NOT_CONTROLLER, "no leader")
    with served(busy) as first, served() as second:
        client_of([first.address, second.address]).leave(2)
        assert second.cluster.asked == [("drain", 2)]
        with closed_port() as dead, pytest.raises(UnavailableError, match="no leader") as caught:
            client_of([first.address, dead]).leave(2)
    assert caught.value.code == ErrorCode.NOT_CONTROLLER
    assert caught.value.hint


def test_a_refusal_is_final():
    refusing, other = FakeCluster(), FakeCluster()
    refusing.failure = RefusedError(ErrorCode.INVALID_REQUEST, "the last active one")
    refusing.failure.hint = "add one first"
    with (
        served(refusing) as first,
        served(other) as second,
        pytest.raises(RejectedError, match="the last active one") as caught,
    ):
        client_of([first.address, second.address]).leave(2)
    assert (caught.value.name, caught.value.hint) == ("INVALID_REQUEST", "add one first")
    assert other.asked == []


def test_an_unknown_broker_is_not_found():
    cluster = FakeCluster()
    cluster.failure = RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker 9 is unknown")
    with served(cluster) as world, pytest.raises(NotFoundError, match="Broker 9 is unknown"):
        client_of([world.address]).keep(9)


def test_without_a_response_all_addresses_are_named():
    with (
        closed_port() as one,
        closed_port() as two,
        pytest.raises(UnreachableError, match=f"{one}, {two} .connection refused.") as caught,
    ):
        client_of([one, two]).topology()
    assert "http.addr" in caught.value.hint


def test_silence_ends():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimedOutError, match="no response"):
            ClusterClient([address], call_seconds_max=0.2).topology()


def test_an_answer_that_trickles_ends_too():
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            sock, _ = server.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                while not stop.wait(0.05):
                    sock.sendall(b"x" * 1000)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TimedOutError):
            ClusterClient([address], call_seconds_max=0.5).topology()
        stop.set()
        thread.join(wait_seconds_max())


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"", UnreachableError, "closed the connection without a response"),
        (b"\x00\x00\x00\x04junk\r\n\r\n", UnreachableError, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", ClientError, "is not one of a Moldau broker"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno", ClientError, "is not one of a Moldau broker"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}",
            ClientError,
            "is not one of a Moldau broker",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{}",
            UnreachableError,
            "closed the connection in the middle of the response",
        ),
    ],
    ids=["nothing", "junk", "a web page", "another 404", "other json", "cut off"],
)
def test_what_is_not_a_broker_is_reported_as_such(reply, kind, words):
    with answering(reply) as address, pytest.raises(kind, match=words) as caught:
        client_of([address]).topology()
    assert type(caught.value) is kind
    assert caught.value.hint


def test_an_answer_without_end_is_not_taken_into_memory(monkeypatch):
    monkeypatch.setattr(http, "REPLY_BYTES_MAX", 1000)
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b" " * 2000
    with answering(reply) as address, pytest.raises(UnreachableError, match="exceeds 1000 bytes"):
        client_of([address]).topology()


def test_a_host_that_does_not_exist_is_said_so():
    with pytest.raises(UnreachableError, match="no such host"):
        client_of(["nowhere.invalid:1"]).topology()


@pytest.mark.parametrize("addresses", [[], [""], ["a:b"], ["a:0"]])
def test_what_is_no_address_is_refused(addresses):
    with pytest.raises(ClientError):
        client_of(addresses)

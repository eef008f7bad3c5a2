"""A listener is recognised by its first bytes."""

import socket
import threading

import pytest

from moldau.client.errors import UnreachableError
from moldau.client.kafka.connect import probe
from moldau.client.protocols import Protocol, detect_protocol, mismatch

pytestmark = pytest.mark.inprocess

KAFKA = b"\0\0\1\0MOLD\0\0"
SETTINGS = b"\0\0\x1e\4\0\0\0\0\0\0\3"


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (KAFKA, Protocol.KAFKA),
        (b"HTTP/1.1 400 Bad Request\r\n", Protocol.HTTP),
        (SETTINGS, Protocol.GRPC),
        (b"", Protocol.CLOSED),
        (b"\x15\3\3\0\2\2\x28", Protocol.UNKNOWN),
    ],
)
def test_a_listener_is_recognised_by_its_response(response, found):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(response)
        theirs.shutdown(socket.SHUT_WR)
        assert detect_protocol(ours) is found


def test_grpc_is_asked_for_in_its_own_protocol():
    """Servers in front of gRPC respond to another one as if they were for HTTP/1."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(SETTINGS)
        assert detect_protocol(ours, Protocol.GRPC) is Protocol.GRPC
        assert theirs.recv(64).startswith(b"PRI * HTTP/2.0")


@pytest.mark.parametrize("wanted", [Protocol.KAFKA, Protocol.GRPC, Protocol.HTTP])
def test_what_is_wanted_or_not_known_is_no_mismatch(wanted):
    assert mismatch(wanted, wanted) == mismatch(Protocol.UNKNOWN, wanted) == ""
    assert mismatch(Protocol.CLOSED, wanted).startswith(f"not {wanted} without TLS")


def test_a_listener_that_does_not_respond_is_unknown():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        assert detect_protocol(ours) is Protocol.UNKNOWN


def test_a_wrong_port_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond():
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(UnreachableError, match="is an HTTP listener") as caught:
            probe(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "Kafka address" in caught.value.hint

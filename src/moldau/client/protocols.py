"""Which protocol a listener speaks: found with one request, so that a wrong port is named."""

import socket
import struct
from enum import StrEnum

_CORRELATION_ID = 0x4D4F4C44
# ApiVersions, version 0, without a client id.
_KAFKA_REQUEST = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
_HTTP2_SETTINGS = 4
# What every client of HTTP/2 sends first, with empty settings.
_HTTP2_REQUEST = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _HTTP2_SETTINGS, *bytes(5)))
_HEAD_BYTES = 9


class Protocol(StrEnum):
    """What a listener is."""

    KAFKA = "a Kafka listener"
    HTTP = "an HTTP listener"
    GRPC = "a gRPC listener"
    CLOSED = "a listener that closed the connection"
    """As the Raft listener of a broker does, and any with TLS."""
    UNKNOWN = "an unknown listener"
    """Such as one that did not respond in time."""


def mismatch(found: Protocol, wanted: Protocol) -> str:
    """What a listener is, if that is not what is wanted; empty if it is, or may be."""
    if found in (wanted, Protocol.UNKNOWN):
        return ""
    if found is Protocol.CLOSED:
        return f"not {wanted} without TLS: it closed the connection, as a Raft listener does"
    return f"{found}, not {wanted}"


def detect_protocol(connection: socket.socket, wanted: Protocol = Protocol.KAFKA) -> Protocol:
    """Send a request over a new connection, and classify the response.

    Listeners of Kafka close the connection for a request of gRPC; all others respond to both.
    """
    head = b""
    try:
        connection.sendall(_HTTP2_REQUEST if wanted is Protocol.GRPC else _KAFKA_REQUEST)
        while len(head) < _HEAD_BYTES and (data := connection.recv(_HEAD_BYTES - len(head))):
            head += data
    except TimeoutError:
        return Protocol.UNKNOWN
    except OSError:
        return Protocol.CLOSED
    if not head:
        return Protocol.CLOSED
    if head[4:8] == _CORRELATION_ID.to_bytes(4):
        return Protocol.KAFKA
    if head.startswith(b"HTTP/"):
        return Protocol.HTTP
    is_settings = len(head) == _HEAD_BYTES and head[3] == _HTTP2_SETTINGS and not any(head[4:])
    return Protocol.GRPC if is_settings else Protocol.UNKNOWN


def protocol_at(host: str, port: int, wanted: Protocol, seconds_max: float) -> Protocol:
    """What listens at an address. Raises OSError if nothing does."""
    with socket.create_connection((host, port), timeout=seconds_max) as connection:
        found = detect_protocol(connection, wanted)
    if found is Protocol.CLOSED and wanted is Protocol.GRPC:
        with socket.create_connection((host, port), timeout=seconds_max) as connection:
            found = detect_protocol(connection)
    return found

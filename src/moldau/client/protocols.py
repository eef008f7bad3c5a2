"""Which protocol a listener speaks: found with one Kafka request, so that a wrong port is named."""

import struct
from enum import StrEnum
from socket import socket

_CORRELATION_ID = 0x4D4F4C44
# ApiVersions, version 0, without a client id.
_REQUEST = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
_HEAD_BYTES = 9
_HTTP2_SETTINGS = 4


class Protocol(StrEnum):
    """What a listener is."""

    KAFKA = "a Kafka listener"
    HTTP = "an HTTP listener, not a Kafka listener"
    GRPC = "a gRPC listener, not a Kafka listener"
    CLOSED = "not a Kafka listener without TLS: it closed the connection"
    """As the Raft listener of a broker does, and any with TLS."""
    UNKNOWN = "an unknown listener"
    """Such as one that did not respond in time."""


def detect_protocol(connection: socket) -> Protocol:
    """Send a Kafka request over a new connection, and classify the response."""
    head = b""
    try:
        connection.sendall(_REQUEST)
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

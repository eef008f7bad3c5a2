"""The handshake on a connection between brokers: a hello and its response.

    hello     magic, version, sender's id, target's id, the sender's registration epoch,
              cluster id, sender's incarnation
    response  magic, version, accepted or not, and why not

The incarnation is the id of the sender's data directory: a broker that returns with another disk
counts as another broker, even with the same id. The registration epoch counts the sender's
registrations in the cluster: a lower one comes from a process that was replaced.
"""

import struct
from typing import Final, NamedTuple

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId

PROTOCOL_VERSION: Final = 2
"""Version 2 added log ids to append responses and votes."""
HANDSHAKE_BYTES_MAX: Final = 2048
_MAGIC: Final = b"MoPr"
_HELLO: Final = struct.Struct(">4sHiiq")
_RESPONSE: Final = struct.Struct(">4sHB")
_LENGTH: Final = struct.Struct(">H")
_TEXT_BYTES_MAX: Final = 512


class Hello(NamedTuple):
    """The sender and its intended target."""

    cluster_id: str
    sender: BrokerId
    incarnation: str
    target: BrokerId
    epoch: int = 0
    """Of the sender's registration in the cluster; 0 before the first."""
    version: int = PROTOCOL_VERSION


class HelloResponse(NamedTuple):
    """Empty reason: accepted."""

    reason: str
    version: int = PROTOCOL_VERSION


def encode_hello(hello: Hello) -> bytes:
    head = _HELLO.pack(_MAGIC, hello.version, hello.sender, hello.target, hello.epoch)
    return head + _text(hello.cluster_id) + _text(hello.incarnation)


def decode_hello(body: memoryview) -> Hello:
    """Raises PeerProtocolError. A later version may add fields at the end."""
    try:
        magic, version, sender, target, epoch = _HELLO.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"truncated hello of {len(body)} bytes") from None
    if magic != _MAGIC:
        raise PeerProtocolError("the sender does not speak the peer protocol")
    cluster_id, position = _read_text(body, _HELLO.size)
    incarnation, _ = _read_text(body, position)
    return Hello(cluster_id, BrokerId(sender), incarnation, BrokerId(target), epoch, version)


def encode_hello_response(response: HelloResponse) -> bytes:
    head = _RESPONSE.pack(_MAGIC, response.version, 0 if not response.reason else 1)
    return head + _text(response.reason)


def decode_hello_response(body: bytes | memoryview) -> HelloResponse:
    """Raises PeerProtocolError."""
    try:
        magic, version, status = _RESPONSE.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"truncated hello response of {len(body)} bytes") from None
    if magic != _MAGIC or status > 1:
        raise PeerProtocolError("the server does not speak the peer protocol")
    reason, _ = _read_text(memoryview(body), _RESPONSE.size)
    if status and not reason:
        reason = "no reason given"
    return HelloResponse(reason if status else "", version)


def _text(text: str) -> bytes:
    data = text.encode()[:_TEXT_BYTES_MAX]
    return _LENGTH.pack(len(data)) + data


def _read_text(body: memoryview, position: int) -> tuple[str, int]:
    try:
        (size,) = _LENGTH.unpack_from(body, position)
    except struct.error:
        raise PeerProtocolError("truncated handshake") from None
    start = position + _LENGTH.size
    if size > _TEXT_BYTES_MAX or start + size > len(body):
        raise PeerProtocolError(f"text of {size} bytes in a handshake of {len(body)} bytes")
    try:
        return bytes(body[start : start + size]).decode(), start + size
    except UnicodeDecodeError:
        raise PeerProtocolError("invalid UTF-8 in a handshake") from None

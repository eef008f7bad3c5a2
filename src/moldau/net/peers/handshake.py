"""Owns the first frame each way on a connection between brokers: who calls, whom, and the answer.

    hello    magic, version, sender's id, the id it means to reach, the sender's registration,
             cluster id, sender's incarnation
    answer   magic, version, accepted or not, and why not

The incarnation is the id of the sender's data directory: a broker that comes back with another
disk is another one, whatever it calls itself. The registration counts how often the cluster has
let the sender in: an earlier one speaks for a process that was replaced.
"""

import struct
from typing import Final, NamedTuple

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId

PROTOCOL_VERSION: Final = 2
"""2: logs have ids, which answers and votes name."""
HANDSHAKE_BYTES_MAX: Final = 2048
_MAGIC: Final = b"MoPr"
_HELLO: Final = struct.Struct(">4sHiiq")
_ANSWER: Final = struct.Struct(">4sHB")
_LENGTH: Final = struct.Struct(">H")
_TEXT_BYTES_MAX: Final = 512


class Hello(NamedTuple):
    """Who calls, and whom it means."""

    cluster_id: str
    sender: BrokerId
    incarnation: str
    target: BrokerId
    epoch: int = 0
    """Of the sender's registration in the cluster; 0 before its first."""
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
        raise PeerProtocolError(f"a hello of {len(body)} bytes") from None
    if magic != _MAGIC:
        raise PeerProtocolError("the caller is no broker of this kind")
    cluster_id, position = _read_text(body, _HELLO.size)
    incarnation, _ = _read_text(body, position)
    return Hello(cluster_id, BrokerId(sender), incarnation, BrokerId(target), epoch, version)


def encode_hello_response(answer: HelloResponse) -> bytes:
    head = _ANSWER.pack(_MAGIC, answer.version, 0 if not answer.reason else 1)
    return head + _text(answer.reason)


def decode_hello_response(body: bytes | memoryview) -> HelloResponse:
    """Raises PeerProtocolError."""
    try:
        magic, version, status = _ANSWER.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"an answer of {len(body)} bytes to a hello") from None
    if magic != _MAGIC or status > 1:
        raise PeerProtocolError("who answers is no broker of this kind")
    reason, _ = _read_text(memoryview(body), _ANSWER.size)
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
        raise PeerProtocolError("a handshake that ends early") from None
    start = position + _LENGTH.size
    if size > _TEXT_BYTES_MAX or start + size > len(body):
        raise PeerProtocolError(f"a text of {size} bytes in a handshake of {len(body)}")
    try:
        return bytes(body[start : start + size]).decode(), start + size
    except UnicodeDecodeError:
        raise PeerProtocolError("a text that is no UTF-8 in a handshake") from None

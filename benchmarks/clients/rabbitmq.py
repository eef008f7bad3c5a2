"""Loads on RabbitMQ streams: the stream protocol written by hand, messages left unparsed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from benchmarks.clients.pump import (
    LoadError,
    connect,
    pump,
    receive_exactly,
    timed,
    warmed_up,
)

DECLARE_PUBLISHER, PUBLISH, PUBLISH_CONFIRM, PUBLISH_ERROR = 1, 2, 3, 4
SUBSCRIBE, DELIVER, CREDIT = 7, 8, 9
CREATE, DELETE = 13, 14
PEER_PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN = 17, 18, 19, 20, 21
RESPONSE = 0x8000
CHUNK_BYTES = 256_000
STREAM_DOES_NOT_EXIST = 2
CREDITS = 10


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, 1) + body


def _read_frame(sock: socket.socket) -> tuple[int, bytearray]:
    (size,) = struct.unpack(">I", receive_exactly(sock, 4))
    frame = receive_exactly(sock, size)
    return struct.unpack_from(">H", frame)[0], frame[4:]


def _ask(sock: socket.socket, key: int, body: bytes, allowed: tuple[int, ...] = ()) -> bytearray:
    """A request with a correlation id, and its response; other frames are passed over."""
    sock.sendall(_frame(key, struct.pack(">I", 1) + body))
    while True:
        got, reply = _read_frame(sock)
        if got == key | RESPONSE:
            (code,) = struct.unpack_from(">H", reply, 4)
            if code != 1 and code not in allowed:
                raise LoadError(f"RabbitMQ answered command {key} with code {code}")
            return reply


def _open(port: int) -> socket.socket:
    sock = connect(port)
    _ask(sock, PEER_PROPERTIES, struct.pack(">i", 1) + _string("product") + _string("bench"))
    _ask(sock, SASL_HANDSHAKE, b"")
    login = b"\0guest\0guest"
    _ask(sock, SASL_AUTHENTICATE, _string("PLAIN") + struct.pack(">i", len(login)) + login)
    key, limits = _read_frame(sock)
    if key != TUNE:
        raise LoadError(f"RabbitMQ sent command {key} instead of its limits")
    # No heartbeats: the loads are shorter than any.
    sock.sendall(_frame(TUNE, bytes(limits[:4]) + struct.pack(">I", 0)))
    _ask(sock, OPEN, _string("/"))
    return sock


class ConfirmCounter:
    """Counts confirmed messages; a confirm frame says how many it covers."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: memoryview) -> int:
        rest = self._rest
        rest += data
        position, confirmed = 0, 0
        while len(rest) - position >= 13:
            size, key = struct.unpack_from(">IH", rest, position)
            if len(rest) - position < 4 + size:
                break
            if key == PUBLISH_CONFIRM:
                confirmed += struct.unpack_from(">i", rest, position + 9)[0]
            elif key == PUBLISH_ERROR:
                raise LoadError("RabbitMQ refused a message")
            position += 4 + size
        del rest[:position]
        return confirmed


def _publish(publisher: int, size: int, count: int) -> bytes:
    # Ids may repeat for a publisher without a reference: nothing is deduplicated.
    message = struct.pack(">Qi", 1, size) + b"m" * size
    return _frame(PUBLISH, struct.pack(">Bi", publisher, count) + message * count)


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = _open(spec["port"])
    for stream in range(streams):
        _ask(sock, DELETE, _string(f"s{stream}"), allowed=(STREAM_DOES_NOT_EXIST,))
        _ask(sock, CREATE, _string(f"s{stream}") + struct.pack(">i", 0))
        _ask(
            sock, DECLARE_PUBLISHER, struct.pack(">B", stream) + _string("") + _string(f"s{stream}")
        )
    per_chunk = max(1, min(CHUNK_BYTES // (size + 12), count))
    chunks = [_publish(stream, size, per_chunk) for stream in range(streams)]
    rounds = max(1, count // per_chunk)
    counter = ConfirmCounter()

    def work() -> int:
        turns = ((chunks[turn % streams], per_chunk) for turn in range(rounds))
        return pump(sock, turns, window=per_chunk * 12, counter=counter)

    return lambda: timed(rounds * per_chunk, size, work)


def latency(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    sock = _open(spec["port"])
    _ask(sock, DECLARE_PUBLISHER, struct.pack(">B", 0) + _string("") + _string("s0"))
    request = _publish(0, spec["size"], 1)
    counter = ConfirmCounter()

    def exchange() -> None:
        sock.sendall(request)
        while not counter.feed(memoryview(sock.recv(4096))):
            pass

    return warmed_up(exchange, spec)


def consume(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Subscribes to all streams from their start; counts the records of each chunk, unparsed."""
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = _open(spec["port"])

    def work() -> int:
        for stream in range(streams):
            body = struct.pack(">IB", 1, stream) + _string(f"s{stream}")
            sock.sendall(_frame(SUBSCRIBE, body + struct.pack(">HHi", 1, CREDITS, 0)))
        seen = 0
        while seen < count:
            key, frame = _read_frame(sock)
            if key == DELIVER:
                seen += struct.unpack_from(">I", frame, 1 + 4)[0]
                sock.sendall(_frame(CREDIT, struct.pack(">BH", frame[0], 1)))
            elif key == SUBSCRIBE | RESPONSE and struct.unpack_from(">H", frame, 4)[0] != 1:
                raise LoadError("RabbitMQ refused a subscription")
        return seen

    return lambda: timed(count, size, work)


LOADS = {
    "rabbitmq-produce": produce,
    "rabbitmq-consume": consume,
    "rabbitmq-latency": latency,
}

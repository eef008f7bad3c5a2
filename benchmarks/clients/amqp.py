"""Loads on RabbitMQ quorum queues: AMQP 0-9-1 written by hand, publishes prepared beforehand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.clients.pump import LoadError, connect, pump, receive_exactly, timed, warmed_up

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = b"\xce"
START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_CONSUME, BASIC_PUBLISH, BASIC_DELIVER = (60, 20), (60, 40), (60, 60)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
DURABLE, NO_ACK, PERSISTENT = 2, 2, 2
CHUNK_BYTES = 64_000
WINDOW_MESSAGES = 2000


def _short_string(text: str) -> bytes:
    return struct.pack(">B", len(text)) + text.encode()


def _long_string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def _method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    return _frame(METHOD, channel, struct.pack(">HH", *method) + arguments)


def _read_method(sock: socket.socket) -> tuple[tuple[int, int], bytes]:
    kind, _, size = struct.unpack(">BHI", receive_exactly(sock, 7))
    payload = receive_exactly(sock, size + 1)
    if kind != METHOD:
        raise LoadError(f"RabbitMQ sent a frame of type {kind} where a method was due")
    class_id, method_id = struct.unpack_from(">HH", payload)
    return (class_id, method_id), bytes(payload[4:-1])


def _ask(
    sock: socket.socket,
    channel: int,
    method: tuple[int, int],
    arguments: bytes,
    due: tuple[int, int],
) -> bytes:
    sock.sendall(_method(channel, method, arguments))
    got, answer = _read_method(sock)
    if got != due:
        raise LoadError(f"RabbitMQ answered {method} with {got}: {answer!r}")
    return answer


def _open(port: int) -> socket.socket:
    sock = connect(port)
    sock.sendall(b"AMQP\0\0\x09\x01")
    _read_method(sock)
    login = _short_string("PLAIN") + _long_string(b"\0guest\0guest") + _short_string("en_US")
    limits = _ask(sock, 0, START_OK, _long_string(b"") + login, TUNE)
    # The same limits, but no heartbeats: the loads are shorter than any.
    sock.sendall(_method(0, TUNE_OK, limits[:6] + struct.pack(">H", 0)))
    _ask(sock, 0, OPEN, _short_string("/") + b"\0\0", OPEN_OK)
    _ask(sock, 1, CHANNEL_OPEN, _short_string(""), CHANNEL_OPEN_OK)
    return sock


def _frames(data: bytearray) -> Iterator[tuple[int, int, int]]:
    """(type, where the payload starts, where the frame ends) of each whole frame."""
    position = 0
    while len(data) - position >= 8:
        kind, _, size = struct.unpack_from(">BHI", data, position)
        end = position + 8 + size
        if end > len(data):
            return
        yield kind, position + 7, end
        position = end


class ConfirmCounter:
    """Counts confirmed messages: one by one in any order, or all up to a number."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._all_up_to = 0
        self._single: set[int] = set()

    def feed(self, data: memoryview) -> int:
        self._rest += data
        confirmed, consumed = 0, 0
        for kind, start, end in _frames(self._rest):
            consumed = end
            method = struct.unpack_from(">HH", self._rest, start) if kind == METHOD else None
            if method == BASIC_ACK:
                tag, multiple = struct.unpack_from(">QB", self._rest, start + 4)
                confirmed += self._confirm(tag, multiple=bool(multiple))
            elif method is not None:
                raise LoadError(f"RabbitMQ sent method {method} instead of confirms")
        del self._rest[:consumed]
        return confirmed

    def _confirm(self, tag: int, *, multiple: bool) -> int:
        if not multiple:
            self._single.add(tag)
            return 1
        known = {single for single in self._single if single <= tag}
        self._single -= known
        fresh = tag - self._all_up_to - len(known)
        self._all_up_to = tag
        return fresh


def _publish(queue: int, size: int) -> bytes:
    method = struct.pack(">H", 0) + _short_string("") + _short_string(f"q{queue}") + b"\0"
    # Delivery mode 2 is the one property that is set: the message is persistent.
    header = struct.pack(">HHQHB", 60, 0, size, 0x1000, PERSISTENT)
    return (
        _method(1, BASIC_PUBLISH, method) + _frame(HEADER, 1, header) + _frame(BODY, 1, b"m" * size)
    )


def _confirming(port: int, queues: int) -> socket.socket:
    sock = _open(port)
    kind = _short_string("x-queue-type") + b"S" + _long_string(b"quorum")
    for queue in range(queues):
        name = struct.pack(">H", 0) + _short_string(f"q{queue}")
        _ask(sock, 1, QUEUE_DELETE, name + b"\0", QUEUE_DELETE_OK)
        _ask(sock, 1, QUEUE_DECLARE, name + bytes([DURABLE]) + _long_string(kind), QUEUE_DECLARE_OK)
    _ask(sock, 1, CONFIRM_SELECT, b"\0", CONFIRM_SELECT_OK)
    return sock


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    size, count, queues = spec["size"], spec["count"], spec["partitions"]
    sock = _confirming(spec["port"], queues)
    per_chunk = max(1, min(CHUNK_BYTES // size, WINDOW_MESSAGES // 4, count))
    chunks = [_publish(queue, size) * per_chunk for queue in range(queues)]
    rounds = max(1, count // per_chunk)
    counter = ConfirmCounter()

    def work() -> int:
        turns = ((chunks[turn % queues], per_chunk) for turn in range(rounds))
        return pump(sock, turns, window=WINDOW_MESSAGES, counter=counter)

    return lambda: timed(rounds * per_chunk, size, work)


def latency(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    sock = _confirming(spec["port"], 1)
    request = _publish(0, spec["size"])
    counter = ConfirmCounter()

    def exchange() -> None:
        sock.sendall(request)
        while not counter.feed(memoryview(sock.recv(4096))):
            pass

    return warmed_up(exchange, spec)


def consume(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Consumes all queues without acknowledgements; counts deliveries, bodies unread."""
    size, count, queues = spec["size"], spec["count"], spec["partitions"]
    sock = _open(spec["port"])

    def work() -> int:
        for queue in range(queues):
            arguments = struct.pack(">H", 0) + _short_string(f"q{queue}")
            arguments += _short_string(f"c{queue}") + bytes([NO_ACK]) + _long_string(b"")
            sock.sendall(_method(1, BASIC_CONSUME, arguments))
        seen, rest = 0, bytearray()
        while seen < count:
            data = sock.recv(1 << 20)
            if not data:
                raise LoadError("RabbitMQ closed the connection")
            rest += data
            consumed = 0
            for kind, _, end in _frames(rest):
                seen += kind == BODY
                consumed = end
            del rest[:consumed]
        return seen

    return lambda: timed(count, size, work)


LOADS = {"amqp-produce": produce, "amqp-consume": consume, "amqp-latency": latency}

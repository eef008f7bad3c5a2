"""Loads on Redis streams: pipelined XADD and XRANGE, the protocol written by hand."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from benchmarks.clients.pump import LoadError, connect, pump, timed, warmed_up

CHUNK_BYTES = 256_000
RANGE_COUNT = 1000


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts.extend(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"".join(parts)


def _add(stream: int, size: int) -> bytes:
    return command(b"XADD", b"s:%d" % stream, b"*", b"v", b"m" * size)


class BulkReplyCounter:
    """Counts ids returned by XADD; an id holds digits and one dash, so the dollar sign counts."""

    def __init__(self) -> None:
        # The end of what came before: a dash is an error at the start of a line only.
        self._before = b"\r\n"

    def feed(self, data: memoryview) -> int:
        text = self._before + bytes(data)
        if b"\r\n-" in text:
            raise LoadError(f"Redis answered {text[:200]!r}")
        self._before = text[-2:]
        return text.count(b"$", 2)


def _call(sock: socket.socket, *words: bytes) -> bytes:
    sock.sendall(command(*words))
    return sock.recv(65_536)


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = connect(spec["port"])
    if not _call(sock, b"FLUSHALL").startswith(b"+OK"):
        raise LoadError("Redis refused FLUSHALL")
    per_chunk = max(1, min(CHUNK_BYTES // size, count))
    chunks = [_add(stream, size) * per_chunk for stream in range(streams)]
    rounds = max(1, count // per_chunk)
    counter = BulkReplyCounter()

    def work() -> int:
        turns = ((chunks[turn % streams], per_chunk) for turn in range(rounds))
        return pump(sock, turns, window=per_chunk * 8, counter=counter)

    return lambda: timed(rounds * per_chunk, size, work)


def latency(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    sock = connect(spec["port"])
    request = _add(0, spec["size"])

    def exchange() -> None:
        sock.sendall(request)
        reply = sock.recv(256)
        if not reply.startswith(b"$"):
            raise LoadError(f"Redis answered {reply!r}")

    return warmed_up(exchange, spec)


def _read_range(sock: socket.socket, entries_end: bytes, size: int) -> tuple[int, bytes]:
    """One reply to XRANGE: how many entries, and the id of the last."""
    data = bytearray()
    while b"\r\n" not in data:
        data += sock.recv(1 << 20)
    if not data.startswith(b"*"):
        raise LoadError(f"Redis answered {bytes(data[:200])!r}")
    first_line = data.index(b"\r\n")
    count = int(data[1:first_line])
    if count == 0:
        return 0, b""
    # Entries have nearly one size: look for the end only when it can have arrived.
    while len(data) < count * size:
        data += sock.recv(1 << 20)
    while data.count(entries_end) < count or (
        len(data) < data.rindex(entries_end) + len(entries_end) + size + 2
    ):
        data += sock.recv(1 << 20)
    name_at = data.rindex(b"*2\r\n$1\r\nv\r\n")
    last = bytes(data[data.rindex(b"\r\n", 0, name_at - 2) + 2 : name_at - 2])
    return count, last


def consume(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Reads all streams in turn, a thousand entries a call; counts entries, decodes ids only."""
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = connect(spec["port"])
    marker = b"$1\r\nv\r\n$%d\r\n" % size

    def work() -> int:
        seen = 0
        positions = dict.fromkeys(range(streams), b"-")
        while seen < count and positions:
            for stream, position in list(positions.items()):
                sock.sendall(
                    command(
                        b"XRANGE", b"s:%d" % stream, position, b"+", b"COUNT", b"%d" % RANGE_COUNT
                    )
                )
                got, last = _read_range(sock, marker, size)
                seen += got
                if got:
                    positions[stream] = b"(" + last
                else:
                    del positions[stream]
        return seen

    return lambda: timed(count, size, work)


LOADS = {"redis-produce": produce, "redis-consume": consume, "redis-latency": latency}

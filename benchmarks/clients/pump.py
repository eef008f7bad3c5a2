"""Sockets of the hand-written clients: connect, pipeline with a window, measure one at a time."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

IDLE_S_MAX = 20.0
RECEIVE_BYTES = 1 << 20


class LoadError(Exception):
    """The server answered with an error, or not at all."""


class AckCounter(Protocol):
    """Counts acknowledged messages in a stream of replies, which may be cut anywhere."""

    def feed(self, data: memoryview) -> int: ...


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=IDLE_S_MAX)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive_exactly(sock: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view, filled = memoryview(buffer), 0
    while filled < count:
        got = sock.recv_into(view[filled:])
        if not got:
            raise LoadError("the server closed the connection")
        filled += got
    return buffer


def pump(
    sock: socket.socket,
    chunks: Iterable[tuple[bytes, int]],
    *,
    window: int,
    counter: AckCounter,
) -> int:
    """Send all chunks (bytes, messages) with at most `window` messages unacknowledged."""
    sock.setblocking(False)
    source = iter(chunks)
    buffer = bytearray(RECEIVE_BYTES)
    view = memoryview(buffer)
    pending, acked, sent = memoryview(b""), 0, 0
    upcoming = next(source, None)
    while upcoming is not None or pending or acked < sent:
        if not pending and upcoming is not None:
            data, count = upcoming
            if sent - acked + count <= max(window, count):
                pending, sent = memoryview(data), sent + count
                upcoming = next(source, None)
        readable, writable, _ = select.select([sock], [sock] if pending else [], [], IDLE_S_MAX)
        if not readable and not writable:
            raise LoadError(f"no progress for {IDLE_S_MAX} s: {acked} of {sent} acknowledged")
        if readable:
            got = sock.recv_into(view)
            if not got:
                raise LoadError("the server closed the connection")
            acked += counter.feed(view[:got])
        if writable:
            pending = pending[sock.send(pending) :]
    sock.settimeout(IDLE_S_MAX)
    return acked


def one_at_a_time(exchange: Callable[[], None], count: int, size: int) -> dict[str, Any]:
    """Time `count` exchanges, each begun when the one before is answered."""
    times = []
    clock = time.perf_counter
    begun = clock()
    for _ in range(count):
        start = clock()
        exchange()
        times.append(clock() - start)
    wall = clock() - begun
    times.sort()
    return {
        "wall_s": wall,
        "messages": count,
        "bytes": count * size,
        "p50_us": times[count // 2] * 1e6,
        "p99_us": times[count * 99 // 100] * 1e6,
    }


def warmed_up(exchange: Callable[[], None], spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A load of exchanges one at a time, of which the first have been made."""
    for _ in range(200):
        exchange()
    return lambda: one_at_a_time(exchange, spec["count"], spec["size"])


def timed(count: int, size: int, work: Callable[[], int]) -> dict[str, Any]:
    """Run a load that must move at least `count` messages of `size` bytes.

    A reader may be handed more in its last reply; what was moved is what is counted.
    """
    begun = time.perf_counter()
    moved = work()
    wall = time.perf_counter() - begun
    if moved < count:
        raise LoadError(f"{moved} messages moved, not {count}")
    return {"wall_s": wall, "messages": moved, "bytes": moved * size}

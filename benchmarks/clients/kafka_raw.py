"""Kafka loads on plain sockets with prepared frames: they show the broker, not a client."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients import frames
from benchmarks.clients.pump import (
    IDLE_S_MAX,
    LoadError,
    connect,
    pump,
    receive_exactly,
    timed,
    warmed_up,
)


class ReplyCounter:
    """Counts replies to equal Produce requests: all that went well have one size."""

    def __init__(self, topic: str, messages_per_reply: int = 1) -> None:
        self._size = frames.produce_reply_bytes(topic)
        self._head = struct.pack(">i", self._size - 4)
        self._error_at = frames.produce_error_at(topic)
        self._messages = messages_per_reply
        self._rest = b""

    def feed(self, data: memoryview) -> int:
        joined = self._rest + bytes(data)
        size, head, error_at = self._size, self._head, self._error_at
        whole = len(joined) // size
        for start in range(0, whole * size, size):
            error = joined[start + error_at : start + error_at + 2]
            if error != b"\0\0" or joined[start : start + 4] != head:
                (length,) = struct.unpack_from(">i", joined, start)
                reply = joined[start : start + 4 + length]
                raise LoadError(f"a request was refused: {frames.describe_produce_reply(reply)}")
        self._rest = joined[whole * size :]
        return whole * self._messages


def _batch(spec: dict[str, Any]) -> tuple[bytes, int]:
    """A record batch that fills `batch_bytes` with messages of `size` bytes; how many."""
    size = spec["size"]
    per_batch = max(1, (spec.get("batch_bytes", 0) - 61) // (size + 9))
    return frames.record_batch([b"m" * size] * per_batch), per_batch


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Whole batches over one connection, five requests in flight, partitions in turn."""
    topic, size, partitions = spec["topic"], spec["size"], spec["partitions"]
    batch, per_batch = _batch(spec)
    requests = [
        frames.produce(topic, partition, batch, acks=spec.get("acks", 1))
        for partition in range(partitions)
    ]
    rounds = max(1, spec["count"] // per_batch)
    sock = connect(spec["port"])
    counter = ReplyCounter(topic, per_batch)
    window = per_batch * spec.get("in_flight", 5)
    pump(sock, [(request, per_batch) for request in requests], window=window, counter=counter)
    count = rounds * per_batch

    def work() -> int:
        turns = ((requests[turn % partitions], per_batch) for turn in range(rounds))
        return pump(sock, turns, window=window, counter=counter)

    return lambda: timed(count, size, work)


def small_requests(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """One message per request, pipelined over many connections: as many as are answered follow."""
    topic, size, count = spec["topic"], spec["size"], spec["count"]
    in_flight = spec["in_flight"]
    batch = frames.record_batch([b"m" * size])
    epoll = select.epoll()
    links: dict[int, tuple[socket.socket, bytes, ReplyCounter]] = {}
    for number in range(spec["connections"]):
        sock = connect(spec["port"])
        request = frames.produce(
            topic, number % spec["partitions"], batch, acks=spec.get("acks", 1)
        )
        counter = ReplyCounter(topic)
        pump(sock, [(request, 1)] * 20, window=in_flight, counter=counter)
        sock.setblocking(False)
        epoll.register(sock.fileno(), select.EPOLLIN)
        links[sock.fileno()] = (sock, request, counter)

    def work() -> int:
        sent = answered = 0
        for sock, request, _ in links.values():
            sock.send(request * in_flight)
            sent += in_flight
        while answered < sent:
            events = epoll.poll(IDLE_S_MAX)
            if not events:
                raise LoadError(f"no reply for {IDLE_S_MAX} s")
            for number, _ in events:
                sock, request, counter = links[number]
                data = sock.recv(65_536)
                if not data:
                    raise LoadError("the server closed the connection")
                done = counter.feed(memoryview(data))
                answered += done
                more = min(done, count - sent)
                if more > 0:
                    # Small against the socket's buffer: at most `in_flight` requests wait in it.
                    sock.send(request * more)
                    sent += more
        return answered

    return lambda: timed(max(count, len(links) * in_flight), size, work)


def latency(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """One request of one message at a time over one connection."""
    topic, size = spec["topic"], spec["size"]
    request = frames.produce(topic, 0, frames.record_batch([b"m" * size]), acks=spec.get("acks", 1))
    sock = connect(spec["port"])
    counter = ReplyCounter(topic)

    def exchange() -> None:
        sock.sendall(request)
        while not counter.feed(memoryview(sock.recv(4096))):
            pass

    return warmed_up(exchange, spec)


def fetch_once(sock: socket.socket, spec: dict[str, Any], offsets: dict[int, int]) -> int:
    """One request for all partitions; the records that came. Moves the offsets."""
    sock.sendall(
        frames.fetch(
            spec["topic"],
            offsets,
            bytes_max=spec.get("bytes_max", 8_000_000),
            partition_bytes_max=spec.get("partition_bytes_max", 4_000_000),
        )
    )
    (length,) = struct.unpack(">i", receive_exactly(sock, 4))
    reply = memoryview(receive_exactly(sock, length))
    answered, seen = {}, 0
    for partition, error, records in frames.parse_fetch(reply):
        if error:
            raise LoadError(f"partition {partition}: error code {error}")
        following, found = frames.offset_after(records, offsets[partition])
        answered[partition] = following
        seen += found
    # Partitions that were served go to the end of the line, or the last would starve.
    for partition, following in answered.items():
        if following != offsets[partition]:
            del offsets[partition]
            offsets[partition] = following
    return seen


def fetch(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Fetches all partitions from their start over one connection, `passes` times; looks at batch
    headers only."""
    count, size, passes = spec["count"], spec["size"], spec.get("passes", 1)
    sock = connect(spec["port"])

    def work() -> int:
        moved, deadline = 0, time.perf_counter() + 60
        for _ in range(passes):
            offsets = dict.fromkeys(range(spec["partitions"]), 0)
            seen = 0
            while seen < count:
                if time.perf_counter() > deadline:
                    raise LoadError(f"{seen} of {count} messages of a pass after a minute")
                seen += fetch_once(sock, spec, offsets)
            moved += seen
        return moved

    return lambda: timed(count * passes, size, work)


def idle_connections(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Opens connections, asks each for the API versions once, and holds them."""
    held: list[socket.socket] = []

    def work() -> int:
        for _ in range(spec["count"]):
            sock = connect(spec["port"])
            sock.sendall(frames.api_versions())
            (length,) = struct.unpack(">i", receive_exactly(sock, 4))
            receive_exactly(sock, length)
            held.append(sock)
        return len(held)

    return lambda: timed(spec["count"], 1, work)


LOADS = {
    "kafka-raw-produce": produce,
    "kafka-raw-small": small_requests,
    "kafka-raw-latency": latency,
    "kafka-raw-fetch": fetch,
    "kafka-raw-idle": idle_connections,
}

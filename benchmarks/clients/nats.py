"""Loads on NATS JetStream: PUB with acknowledgements and pull batches, the protocol by hand."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients.pump import IDLE_S_MAX, LoadError, connect, pump, timed, warmed_up

CHUNK_MESSAGES = 200
WINDOW_MESSAGES = 4000
PULL_MESSAGES = 2000


class MarkerCounter:
    """Counts a marker that occurs once per message, also across cuts; a marker for errors too."""

    def __init__(self, marker: bytes, error: bytes | None = None) -> None:
        self._marker, self._error = marker, error
        self._rest = b""

    def feed(self, data: memoryview) -> int:
        joined = self._rest + bytes(data)
        if self._error is not None and self._error in joined:
            raise LoadError(f"NATS answered {joined[:300]!r}")
        # The rest is shorter than the marker: what was counted is not counted again.
        self._rest = joined[-(len(self._marker) - 1) :]
        return joined.count(self._marker)


def _open(port: int) -> socket.socket:
    sock = connect(port)
    if not sock.recv(65_536).startswith(b"INFO"):
        raise LoadError("no NATS server answered")
    options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    sock.sendall(b"CONNECT %s\r\nPING\r\n" % json.dumps(options).encode())
    if b"PONG" not in sock.recv(65_536):
        raise LoadError("NATS refused the connection")
    return sock


def _ask(sock: socket.socket, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """One JSON request on a connection that carries nothing else yet."""
    payload = json.dumps(body).encode()
    sock.sendall(
        b"SUB _A.r 9\r\nPUB %s _A.r %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
    )
    data = bytearray()
    deadline = time.perf_counter() + IDLE_S_MAX
    while True:
        data += sock.recv(65_536)
        start = data.find(b"MSG ")
        if start >= 0 and (line_end := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line_end].split()[-1])
            if len(data) >= line_end + 4 + size:
                sock.sendall(b"UNSUB 9\r\n")
                return dict(json.loads(data[line_end + 2 : line_end + 2 + size]))
        if time.perf_counter() > deadline:
            raise LoadError(f"NATS did not answer {subject}: {bytes(data[:200])!r}")


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = _open(spec["port"])
    for stream in range(streams):
        _ask(sock, f"$JS.API.STREAM.DELETE.S{stream}", {})
        created = _ask(
            sock,
            f"$JS.API.STREAM.CREATE.S{stream}",
            {
                "name": f"S{stream}",
                "subjects": [f"s.{stream}"],
                "storage": "file",
                "num_replicas": 1,
                "retention": "limits",
                "max_consumers": -1,
                "max_msgs": -1,
                "max_bytes": -1,
                "max_age": 0,
                "discard": "old",
            },
        )
        if "error" in created:
            raise LoadError(f"NATS refused a stream: {created['error']}")
    sock.sendall(b"SUB _I.> 1\r\n")
    chunks = [
        b"PUB s.%d _I.a %d\r\n%s\r\n" % (stream, size, b"m" * size) * CHUNK_MESSAGES
        for stream in range(streams)
    ]
    rounds = max(1, count // CHUNK_MESSAGES)
    counter = MarkerCounter(b'"seq":', b'"error"')

    def work() -> int:
        turns = ((chunks[turn % streams], CHUNK_MESSAGES) for turn in range(rounds))
        return pump(sock, turns, window=WINDOW_MESSAGES, counter=counter)

    return lambda: timed(rounds * CHUNK_MESSAGES, size, work)


def latency(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    size = spec["size"]
    sock = _open(spec["port"])
    sock.sendall(b"SUB _I.> 1\r\n")
    request = b"PUB s.0 _I.a %d\r\n%s\r\n" % (size, b"m" * size)

    def exchange() -> None:
        sock.sendall(request)
        reply = sock.recv(4096)
        while not reply.endswith(b"}\r\n"):
            reply += sock.recv(4096)
        if b'"error"' in reply:
            raise LoadError(f"NATS answered {reply!r}")

    return warmed_up(exchange, spec)


def consume(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Pull consumers without acknowledgements, two batches asked for ahead on every stream."""
    size, count, streams = spec["size"], spec["count"], spec["partitions"]
    sock = _open(spec["port"])
    for stream in range(streams):
        _ask(sock, f"$JS.API.CONSUMER.DELETE.S{stream}.c", {})
        created = _ask(
            sock,
            f"$JS.API.CONSUMER.DURABLE.CREATE.S{stream}.c",
            {
                "stream_name": f"S{stream}",
                "config": {
                    "durable_name": "c",
                    "ack_policy": "none",
                    "deliver_policy": "all",
                    "replay_policy": "instant",
                },
            },
        )
        if "error" in created:
            raise LoadError(f"NATS refused a consumer: {created['error']}")
    sock.sendall(b"SUB _N.> 2\r\n")
    pull = b'{"batch":%d,"no_wait":true}' % PULL_MESSAGES
    asks = b"".join(
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S%d.c _N.%d %d\r\n%s\r\n"
        % (stream, stream, len(pull), pull)
        for stream in range(streams)
    )
    counter = MarkerCounter(b" %d\r\n" % size)

    def work() -> int:
        per_round = PULL_MESSAGES * streams
        sock.sendall(asks)
        asked, seen = per_round, 0
        buffer = memoryview(bytearray(1 << 20))
        while seen < count:
            while asked - seen < 2 * per_round and asked < count + per_round:
                sock.sendall(asks)
                asked += per_round
            got = sock.recv_into(buffer)
            if not got:
                raise LoadError("NATS closed the connection")
            seen += counter.feed(buffer[:got])
        return seen

    return lambda: timed(count, size, work)


LOADS = {"nats-produce": produce, "nats-consume": consume, "nats-latency": latency}

"""HTTP loads on plain sockets with prepared requests: they show the broker, not a library."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

from benchmarks.clients.pump import LoadError, connect, one_at_a_time, timed

_OK = b"HTTP/1.1 200 "


def _request(topic: str, messages: int, size: int, *, keyed: bool, acks: str) -> bytes:
    """A body of equal values, with keys of their own or without any."""
    value = "m" * size
    records = [
        {"key": f"key-{number}", "value": value} if keyed else {"value": value}
        for number in range(messages)
    ]
    body = json.dumps({"records": records, "acks": acks}).encode()
    head = (
        f"POST /api/v1/topics/{topic}/records HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _exchange(sock: socket.socket, request: bytes) -> None:
    """One request and its whole reply."""
    sock.sendall(request)
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        _receive_more(sock, data)
    head = bytes(data[:end]).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(data) < end + 4 + length:
        _receive_more(sock, data)
    if not data.startswith(_OK):
        raise LoadError(f"a request was refused: {bytes(data[end + 4 : end + 400]).decode()}")


def _receive_more(sock: socket.socket, data: bytearray) -> None:
    piece = sock.recv(1 << 18)
    if not piece:
        raise LoadError("the server closed the connection")
    data += piece


def produce(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Bodies of many messages, one at a time on each of a few connections."""
    per_body, size, connections = spec["messages"], spec["size"], spec["connections"]
    request = _request(
        spec["topic"], per_body, size, keyed=spec["keyed"], acks=spec.get("acks", "all")
    )
    bodies = max(1, spec["count"] // per_body // connections)
    sockets = [connect(spec["http_port"]) for _ in range(connections)]
    for sock in sockets:
        _exchange(sock, request)
    failures: list[BaseException] = []

    def one(sock: socket.socket) -> None:
        try:
            for _ in range(bodies):
                _exchange(sock, request)
        except (LoadError, OSError) as error:
            failures.append(error)

    def work() -> int:
        threads = [threading.Thread(target=one, args=(sock,)) for sock in sockets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise LoadError(str(failures[0]))
        return int(bodies * connections * per_body)

    return lambda: timed(bodies * connections * per_body, size, work)


def produce_one(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """One message per request, one request at a time: what a request itself takes."""
    request = _request(spec["topic"], 1, spec["size"], keyed=False, acks=spec.get("acks", "all"))
    sock = connect(spec["http_port"])
    _exchange(sock, request)
    return lambda: one_at_a_time(lambda: _exchange(sock, request), spec["count"], spec["size"])


def search(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Page after page to the end; meanwhile another connection asks for what costs nothing."""
    count, port = spec["count"], spec["http_port"]
    path = f"/api/v1/topics/{spec['topic']}/search?{spec['query']}"
    # The first request of a broker loads its web server.
    _exchange(connect(port), f"GET {path}&value_max=1 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    waits: list[float] = []
    is_over = threading.Event()

    def probe() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        while not is_over.wait(0.005):
            began = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            waits.append(time.perf_counter() - began)
        connection.close()

    def work() -> int:
        prober = threading.Thread(target=probe)
        prober.start()
        connection = HTTPConnection("127.0.0.1", port)
        searched, cursor = 0, ""
        try:
            while cursor is not None and searched < count:
                connection.request("GET", path + (cursor and f"&cursor={cursor}"))
                page = json.loads(connection.getresponse().read())
                if "searched" not in page:
                    raise LoadError(f"a search was refused: {page}")
                searched += page["searched"]["records"]
                cursor = page["cursor"]
        finally:
            is_over.set()
            prober.join()
            connection.close()
        return int(searched)

    def measured() -> dict[str, Any]:
        found = timed(count, spec["size"], work)
        ordered = sorted(waits) or [0.0]
        found["p50_us"] = ordered[len(ordered) // 2] * 1e6
        found["p99_us"] = ordered[len(ordered) * 99 // 100] * 1e6
        return found

    return measured


LOADS: dict[str, Callable[[dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "http-produce": produce,
    "http-produce-one": produce_one,
    "http-search": search,
}

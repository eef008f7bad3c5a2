"""`python -m benchmarks.tls_transports`: what TLS costs a server, by the way it is done.

Our connections (a memory BIO over the socket), OpenSSL on a non-blocking socket, and the transports
of asyncio and uvloop serve the same load in turns: frames to the server (up) and slices of a file
from it (down). CPU time of the server, because other programs take their share of the wall.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.harness import cpu_seconds, environment, median, workspace
from moldau.log.os_filesystem import OsFiles
from moldau.model.slices import FileSlice
from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.net.tls.contexts import TlsContexts, TlsFiles
from moldau.server.clock import SystemClock

LOADS = {
    "up 1 MB": (1_000_000, True, None),
    "up 16 KB": (16_384, True, None),
    # As librdkafka sends batches: each message and its head are records of their own.
    "up, small": (16_384, True, (16, 1024)),
    "down 1 MB": (1_000_000, False, None),
    "down 16 KB": (16_384, False, None),
}
"""Size, direction, and the sizes of TLS records in turns if the client makes them small."""
SECONDS = 1.5
ROUNDS = 3
WINDOW = 8
ACK = struct.pack(">ii", 4, 1)
_TCP_ULP = 31

Ready = Callable[[int], None]


def _contexts(certs: Path) -> TlsContexts:
    return TlsContexts(
        TlsFiles(cert_file=str(certs / "broker.pem"), key_file=str(certs / "broker.key"))
    )


class Handler:
    """Four bytes are the size of a desired slice; all else is acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._file = OsFiles(folder).open("segment")

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if len(frame) == 4:
            (size,) = struct.unpack(">i", frame)
            connection.reply([frame.tobytes(), FileSlice(self._file, 0, size)])
        else:
            connection.reply([ACK])

    def on_closed(self, connection: Connection) -> None: ...


def serve_ours(folder: Path, ready: Ready, *, tls: bool) -> None:
    async def run() -> None:
        listener = Listener(
            loop=asyncio.get_running_loop(),
            handler=Handler(folder),
            limits=ListenerLimits(
                connections_max=100, connections_per_address_max=100, idle_seconds_max=1e9
            ),
            connection_limits=ConnectionLimits(
                request_bytes_max=1 << 26, inflight_bytes_max=1 << 26, inflight_requests_max=1000
            ),
            budget=ByteBudget(1 << 28),
            clock=SystemClock(),
            tls=_contexts(folder) if tls else None,
        )
        _, port = listener.bind("127.0.0.1", 0)
        listener.start()
        ready(port)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _answers(gathered: bytearray, file: int) -> list[bytes]:
    """The answers to the whole frames, which are removed."""
    found = []
    while len(gathered) >= 4:
        (size,) = struct.unpack_from(">i", gathered)
        if len(gathered) < 4 + size:
            break
        if size == 4:
            (desired,) = struct.unpack_from(">i", gathered, 4)
            found += [gathered[4:8], os.pread(file, desired, 0)]
        else:
            found.append(ACK)
        del gathered[: 4 + size]
    return [bytes(one) for one in found]


class TransportProtocol(asyncio.Protocol):
    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "segment", os.O_RDONLY)
        self._gathered = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._gathered += data
        for answer in _answers(self._gathered, self._file):
            self._transport.write(answer)


def serve_transports(folder: Path, ready: Ready, *, uv: bool) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: TransportProtocol(folder), "127.0.0.1", 0, ssl=_contexts(folder).server
        )
        ready(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else None) as runner:
        runner.run(run())


def serve_socket(folder: Path, ready: Ready) -> None:
    """OpenSSL reads and writes the socket itself; one client at a time."""
    context = _contexts(folder).server
    file = os.open(folder / "segment", os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready(listener.getsockname()[1])
        while True:
            raw, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as tls:
                tls.setblocking(False)
                _serve_one(tls, file)


def _serve_one(tls: ssl.SSLSocket, file: int) -> None:
    buffer, gathered = bytearray(256 * 1024), bytearray()
    while True:
        try:
            size = tls.recv_into(buffer)
            if not size:
                return
            gathered += memoryview(buffer)[:size]
            continue
        except ssl.SSLWantReadError:
            pass
        for answer in _answers(gathered, file):
            rest = memoryview(answer)
            while rest:
                try:
                    rest = rest[tls.send(rest) :]
                except ssl.SSLWantWriteError:
                    select.select([], [tls], [])
        select.select([tls], [], [])


def pieces(data: bytes, sizes: tuple[int, ...] | None) -> list[bytes]:
    """The data in pieces of these sizes, in turns."""
    if sizes is None:
        return [data]
    found: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(found) % len(sizes)]
        found.append(data[at : at + size])
        at += size
    return found


def load(
    port: int, certs: Path | None, size: int, up: bool, records: tuple[int, ...] | None
) -> float:
    """Bytes per second of one client."""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock: Any = raw
        if certs is not None:
            context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
            sock = context.wrap_socket(raw, server_hostname="localhost")
        request = struct.pack(">i", size) + os.urandom(size) if up else struct.pack(">ii", 4, size)
        parts = pieces(request, records)
        answer_bytes = len(ACK) if up else size + 4
        buffer = memoryview(bytearray(1 << 20))
        ends, done, sent = time.perf_counter() + SECONDS, 0, 0
        while time.perf_counter() < ends:
            while sent - done < WINDOW:
                for part in parts:
                    sock.sendall(part)
                sent += 1
            left = answer_bytes
            while left:
                left -= sock.recv_into(buffer[: min(left, len(buffer))])
            done += 1
        return done * size / SECONDS


SERVERS: dict[str, tuple[Callable[..., None], dict[str, bool]]] = {
    "plaintext, ours": (serve_ours, {"tls": False}),
    "memory BIO, ours": (serve_ours, {"tls": True}),
    "OpenSSL on the socket": (serve_socket, {}),
    "uvloop's transport": (serve_transports, {"uv": True}),
    "asyncio's transport": (serve_transports, {"uv": False}),
}


def has_kernel_tls() -> bool:
    """Whether the kernel would encrypt (kTLS), so that `sendfile` could be used."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
        except OSError:
            return False
    return hasattr(ssl, "OP_ENABLE_KTLS")


def measure(folder: Path, name: str) -> dict[str, float]:
    """CPU seconds of the server per gigabyte, by load."""
    serve, options = SERVERS[name]
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    server = context.Process(target=serve, args=(folder, theirs.send), kwargs=options, daemon=True)
    server.start()
    try:
        port = mine.recv()
        assert server.pid is not None
        found = {}
        for words, (size, up, records) in LOADS.items():
            before = cpu_seconds(server.pid)
            certs = None if name.startswith("plaintext") else folder
            rate = load(port, certs, size, up, records)
            spent = cpu_seconds(server.pid) - before
            found[words] = spent / (rate * SECONDS / 1e9)
        return found
    finally:
        server.terminate()
        server.join()


def main() -> None:
    with workspace() as folder:
        command = [sys.executable, "-m", "moldau", "certs", "dev", str(folder)]
        subprocess.run(command, check=True, capture_output=True, env=environment())
        (folder / "segment").write_bytes(os.urandom(2_000_000))
        values: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
        for _ in range(ROUNDS):
            for name in SERVERS:
                values[name].append(measure(folder, name))
    columns = list(values["plaintext, ours"][0])
    print("CPU seconds of the server per GB, medians of", ROUNDS)
    print(f"{'':24}" + "".join(f"{column:>12}" for column in columns))
    for name, rounds in values.items():
        cells = (median([one[column] for one in rounds]) for column in columns)
        print(f"{name:24}" + "".join(f"{cell:12.2f}" for cell in cells))
    print("kTLS:", "available" if has_kernel_tls() else "not available here")


if __name__ == "__main__":
    main()

"""How the processes of a node ask each other: a Unix socket in the data directory of each.

It needs no cluster and no port, and only the user of the node can reach it. A request is an
`Opening`, as between brokers, and the reply one `Part`, each after its length. This module is
loaded with the broker, so it must import no web framework.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from moldau.api.guard import ListenerAccess
from moldau.edge.http.relay.messages import (
    Opening,
    Part,
    Visitor,
    decode_opening,
    decode_part,
    encode,
)
from moldau.edge.http.relay.serving import scope_of
from moldau.model.errors import ConfigError
from moldau.model.malformed import MALFORMED
from moldau.security.principal import LOCAL_ADMIN

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

ASK_SECONDS_MAX: Final = 2.0
"""For one process to reply; probes wait for three seconds."""
_REQUEST_BYTES_MAX: Final = 64 * 1024
_REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
_LENGTH_BYTES: Final = 4
_BACKLOG: Final = 64


class NodeLinks(Struct, frozen=True, kw_only=True):
    """What one process knows of the others of its node."""

    number: int
    """Its own."""
    port: int
    """Of the address that all share."""
    path: Path
    """Of its own socket."""
    others: Callable[[], list[tuple[int, Path]]]
    """The numbers and sockets of the others."""


class NodeListener:
    """Serves the other processes of the node."""

    def __init__(self, path: Path, load: Callable[[], Awaitable["ASGIApp"]]) -> None:
        """`load` returns the application."""
        self._path = path
        self._load = load
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def bind(self) -> None:
        """Who asks from now on waits for `start`. Raises ConfigError."""
        try:
            self._socket = _bound(self._path)
        except OSError as error:
            failure = ConfigError(f"cannot listen on {self._path}: {error.strerror or error}")
            failure.hint = (
                "the processes of a node ask each other there: choose a data directory that this "
                "user may write, on a file system that has Unix sockets: --data-dir"
            )
            raise failure from None

    async def start(self) -> None:
        # Kept before it serves, so that `close` ends it also while it begins.
        self._server = await asyncio.start_unix_server(
            self._serve, sock=self._socket, start_serving=False
        )
        await self._server.start_serving()

    def close(self) -> None:
        """May be called before the start, and twice."""
        if self._socket is None:
            return
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self._server = self._socket = None
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An asker that does not wait for the reply leaves nothing behind.
        with contextlib.suppress(*MALFORMED, OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS_MAX * 2):
                opening = decode_opening(await _receive(reader, _REQUEST_BYTES_MAX))
                reply = encode(await self._reply(opening))
                writer.write(len(reply).to_bytes(_LENGTH_BYTES) + reply)
                await writer.drain()
        writer.close()

    async def _reply(self, opening: Opening) -> Part:
        app = await self._load()
        bodies = iter([opening.body])
        head: Message = {"status": 500, "headers": []}
        parts: list[bytes] = []

        async def receive() -> "Message":
            for body in bodies:
                return {"type": "http.request", "body": body, "more_body": False}
            return {"type": "http.disconnect"}

        async def send(message: "Message") -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
            else:
                parts.append(message.get("body", b""))

        await app(scope_of(opening), receive, send)
        return Part(status=head["status"], body=b"".join(parts), is_last=True)


async def ask(path: Path, request_path: str, query: bytes = b"") -> Part:
    """The reply of the process that listens there. Raises OSError if none does, and TimeoutError
    if it does not reply in time."""
    opening = Opening(
        exchange=0,
        # Who asks was let in here, and may see what it gets.
        visitor=Visitor(
            principal=LOCAL_ADMIN,
            host="127.0.0.1",
            access=ListenerAccess(name="node", read_only=True),
            expires_at_ms=None,
        ),
        method="GET",
        path=request_path,
        query=query,
        headers=[],
        body=b"",
    )
    payload = encode(opening)
    async with asyncio.timeout(ASK_SECONDS_MAX):
        with _short(path) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        try:
            writer.write(len(payload).to_bytes(_LENGTH_BYTES) + payload)
            return decode_part(await _receive(reader, _REPLY_BYTES_MAX))
        except (*MALFORMED, asyncio.IncompleteReadError) as error:
            raise ConnectionError(f"the process ended its reply too early: {error}") from None
        finally:
            writer.close()


async def _receive(reader: asyncio.StreamReader, most: int) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > most:
        raise ConnectionError(f"{length} bytes; the limit is {most}")
    return await reader.readexactly(length)


def _bound(path: Path) -> socket.socket:
    """Only our user may connect; one that a killed process left is replaced."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _short(path) as address:
            sock.bind(address)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The address of a Unix socket has room for 108 bytes, which data directories may exceed."""
    if not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

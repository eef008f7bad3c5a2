"""Owns connections that came before gRPC was loaded: their bytes are passed on to it.

gRPC opens its sockets itself and takes none from others. So the few who were the first are served
through here, for as long as their connection lasts; whoever comes later is not.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Final

_READ_BYTES: Final = 256 * 1024


class Relay:
    """The connections that are passed on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return len(self._tasks)

    def pass_on(self, connections: Iterable[socket.socket], host: str, port: int) -> None:
        for connection in connections:
            task = asyncio.create_task(_pass_on(connection, host, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass_on(connection: socket.socket, host: str, port: int) -> None:
    """Both ways, until either side ends it."""
    writers = []
    # Who is gone is gone; the other side hears of it by the end of its connection.
    with contextlib.suppress(OSError):
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=_READ_BYTES)
            writers.append(writer)
            there, back = await asyncio.open_connection(host, port, limit=_READ_BYTES)
            writers.append(back)
            ways = {
                asyncio.create_task(_pump(reader, back)),
                asyncio.create_task(_pump(there, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for opened in writers:
                opened.close()
            if not writers:
                connection.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()

"""The connected socket of a link to a peer: sends only, and heartbeats overtake what waits."""

import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

from moldau.model.compiled import mypyc_attr
from moldau.model.slices import Chunk, FileSlice
from moldau.net.peers.frames import FrameHead, FrameKind
from moldau.net.socket_writer import SocketWriter


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream(SocketWriter):
    """The connected socket of a link."""

    __slots__ = ("_large_heartbeat", "_on_closed", "_on_progress", "is_closed")

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: socket.socket,
        on_progress: Callable[[], object],
        on_closed: "Callable[[Stream, str], object]",
    ) -> None:
        super().__init__(loop, sock)
        self._on_progress = on_progress
        self._on_closed = on_closed
        self._large_heartbeat: Chunk | None = None
        """The last chunk of a heartbeat that was too large to overtake the queue."""
        self.is_closed = False
        loop.add_reader(sock, self._on_readable)

    @property
    def queued_bytes(self) -> int:
        return self._out_bytes

    @property
    def queued_chunks(self) -> int:
        return len(self._out)

    @property
    def has_files(self) -> bool:
        return any(isinstance(chunk, FileSlice) for chunk in self._out)

    def send(self, chunks: Sequence[Chunk]) -> None:
        self._enqueue(chunks)
        if not self._writing:
            self._write()

    def send_large_heartbeat(self, chunks: Sequence[Chunk]) -> None:
        """Send in pieces, behind the queue."""
        self._large_heartbeat = chunks[-1]
        self.send(chunks)

    def send_ahead(self, chunks: Sequence[Chunk]) -> None:
        """Send before the queued frames, but after other heartbeats."""
        out = self._out
        if self._large_heartbeat is not None:
            if any(queued is self._large_heartbeat for queued in out):
                self.send(chunks)
                return
            self._large_heartbeat = None
        for place, queued in enumerate(out):
            if isinstance(queued, FrameHead) and queued[-1] != FrameKind.HEARTBEAT:
                for chunk in reversed(chunks):
                    out.insert(place, chunk)
                    self._out_bytes += len(chunk)
                return
        self.send(chunks)

    def _on_writable(self) -> None:
        self._write()
        if not self.is_closed:
            self._on_progress()

    def _on_readable(self) -> None:
        try:
            received = self._socket.recv(64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"reset: {error.strerror}")
            return
        self.close("closed by the peer" if not received else "unexpected data from the peer")

    def close(self, reason: str, level: int = logging.INFO) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._socket)
        super().close(reason, level)
        self._on_closed(self, reason)

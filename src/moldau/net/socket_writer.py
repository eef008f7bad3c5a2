"""Writes a queue of chunks to a socket: memory by `sendmsg`, file slices by `sendfile`.

What the socket does not accept waits until it is writable. The base of client connections and of
links to peers.
"""

import errno
import logging
import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Sequence

from moldau.model.compiled import mypyc_attr
from moldau.model.slices import Chunk, FileSlice

_IOV_MAX = 512
SENDFILE_BYTES_MIN = 8 * 1024
"""Below this size, a pread plus a shared sendmsg is cheaper than a separate sendfile."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SocketWriter:
    """A socket with a send queue. Subclasses react to progress and to the close."""

    __slots__ = ("_loop", "_out", "_out_bytes", "_socket", "_writing", "enqueued_bytes")

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock
        self._out: deque[Chunk] = deque()
        self._out_bytes = 0
        self.enqueued_bytes = 0
        """In all, also those that wait to be sent; with TLS before encryption."""
        self._writing = False

    def _on_writable(self) -> None:
        self._write()

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        self._stop_writing()
        self._socket.close()
        self._out.clear()

    def _enqueue(self, chunks: Sequence[Chunk]) -> None:
        size = 0
        for chunk in chunks:
            self._out.append(chunk)
            size += len(chunk)
        self._out_bytes += size
        self.enqueued_bytes += size

    def _write(self) -> None:
        out = self._out
        try:
            while out:
                head = out[0]
                if isinstance(head, FileSlice) and head.size >= SENDFILE_BYTES_MIN:
                    if not self._send_file(head):
                        break
                elif not self._send_buffers():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # EIO does not come from the socket: reading the segment file failed.
            level = logging.ERROR if error.errno == errno.EIO else logging.DEBUG
            self.close(f"send failed: {error.strerror}", level=level)
            return
        if out:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket, self._on_writable)
        elif self._writing:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)

    def _send_buffers(self) -> bool:
        """Send the memory chunks at the head; False if the socket accepted only a part."""
        out = self._out
        only = out[0]
        if len(out) == 1 and not isinstance(only, FileSlice):
            sent = self._socket.send(only)
            self._out_bytes -= sent
            if sent == len(only):
                out.clear()
                return True
            out[0] = memoryview(only)[sent:]
            return False
        if len(out) <= _IOV_MAX:
            memory = [chunk for chunk in out if not isinstance(chunk, FileSlice)]
            if len(memory) == len(out):
                # The usual case: no files, and the socket accepts everything.
                sent = self._socket.sendmsg(memory)
                if sent == self._out_bytes:
                    self._out_bytes = 0
                    out.clear()
                    return True
                return self._remove_sent(memory, sent)
        run: list[bytes | bytearray | memoryview] = []
        flags = 0
        for index, chunk in enumerate(out):
            if isinstance(chunk, FileSlice):
                if chunk.size >= SENDFILE_BYTES_MIN:
                    flags = socket.MSG_MORE
                    break
                data = chunk.file.pread(chunk.size, chunk.position)
                if len(data) != chunk.size:
                    raise ended_early()
                out[index] = data
                run.append(data)
            else:
                run.append(chunk)
            if len(run) == _IOV_MAX:
                break
        return self._remove_sent(run, self._socket.sendmsg(run, (), flags))

    def _remove_sent(self, run: Sequence[bytes | bytearray | memoryview], sent: int) -> bool:
        """Remove `sent` bytes of the run from the queue; False if some of it is left."""
        out = self._out
        self._out_bytes -= sent
        for chunk in run:
            size = len(chunk)
            if sent < size:
                out[0] = memoryview(chunk)[sent:]
                return False
            sent -= size
            out.popleft()
        return True

    def _send_file(self, head: FileSlice) -> bool:
        sent = head.file.send_to(self._socket, head.size, head.position)
        if sent == 0:
            raise ended_early()
        self._out_bytes -= sent
        if sent == head.size:
            self._out.popleft()
            return True
        self._out[0] = FileSlice(head.file, head.position + sent, head.size - sent)
        return False


def ended_early() -> OSError:
    """A file is shorter than the log's index says, and the length was already sent."""
    return OSError(errno.EIO, "segment file is truncated")

"""Connections with TLS: the same as others, over a channel that encrypts.

Handshakes are bounded: in time and number by the listener, in memory because OpenSSL starts only
when the first bytes have arrived.
"""

import contextlib
import errno
import logging
import ssl
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from socket import SHUT_WR, socket
from time import thread_time
from typing import Final

from moldau.model.clock import Clock
from moldau.model.histogram import Histogram
from moldau.model.slices import FileSlice
from moldau.net.budget import ByteBudget
from moldau.net.buffers import BufferPool
from moldau.net.connection import Connection, FrameHandler
from moldau.net.failure_log import FailureLog
from moldau.net.limits import ConnectionLimits
from moldau.net.socket_writer import SocketWriter, ended_early
from moldau.net.tls.channel import HANDSHAKE_RECORD, PIECE_BYTES, TlsChannel, describe
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.handshakes import Handshakes

_RECORD_BYTES: Final = 16 * 1024
_SEALED_PIECES_MAX: Final = 4
_UNREAD_PIECES_MAX: Final = 64
"""Encrypted ahead of the socket, and sent with one call."""


class TlsWriting(SocketWriter):
    """Encrypts what a SocketWriter sends. A mixin: subclasses have the slots that it names."""

    __slots__ = ()
    _tls: TlsChannel | None
    _sealed: deque[bytes | memoryview]
    """Encrypted, and not accepted by the socket yet."""

    def _write(self) -> None:
        out, sealed = self._out, self._sealed
        try:
            while True:
                while out and len(sealed) < _SEALED_PIECES_MAX:
                    if piece := self._seal_next():
                        sealed.append(piece)
                if not sealed or not self._send_sealed():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except ssl.SSLError as error:
            self.close(f"TLS failed: {describe(error)}")
            return
        except OSError as error:
            level = logging.ERROR if error.errno == errno.EIO else logging.DEBUG
            self.close(f"send failed: {error.strerror}", level=level)
            return
        if sealed:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket, self._on_writable)
        elif self._writing:
            self._stop_writing()

    def _seal_next(self) -> bytes:
        """Encrypt the next piece of the queue."""
        tls = self._tls
        assert tls is not None, "nothing is sent before the handshake"
        out = self._out
        head = out[0]
        size = len(head)
        if size >= _RECORD_BYTES or len(out) == 1:
            data = self._take(PIECE_BYTES)
        else:
            # Small ones share a record.
            parts = []
            while out and size <= PIECE_BYTES:
                parts.append(self._take(PIECE_BYTES))
                size += len(out[0]) if out else 0
            data = b"".join(parts)
        self._out_bytes -= len(data)
        return tls.seal(data) if len(data) else b""

    def _take(self, most: int) -> bytes | bytearray | memoryview:
        """The first chunk of the queue, or its first bytes."""
        out = self._out
        head = out[0]
        size = min(len(head), most)
        if isinstance(head, FileSlice):
            data: bytes | bytearray | memoryview = head.file.pread(size, head.position)
            if len(data) != size:
                raise ended_early()
            rest: FileSlice | memoryview = FileSlice(
                head.file, head.position + size, head.size - size
            )
        elif size == len(head):
            out.popleft()
            return head
        else:
            view = memoryview(head)
            data, rest = view[:size], view[size:]
        if len(rest):
            out[0] = rest
        else:
            out.popleft()
        return data

    def _send_sealed(self) -> bool:
        """False if the socket accepted only a part."""
        sealed = self._sealed
        sent = self._socket.send(sealed[0]) if len(sealed) == 1 else self._socket.sendmsg(sealed)
        while sealed:
            size = len(sealed[0])
            if sent < size:
                sealed[0] = memoryview(sealed[0])[sent:]
                return False
            sent -= size
            sealed.popleft()
        return True

    def _push(self, tls: TlsChannel) -> None:
        """Send what TLS itself has to say."""
        if len(self._sealed) >= _UNREAD_PIECES_MAX:
            # It asks for new keys again and again, and does not read the answers.
            self.close("it does not read the messages of TLS")
            return
        self._sealed.append(tls.output())
        if not self._writing:
            self._write()

    def _say_goodbye(self) -> None:
        """End TLS properly, if the socket has room for it."""
        if self._tls is None or self._sealed:
            return
        try:
            self._socket.send(self._tls.goodbye())
        except OSError:
            return


class TlsConnection(TlsWriting, Connection):
    """One accepted socket; its first bytes must be a TLS handshake."""

    __slots__ = (
        "_contexts",
        "_expires_ms",
        "_handshakes",
        "_has_failed",
        "_held",
        "_is_secured",
        "_sealed",
        "_tls",
        "is_answered",
    )

    def __init__(
        self,
        *,
        contexts: TlsContexts,
        handshakes: Handshakes,
        failures: FailureLog,
        loop: AbstractEventLoop,
        sock: socket,
        address: str,
        handler: FrameHandler,
        limits: ConnectionLimits,
        pool: BufferPool,
        budget: ByteBudget,
        clock: Clock,
        on_close: Callable[[Connection], None],
        on_login: Callable[[Connection], object],
        listener: object = None,
        queue_seconds: Histogram | None = None,
    ) -> None:
        super().__init__(
            loop=loop,
            sock=sock,
            address=address,
            handler=handler,
            limits=limits,
            pool=pool,
            budget=budget,
            clock=clock,
            on_close=on_close,
            on_login=on_login,
            failures=failures,
            listener=listener,
            queue_seconds=queue_seconds,
        )
        self._contexts = contexts
        self._expires_ms: float | None = None
        """When the certificate of the client expires; None if it has none."""
        self._handshakes = handshakes
        self._tls: TlsChannel | None = None
        self._sealed: deque[bytes | memoryview] = deque()
        self._is_secured = False
        self._has_failed = False
        self.is_answered = False
        self._held = 0
        """Bytes of the budget for data that was received and not decrypted."""

    # ---- reading

    def _on_readable(self) -> None:
        if self._is_secured or self._handshakes.has_turn(self):
            self._receive_some()

    def _receive_some(self) -> None:
        if not self._make_room():
            return
        sealed = self._pool.sealed
        size = min(len(sealed), self.account.budget.eager_bytes + _RECORD_BYTES)
        if self._partial.buffer is not None:
            # What lies beyond the frame would wait in OpenSSL, where nothing counts it.
            size = min(size, len(self._partial.buffer) - self._partial.filled + _RECORD_BYTES)
        try:
            received = self._socket.recv_into(sealed, size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        if received == 0:
            self._end_of_input()
            return
        self.active_at = self._received_at = self._clock.monotonic()
        data = memoryview(sealed)[:received]
        if not self._is_secured:
            self._shake_hands(data)
        elif self.is_expired:
            self.refuse_expired()
        else:
            self._receive(data)

    def _end_of_input(self) -> None:
        if self._tls is not None and not self._is_secured and not self._has_failed:
            self._failures.warn(
                self.address,
                "the client left during the TLS handshake; does it trust the certificate of this "
                "broker, and connect to a name in it?",
            )
        self.close("closed by client")

    def _receive(self, data: memoryview) -> None:
        """Decrypt, and handle frames until the connection pauses."""
        tls = self._tls
        assert tls is not None
        for start in range(0, len(data), PIECE_BYTES):
            tls.feed(data[start : start + PIECE_BYTES])
            if not self._paused:
                self._decrypt(tls)
            if self.is_closed:
                return
        self._hold_input(tls)

    def _decrypt(self, tls: TlsChannel) -> None:
        read = tls.read
        is_open, has_more = True, True
        view, partial = self._pool.scratch_view, self._partial
        while has_more and is_open and self._make_room():
            buffer = partial.buffer
            start = 0
            if buffer is not None:
                view, start = memoryview(buffer), partial.filled
            end, limit = start, len(view)
            try:
                while end < limit and is_open:
                    size = read(limit - end, view[end:])
                    is_open = bool(size)
                    end += size  # type: ignore[operator]
            except ssl.SSLWantReadError:
                has_more = False
            except ssl.SSLError as error:
                self.close(f"TLS failed: {describe(error)}")
                return
            if end > start:
                self.traffic.bytes_in += end - start
                if buffer is None:
                    self._consume(view, 0, end)
                else:
                    partial.filled = end
                    self._consume(view, partial.position, end)
            # A buffer with a view could not grow.
            view = self._pool.scratch_view
            if self.is_closed or self._paused:
                return
        if not is_open:
            self.close("closed by client")
        elif tls.has_output:
            # An answer of TLS itself, such as to a change of keys.
            self._push(tls)

    def _hold_input(self, tls: TlsChannel) -> None:
        """Count what waits in OpenSSL because the connection is paused."""
        if self._paused and not self.is_closed:
            if tls.has_input and self._is_muted_and_memory_short and self._close_muted():
                return
            self._held = tls.input_bytes
            self.account.acquire(self._held)
            if self._unmuting is not None:
                self._count_muted()

    @property
    def _kept_bytes(self) -> int:
        return super()._kept_bytes + self._held

    def _release_input(self) -> None:
        held, self._held = self._held, 0
        self.account.release(held)

    def _maybe_resume(self) -> None:
        super()._maybe_resume()
        tls = self._tls
        if self._paused or self._draining or self.is_closed or self._parsing or tls is None:
            return
        if self._held:
            self._release_input()
        if tls.has_input:
            self._decrypt(tls)
            self._hold_input(tls)

    # ---- the handshake

    def wait_for_turn(self) -> None:
        self._loop.remove_reader(self._socket)

    def take_turn(self) -> None:
        self._loop.add_reader(self._socket, self._on_readable)
        self._receive_some()

    def _shake_hands(self, data: memoryview) -> None:
        if self._has_failed:
            return
        tls = self._tls
        if tls is None:
            if data[0] != HANDSHAKE_RECORD:
                reason = "it does not use TLS; set the client's security.protocol to SSL"
                self.refuse(reason)
                return
            tls = self._tls = TlsChannel(self._contexts.server)
        tls.feed(data)
        began_at = thread_time()
        try:
            is_done = tls.handshake()
        except ssl.SSLError as error:
            self._fail_handshake(tls, f"TLS handshake failed: {describe(error)}")
            return
        finally:
            self._handshakes.took(thread_time() - began_at)
        if tls.has_output:
            self.is_answered = True
            self._push(tls)
        if is_done and not self.is_closed:
            try:
                self.peer_certificate = found = tls.peer_certificate
            except ValueError:
                self.refuse("the client's certificate is not valid")
                return
            self._is_secured = True
            self._handshakes.ended(self)
            self._expires_ms = None if found is None else found.expires_at * 1000
            if self.is_expired:
                # A session of TLS 1.2 that is resumed does not verify it again.
                self.refuse_expired()
                return
            self._decrypt(tls)
            self._hold_input(tls)

    def _fail_handshake(self, tls: TlsChannel, reason: str) -> None:
        """Send OpenSSL's alert, which says why, and let the client close.

        A close while more of its data arrives would reset the connection, and the client could
        not read the alert. The listener closes it at the deadline of handshakes.
        """
        self._failures.warn(self.address, reason)
        self._has_failed = True
        if tls.has_output:
            self._push(tls)
        if not self.is_closed and not self._sealed:
            with contextlib.suppress(OSError):
                self._socket.shutdown(SHUT_WR)

    @property
    def is_expired(self) -> bool:
        """Whether the certificate of the client has expired: it is no longer who it was."""
        return self._expires_ms is not None and self._clock.wall_ms() >= self._expires_ms

    def refuse_expired(self) -> None:
        self.refuse("the client's certificate has expired")

    # ---- closing

    @property
    def is_idle(self) -> bool:
        return not self._replies and not self._out and not self._sealed

    @property
    def awaits_client(self) -> bool:
        return self._unmuting is None and (not self._replies or bool(self._out or self._sealed))

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        if self.is_closed:
            return
        if self._is_secured:
            self._say_goodbye()
        self._release_input()
        super().close(reason, level)
        self._sealed.clear()

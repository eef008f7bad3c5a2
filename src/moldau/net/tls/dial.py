"""TLS from the side that connects: the handshake, and a stream that only sends.

For links to peers: `secure` encrypts a connected socket, the messages of their own handshake go
through the result, and a stream with `TlsSending` takes over its channel.
"""

import ssl
from asyncio import AbstractEventLoop
from socket import socket
from typing import Final

from moldau.net.tls.channel import TlsChannel, TlsFailedError, describe
from moldau.net.tls.connection import TlsWriting

_RECEIVE_BYTES: Final = 16 * 1024


class SecuredSocket:
    """A connected socket with TLS; waits for one thing at a time."""

    def __init__(self, loop: AbstractEventLoop, sock: socket, channel: TlsChannel) -> None:
        self._loop = loop
        self._socket = sock
        self.channel = channel

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, self.channel.seal(data))

    async def receive(self, size_max: int) -> bytes:
        """Some bytes; none at the end. Raises TlsFailedError."""
        buffer = bytearray(size_max)
        while True:
            try:
                size = int(self.channel.read(size_max, memoryview(buffer)))
                return bytes(buffer[:size])
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise TlsFailedError(describe(error)) from None
            received = await self._loop.sock_recv(self._socket, _RECEIVE_BYTES)
            if not received:
                return b""
            self.channel.feed(received)


async def secure(
    loop: AbstractEventLoop, sock: socket, context: ssl.SSLContext, host: str
) -> SecuredSocket:
    """Encrypt a connected socket. `host` must be in the certificate of the other side.

    Raises TlsFailedError, OSError.
    """
    channel = TlsChannel(context, server_side=False, host=host)
    while True:
        try:
            is_done = channel.handshake()
        except ssl.SSLError as error:
            # An alert for the other side, which logs it.
            await loop.sock_sendall(sock, channel.output())
            raise TlsFailedError(_why(error)) from None
        if channel.has_output:
            await loop.sock_sendall(sock, channel.output())
        if is_done:
            return SecuredSocket(loop, sock, channel)
        received = await loop.sock_recv(sock, _RECEIVE_BYTES)
        if not received:
            raise TlsFailedError("the other side closed the connection during the TLS handshake")
        channel.feed(received)


def _why(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS"
    return describe(error)


class TlsSending(TlsWriting):
    """A mixin for streams that only send. Subclasses have the slots `_tls`, which they set to the
    channel of a SecuredSocket, and `_sealed`, an empty deque."""

    __slots__ = ()

    def _on_readable(self) -> None:
        tls = self._tls
        assert tls is not None
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"reset: {error.strerror}")
            return
        if not received:
            self.close("closed by the peer")
            return
        tls.feed(received)
        try:
            size = int(tls.read(1, memoryview(bytearray(1))))
        except ssl.SSLWantReadError:
            # A message of TLS itself, which may want an answer.
            if tls.has_output:
                self._push(tls)
            return
        except ssl.SSLError as error:
            self.close(f"TLS failed: {describe(error)}")
            return
        self.close("unexpected data from the peer" if size else "closed by the peer")

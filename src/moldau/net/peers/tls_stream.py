"""The socket of a link to a peer with TLS."""

import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from moldau.net.peers.stream import Stream
from moldau.net.tls.channel import TlsChannel
from moldau.net.tls.dial import TlsSending


class TlsStream(TlsSending, Stream):
    """The same, encrypted."""

    __slots__ = ("_sealed", "_tls")

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: socket.socket,
        on_progress: Callable[[], object],
        on_closed: Callable[[Stream, str], object],
        channel: TlsChannel,
    ) -> None:
        self._tls = channel
        self._sealed = deque()
        super().__init__(loop, sock, on_progress, on_closed)

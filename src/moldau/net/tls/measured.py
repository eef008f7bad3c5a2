"""Measures the handshakes that asyncio's TLS does, where no code of ours sees their steps."""

import ssl
from collections.abc import Callable
from time import thread_time
from typing import Self


class MeasuredSslObject(ssl.SSLObject):
    """Says how long each step of its handshake took, if someone wants to know."""

    on_step: Callable[[float], None] | None = None

    def do_handshake(self) -> None:
        if self.on_step is None:
            super().do_handshake()
            return
        began_at = thread_time()
        try:
            super().do_handshake()
        finally:
            self.on_step(thread_time() - began_at)


class MeasuringContext(ssl.SSLContext):
    """For asyncio: each connection gets the context that is the newest then, and is measured."""

    _newest: Callable[[], ssl.SSLContext]
    _on_step: Callable[[float], None]

    def __new__(
        cls, newest: Callable[[], ssl.SSLContext], on_step: Callable[[float], None]
    ) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._newest, made._on_step = newest, on_step
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = self._newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, MeasuredSslObject), "contexts of servers make no others"
        made.on_step = self._on_step
        return made

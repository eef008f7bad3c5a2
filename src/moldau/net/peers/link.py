"""The outgoing link to one peer: dials, shakes hands, queues frames, and reconnects with backoff.

A link only sends. It keeps nothing for a disconnected peer: queued frames are dropped with the
connection, which `on_lost` reports. While the queue is over its limit, `has_room` is False and bulk
must wait for `on_room`; small messages are accepted up to twice the limit, and dropped beyond, as a
network may do. Heartbeats overtake queued frames: bulk must not make its sender look dead.
"""

import asyncio
import contextlib
import logging
import random
import socket
import struct
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from moldau.model import log_events as events
from moldau.model.errors import PeerProtocolError
from moldau.model.slices import Chunk
from moldau.net.peers.cuts import LinkCuts
from moldau.net.peers.frames import (
    PIECE_BYTES_MAX,
    FrameKind,
    encode_frame,
    frame_head,
    size_of,
)
from moldau.net.peers.handshake import (
    HANDSHAKE_BYTES_MAX,
    CallerHandshake,
    Hello,
    HelloResponse,
    UnprovenPeerError,
)
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.secret import PeerSecret
from moldau.net.peers.stream import Stream
from moldau.net.peers.tls_stream import TlsStream
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.channel import TlsFailedError
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.dial import SecuredSocket, secure

log = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">I")
_TCP_NOTSENT_LOWAT: Final = 25
"""Linux's number; the socket module has no constant for it."""
_DIAL_SECONDS_MAX: Final = 10.0
_STABLE_SECONDS: Final = 5.0
_SILENT_CLOSES: Final = 3
"""So many in a row are no coincidence: a peer that ends, or a network that fails, is different."""


class _HelloRefusedError(PeerProtocolError):
    """The peer rejected this broker's hello."""


class _SilentPeerError(PeerProtocolError):
    """The peer closed the connection instead of answering: it does not know this broker's secret,
    or just ends."""


class _Messenger(Protocol):
    """A connected socket, with or without TLS."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self, size_max: int) -> bytes:
        """Some bytes; none at the end."""
        ...


class _PlainSocket:
    def __init__(self, loop: AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def receive(self, size_max: int) -> bytes:
        return await self._loop.sock_recv(self._socket, size_max)


class PeerLink:
    """Sends frames to one peer. `start` begins to dial."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        rng: random.Random,
        hello: Hello,
        secret: PeerSecret,
        address: tuple[str, int],
        on_connected: Callable[[], None],
        on_lost: Callable[[str], None],
        on_room: Callable[[], None],
        on_connection_refused: Callable[[], None],
        limits: LinkLimits | None = None,
        sockets: Sockets = OS_SOCKETS,
        tls: TlsContexts | None = None,
        cuts: LinkCuts | None = None,
    ) -> None:
        """Callbacks run from the loop, never inside these methods. `on_connection_refused`:
        the peer's port is closed."""
        self._sockets = sockets
        self._loop = loop
        self._rng = rng
        self._hello = hello
        self._secret = secret
        self._tls = tls
        self._cuts = cuts
        self.address = address
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_room = on_room
        self._on_connection_refused = on_connection_refused
        self.is_connection_refused = False
        """Whether the last dial found the peer's port closed."""
        self._limits = limits or LinkLimits()
        self._stream: Stream | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._is_stopped = True
        self._wants_room = False
        self._attempts = 0
        self._refusals = 0
        self._retry_requested = asyncio.Event()
        self._connected_at = 0.0
        self.refusal = ""
        """Why the peer rejected the last hello; empty if it did not."""
        self._silent_closes = 0
        self._unproven: tuple[str, int] | None = None
        """The address of the last listener that did not know the secret."""
        self._tls_failure = ""
        """Why the last attempt failed, if it was for TLS."""
        self.frames_total = 0
        self.sent_bytes = 0
        """Of frames that were queued; those of a connection that breaks are included."""

    # ---- lifecycle

    def start(self) -> None:
        self._is_stopped = False
        if self._dialling is None and self._stream is None:
            self._dialling = self._loop.create_task(self._dial())

    def stop(self) -> None:
        """Stop permanently; no callback is called any more."""
        self._is_stopped = True
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close("the link was stopped", logging.DEBUG)

    def set_address(self, address: tuple[str, int]) -> None:
        """Reconnect to the peer's new address."""
        if address != self.address:
            self.address = address
            self.is_connection_refused = False
            self.reset("the peer's address changed")
            self.retry_now()

    def set_hello(self, hello: Hello) -> None:
        """The hello for later connections; an open one is kept."""
        self._hello = hello

    def retry_now(self) -> None:
        """End the backoff: the peer seems to be up."""
        self._retry_requested.set()

    def reset(self, reason: str) -> None:
        """Drop the connection with its queue, and reconnect."""
        if self._stream is not None:
            self._stream.close(reason)

    # ---- sending

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    @property
    def queued_bytes(self) -> int:
        return self._stream.queued_bytes if self._stream is not None else 0

    @property
    def has_files_queued(self) -> bool:
        """Whether file slices are queued, whose bytes must not change until they are sent."""
        return self._stream is not None and self._stream.has_files

    @property
    def has_room(self) -> bool:
        """Whether bulk may be sent now. If not, on_room or on_lost follows."""
        stream = self._stream
        if stream is None:
            return False
        limits = self._limits
        if (
            stream.queued_bytes < limits.queue_bytes_max
            and stream.queued_chunks < limits.queue_chunks_max
        ):
            return True
        self._wants_room = True
        return False

    def send(self, kind: FrameKind, chunks: Sequence[Chunk]) -> bool:
        """Queue one frame; False if it was dropped: not connected, or the queue is full."""
        stream = self._stream
        if stream is None:
            return False
        limits = self._limits
        size = size_of(chunks)
        is_ahead = kind is FrameKind.HEARTBEAT and size <= PIECE_BYTES_MAX
        if (
            stream.queued_bytes > 2 * limits.queue_bytes_max and not is_ahead
        ) or stream.queued_chunks > 2 * limits.queue_chunks_max:
            return False
        self.frames_total += 1
        self.sent_bytes += size
        if is_ahead:
            stream.send_ahead([frame_head(kind, size), *chunks])
        elif kind is FrameKind.HEARTBEAT:
            stream.send_large_heartbeat(encode_frame(kind, chunks, size))
        else:
            stream.send(encode_frame(kind, chunks, size))
        return self._stream is stream

    def on_progress(self) -> None:
        stream, limits = self._stream, self._limits
        if (
            self._wants_room
            and stream is not None
            and stream.queued_bytes <= limits.queue_bytes_max // 2
            and stream.queued_chunks <= limits.queue_chunks_max // 2
        ):
            self._wants_room = False
            self._on_room()

    def on_stream_closed(self, stream: Stream, reason: str) -> None:
        if self._stream is not stream:
            return
        self._stream = None
        self._wants_room = False
        if self._loop.time() - self._connected_at > _STABLE_SECONDS:
            # A stable connection resets the backoff; one that breaks at once does not.
            self._attempts = 0
        log.info("link to broker %d lost: %s", self._hello.target, reason)
        self._loop.call_soon(self._report_lost, reason)

    def _report_lost(self, reason: str) -> None:
        if not self._is_stopped:
            self._on_lost(reason)
            self.start()

    # ---- dialling

    async def _dial(self) -> None:
        try:
            while True:
                if self._attempts or self._refusals:
                    await self._pause(self._next_delay())
                self._attempts += 1
                address = self.address
                try:
                    async with asyncio.timeout(_DIAL_SECONDS_MAX):
                        sock, secured = await self._shake_hands()
                    break
                except _HelloRefusedError as refusal:
                    self._refusals += 1
                    self._attempts = 0
                    self.is_connection_refused = False
                    log.debug("broker %d: %s", self._hello.target, refusal)
                except (OSError, TimeoutError, PeerProtocolError) as error:
                    self._refusals = 0
                    self._note_failure(error, address)
                    log.debug("cannot reach broker %d: %s", self._hello.target, error)
                    is_refused = isinstance(error, ConnectionRefusedError)
                    self.is_connection_refused = is_refused and address == self.address
                    if self.is_connection_refused:
                        self._on_connection_refused()
        finally:
            self._dialling = None
        self._refusals = self._silent_closes = 0
        self._unproven = None
        self._tls_failure = ""
        self.is_connection_refused = False
        self._connected_at = self._loop.time()
        if secured is None:
            self._stream = Stream(self._loop, sock, self.on_progress, self.on_stream_closed)
        else:
            self._stream = TlsStream(
                self._loop, sock, self.on_progress, self.on_stream_closed, secured.channel
            )
        log.info("link to broker %d is up", self._hello.target)
        self._on_connected()

    def _note_failure(self, error: Exception, address: tuple[str, int]) -> None:
        """Warn once of what does not mend itself: the two brokers have different secrets."""
        if isinstance(error, UnprovenPeerError) and self._unproven != address:
            self._unproven = address
            log.warning(
                "the process at %s:%d, the address of broker %d, does not know the secret of this "
                "cluster; retrying",
                *address,
                self._hello.target,
                extra=events.PEER_SECRET_REFUSED(peer=self._hello.target),
            )
        if isinstance(error, TlsFailedError) and str(error) != self._tls_failure:
            self._tls_failure = str(error)
            log.warning(
                "no TLS with broker %d at %s:%d, retrying: %s",
                self._hello.target,
                *address,
                error,
                extra=events.PEER_TLS_FAILED(peer=self._hello.target),
            )
        self._silent_closes += isinstance(error, _SilentPeerError)
        if self._silent_closes == _SILENT_CLOSES:
            self._silent_closes += 1
            log.warning(
                "broker %d at %s:%d closes the connections of this broker without an answer, "
                "retrying: does it have the same file cluster.secret, and the same version?",
                self._hello.target,
                *address,
                extra=events.PEER_SECRET_REFUSED(peer=self._hello.target),
            )

    async def _pause(self, seconds: float) -> None:
        """Wait for the backoff, or until `retry_now`."""
        self._retry_requested.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._retry_requested.wait()

    def _next_delay(self) -> float:
        limits = self._limits
        if self._refusals:
            longest = limits.refused_seconds_min * (3 + self._refusals) / 4
        else:
            longest = limits.retry_seconds_min * (1 << min(self._attempts - 1, 16))
        # With jitter, so that brokers do not reconnect all at once.
        return min(longest, limits.retry_seconds_max) * (0.5 + self._rng.random() / 2)

    async def _shake_hands(self) -> tuple[socket.socket, SecuredSocket | None]:
        """Connect; returns the socket once the peer accepted the hello, and its TLS if it has any.

        Nothing else is sent to a peer that has not proved that it knows the secret.
        """
        loop = self._loop
        if self._cuts is not None:
            await self._cuts.pass_to(self._hello.target)
        host, port = self.address
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not found:
            raise OSError(f"{host} has no address")
        family, kind, protocol, _, address = found[0]
        sock = self._sockets.unconnected(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._limits.unacknowledged_ms_max
            )
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, self._limits.unsent_bytes_max)
            await loop.sock_connect(sock, address)
            secured = None
            if self._tls is not None:
                secured = await secure(loop, sock, self._tls.client, host)
            response = await self._introduce(secured or _PlainSocket(loop, sock))
            if response.reason != self.refusal:
                self.refusal = response.reason
                if response.reason:
                    log.warning(
                        "broker %d rejects connections of this broker, retrying: %s",
                        self._hello.target,
                        response.reason,
                        extra=events.PEER_REJECTED(peer=self._hello.target),
                    )
            if response.reason:
                raise _HelloRefusedError(f"connection rejected: {response.reason}")
        except BaseException:
            sock.close()
            raise
        return sock, secured

    async def _introduce(self, peer: _Messenger) -> HelloResponse:
        """The handshake of peers. Raises PeerProtocolError, OSError."""
        secret = self._secret
        if secret.earlier is not None and self._silent_closes % 2:
            # The peer did not answer to the new one: it may not have it yet.
            secret = secret.earlier
        handshake = CallerHandshake(secret, self._hello)
        await _send_message(peer, handshake.hello)
        challenge = await _receive_message(peer)
        if challenge is None:
            raise _SilentPeerError("the peer closed the connection without an answer")
        await _send_message(peer, handshake.prove(challenge))
        answer = await _receive_message(peer)
        if answer is None:
            raise PeerProtocolError("the peer closed the connection during the handshake")
        return handshake.read_response(answer)


async def _send_message(peer: _Messenger, body: bytes) -> None:
    await peer.send(_LENGTH.pack(len(body)) + body)


async def _receive_message(peer: _Messenger) -> bytes | None:
    """None: the peer closed the connection. Raises PeerProtocolError."""
    head = await _receive(peer, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > HANDSHAKE_BYTES_MAX:
        raise PeerProtocolError(f"message of {size} bytes in a handshake")
    return await _receive(peer, size)


async def _receive(peer: _Messenger, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = await peer.receive(size - len(data))
        if not more:
            return None
        data += more
    return data

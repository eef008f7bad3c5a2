"""The listener for peers: a connection must begin with a valid handshake, or is closed.

A client that does not prove in it that it knows the secret of the cluster gets no answer.

Frames from peers arrive here; responses are sent over this broker's own link to the peer. A new
connection of a peer replaces its earlier one, which is dead but was not detected yet.
"""

import logging
import struct
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId
from moldau.net.budget import ByteBudget
from moldau.net.by_address import ByAddress
from moldau.net.connection import Connection
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.net.peers.frames import FRAME_BYTES_MAX, MORE_FOLLOWS, PIECE_BYTES_MAX, FrameKind
from moldau.net.peers.handshake import (
    HANDSHAKE_BYTES_MAX,
    PROTOCOL_VERSION_MIN,
    PROTOCOL_VERSION_NEXT,
    Hello,
    ListenerHandshake,
)
from moldau.net.peers.secret import PeerSecret
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.contexts import TlsContexts

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX: Final = 10.0
_IDLE_SECONDS_MAX: Final = 30.0
"""Peers send several heartbeats a second: a connection without any for this long is dead."""
_RECEIVING_BYTES_MAX: Final = 256 * 1024 * 1024
_HANDSHAKE_LIMITS: Final = ConnectionLimits(
    request_bytes_max=HANDSHAKE_BYTES_MAX,
    inflight_bytes_max=HANDSHAKE_BYTES_MAX,
    inflight_requests_max=1,
    outgoing_bytes_max=HANDSHAKE_BYTES_MAX,
    # What unknown clients do is logged once per address, not for each connection.
    logs_protocol_errors=False,
)
_PEER_LIMITS: Final = ConnectionLimits(
    request_bytes_max=PIECE_BYTES_MAX + 1,
    inflight_bytes_max=PIECE_BYTES_MAX + 1,
    inflight_requests_max=1,
    outgoing_bytes_max=HANDSHAKE_BYTES_MAX,
)
_CONNECTIONS_MAX: Final = 4096
_TLS_PER_SECOND_MAX: Final = 50
"""New connections of one address: a broker needs a few at a restart of another one."""
_UNPROVEN_MAX: Final = 512
"""Connections in their handshake. Of more than that the oldest of the address with most is closed:
unknown clients that wait, or come at a high rate, do not keep peers out."""
_REFUSALS_KNOWN_MAX: Final = 64
_LENGTH: Final = struct.Struct(">I")
_KINDS: Final = {int(kind): kind for kind in FrameKind}


class PeerHandler(Protocol):
    """Handles the frames of peers. A body is valid only until the call returns."""

    def on_peer_connected(self, hello: Hello) -> None: ...

    def on_peer_frame(self, sender: BrokerId, kind: FrameKind, body: memoryview) -> None:
        """Raises PeerProtocolError: the connection is closed then."""
        ...

    def on_peer_disconnected(self, sender: BrokerId) -> None: ...


class _Peer:
    """The peer of a connection, and the received pieces of its current frame."""

    __slots__ = ("gathered", "hello", "kind")

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.kind: FrameKind | None = None
        self.gathered = bytearray()

    def gather(self, kind: FrameKind, piece: memoryview, *, is_last: bool) -> memoryview | None:
        """Add a piece; returns the frame once it is complete. Raises PeerProtocolError."""
        if self.kind not in (None, kind):
            raise PeerProtocolError(f"frame of kind {kind} between pieces of kind {self.kind}")
        if len(self.gathered) + len(piece) > FRAME_BYTES_MAX:
            raise PeerProtocolError(f"frame of more than {FRAME_BYTES_MAX} bytes")
        self.gathered += piece
        self.kind = None if is_last else kind
        if not is_last:
            return None
        whole, self.gathered = self.gathered, bytearray()
        return memoryview(whole)


class PeerListener:
    """Accepts connections of peers, and rejects all others."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        clock: Clock,
        cluster_id: str,
        me: BrokerId,
        secret: PeerSecret,
        authorize: Callable[[Hello], str | None],
        handler: PeerHandler,
        handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        sockets: Sockets = OS_SOCKETS,
        tls: TlsContexts | None = None,
    ) -> None:
        """`authorize` returns why a broker of this cluster is rejected, or None."""
        self._loop = loop
        self._cluster_id = cluster_id
        self._me = me
        self._secret = secret
        self._authorize = authorize
        self._handler = handler
        self._handshake_seconds_max = handshake_seconds_max
        self._connections: dict[BrokerId, Connection] = {}
        self._refusals: dict[BrokerId, str] = {}
        self._unproven: ByAddress[Connection] = ByAddress()
        self.refused_total = 0
        self.received_bytes: Counter[BrokerId] = Counter()
        """Of frames, by their sender."""
        self._listener = Listener(
            loop=loop,
            handler=self,
            limits=ListenerLimits(
                connections_max=_CONNECTIONS_MAX,
                connections_per_address_max=_CONNECTIONS_MAX,
                idle_seconds_max=_IDLE_SECONDS_MAX,
                per_second_per_address_max=None if tls is None else _TLS_PER_SECOND_MAX,
            ),
            connection_limits=_HANDSHAKE_LIMITS,
            budget=ByteBudget(_RECEIVING_BYTES_MAX),
            clock=clock,
            on_accepted=self._await_handshake,
            sockets=sockets,
            tls=tls,
            name="peers",
        )

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address bound (port 0 picks a free one). Raises OSError."""
        return self._listener.bind(host, port)

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        self._listener.close()

    @property
    def connection_count(self) -> int:
        return self._listener.connection_count

    @property
    def accepted_total(self) -> int:
        return self._listener.accepted_total

    @property
    def peers(self) -> list[BrokerId]:
        return list(self._connections)

    def disconnect(self, peer: BrokerId, reason: str) -> None:
        """Close a peer's connection; it may reconnect, and is checked again."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.close(reason, level=logging.INFO)

    def recheck(self) -> None:
        """Close the connections of peers that would now be rejected."""
        for peer, connection in list(self._connections.items()):
            caller = connection.state
            reason = self._rejection_reason(caller.hello) if isinstance(caller, _Peer) else None
            if reason is not None:
                self.disconnect(peer, reason)

    # ---- frames

    def _await_handshake(self, connection: Connection) -> None:
        connection.await_login()
        self._unproven.add(connection, connection.address.rpartition(":")[0])
        if len(self._unproven) > _UNPROVEN_MAX:
            oldest = self._unproven.oldest_of_most()
            self._close_unproven(oldest, "too many wait in the handshake")
        self._loop.call_later(self._handshake_seconds_max, self._close_unfinished, connection)

    def _close_unfinished(self, connection: Connection) -> None:
        if not isinstance(connection.state, _Peer):
            self._close_unproven(connection, "it did not complete the handshake in time")

    def _close_unproven(self, connection: Connection, reason: str) -> None:
        if connection.is_closed:
            return
        self.refused_total += 1
        self._listener.failures.warn(connection.address, reason)
        connection.close(reason)

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        peer = connection.state
        if not isinstance(peer, _Peer):
            self._on_handshake(connection, bytes(frame))
            return
        self.received_bytes[peer.hello.sender] += len(frame)
        is_last = frame[0] < MORE_FOLLOWS
        kind = _KINDS.get(frame[0] & ~MORE_FOLLOWS)
        if kind is None:
            raise PeerProtocolError(f"unknown frame kind {frame[0]}")
        body: memoryview | None = frame[1:]
        # A complete heartbeat may arrive between the pieces of another frame.
        is_between = kind is FrameKind.HEARTBEAT and is_last and peer.kind is not kind
        if not is_between and (peer.kind is not None or not is_last):
            body = peer.gather(kind, frame[1:], is_last=is_last)
        if body is not None:
            self._handler.on_peer_frame(peer.hello.sender, kind, body)
        connection.no_reply()

    def _on_handshake(self, connection: Connection, message: bytes) -> None:
        handshake = connection.state
        try:
            if isinstance(handshake, ListenerHandshake):
                self._on_proof(connection, handshake, message)
            else:
                connection.state = handshake = ListenerHandshake(self._secret)
                _answer(connection, handshake.challenge(message))
        except PeerProtocolError as error:
            self._close_unproven(connection, str(error))

    def _on_proof(self, connection: Connection, handshake: ListenerHandshake, proof: bytes) -> None:
        hello = handshake.check(proof)
        reason = self._rejection_reason(hello)
        _answer(connection, handshake.response(reason or ""))
        if reason is not None:
            self.refused_total += 1
            self._log_refusal(hello.sender, connection.address, reason)
            connection.drain()
            return
        self._refusals.pop(hello.sender, None)
        earlier = self._connections.get(hello.sender)
        if earlier is not None:
            earlier.close("replaced by a new connection of the peer")
        self._unproven.remove(connection)
        connection.state = _Peer(hello)
        connection.set_limits(_PEER_LIMITS)
        connection.set_user(f"broker {hello.sender}")
        self._connections[hello.sender] = connection
        self._handler.on_peer_connected(hello)

    def _log_refusal(self, sender: BrokerId, address: object, reason: str) -> None:
        """Log each reason once per broker: a rejected broker keeps retrying."""
        is_known = self._refusals.get(sender) == reason
        if len(self._refusals) >= _REFUSALS_KNOWN_MAX:
            self._refusals.clear()
        self._refusals[sender] = reason
        level = logging.DEBUG if is_known else logging.WARNING
        log.log(
            level,
            "connection of broker %d from %s rejected: %s",
            sender,
            address,
            reason,
            extra=events.PEER_REJECTED(peer=sender),
        )

    def _rejection_reason(self, hello: Hello) -> str | None:
        if not PROTOCOL_VERSION_MIN <= hello.version <= PROTOCOL_VERSION_NEXT:
            return (
                f"unsupported protocol version {hello.version}; expected {PROTOCOL_VERSION_MIN} "
                f"to {PROTOCOL_VERSION_NEXT}"
            )
        if hello.cluster_id != self._cluster_id:
            return f"this broker belongs to cluster {self._cluster_id}, not {hello.cluster_id}"
        if hello.target != self._me:
            return f"this is broker {self._me}, not {hello.target}"
        if hello.sender == self._me or hello.sender < 0:
            return f"broker {hello.sender} cannot be a peer of broker {self._me}"
        return self._authorize(hello)

    def on_closed(self, connection: Connection) -> None:
        peer = connection.state
        if not isinstance(peer, _Peer):
            self._unproven.remove(connection)
            return
        sender = peer.hello.sender
        if self._connections.get(sender) is connection:
            del self._connections[sender]
            self._handler.on_peer_disconnected(sender)


def _answer(connection: Connection, body: bytes) -> None:
    connection.reply([_LENGTH.pack(len(body)) + body])

"""A listening socket and its connections, with their limits and idle timeouts."""

import errno
import logging
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.histogram import Histogram
from moldau.net.address_limits import AddressLimits
from moldau.net.address_rates import AddressRates
from moldau.net.budget import ByteBudget
from moldau.net.buffers import BufferPool
from moldau.net.by_address import ByAddress
from moldau.net.connection import Connection, FrameHandler
from moldau.net.failure_log import FailureLog
from moldau.net.limits import ConnectionLimits
from moldau.net.send_buffer import tune_send_buffer
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.connection import TlsConnection
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.net.tls.handshakes import Handshakes

log = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTS_PER_EVENT_MAX = 64
_REAP_SECONDS = 5.0
_WARN_SECONDS = 10.0


class ListenerLimits(Struct, frozen=True, kw_only=True):
    """Limits on the connections of one listener."""

    connections_max: int
    connections_per_address_max: int
    idle_seconds_max: float
    per_second_per_address_max: float | None = None
    """New connections of one address; None: any number."""
    handshake_seconds_max: float = 10.0


class Listener:
    """Accepts connections and hands their frames to one handler."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        handler: FrameHandler,
        limits: ListenerLimits,
        connection_limits: ConnectionLimits,
        budget: ByteBudget,
        clock: Clock,
        on_accepted: Callable[[Connection], None] | None = None,
        sockets: Sockets = OS_SOCKETS,
        tls: TlsContexts | None = None,
        name: str = "",
        about: object = None,
    ) -> None:
        """`about` is what connections say as their `listener`."""
        self.name = name
        self._about = about
        self._tls = tls
        rate = limits.per_second_per_address_max
        self._addresses = AddressLimits(
            limits.connections_per_address_max,
            None if rate is None else AddressRates(rate, clock),
        )
        self.failures = FailureLog(clock, name)
        self.handshakes = Handshakes(
            loop,
            clock,
            limits.handshake_seconds_max,
            self.failures,
            (tls and tls.turns) or HandshakeTurns(loop, clock),
        )
        self._sockets = sockets
        self._loop = loop
        self._handler = handler
        self._on_accepted = on_accepted
        self._limits = limits
        self._connection_limits = connection_limits
        self._budget = budget
        self._clock = clock
        self._pool = BufferPool()
        self._listening: list[socket.socket] = []
        self._connections: dict[Connection, str] = {}
        self._unknown: ByAddress[Connection] = ByAddress()
        """Of these, those that have yet to log in."""
        self._timer: TimerHandle | None = None
        self._warned_at = float("-inf")
        self._left_out = 0
        self.accepted_total = 0
        self.refused_total = 0
        self.queue_seconds: Final = Histogram()
        """How long requests waited for their handler, from the read of their last bytes."""

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> Iterable[Connection]:
        """The oldest one first."""
        return self._connections

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests being received or handled, over all connections."""
        return self._budget.used

    def limit(self, *, connections_max: int, connections_per_address_max: int) -> None:
        """For new connections; open ones stay."""
        self._limits = replace(
            self._limits,
            connections_max=connections_max,
            connections_per_address_max=connections_per_address_max,
        )
        self._addresses.at_once_max = connections_per_address_max

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address bound (port 0 picks a free one). Raises OSError."""
        sock = self._sockets.bound(host, port)
        self._listening.append(sock)
        name = sock.getsockname()
        return name[0], name[1]

    def share(self, sock: socket.socket) -> None:
        """Accept at this bound socket, too, which other processes may have as well."""
        self._listening.append(sock)

    def start(self) -> None:
        """Start to accept. Before this the port is closed, and clients retry."""
        if not self._listening:
            raise RuntimeError("call bind before start")
        for sock in self._listening:
            sock.listen(_BACKLOG)
            self._loop.add_reader(sock, self._on_acceptable, sock)
        self._timer = self._loop.call_later(_REAP_SECONDS, self._reap)

    def _on_acceptable(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_EVENT_MAX):
            if listening not in self._listening:
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._warn(
                    f"cannot accept connections: {error.strerror}; retrying in 1 s",
                    events.ACCEPT_FAILED(),
                )
                self._loop.remove_reader(listening)
                self._loop.call_later(1.0, self._accept_again, listening)
                return
            self._admit(sock, address[0], address[1])

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._on_acceptable, listening)

    def _admit(self, sock: socket.socket, host: str, port: int) -> None:
        limits = self._limits
        if reason := self._addresses.refusal(host):
            self._refuse(sock, host, reason)
            return
        if len(self._connections) >= limits.connections_max and not self._close_unknown():
            self._refuse(sock, host, f"limit of {limits.connections_max} connections reached")
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tune_send_buffer(sock)
        self.accepted_total += 1
        self._addresses.opened(host)
        connection = self._make_connection(sock, host, port)
        self._connections[connection] = host
        if isinstance(connection, TlsConnection):
            # After it is known: this may close an older one, or in time this one.
            self.handshakes.began(connection, host)
        if self._on_accepted is not None:
            self._on_accepted(connection)
            if connection.account.awaits_login and not connection.is_closed:
                self._unknown.add(connection, host)

    def _close_unknown(self) -> bool:
        """Make room for a new connection: who fills the listener, and does not log in, shuts
        nobody out."""
        if not self._unknown:
            return False
        self.refused_total += 1
        self._unknown.oldest_of_most().refuse(
            f"limit of {self._limits.connections_max} connections reached, and it is the oldest "
            "that has not logged in"
        )
        return True

    def _make_connection(self, sock: socket.socket, host: str, port: int) -> Connection:
        make: Callable[..., Connection] = Connection
        if self._tls is not None:
            make = partial(TlsConnection, contexts=self._tls, handshakes=self.handshakes)
        return make(
            loop=self._loop,
            sock=sock,
            address=f"{host}:{port}",
            handler=self._handler,
            limits=self._connection_limits,
            pool=self._pool,
            budget=self._budget,
            clock=self._clock,
            on_close=self._forget,
            on_login=self._unknown.remove,
            failures=self.failures,
            listener=self._about,
            queue_seconds=self.queue_seconds,
        )

    def _refuse(self, sock: socket.socket, host: str, reason: str) -> None:
        sock.close()
        self.refused_total += 1
        self._warn(
            f"connection from {host} rejected: {reason}", events.CONNECTION_REJECTED(address=host)
        )

    def _warn(self, message: str, extra: dict[str, object]) -> None:
        """Log at most one such line every few seconds: a flood must not fill the disk."""
        now = self._clock.monotonic()
        if now - self._warned_at < _WARN_SECONDS:
            self._left_out += 1
            return
        more = f" ({self._left_out} more lines were left out)" if self._left_out else ""
        self._warned_at, self._left_out = now, 0
        log.warning("%s%s", message, more, extra=extra)

    def _forget(self, connection: Connection) -> None:
        if isinstance(connection, TlsConnection):
            self.handshakes.ended(connection)
        self._unknown.remove(connection)
        host = self._connections.pop(connection, None)
        if host is not None:
            self._addresses.closed(host)

    def _reap(self) -> None:
        self._close_broken()
        now = self._clock.monotonic()
        for connection in list(self._connections):
            idle_seconds = now - connection.active_at
            if connection.is_slow(now):
                connection.refuse("timed out in the middle of a request")
            elif connection.awaits_client and idle_seconds > self._limits.idle_seconds_max:
                # Also one that does not read its replies: it would hold their memory forever.
                connection.close("idle timeout")
            elif isinstance(connection, TlsConnection) and connection.is_expired:
                # It may wait for a reply, and send nothing.
                connection.refuse_expired()
        self._timer = self._loop.call_later(_REAP_SECONDS, self._reap)

    def _close_broken(self) -> None:
        """Close connections that the client reset, where the event loop did not report it.

        uvloop reports a reset once; if earlier data is read then, it is never reported again. And
        a paused connection is not read at all.
        """
        by_descriptor = {connection.fileno(): connection for connection in self._connections}
        for descriptor in self._sockets.broken(by_descriptor):
            by_descriptor[descriptor].close("reset by client")

    def stop_accepting(self) -> None:
        while self._listening:
            sock = self._listening.pop()
            self._loop.remove_reader(sock)
            sock.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drain(self) -> None:
        """Let every connection finish its pending requests, and close."""
        for connection in list(self._connections):
            connection.drain()

    def close(self) -> None:
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close("the broker is stopping")

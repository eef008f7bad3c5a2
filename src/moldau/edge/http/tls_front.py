"""Accepts connections of HTTP over TLS, and passes them on when their handshake is complete.

asyncio's own servers count no connection before its handshake is complete, and wait a minute for
it. Here handshakes are bounded in number and time, a client that speaks plain HTTP gets an error
in plain HTTP, and each handshake uses the newest certificate. A connection waits for its turn
before its handshake, and what asyncio then does for it is measured.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final

from moldau.edge.http.limits import ConnectionCounts, HttpLimits
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.net.address_rates import AddressRates
from moldau.net.by_address import ByAddress
from moldau.net.failure_log import FailureLog
from moldau.net.tls.channel import HANDSHAKE_RECORD, describe
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.net.tls.measured import MeasuringContext

log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 64
_PAUSE_SECONDS: Final = 0.5
"""After the system has refused a connection, for example because no descriptor is left."""

_SET_UP_SECONDS: Final = 0.0005
"""What a connection costs besides the steps of its handshake."""
_PLAIN_SECONDS: Final = 2.0
_PLAIN_BYTES: Final = 64 * 1024


class TlsFront:
    def __init__(
        self,
        sock: socket.socket,
        tls: TlsContexts,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        limits: HttpLimits,
        counted: ConnectionCounts,
        failures: FailureLog,
        clock: Clock,
        plain_reply: bytes,
    ) -> None:
        """`plain_reply` is for clients that speak plain HTTP."""
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._socket = sock
        self._turns = tls.turns or HandshakeTurns(self._loop, clock)
        self._context = MeasuringContext(lambda: tls.server, self._turns.took)
        self._waiting: ByAddress[asyncio.Future[None]] = ByAddress()
        """Those whose handshake has to wait for its turn."""
        self._make_protocol = make_protocol
        self._limits = limits
        self._counted = counted
        self._failures = failures
        self._plain_reply = plain_reply
        self._handshakes: ByAddress[asyncio.Task[None]] = ByAddress()
        self._rates = AddressRates(limits.tls_per_second_per_address_max, clock)
        self._is_closed = False

    def start(self) -> None:
        self._socket.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more, and end the handshakes in progress."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket)
            while self._handshakes:
                self._handshakes.take_next().cancel()

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning(
                    "cannot accept a connection of HTTP: %s",
                    error.strerror,
                    extra=events.ACCEPT_FAILED(),
                )
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            host = address[0]
            if not self._rates.allows(host):
                self._counted.refused_total += 1
                rate = self._limits.tls_per_second_per_address_max
                self._failures.warn(
                    f"{host}:{address[1]}", f"limit of {rate:g} connections per second reached"
                )
                connection.close()
                continue
            if len(self._handshakes) >= self._limits.connections_max:
                self._close_oldest()
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection, host, address[1]))
            self._handshakes.add(task, host)
            task.add_done_callback(self._handshakes.remove)

    def _close_oldest(self) -> None:
        self._counted.refused_total += 1
        oldest = self._handshakes.oldest_of_most()
        self._handshakes.remove(oldest)
        oldest.cancel()

    async def _serve(self, connection: socket.socket, host: str, port: int) -> None:
        seconds_max, address = self._limits.request_seconds_max, f"{host}:{port}"
        try:
            async with asyncio.timeout(seconds_max):
                first = await self._first_byte(connection)
                if first == bytes([HANDSHAKE_RECORD]):
                    await self._wait_for_turn(host)
            if first != bytes([HANDSHAKE_RECORD]):
                if first:
                    self._failures.warn(address, "plain HTTP, but the listener uses TLS")
                    await self._answer_plainly(connection)
                connection.close()
                return
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=seconds_max,
            )
        except ssl.SSLError as error:
            self._failures.warn(address, describe(error))
            connection.close()
        except TimeoutError:
            self._failures.warn(address, f"no TLS handshake within {seconds_max:g} s")
            connection.close()
        except OSError:
            # The client has gone.
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _wait_for_turn(self, host: str) -> None:
        if not self._waiting and self._turns.is_free():
            self._turns.took(_SET_UP_SECONDS)
            return
        turn = self._loop.create_future()
        self._waiting.add(turn, host)
        self._turns.ask(self._give_turn)
        try:
            await turn
        finally:
            self._waiting.remove(turn)

    def _give_turn(self) -> bool:
        turn = self._waiting.take_next() if self._waiting else None
        if turn is not None and not turn.done():
            turn.set_result(None)
            # Now: otherwise all that wait would get a turn before the first one is measured.
            self._turns.took(_SET_UP_SECONDS)
        return bool(self._waiting)

    async def _answer_plainly(self, connection: socket.socket) -> None:
        """Closing with unread data would reset the connection, and the client see no reply."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PLAIN_SECONDS):
                await self._loop.sock_sendall(connection, self._plain_reply)
                connection.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(connection, _PLAIN_BYTES):
                    pass

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte, which stays in the socket; empty if the client has gone."""
        readable = self._loop.create_future()
        self._loop.add_reader(connection, _set, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)


def _set(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)

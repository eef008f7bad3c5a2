"""Keeps the requests of a listener from the handlers until the client has authenticated.

Before that only ApiVersions and the two SASL requests are served, requests are small, and there is
a deadline. The same holds while a client authenticates again; and when its session has expired, or
its user was deleted, the connection is closed at the next other request, as Kafka does.
"""

import asyncio
import logging
from typing import Final, Protocol

from moldau.edge.kafka.client_login import ClientLogin, LoginRules
from moldau.edge.kafka.handler import host_of
from moldau.model import log_events as events
from moldau.model.errors import PeerProtocolError
from moldau.net.connection import NONE_OVERLAP, Connection, FrameHandler
from moldau.net.limits import ConnectionLimits
from moldau.security.principal import Principal
from moldau.security.sasl import AuthenticationError
from moldau.wire.registry import ApiKey

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 64 * 1024
"""Before authentication; the longest is a bearer token."""
_BEFORE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_LENGTH_BYTES: Final = 4
_KEY_BYTES: Final = 2


class PrincipalHandler(FrameHandler, Protocol):
    """What is behind a gate: the dispatcher."""

    def set_principal(self, connection: Connection, principal: Principal) -> object:
        """Who the client of a connection is, from its next request on."""
        ...


class SaslGate:
    """The frame handler of a listener with SASL, in front of the dispatcher."""

    def __init__(
        self, handler: PrincipalHandler, rules: LoginRules, limits: ConnectionLimits
    ) -> None:
        self._handler = handler
        self._rules = rules
        self._limits = limits
        self._limits_before = ConnectionLimits(
            request_bytes_max=min(REQUEST_BYTES_MAX, limits.request_bytes_max),
            inflight_bytes_max=min(REQUEST_BYTES_MAX, limits.inflight_bytes_max),
            inflight_requests_max=1,
        )
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_accepted(self, connection: Connection) -> None:
        connection.set_limits(self._limits_before)
        connection.await_login()
        connection.state = login = ClientLogin(connection, self._rules, self._authenticated)
        login.limit_time()
        self._connections.add(connection)

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        login = connection.state
        if not isinstance(login, ClientLogin):
            raise PeerProtocolError("a connection without a login")
        if not login.is_open:
            if login.has_ended:
                connection.close("a request after its login failed")
                return
            if login.is_stepping:
                raise PeerProtocolError("a request while the last SASL message is being checked")
            if login.is_raw:
                self._take_raw(connection, login, bytes(frame))
                return
            key = int.from_bytes(frame[:_KEY_BYTES], "big", signed=True)
            if key not in _BEFORE:
                if login.principal is not None and not login.has_exchange:
                    why = "user was deleted" if login.is_deleted else "session has expired"
                    connection.close(f"its {why}")
                    return
                self._refuse(connection, key)
                return
        self._handler.on_frame(connection, frame)

    def close_deleted(self) -> None:
        """Users may have been deleted: ends also what their connections wait for."""
        for connection in list(self._connections):
            if isinstance(connection.state, ClientLogin) and connection.state.is_deleted:
                connection.close("its user was deleted")

    def on_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if isinstance(connection.state, ClientLogin):
            connection.state.cancel_deadline()
        self._handler.on_closed(connection)

    def _refuse(self, connection: Connection, key: int) -> None:
        """Most often a client that is not set to authenticate, and that tries again and again."""
        self._rules.authenticator.log_failure(
            host_of(connection),
            f"API {key} before the client has authenticated; set its security.protocol to "
            "SASL_PLAINTEXT, or with TLS to SASL_SSL",
        )
        connection.close("a request before it has authenticated")

    def _authenticated(self, connection: Connection, principal: Principal) -> None:
        connection.set_limits(self._limits)
        self._handler.set_principal(connection, principal)
        log.debug("connection from %s is %s", connection.address, principal)

    # ---- messages without a header

    def _take_raw(self, connection: Connection, login: ClientLogin, message: bytes) -> None:
        """The answer is as raw; there is no way to say why a login failed."""
        connection.overlaps = NONE_OVERLAP
        reply = connection.defer()

        async def answer() -> None:
            try:
                answered, _ = await login.step(message)
            except AuthenticationError as error:
                connection.close(str(error))
                return
            except Exception:
                log.exception(
                    "internal error while %s logs in",
                    connection.address,
                    extra=events.INTERNAL_ERROR(),
                )
                connection.close("an internal error")
                return
            reply.complete([len(answered).to_bytes(_LENGTH_BYTES, "big") + answered])

        login.is_stepping = True
        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

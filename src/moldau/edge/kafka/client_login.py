"""The login of one Kafka connection: SASL exchange, principal, lifetime of its session."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from moldau.api.authentication import Authenticator, Login
from moldau.api.stored_user import StoredUser
from moldau.edge.kafka.handler import host_of
from moldau.model.clock import Clock
from moldau.net.connection import Connection
from moldau.security.principal import Principal
from moldau.security.sasl import AuthenticationError

log = logging.getLogger(__name__)

CHANGED_PRINCIPAL: Final = "Authentication failed: the user cannot change on one connection"
AUTHENTICATION_SECONDS_MAX: Final = 15.0
_CLOSE_SECONDS: Final = 1.0


class LoginRules:
    """What the logins of one listener share."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        mechanisms: Sequence[str],
        clock: Clock,
        session_ms_max: int | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.mechanisms = tuple(mechanisms)
        """Those that the listener allows."""
        self.clock = clock
        self.session_ms_max = session_ms_max
        """Clients must authenticate again after this long, whatever their credentials say."""


class ClientLogin:
    """Who the client of a connection is, and how far it is in proving it.

    Kept in `connection.state`. Initial: `principal` is None. With an exchange under way, also to
    authenticate again, only messages of it are allowed.
    """

    __slots__ = (
        "_connection",
        "_deadline",
        "_exchange",
        "_expires_at",
        "_on_authenticated",
        "_rules",
        "_user",
        "has_ended",
        "is_raw",
        "is_stepping",
        "mechanism",
        "principal",
    )

    def __init__(
        self,
        connection: Connection,
        rules: LoginRules,
        on_authenticated: Callable[[Connection, Principal], None],
    ) -> None:
        self._connection = connection
        self._rules = rules
        self._on_authenticated = on_authenticated
        self._exchange: Login | None = None
        self._expires_at: float | None = None
        self._user: StoredUser | None = None
        self.principal: Principal | None = None
        self.mechanism = ""
        self.is_raw = False
        """After SaslHandshake version 0 the messages of the mechanism come without a header."""
        self.is_stepping = False
        """A message is being checked; the client must wait for the answer."""
        self.has_ended = False
        """A login failed: nothing is served any more."""
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self._rules.mechanisms

    @property
    def has_exchange(self) -> bool:
        return self._exchange is not None

    @property
    def is_open(self) -> bool:
        """Whether all requests are served."""
        return (
            self.principal is not None
            and not self.has_ended
            and self._exchange is None
            and (self._user is None or self._user.exists)
            and (self._expires_at is None or self._rules.clock.monotonic() < self._expires_at)
        )

    @property
    def is_deleted(self) -> bool:
        """Whether the user of an earlier login does not exist any more."""
        return self._user is not None and not self._user.exists

    def begin(self, mechanism: str, *, is_raw: bool) -> None:
        """Start an exchange with one of `mechanisms`."""
        host = host_of(self._connection)
        self._exchange = self._rules.authenticator.exchange(mechanism, host)
        self.mechanism = mechanism
        self.is_raw = is_raw
        if self.principal is not None:
            # Again: the deadline of the first time is over.
            self.limit_time()

    def limit_time(self) -> None:
        """The client has to prove soon who it is; the time of a mute does not count."""
        self.close_after(AUTHENTICATION_SECONDS_MAX, "it did not authenticate in time")

    async def step(self, message: bytes) -> tuple[bytes, int]:
        """The answer to a message of the exchange, and the lifetime of the session in
        milliseconds; 0 while it goes on, or if there is no limit.

        Raises AuthenticationError; then the connection must close.
        """
        exchange = self._exchange
        if exchange is None:
            raise RuntimeError("no exchange was begun")
        self.is_stepping = True
        try:
            answer = await exchange.step(message)
        finally:
            self.is_stepping = False
        if exchange.principal is None:
            return answer, 0
        if self.principal is not None and self.principal != exchange.principal:
            raise AuthenticationError(
                CHANGED_PRINCIPAL, reason=f"{self.principal} tried to become {exchange.principal}"
            )
        self._exchange = None
        self.is_raw = False
        lifetime_ms = self._lifetime_ms(exchange.expires_at_ms)
        if self.principal is not None:
            log.debug("%s of %s has authenticated again", self.principal, self._connection.address)
        self._expires_at = None
        if lifetime_ms:
            self._expires_at = self._rules.clock.monotonic() + lifetime_ms / 1000
        self.became(exchange.principal)
        return answer, lifetime_ms

    def became(self, principal: Principal) -> None:
        """The client is `principal` from the next request on."""
        self.cancel_deadline()
        self._user = self._rules.authenticator.stored_user(principal)
        if self.principal is None:
            self.principal = principal
            self._on_authenticated(self._connection, principal)

    def cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end(self) -> None:
        """Serve nothing more after the reply that is about to be sent, and close the connection
        soon: clients that see reply and end at once may not look at the reply."""
        self.has_ended = True
        self.close_after(_CLOSE_SECONDS, "it did not authenticate")

    def close_after(self, seconds: float, reason: str) -> None:
        """Unless it has authenticated by then."""
        self.cancel_deadline()
        self._deadline = asyncio.get_running_loop().call_later(
            seconds, self._close, seconds, reason
        )

    def _close(self, seconds: float, reason: str) -> None:
        if self._connection.traffic.is_muted and not self.has_ended:
            self.close_after(seconds, reason)
        else:
            self._connection.close(reason)

    def _lifetime_ms(self, expires_at_ms: int | None) -> int:
        limits = []
        if expires_at_ms is not None:
            # A token may be used for a little longer, for clocks that differ.
            limits.append(max(expires_at_ms - self._rules.clock.wall_ms(), 1))
        if self._rules.session_ms_max is not None:
            limits.append(self._rules.session_ms_max)
        return min(limits, default=0)


def login_of(connection: Connection) -> ClientLogin | None:
    """None on a listener without SASL."""
    state = connection.state
    return state if isinstance(state, ClientLogin) else None

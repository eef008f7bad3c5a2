"""Where requests of HTTP and gRPC become sessions: who sent this one, and what may it do?"""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.api.authentication import Authenticator
from moldau.api.login_tokens import IssuedToken, LoginTokens
from moldau.api.request_login import RequestLogin
from moldau.api.session import OPEN_LISTENER, ListenerAccess, Session, Sessions
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.principal import ANONYMOUS, LOCAL_ADMIN


class Visit(NamedTuple):
    """One request of a client."""

    session: Session
    expires_at_ms: int | None = None
    """When the client's proof ends; a response that streams ends then. None: never."""
    is_unknown: bool = False
    """Whether the client did not say who it is, to a broker where that decides what it may do."""


class Entrance:
    """The way into the broker through one listener."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        access: ListenerAccess = OPEN_LISTENER,
        authenticator: Authenticator | None = None,
        tokens: LoginTokens | None = None,
        is_login_required: bool = False,
    ) -> None:
        """Without an authenticator all clients are anonymous, whatever they send."""
        self.sessions = sessions
        self._access = access
        self._authenticator = authenticator
        self._tokens = tokens
        self._is_login_required = is_login_required
        self._login = RequestLogin(authenticator, is_required=is_login_required)

    @property
    def has_public_metrics(self) -> bool:
        return self._access.public_metrics

    @property
    def asks(self) -> bool:
        """Whether it matters what clients say of themselves."""
        return self._authenticator is not None

    def anonymous(self, host: str) -> Visit:
        """As `enter`, where nobody is asked."""
        return Visit(self.sessions.anonymous(host, listener=self._access))

    async def enter(
        self,
        authorization: Sequence[str],
        host: str,
        *,
        certificate: str | None = None,
        is_public: bool = False,
    ) -> Visit:
        """`authorization` are the headers of that name; `certificate` is the subject of a verified
        certificate. What `is_public` is served to everyone. Raises AuthenticationError."""
        principal, expires_at_ms = await self._login.caller(
            authorization, host, certificate=certificate, is_public=is_public
        )
        session = self.sessions.session(principal, host, listener=self._access)
        matters = self._is_login_required or self.sessions.authorizes
        is_unknown = matters and principal == ANONYMOUS
        return Visit(session, expires_at_ms, is_unknown)

    async def log_in(self, name: str, password: str, host: str) -> IssuedToken:
        """A token for a password. Raises AuthenticationError, RefusedError."""
        if self._authenticator is None or self._tokens is None:
            error = RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "This broker has no users")
            error.hint = "no login is needed"
            raise error
        principal = await self._authenticator.check_password(name, password, host)
        if principal == LOCAL_ADMIN:
            error = RefusedError(
                ErrorCode.INVALID_REQUEST, "The local administrator needs no login"
            )
            error.hint = "send the content of admin.token as bearer token"
            raise error
        return self._tokens.issue(principal.name)

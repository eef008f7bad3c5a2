"""Where requests of HTTP and gRPC become sessions: who sent this one, and what may it do?"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from moldau.api.authentication import Authenticator
from moldau.api.login_tokens import EXPIRED, IssuedToken, LoginTokens
from moldau.api.quotas import ON_STEP, OnStep, timed
from moldau.api.request_login import NEEDED, RequestLogin
from moldau.api.session import OPEN_LISTENER, ListenerAccess, Session, Sessions
from moldau.api.stored_user import StoredUser
from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.tls.contexts import PeerCertificate
from moldau.security.principal import ANONYMOUS, LOCAL_ADMIN, Principal
from moldau.security.quotas import QuotaKey
from moldau.security.sasl import AuthenticationError

T = TypeVar("T")

DELETED: Final = "Authentication failed: the user was deleted"
CERTIFICATE_EXPIRED: Final = "Authentication failed: the client's certificate has expired"


class Visit(NamedTuple):
    """One request of a client; see `check` for one that lasts."""

    session: Session
    expires_at_ms: int | None = None
    """When the client's proof ends; a response that streams ends then. None: never."""
    user: StoredUser | None = None
    """Whose deletion ends such a response, too; None: it is not stored here."""
    is_unknown: bool = False
    """Whether the client did not say who it is, to a broker where that decides what it may do."""

    def check(self) -> None:
        """Before each part of a stream. Raises AuthenticationError."""
        expires_at_ms = self.expires_at_ms
        if expires_at_ms is not None and self.session.clock.wall_ms() >= expires_at_ms:
            raise AuthenticationError(EXPIRED)
        if self.user is not None and not self.user.exists:
            raise AuthenticationError(DELETED)

    def charged(self, work: Awaitable[T]) -> Awaitable[T]:
        """The same; its time is charged to the quota of the client."""
        meter = self.session.meter()
        return work if meter is None else _charged(work, partial(meter.take, QuotaKey.REQUEST))


async def _charged(work: Awaitable[T], on_step: OnStep) -> T:
    before = ON_STEP.set(on_step)
    try:
        return await timed(work, on_step)
    finally:
        ON_STEP.reset(before)


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
    def listener_name(self) -> str:
        return self._access.name

    @property
    def asks(self) -> bool:
        """Whether it matters what clients say of themselves."""
        return self._authenticator is not None

    def anonymous(self, host: str) -> Visit:
        """As `enter`, where nobody is asked. Raises QuotaExceededError."""
        session = self.sessions.anonymous(host, listener=self._access)
        if (meter := session.meter()) is not None:
            meter.check(QuotaKey.REQUEST)
        return Visit(session)

    async def enter(
        self,
        authorization: Sequence[str],
        host: str,
        *,
        certificate: PeerCertificate | None = None,
        is_public: bool = False,
    ) -> Visit:
        """`authorization` are the headers of that name; `certificate` is the verified one of the
        connection. What `is_public` is served to everyone. Raises AuthenticationError,
        and QuotaExceededError to a client that has to wait."""
        subject = None if certificate is None else certificate.subject
        principal, expires_at_ms = await self._login.caller(
            authorization, host, certificate=subject, is_public=is_public
        )
        session = self.sessions.session(principal, host, listener=self._access)
        if not is_public and (meter := session.meter()) is not None:
            meter.check(QuotaKey.REQUEST)
        matters = self._is_login_required or self.sessions.authorizes
        is_unknown = matters and principal == ANONYMOUS
        found = self._authenticator
        user = None if found is None else found.stored_user(principal)
        if certificate is None:
            return Visit(session, expires_at_ms, user, is_unknown)
        # It was valid when the connection began, and may have expired since.
        ends_at_ms = int(certificate.expires_at * 1000)
        if expires_at_ms is not None:
            ends_at_ms = min(ends_at_ms, expires_at_ms)
        if session.clock.wall_ms() >= ends_at_ms:
            raise AuthenticationError(CERTIFICATE_EXPIRED)
        return Visit(session, ends_at_ms, user, is_unknown)

    def enter_relayed(
        self, principal: Principal, host: str, access: ListenerAccess, expires_at_ms: int | None
    ) -> Visit:
        """The request of a client that another broker of the cluster has let in through a listener
        with this access. What this broker's own listener refuses is refused here, too. Raises
        AuthenticationError, and QuotaExceededError to a client that has to wait."""
        if self._is_login_required and principal == ANONYMOUS:
            raise AuthenticationError(NEEDED)
        if self._access.read_only and not access.read_only:
            access = replace(access, read_only=True)
        session = self.sessions.session(principal, host, listener=access)
        if (meter := session.meter()) is not None:
            meter.check(QuotaKey.REQUEST)
        found = self._authenticator
        user = None if found is None else found.stored_user(principal)
        return Visit(session, expires_at_ms, user)

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

"""Who a client is: passwords, SASL exchanges, bearer tokens, certificates.

One Authenticator serves all protocols of a broker. It knows the users of the metadata, and the
local administrator: a user who can read the broker's data directory has the token that is there.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Protocol

from moldau.api.audit import AuditLog
from moldau.api.decoy_models import DecoyModels
from moldau.api.login_record import CERTIFICATE, FAILURE, UNCHECKED, LoginRecord
from moldau.api.login_throttle import (
    FREE_TURN,
    REFUSAL_SECONDS,
    WAIT_SECONDS_MAX,
    LoginThrottle,
    Turn,
)
from moldau.api.password_check import HashThreads, PasswordCheck, UnavailableError
from moldau.api.stored_user import StoredUser
from moldau.metadata.security import User
from moldau.security.certificate_names import CertificateNames
from moldau.security.principal import LOCAL_ADMIN, Principal, authenticated_user
from moldau.security.sasl import (
    PASSWORD_BYTES_MAX,
    USER_BYTES_MAX,
    AuthenticationError,
    parse_oauthbearer,
    parse_plain,
)
from moldau.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    decoy_credential,
    make_credential,
)

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = {each.sasl_name: each for each in ScramMechanism}
WRONG_TOKEN: Final = "Authentication failed: the token is not valid"
TOO_MANY: Final = (
    "Authentication failed: too many failed logins of this user from this address, "
    f"try again in {WAIT_SECONDS_MAX:.0f} s"
)
"""Clients look for "too many failed logins"."""
_NONCE_BYTES: Final = 18


class TokenCheck(Protocol):
    """Checks bearer tokens of an identity provider."""

    async def check(self, token: str) -> tuple[Principal, int]:
        """The principal, and when the token expires. Raises AuthenticationError."""
        ...


class Login(Protocol):
    """One SASL exchange of one client; a failed one cannot be continued."""

    principal: Principal | None
    """Set when the client has proved who it is."""
    expires_at_ms: int | None
    """When it must authenticate again; None: never."""

    async def step(self, message: bytes) -> bytes:
        """The response to the client's next message. Raises AuthenticationError, after the delay
        that a failure costs."""
        ...


class Authenticator:
    def __init__(
        self,
        *,
        users: Callable[[], Mapping[str, User]],
        throttle: LoginThrottle,
        threads: HashThreads,
        decoy_key: bytes,
        random_bytes: Callable[[int], bytes],
        admin_token: str | None = None,
        tokens: TokenCheck | None = None,
        certificate_names: CertificateNames | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`audit` gets the logins; None: they are only counted."""
        self._users = users
        self._throttle = throttle
        self._passwords = PasswordCheck(threads)
        self._decoy_key = decoy_key
        self._decoy_models = DecoyModels(users, decoy_key)
        self._random_bytes = random_bytes
        self._admin_token = admin_token
        self._tokens = tokens
        self._certificate_names = certificate_names or CertificateNames()
        self.logins = LoginRecord(audit)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that can succeed here; a listener may allow fewer."""
        return (PLAIN, *SCRAM, *((OAUTHBEARER,) if self._tokens is not None else ()))

    def exchange(self, mechanism: str, host: str = "") -> Login:
        """For one of `mechanisms`; `host` is the client's address."""
        if mechanism == PLAIN:
            return _PlainLogin(self, host)
        if mechanism == OAUTHBEARER:
            return _BearerLogin(self, host)
        return _ScramLogin(self, SCRAM[mechanism], host)

    async def check_password(self, name: str, password: str, host: str = "") -> Principal:
        """Raises AuthenticationError. Repeated failures take longer."""
        return await self.check_secret(name, password.encode(errors="surrogatepass"), host)

    async def check_secret(self, name: str, password: bytes, host: str) -> Principal:
        """As `check_password`, for the bytes of a password."""
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            size = 0
        if not 0 < size <= USER_BYTES_MAX or not 0 < len(password) <= PASSWORD_BYTES_MAX:
            error = AuthenticationError(reason="an empty or too long user or password")
            raise await self.refused(PLAIN, name, host, error)
        failure: AuthenticationError | None = None
        is_suspected = False
        async with self._throttle.turn(name, host) as turn:
            began = asyncio.get_running_loop().time()
            if turn is not None:
                failure, is_suspected = await self._check_password(name, password, host)
        if turn is None:
            raise await self._too_many(PLAIN, name, host)
        if failure is not None:
            raise await self.refused(
                PLAIN, name, host, failure, began=began, suspected=is_suspected
            )
        return self.proved(PLAIN, name, host, turn, suspected=is_suspected)

    async def _check_password(
        self, name: str, password: bytes, host: str
    ) -> tuple[AuthenticationError | None, bool]:
        """Why a password is not right, and whether that is counted already."""
        mechanism, credential = self._credential_of(name)
        passwords = self._passwords
        if credential is not None and passwords.is_remembered(name, password, credential):
            return None, False
        # A name without a user costs the same time as one with.
        checked = credential or decoy_credential(
            name, self._decoy_key, mechanism, self._decoy_models.of(name, mechanism)
        )
        suspected = not passwords.is_running(name, password, checked)
        if suspected:
            if (busy := passwords.busy()) is not None:
                # Before it counts: that the broker is busy is not the fault of this client.
                return busy, False
            self._throttle.suspect(name, host)
        try:
            fitted = await passwords.fits(name, password, checked, mechanism)
        except asyncio.CancelledError:
            # The client has left, but what it asked for is still computed. Who began it pays.
            if suspected:
                self._throttle.failed(name, host, suspected=True)
            raise
        # Not against what the user had when the check began: the password may have changed since.
        if fitted and credential is not None and self._credential_of(name)[1] == credential:
            return None, suspected
        why = "has another password" if credential is not None else "does not exist"
        return AuthenticationError(reason=f"user {name!r} {why}"), suspected

    async def check_bearer(self, token: str, host: str = "") -> tuple[Principal, int | None]:
        """The principal of a token and when it expires. Raises AuthenticationError."""
        # Nobody guesses a token: attempts do not wait, and failures are not counted.
        if self._is_admin_token(token.encode(errors="replace")):
            self.logins.succeeded(OAUTHBEARER, LOCAL_ADMIN, host)
            return LOCAL_ADMIN, None
        try:
            if self._tokens is None:
                raise AuthenticationError(WRONG_TOKEN, reason="an unknown bearer token")
            checked, expires_at_ms = await self._tokens.check(token)
            principal = _from_outside(checked.name)
        except AuthenticationError as error:
            raise await self.refused(OAUTHBEARER, None, host, error) from None
        self.logins.succeeded(OAUTHBEARER, principal, host)
        return principal, expires_at_ms

    def of_certificate(self, subject: str, host: str = "") -> Principal:
        """The user of a client certificate, which TLS has verified. Raises AuthenticationError."""
        try:
            principal = self._certificate_names.principal(subject)
        except AuthenticationError as error:
            self.logins.failed(CERTIFICATE, None, host, error.reason)
            raise
        self.logins.succeeded(CERTIFICATE, principal, host)
        return principal

    def stored_user(self, principal: Principal) -> StoredUser | None:
        """For a principal that has just logged in. None: it is not stored here, as those of
        certificates and of an identity provider, and cannot be deleted."""
        if principal.name not in self._users():
            return None
        return StoredUser(self._users, principal.name)

    def log_failure(self, host: str, reason: str) -> None:
        """A line in the log, once in a while for each reason and address."""
        self._throttle.log_failure(host, reason)

    def stop(self) -> None:
        self._passwords.stop()

    # ---- for the exchanges

    def scram(self, mechanism: ScramMechanism) -> ScramServer:
        return ScramServer(
            mechanism,
            find=lambda name: self._credentials(name).get(mechanism),
            nonce=self._random_bytes(_NONCE_BYTES).hex(),
            decoy_key=self._decoy_key,
            decoy_like=lambda name: self._decoy_models.of(name, mechanism),
        )

    async def admit(self, mechanism: str, name: str, host: str) -> Turn:
        """Wait for the turn of an attempt, after earlier ones that failed."""
        turn = await self._throttle.admit(name, host)
        if turn is None:
            raise await self._too_many(mechanism, name, host)
        return turn

    async def _too_many(self, mechanism: str, name: str, host: str) -> AuthenticationError:
        error = AuthenticationError(TOO_MANY, reason="too many failed logins before")
        self.log_failure(host, error.reason)
        self.logins.failed(mechanism, name, host, error.reason, UNCHECKED)
        await asyncio.sleep(REFUSAL_SECONDS)
        return error

    async def refused(
        self,
        mechanism: str,
        name: str | None,
        host: str,
        error: AuthenticationError,
        *,
        began: float | None = None,
        suspected: bool = False,
    ) -> AuthenticationError:
        """Count a failure of a user and wait as long as it costs, from `began` on; the error to
        raise.

        So the time until a refusal does not tell how much work it was.
        """
        self.log_failure(host, error.reason)
        result = UNCHECKED if isinstance(error, UnavailableError) else FAILURE
        self.logins.failed(mechanism, name, host, error.reason, result)
        seconds = REFUSAL_SECONDS
        if name is not None and not isinstance(error, UnavailableError):
            seconds = self._throttle.failed(name, host, suspected=suspected)
        if began is not None:
            seconds -= asyncio.get_running_loop().time() - began
        await asyncio.sleep(max(seconds, 0.0))
        return error

    def proved(
        self, mechanism: str, name: str, host: str, turn: Turn, *, suspected: bool = False
    ) -> Principal:
        """Raises AuthenticationError for a name that nobody may have."""
        self._throttle.succeeded(name, host, turn, suspected=suspected)
        principal = LOCAL_ADMIN if name == LOCAL_ADMIN.name else _from_outside(name)
        self.logins.succeeded(mechanism, principal, host)
        return principal

    # ---- credentials

    def _credential_of(self, name: str) -> tuple[ScramMechanism, ScramCredential | None]:
        """The one that a password is checked against: any of the user's."""
        for mechanism, credential in sorted(self._credentials(name).items()):
            return mechanism, credential
        return ScramMechanism.SHA_256, None

    def _credentials(self, name: str) -> Mapping[ScramMechanism, ScramCredential]:
        if name == LOCAL_ADMIN.name:
            # Never a stored user, should one have this name.
            return self._admin_credentials
        found = self._users().get(name)
        return {} if found is None else found.credentials

    @cached_property
    def _admin_credentials(self) -> Mapping[ScramMechanism, ScramCredential]:
        """Few iterations are enough: nobody guesses a random token."""
        if self._admin_token is None:
            return {}
        secret, salt = self._admin_token.encode(), self._random_bytes(SALT_BYTES)
        return {
            mechanism: make_credential(secret, salt, ITERATIONS_MIN, mechanism)
            for mechanism in ScramMechanism
        }

    def _is_admin_token(self, token: bytes) -> bool:
        expected = self._admin_token
        return expected is not None and hmac.compare_digest(token, expected.encode())


def _from_outside(name: str) -> Principal:
    """Raises AuthenticationError for a name that nobody may have."""
    try:
        return authenticated_user(name)
    except ValueError as error:
        raise AuthenticationError(reason=str(error)) from None


class _AnyLogin:
    def __init__(self, authenticator: Authenticator, host: str) -> None:
        self._authenticator = authenticator
        self._host = host
        self.principal: Principal | None = None
        self.expires_at_ms: int | None = None


class _PlainLogin(_AnyLogin):
    async def step(self, message: bytes) -> bytes:
        try:
            login = parse_plain(message)
        except AuthenticationError as error:
            raise await self._authenticator.refused(PLAIN, None, self._host, error) from None
        self.principal = await self._authenticator.check_secret(
            login.user, login.password, self._host
        )
        return b""


class _ScramLogin(_AnyLogin):
    def __init__(self, authenticator: Authenticator, mechanism: ScramMechanism, host: str) -> None:
        super().__init__(authenticator, host)
        self._mechanism = mechanism.sasl_name
        self._server = authenticator.scram(mechanism)

    async def step(self, message: bytes) -> bytes:
        server, authenticator = self._server, self._authenticator
        turn = FREE_TURN
        if server.user:
            # The proof follows: this is the attempt.
            turn = await authenticator.admit(self._mechanism, server.user, self._host)
        try:
            reply = server.step(message)
            if server.principal is not None:
                self.principal = authenticator.proved(
                    self._mechanism, server.user, self._host, turn
                )
        except AuthenticationError as error:
            raise await authenticator.refused(
                self._mechanism, server.user, self._host, error
            ) from None
        return reply


class _BearerLogin(_AnyLogin):
    async def step(self, message: bytes) -> bytes:
        try:
            token = parse_oauthbearer(message)
        except AuthenticationError as error:
            raise await self._authenticator.refused(OAUTHBEARER, None, self._host, error) from None
        self.principal, self.expires_at_ms = await self._authenticator.check_bearer(
            token, self._host
        )
        return b""

"""Who sent a request of HTTP or gRPC: by its `authorization`, or by the client's certificate."""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.api.authentication import Authenticator
from moldau.api.login_record import UNKNOWN
from moldau.api.password_check import BUSY, UnavailableError
from moldau.net.networks import network_of
from moldau.security.principal import ANONYMOUS, Principal
from moldau.security.sasl import AuthenticationError

CHECKS_PER_ADDRESS_MAX: Final = 1024
"""More than a program begins at once, and less than all calls that a broker serves at once."""
NEEDED: Final = "Authentication is needed"
MALFORMED: Final = "Authentication failed: send Authorization: Basic or Bearer"


class Caller(NamedTuple):
    principal: Principal
    expires_at_ms: int | None = None
    """When the proof ends, and with it what the client still receives; None: never."""


NOBODY: Final = Caller(ANONYMOUS)


class RequestLogin:
    """How the clients of one listener authenticate, once per request."""

    def __init__(self, authenticator: Authenticator | None, *, is_required: bool = False) -> None:
        """With `is_required`, clients that do not say who they are are refused; otherwise they are
        anonymous. Without an authenticator there is nothing to prove, and all are."""
        if is_required and authenticator is None:
            raise ValueError("a listener that asks who its clients are needs an authenticator")
        self._authenticator = authenticator
        self._is_required = is_required
        self._checked: dict[str, int] = {}
        """Proofs that are being checked, by address."""

    async def caller(
        self,
        authorization: Sequence[str],
        host: str,
        *,
        certificate: str | None = None,
        is_public: bool = False,
    ) -> Caller:
        """`authorization` are the headers of that name; `certificate` is the subject of a verified
        certificate. What `is_public` is served to everyone. Raises AuthenticationError."""
        authenticator = self._authenticator
        if authenticator is None:
            return NOBODY
        if authorization:
            return await self._proved(authenticator, authorization, host)
        if certificate is not None:
            return Caller(authenticator.of_certificate(certificate, host))
        if self._is_required and not is_public:
            raise AuthenticationError(NEEDED)
        return NOBODY

    async def _proved(
        self, authenticator: Authenticator, authorization: Sequence[str], host: str
    ) -> Caller:
        """Few at once of an address: failures take long, and hold a place of others meanwhile."""
        address, checked = network_of(host), self._checked
        count = checked.get(address, 0)
        if count >= CHECKS_PER_ADDRESS_MAX:
            raise UnavailableError(BUSY, reason="too many logins of this address at once")
        checked[address] = count + 1
        try:
            return await _check(authenticator, authorization, host)
        finally:
            checked[address] -= 1
            if not checked[address]:
                del checked[address]


async def _check(authenticator: Authenticator, authorization: Sequence[str], host: str) -> Caller:
    scheme, _, credentials = authorization[0].strip().partition(" ")
    credentials = credentials.strip()
    if len(authorization) == 1 and credentials:
        if scheme.lower() == "bearer":
            return Caller(*await authenticator.check_bearer(credentials, host))
        pair = _user_and_password(credentials) if scheme.lower() == "basic" else None
        if pair is not None:
            return Caller(await authenticator.check_password(*pair, host))
    error = AuthenticationError(MALFORMED, reason="a malformed authorization header")
    raise await authenticator.refused(UNKNOWN, None, host, error)


def _user_and_password(text: str) -> tuple[str, str] | None:
    """RFC 7617, in UTF-8."""
    try:
        pair = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    name, colon, password = pair.partition(":")
    return (name, password) if colon else None

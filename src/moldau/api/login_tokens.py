"""Tokens that stand for a password: a user logs in once, and sends the token from then on.

A token names the user and when it expires, signed with a key that all brokers of the cluster
derive from its secret. So each of them knows a token that another one issued, without storing it.
It also carries a mark of the user's stored credentials: a new password, or the deletion of the
user, ends all tokens of the user at once.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from moldau.api.authentication import WRONG_TOKEN, TokenCheck
from moldau.metadata.security import User
from moldau.model.clock import Clock
from moldau.security.principal import Principal, user
from moldau.security.sasl import AuthenticationError

LIFETIME_MS: Final = 12 * 60 * 60 * 1000
"""A working day."""
EXPIRED: Final = "Authentication failed: the token has expired, log in again"
_PREFIX: Final = "moldau1."
_TOKEN_CHARACTERS_MAX: Final = 2048
_KEY_LABEL: Final = b"moldau login tokens 1"
_SIGNATURE_LABEL: Final = b"signature "
_MARK_LABEL: Final = b"credentials "
_MARK_BYTES: Final = 16


class _Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    expires_at_ms: int
    mark: bytes
    """Of the credentials that the user had when the token was issued."""


class IssuedToken(msgspec.Struct, frozen=True):
    token: str
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"IssuedToken(expires_at_ms={self.expires_at_ms})"


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Claims).decode


class LoginTokens:
    """Issues tokens, and checks them."""

    def __init__(
        self,
        *,
        secret: bytes,
        users: Callable[[], Mapping[str, User]],
        clock: Clock,
        others: TokenCheck | None = None,
    ) -> None:
        """`secret` is the cluster's; `others` checks tokens that no broker issued."""
        self._key = _hmac(secret, _KEY_LABEL)
        self._users = users
        self._clock = clock
        self._others = others

    def issue(self, name: str) -> IssuedToken:
        """For a user who has just proved a password. Raises AuthenticationError."""
        known = self._users().get(name)
        if known is None:
            raise AuthenticationError(reason=f"user {name!r} does not exist any more")
        expires_at_ms = self._clock.wall_ms() + LIFETIME_MS
        claims = _encode(_Claims(name, expires_at_ms, self._mark(known)))
        token = f"{_PREFIX}{_text(claims)}.{_text(self._sign(claims))}"
        return IssuedToken(token, expires_at_ms)

    async def check(self, token: str) -> tuple[Principal, int]:
        """The user and when the token expires. Raises AuthenticationError."""
        if token.startswith(_PREFIX):
            claims = self._verified(token)
            return user(claims.name), claims.expires_at_ms
        if self._others is None:
            raise AuthenticationError(WRONG_TOKEN, reason="an unknown bearer token")
        return await self._others.check(token)

    def _verified(self, token: str) -> _Claims:
        if len(token) > _TOKEN_CHARACTERS_MAX:
            raise AuthenticationError(WRONG_TOKEN, reason="a login token that is too long")
        body, _, signature = token.removeprefix(_PREFIX).partition(".")
        data, signed = _data(body), _data(signature)
        if data is None or signed is None or not hmac.compare_digest(signed, self._sign(data)):
            raise AuthenticationError(WRONG_TOKEN, reason="a login token with a wrong signature")
        # Signed, so it is one of ours; but another version may have made it.
        try:
            claims = _decode(data)
        except msgspec.DecodeError:
            raise AuthenticationError(WRONG_TOKEN, reason="a login token of another form") from None
        if self._clock.wall_ms() >= claims.expires_at_ms:
            raise AuthenticationError(EXPIRED, reason=f"an expired token of {claims.name!r}")
        known = self._users().get(claims.name)
        if known is None or not hmac.compare_digest(claims.mark, self._mark(known)):
            why = f"a token of user {claims.name!r}, who was deleted or has a new password"
            raise AuthenticationError(WRONG_TOKEN, reason=why)
        return claims

    def _sign(self, claims: bytes) -> bytes:
        return _hmac(self._key, _SIGNATURE_LABEL + claims)

    def _mark(self, known: User) -> bytes:
        stored = [
            (int(mechanism), credential.salt, credential.iterations, credential.stored_key)
            for mechanism, credential in sorted(known.credentials.items())
        ]
        # Another user of the name may get the same credentials, e.g. from a backup.
        marked = (known.created, stored) if known.created else stored
        return _hmac(self._key, _MARK_LABEL + _encode(marked))[:_MARK_BYTES]


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _data(text: str) -> bytes | None:
    """Only in the one spelling that `_text` makes."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if _text(data) == text else None

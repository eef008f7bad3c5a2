"""SASL: what all mechanisms share, and the messages of PLAIN and OAUTHBEARER."""

from typing import Final

import msgspec

from moldau.model.errors import MoldauError

MESSAGE_BYTES_MAX: Final = 32 * 1024
"""Largest message of a client; a bearer token is the longest that is needed."""
USER_BYTES_MAX: Final = 255
PASSWORD_BYTES_MAX: Final = 1024
"""A longer one would only keep the hash functions busy."""
WRONG_CREDENTIALS: Final = "Authentication failed: wrong user or password"
MALFORMED: Final = "Authentication failed: the message is malformed"


class AuthenticationError(MoldauError):
    """A client did not prove who it is. The text goes to the client and says no more than it must;
    `reason` is for the log, and holds no secrets."""

    def __init__(self, text: str = WRONG_CREDENTIALS, *, reason: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason or text


class PlainLogin(msgspec.Struct, frozen=True):
    """What a client sends with PLAIN."""

    user: str
    password: bytes

    def __repr__(self) -> str:
        return f"PlainLogin(user={self.user!r})"


def parse_plain(message: bytes) -> PlainLogin:
    """RFC 4616: `[authzid] NUL user NUL password`. Raises AuthenticationError."""
    parts = _checked(message).split(b"\0")
    if len(parts) != 3:
        raise AuthenticationError(MALFORMED, reason=f"PLAIN with {len(parts)} parts, not 3")
    authzid, name, password = parts
    if authzid not in (b"", name):
        # Nobody may act for another user.
        raise AuthenticationError(MALFORMED, reason="PLAIN with the name of another user to act as")
    if not 0 < len(name) <= USER_BYTES_MAX or not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise AuthenticationError(reason="PLAIN with an empty or too long user or password")
    return PlainLogin(utf8(name), password)


def parse_oauthbearer(message: bytes) -> str:
    """RFC 7628: the bearer token of a client's first message. Raises AuthenticationError."""
    header, *pairs = _checked(message).split(b"\x01")
    binding, _, rest = header.partition(b",")
    authzid, comma, after = rest.partition(b",")
    if binding not in (b"n", b"y") or not comma or after or pairs[-2:] != [b"", b""]:
        raise AuthenticationError(MALFORMED, reason="OAUTHBEARER with a malformed header or end")
    if authzid:
        # Kafka compares it with the principal, which is not known yet; no client sends it.
        raise AuthenticationError(MALFORMED, reason="OAUTHBEARER with an authorization id")
    found = [value for pair in pairs if (value := pair.removeprefix(b"auth=")) != pair]
    if len(found) != 1:
        raise AuthenticationError(MALFORMED, reason=f"OAUTHBEARER with {len(found)} tokens, not 1")
    scheme, _, token = utf8(found[0]).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationError(MALFORMED, reason="OAUTHBEARER without a bearer token")
    return token.strip()


def _checked(message: bytes) -> bytes:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationError(
            MALFORMED, reason=f"a message of {len(message)} bytes, the limit is {MESSAGE_BYTES_MAX}"
        )
    return message


def utf8(data: bytes) -> str:
    """Raises AuthenticationError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Not chained: the error holds the bytes, which may be a password.
        raise AuthenticationError(MALFORMED, reason="a message that is not UTF-8") from None

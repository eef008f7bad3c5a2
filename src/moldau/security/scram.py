"""SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677): stored credentials, and the server's side.

Passwords are taken as UTF-8, without SASLprep, as Kafka and its clients do.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from msgspec import Struct

from moldau.security.principal import Principal, user
from moldau.security.sasl import MALFORMED, USER_BYTES_MAX, AuthenticationError, utf8

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
"""A client of a user with more would be busy for seconds, and so would PLAIN be here."""
ITERATIONS_DEFAULT: Final = 8192
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 256
NONCE_LENGTH_MAX: Final = 256
_MESSAGE_BYTES_MAX: Final = 4096


class ScramMechanism(IntEnum):
    """Numbers of the Kafka protocol; they are stored."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{self.name[-3:]}"

    @property
    def hash_name(self) -> str:
        """As hashlib calls it."""
        return f"sha{self.name[-3:]}"

    @property
    def hash_bytes(self) -> int:
        return int(self.name[-3:]) // 8


class ScramCredential(Struct, frozen=True):
    """What the cluster stores of a password: enough to check it, too little to log in with."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "ScramCredential(…)"


def make_credential(
    password: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism
) -> ScramCredential:
    """Slow on purpose: run it in a thread."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
    return credential_of_salted(salted, salt, iterations, mechanism)


def credential_of_salted(
    salted_password: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism
) -> ScramCredential:
    """From what AlterUserScramCredentials sends: the client has salted the password."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )


def is_password(password: bytes, credential: ScramCredential, mechanism: ScramMechanism) -> bool:
    """Whether the credential is of this password. Slow on purpose: run it in a thread."""
    made = make_credential(password, credential.salt, credential.iterations, mechanism)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def decoy_credential(
    name: str, key: bytes, mechanism: ScramMechanism, like: ScramCredential | None = None
) -> ScramCredential:
    """A credential for a user that does not exist: always the same salt for the same name, and no
    password fits. So a client cannot find out which users exist.

    `key` is secret. `like` is the credential of a user: other tools use other numbers of
    iterations and longer salts, and a decoy must not stand out.
    """
    iterations = ITERATIONS_DEFAULT if like is None else like.iterations
    size = SALT_BYTES if like is None else len(like.salt)

    def derived(purpose: bytes, size: int) -> bytes:
        return hashlib.pbkdf2_hmac("sha256", key + purpose, name.encode(), 1, size)

    return ScramCredential(
        derived(b"salt", size),
        iterations,
        derived(b"stored key", mechanism.hash_bytes),
        derived(b"server key", mechanism.hash_bytes),
    )


class ScramServer:
    """One exchange: `first`, then `final`.

    `nonce` must be fresh and random for each exchange: it is what makes a replayed message fail.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        find: Callable[[str], ScramCredential | None],
        nonce: str,
        decoy_key: bytes,
        decoy_like: Callable[[str], ScramCredential | None] = lambda _: None,
    ) -> None:
        """`find` returns the credential of a user; the decoy's are for `decoy_credential`, by the
        name of a user."""
        self.principal: Principal | None = None
        self.expires_at_ms: int | None = None
        self.user = ""
        """The name that the client claims; for the log."""
        self._mechanism = mechanism
        self._find = find
        self._server_nonce = nonce
        self._decoy_key = decoy_key
        self._decoy_like = decoy_like
        self._credential: ScramCredential | None = None
        self._exists = False
        self._gs2_header = b""
        self._nonce = ""
        self._messages = b""
        """The client's first message and our response, which both sides sign."""
        self._ended = False

    def step(self, message: bytes) -> bytes:
        """Raises AuthenticationError, and then for every further message."""
        return self.first(message) if self._credential is None else self.final(message)

    def first(self, message: bytes) -> bytes:
        if self._ended or self._credential is not None:
            raise _malformed("a first message that came too late")
        self._ended = True
        self._gs2_header, bare, self.user, client_nonce = _parse_first(message)
        found = self._find(self.user)
        self._exists = found is not None
        # Made for known users, too, so that it takes as long.
        like = self._decoy_like(self.user)
        decoy = decoy_credential(self.user, self._decoy_key, self._mechanism, like)
        credential = decoy if found is None else found
        self._nonce = client_nonce + self._server_nonce
        reply = (
            f"r={self._nonce},s={base64.b64encode(credential.salt).decode()},"
            f"i={credential.iterations}"
        ).encode()
        self._messages = bare + b"," + reply
        self._credential = credential
        self._ended = False
        return reply

    def final(self, message: bytes) -> bytes:
        credential = self._credential
        if self._ended or credential is None:
            raise _malformed("a final message in the wrong place")
        # One attempt per exchange, and so per nonce.
        self._ended = True
        without_proof, channel, nonce, proof = _parse_final(message)
        if not hmac.compare_digest(channel, self._gs2_header):
            raise _malformed("a channel binding that differs from the first message")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise AuthenticationError(reason="a nonce that is not of this exchange")
        name = self._mechanism.hash_name
        signed = self._messages + b"," + without_proof
        signature = hmac.digest(credential.stored_key, signed, name)
        if len(proof) != len(signature):
            raise _malformed(f"a proof of {len(proof)} bytes, not {len(signature)}")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        proved = hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)
        if not proved or not self._exists:
            raise AuthenticationError(
                reason=f"wrong password for user {self.user!r}"
                if self._exists
                else f"user {self.user!r} does not exist, or not for this mechanism"
            )
        if self._find(self.user) != credential:
            raise AuthenticationError(
                reason=f"user {self.user!r} was deleted or has a new password since it began"
            )
        self.principal = user(self.user)
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, name))


_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""Printable ASCII without the comma."""
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[^\0,]*")
_NAME: Final = re.compile(r"(?:[^\0,=]|=2C|=3D)+")
"""Comma and equals sign are written as =2C and =3D."""


def _parse_first(message: bytes) -> tuple[bytes, bytes, str, str]:
    """Header, the message without it, user and nonce."""
    text = _text(message)
    binding, _, rest = text.partition(",")
    if binding.startswith("p="):
        raise _malformed("channel binding is not supported")
    authzid, comma, bare = rest.partition(",")
    if binding not in ("n", "y") or not comma:
        raise _malformed("a first message without a header")
    fields = bare.split(",")
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        # Also `m=`: an extension that is not known here.
        raise _malformed("a first message without user and nonce")
    _check_extensions(fields[2:])
    name, nonce = _unescaped(fields[0][2:]), fields[1][2:]
    if len(name.encode()) > USER_BYTES_MAX:
        raise _malformed("a too long user name")
    if len(nonce) > NONCE_LENGTH_MAX or _NONCE.fullmatch(nonce) is None:
        raise _malformed("an invalid nonce")
    if authzid and (not authzid.startswith("a=") or _unescaped(authzid[2:]) != name):
        # Nobody may act for another user.
        raise _malformed("an authorization id that is not the user")
    return f"{binding},{authzid},".encode(), bare.encode(), name, nonce


def _parse_final(message: bytes) -> tuple[bytes, bytes, str, bytes]:
    """The message without its proof, the header, the nonce and the proof."""
    text = _text(message)
    fields = text.split(",")
    if (
        len(fields) < 3
        or not fields[0].startswith("c=")
        or not fields[1].startswith("r=")
        or not fields[-1].startswith("p=")
    ):
        raise _malformed("a final message without channel binding, nonce and proof")
    _check_extensions(fields[2:-1])
    without_proof = text[: -len(fields[-1]) - 1].encode()
    return without_proof, _base64(fields[0][2:]), fields[1][2:], _base64(fields[-1][2:])


def _check_extensions(fields: list[str]) -> None:
    """Unknown extensions are ignored, as the RFC says; Kafka's clients may send some."""
    for field in fields:
        if _EXTENSION.fullmatch(field) is None or field.startswith("m="):
            raise _malformed("an invalid extension")


def _unescaped(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise _malformed("an empty name, or one with an invalid escape")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise _malformed(f"a message of {len(message)} bytes, the limit is {_MESSAGE_BYTES_MAX}")
    return utf8(message)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("invalid base64") from None


def _malformed(reason: str) -> AuthenticationError:
    return AuthenticationError(MALFORMED, reason=f"SCRAM: {reason}")

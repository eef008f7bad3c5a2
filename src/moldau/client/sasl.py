"""SASL client: PLAIN, SCRAM and OAUTHBEARER, and how Kafka clients configure names and passwords.

No I/O: a connection carries the messages.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.client.errors import TOKEN_HINT, ClientError, InvalidArgumentError, login_hint

PLAIN: Final = "PLAIN"
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *_HASHES, OAUTHBEARER)
READABLE: Final = (PLAIN, OAUTHBEARER)
"""Mechanisms that send the password or token itself."""
TOKEN: Final = "sasl.oauthbearer.token"
"""Ours: a token as it is. Kafka's clients only have ways to fetch one."""
SASL_OPTIONS: Final = (
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config"),
    TOKEN,
)
"""All that `parse_sasl` understands."""
LOCAL_ADMIN: Final = "moldau-admin"
"""The user whose password is the token in a broker's data directory."""
ITERATIONS_MIN: Final = 4096
"""As in Kafka's clients: a server that requests fewer may be collecting passwords."""
ITERATIONS_MAX: Final = 1_000_000

_JAAS: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*",
    re.IGNORECASE | re.DOTALL,
)
_JAAS_OPTION: Final = re.compile(
    r"""\s*(?P<name>[\w.-]+)\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';]+)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """Credentials. The repr never shows the password."""

    mechanism: str
    username: str = ""
    """Empty for OAUTHBEARER: the token names the user."""
    password: str = field(repr=False)
    """Or the token."""
    prefix: str = ""
    """Prefix of option names in errors."""

    @property
    def authorization(self) -> str:
        """The same credentials as a header of HTTP and gRPC."""
        if self.mechanism == OAUTHBEARER or self.username == LOCAL_ADMIN:
            return f"Bearer {self.password}"
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def exchange(self) -> Generator[bytes, bytes, None]:
        """Yields messages to send, is sent the responses. Raises ClientError."""
        if self.mechanism == PLAIN:
            yield f"\0{self.username}\0{self.password}".encode()
        elif self.mechanism == OAUTHBEARER:
            # RFC 7628; Kafka's brokers want no authzid, host or port.
            yield f"n,,\1auth=Bearer {self.password}\1\1".encode()
        else:
            yield from self._scram(_HASHES[self.mechanism])

    def _scram(self, kind: str) -> Generator[bytes, bytes, None]:
        """RFC 5802, without a channel binding."""
        nonce = secrets.token_urlsafe(24)
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        first = f"n={name},r={nonce}"
        challenge = bytes((yield f"n,,{first}".encode()))
        attributes = _attributes(challenge)
        try:
            salt, iterations = (
                base64.b64decode(attributes["s"], validate=True),
                int(attributes["i"]),
            )
            both = attributes["r"]
        except (KeyError, ValueError):
            raise self._failure("the broker's response is not a SCRAM message") from None
        if not both.startswith(nonce) or both == nonce:
            raise self._failure("the broker's response has another nonce")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise self._failure(
                f"the broker requests {iterations} iterations; "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
            )
        final = f"c=biws,r={both}"
        signed = b",".join((first.encode(), challenge, final.encode()))
        salted = hashlib.pbkdf2_hmac(kind, self.password.encode(), salt, iterations)
        key = hmac.digest(salted, b"Client Key", kind)
        signature = hmac.digest(hashlib.new(kind, key).digest(), signed, kind)
        proof = bytes(ours ^ theirs for ours, theirs in zip(key, signature, strict=True))
        response = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
        wanted = hmac.digest(hmac.digest(salted, b"Server Key", kind), signed, kind)
        shown = _attributes(response).get("v", "")
        if not hmac.compare_digest(shown.encode(), base64.b64encode(wanted)):
            raise self._failure("the broker did not prove that it knows the password")

    def _failure(self, reason: str) -> ClientError:
        return ClientError(f"cannot authenticate with {self.mechanism}: {reason}")

    def refused(self, address: str, reason: str | None) -> ClientError:
        """The error if the broker rejects the name or password."""
        if self.mechanism == OAUTHBEARER:
            return ClientError(
                f"{address} rejected the token: {reason or 'authentication failed'}",
                hint=login_hint(reason or "", TOKEN_HINT),
            )
        return ClientError(
            f"{address} rejected user {self.username} ({self.mechanism}): "
            f"{reason or 'authentication failed'}",
            hint=login_hint(
                reason or "",
                f"check name and password: option {self.prefix}sasl.jaas.config, or "
                f"{self.prefix}sasl.username and {self.prefix}sasl.password",
            ),
        )


def _attributes(message: bytes) -> dict[str, str]:
    parts = bytes(message).decode("utf-8", "replace").split(",")
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


def parse_sasl(given: Mapping[str, str], prefix: str = "") -> Sasl:
    """Parse `sasl.*` options. Raises InvalidArgumentError, without secrets."""
    named = given.get("sasl.mechanism") or given.get("sasl.mechanisms")
    # The default of Kafka's own clients.
    mechanism = (named or "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        said = "" if named else ", the default"
        raise InvalidArgumentError(
            f"option {prefix}sasl.mechanism is {mechanism}{said}, which is not supported here",
            hint=f"supported are {', '.join(MECHANISMS)}",
        )
    if mechanism == OAUTHBEARER:
        return _parse_token(given, prefix)
    username, password = given.get("sasl.username"), given.get("sasl.password")
    text = given.get("sasl.jaas.config")
    if text:
        username, password = _parse_jaas(text, mechanism, f"{prefix}sasl.jaas.config")
    if not username or password is None:
        raise InvalidArgumentError(
            f"option {prefix}sasl.jaas.config is missing: {mechanism} needs a name and a password",
            hint=f"or set {prefix}sasl.username and {prefix}sasl.password",
        )
    return Sasl(mechanism=mechanism, username=username, password=password, prefix=prefix)


def _parse_token(given: Mapping[str, str], prefix: str) -> Sasl:
    token = given.get(TOKEN, "")
    if not token:
        raise InvalidArgumentError(
            f"option {prefix}{TOKEN} is missing: this client does not fetch tokens",
            hint=f"set {prefix}{TOKEN}, or use another mechanism: {', '.join(MECHANISMS[:-1])}",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgumentError(f"option {prefix}{TOKEN} is not a token")
    return Sasl(mechanism=OAUTHBEARER, password=token, prefix=prefix)


def _parse_jaas(text: str, mechanism: str, option: str) -> tuple[str, str]:
    module = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
    example = (
        f'org.apache.kafka.common.security.{module} required username="NAME" password="PASSWORD";'
    )
    found = _JAAS.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"option {option} cannot be parsed", hint=f"write {example}")
    if not found["module"].endswith(module):
        raise InvalidArgumentError(
            f"option {option} names the login module {found['module']}, "
            f"but the mechanism is {mechanism}",
            hint=f"write {example}",
        )
    options: dict[str, str] = {}
    left = found["options"]
    while left.strip():
        part = _JAAS_OPTION.match(left)
        if part is None:
            raise InvalidArgumentError(f"option {option} cannot be parsed", hint=f"write {example}")
        options[part["name"]] = _unquoted(part["value"])
        left = left[part.end() :]
    if options.get("tokenauth", "false").lower() == "true":
        raise InvalidArgumentError(f"option {option}: delegation tokens are not supported")
    if not options.get("username") or "password" not in options:
        raise InvalidArgumentError(
            f"option {option} lacks username or password", hint=f"write {example}"
        )
    return options["username"], options["password"]


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)

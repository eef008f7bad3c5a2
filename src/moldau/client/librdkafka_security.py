"""Security options in the names of librdkafka, from those of Kafka's Java clients.

librdkafka's own names are passed on unchanged, so that everything it can do stays possible. If a
name is used that only Java clients know, all of them are parsed here and translated.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from moldau.client.sasl import OAUTHBEARER, TOKEN, Sasl
from moldau.client.security import HOST_CHECK, OPTIONS, PROTOCOL, Security, Tls, parse_security

_OF_JAVA: Final = (
    *("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    *("ssl.keystore.type", "ssl.enabled.protocols", TOKEN),
)
"""Names, and prefixes of names, that librdkafka rejects."""
_CONSUMED: Final = (
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("ssl.keystore.location", "ssl.keystore.password", HOST_CHECK, PROTOCOL),
)
"""Names of librdkafka that the parser understands, too."""


_FILES: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)
_OTHER_KEYS: Final = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.", "ssl.engine.")
"""Other ways to set a certificate or its key, which may be one half of a pair."""


def security_of(properties: Mapping[str, Any]) -> Security:
    """The security options among the properties of a Kafka client; names that only librdkafka may
    know are left to it. Raises InvalidArgumentError."""
    given = {
        name: str(value)
        for name, value in properties.items()
        if name in OPTIONS or name.startswith(_OF_JAVA)
    }
    return parse_security(given)


def for_librdkafka(properties: Mapping[str, Any]) -> dict[str, Any]:
    """All properties, with security options as librdkafka wants them.

    Raises InvalidArgumentError.
    """
    if not any(name.startswith(_OF_JAVA) for name in properties):
        _check_files(properties)
        return dict(properties)
    left = {
        name: value
        for name, value in properties.items()
        if name not in _CONSUMED and not name.startswith(_OF_JAVA)
    }
    return left | librdkafka_names(security_of(properties))


def _check_files(properties: Mapping[str, Any]) -> None:
    """Before librdkafka, which reports a wrong file in the words of OpenSSL.

    Raises InvalidArgumentError.
    """
    given = {name: str(properties[name]) for name in _FILES if properties.get(name)}
    authorities = given.get("ssl.ca.location", "")
    if authorities and (authorities == "probe" or Path(authorities).is_dir()):
        del given["ssl.ca.location"]
    if any(name.startswith(_OTHER_KEYS) for name in properties):
        given.pop("ssl.certificate.location", None)
        given.pop("ssl.key.location", None)
    if given and str(properties.get(PROTOCOL, "")).upper().endswith("SSL"):
        parse_security({**given, PROTOCOL: "SSL"})


def librdkafka_names(security: Security) -> dict[str, Any]:
    """Parsed options by librdkafka's names; empty for plain text."""
    tls, sasl = security.tls, security.sasl
    if tls is None and sasl is None:
        return {}
    protocol = "SSL" if tls is not None else "PLAINTEXT"
    found = {PROTOCOL: protocol if sasl is None else f"SASL_{protocol}"}
    return found | ({} if tls is None else _of_tls(tls)) | ({} if sasl is None else _of_sasl(sasl))


def _of_tls(tls: Tls) -> dict[str, str]:
    given = {
        HOST_CHECK: "https" if tls.checks_host else "none",
        "ssl.ca.pem": tls.authorities,
        "ssl.certificate.pem": tls.chain,
        "ssl.key.pem": tls.key,
        "ssl.key.password": tls.key_password,
    }
    return {name: value for name, value in given.items() if value}


def _of_sasl(sasl: Sasl) -> dict[str, Any]:
    if sasl.mechanism == OAUTHBEARER:
        return {"sasl.mechanism": OAUTHBEARER, "oauth_cb": FixedToken(sasl.password)}
    return {
        "sasl.mechanism": sasl.mechanism,
        "sasl.username": sasl.username,
        "sasl.password": sasl.password,
    }


class FixedToken:
    """librdkafka asks for a token with a callback. The repr never shows it."""

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token = token
        self._now = now

    def __call__(self, config: str) -> tuple[str, float]:
        # The broker knows when it expires; librdkafka asks again before this time.
        return self._token, self._now() + _TOKEN_SECONDS

    def __repr__(self) -> str:
        return "<FixedToken>"


_TOKEN_SECONDS: Final = 3600.0

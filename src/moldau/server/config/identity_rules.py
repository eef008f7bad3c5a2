"""What the settings of users, certificates and identity providers need to make sense."""

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from moldau.security.certificate_names import CertificateNames
from moldau.security.principal import parse_principal
from moldau.server.config.security_schema import SecurityConfig

_NEEDED = ("oidc_jwks_url", "oidc_issuer", "oidc_audience")


def parse_https_url(url: str) -> SplitResult:
    """Raises ValueError with what is wrong."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise ValueError("must be an https:// address")
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError("must not have spaces or other special characters")
    if not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError("must be https://host[:port]/path, without a user or a fragment")
    # Raises ValueError for a port that is not a number.
    _ = parts.port
    return parts


def identity_problems(security: SecurityConfig) -> Iterator[tuple[str, str, str]]:
    """Setting, reason and hint."""
    try:
        CertificateNames(security.principal_mapping or "DEFAULT")
    except ValueError as error:
        yield "security.principal_mapping", f"is not valid: {error}", ""
    for text in security.super_user_list:
        if re.search(r",\s*user:", text, re.IGNORECASE):
            # A comma alone may be part of the subject of a certificate: User:CN=ann,O=Example.
            hint = "separate users by semicolons: User:alice;User:bob"
            yield "security.super_users", "has a comma between two users", hint
        try:
            parse_principal(text)
        except ValueError as error:
            yield "security.super_users", f"is not valid: {error}", ""
    yield from _provider_problems(security)


def _provider_problems(security: SecurityConfig) -> Iterator[tuple[str, str, str]]:
    missing = [name for name in _NEEDED if not getattr(security, name)]
    # OAUTHBEARER does without a provider: the broker has login tokens of its own.
    is_wanted = len(missing) < len(_NEEDED)
    if is_wanted and missing:
        for name in missing:
            yield f"security.{name}", "is needed to check tokens", "see security.oidc_jwks_url"
        return
    if not is_wanted:
        return
    try:
        parse_https_url(security.oidc_jwks_url or "")
    except ValueError as error:
        yield "security.oidc_jwks_url", str(error), ""
    # Imported here: it loads the libraries for signatures.
    from moldau.security.jwt import ALGORITHMS

    unknown = [name for name in security.oidc_algorithm_list if name not in ALGORITHMS]
    if unknown or not security.oidc_algorithm_list:
        yield "security.oidc_algorithms", f"must be of {', '.join(ALGORITHMS)}", ""

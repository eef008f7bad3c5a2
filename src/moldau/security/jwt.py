"""Checks the bearer tokens of OAUTHBEARER and OIDC: signed JSON web tokens (RFC 7519, RFC 8725).

Pure: keys and time are passed in. Only signatures by public keys are accepted, with algorithms
that the configuration names: a token decides neither the key nor the algorithm that it is checked
with, and no address in it is followed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jwt
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from msgspec import Struct

from moldau.security.principal import Principal, authenticated_user
from moldau.security.sasl import AuthenticationError

TOKEN_BYTES_MAX: Final = 16 * 1024
KEYS_MAX: Final = 100
"""Keys of one issuer: publishing more is a mistake, and each is parsed."""
INVALID_TOKEN: Final = "Authentication failed: the token is not valid"
_RSA_BITS_MIN: Final = 2048
_RSA_BITS_MAX: Final = 8192
"""A signature with a larger one would keep the event loop busy."""

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_KEYS: Final = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Type and curve of a public key, and the algorithms that it may be used with."""
_PARSERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}
ALGORITHMS: Final = tuple(name for names in _OF_KEYS.values() for name in names)
"""All that can be configured; never `none`, and none with a shared secret."""


class UnknownKeyError(AuthenticationError):
    """The issuer may have new keys: fetch them, not too often, and check the token again."""


class TokenRules(Struct, frozen=True, kw_only=True):
    """Which tokens are accepted. Raises ValueError."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    principal_claim: str = "sub"
    """The claim that is the name of the user."""
    clock_skew_seconds: float = 30

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience or not self.principal_claim:
            raise ValueError("tokens need an issuer, an audience, and a claim that names the user")
        for name in self.algorithms or ("",):
            if name not in ALGORITHMS:
                raise ValueError(f"algorithm {name!r} must be one of {', '.join(ALGORITHMS)}")
        if not 0 <= self.clock_skew_seconds <= 600:
            raise ValueError("the clock skew must be 0 to 600 seconds")


class PublicKey(Struct, frozen=True):
    """One key of an issuer."""

    id: str | None
    algorithms: tuple[str, ...]
    key: Any

    def __repr__(self) -> str:
        return f"PublicKey(id={self.id!r}, algorithms={self.algorithms})"


class VerifiedToken(Struct, frozen=True):
    principal: Principal
    expires_at_ms: int


def parse_keys(document: object) -> tuple[PublicKey, ...]:
    """The usable public keys of a JSON web key set. Raises ValueError.

    Keys that are not for signatures, or of a kind that is not known here, are left out: an issuer
    may publish keys for others, too.
    """
    found = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ValueError("a set of keys is a JSON object with a list 'keys'")
    if len(found) > KEYS_MAX:
        raise ValueError(f"the set has {len(found)} keys, the limit is {KEYS_MAX}")
    return tuple(key for each in found if (key := _parse_key(each)) is not None)


def check_token(
    token: str, keys: Sequence[PublicKey], rules: TokenRules, now_seconds: float
) -> VerifiedToken:
    """Raises AuthenticationError; UnknownKeyError if the token names a key that is not there."""
    if len(token.encode(errors="replace")) > TOKEN_BYTES_MAX:
        raise _invalid(f"a token of more than {TOKEN_BYTES_MAX} bytes")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise _invalid(f"not a signed token ({type(error).__name__})") from None
    algorithm = header.get("alg")
    if algorithm not in rules.algorithms:
        raise _invalid(f"algorithm {_shown(algorithm)}, but {', '.join(rules.algorithms)} expected")
    if "crit" in header or "b64" in header:
        # Extensions that the token demands and nobody here knows.
        raise _invalid("a token with critical extensions")
    key = _key_for(header.get("kid"), algorithm, keys)
    try:
        claims = jwt.decode(
            token,
            key.key,
            # Not the token's choice: one that is configured, and fits the key.
            algorithms=[name for name in key.algorithms if name in rules.algorithms],
            audience=rules.audience,
            issuer=rules.issuer,
            options={
                "require": ["exp", "iss", "aud", rules.principal_claim],
                # By the time that is passed in, below.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(f"{type(error).__name__} of a token of {_shown(rules.issuer)}") from None
    expires = _check_times(claims, rules.clock_skew_seconds, now_seconds)
    name = claims[rules.principal_claim]
    if not isinstance(name, str):
        raise _invalid(f"claim {rules.principal_claim} is not a text")
    try:
        principal = authenticated_user(name)
    except ValueError as error:
        raise _invalid(f"claim {rules.principal_claim}: {error}") from None
    return VerifiedToken(principal, int(expires * 1000))


def _check_times(claims: Mapping[str, object], skew: float, now: float) -> float:
    """When the token expires, with the skew."""
    expires = _time(claims, "exp") + skew
    if now >= expires:
        raise _invalid("a token that has expired")
    for name in ("nbf", "iat"):
        if name in claims and _time(claims, name) - skew > now:
            raise _invalid(f"a token that is not valid yet, by its {name}")
    return expires


def _time(claims: Mapping[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"claim {name} is not a number")
    if not 0 <= value <= 2**40 or not math.isfinite(value):
        raise _invalid(f"claim {name} is not a time")
    return value


def _key_for(key_id: object, algorithm: str, keys: Sequence[PublicKey]) -> PublicKey:
    fitting = [key for key in keys if algorithm in key.algorithms]
    if key_id is None:
        # Only where there is no choice: trying all keys would multiply the work.
        if len(fitting) == 1:
            return fitting[0]
        raise _invalid(f"a token that names no key, and {len(fitting)} keys that might fit")
    for key in fitting:
        if key.id == key_id:
            return key
    raise UnknownKeyError(INVALID_TOKEN, reason=f"a token of the unknown key {_shown(key_id)}")


def _parse_key(jwk: object) -> PublicKey | None:
    if not isinstance(jwk, Mapping) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        # With "d" it is private: who publishes that proves nothing with it.
        return None
    kind, curve = jwk.get("kty"), jwk.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    algorithms = _OF_KEYS.get((kind, None if kind == "RSA" else curve))
    if algorithms is None:
        return None
    pinned = jwk.get("alg")
    if pinned is not None:
        algorithms = tuple(name for name in algorithms if name == pinned)
    try:
        key = _PARSERS[kind](dict(jwk))
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if kind == "RSA" and not _RSA_BITS_MIN <= key.key_size <= _RSA_BITS_MAX:
        return None
    key_id = jwk.get("kid")
    if not algorithms or not isinstance(key_id, str | None):
        return None
    return PublicKey(key_id, algorithms, key)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _invalid(reason: str) -> AuthenticationError:
    return AuthenticationError(INVALID_TOKEN, reason=f"bearer token: {reason}")

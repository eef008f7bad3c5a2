"""Bearer tokens: those of the issuer for this cluster, now; and every known trick is refused."""

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from msgspec.structs import replace

from moldau.security.jwt import (
    ALGORITHMS,
    PublicKey,
    TokenRules,
    UnknownKeyError,
    VerifiedToken,
    check_token,
    parse_keys,
)
from moldau.security.principal import user
from moldau.security.sasl import AuthenticationError

NOW = 1_700_000_000.0
RULES = TokenRules(issuer="https://id.example", audience="moldau", algorithms=ALGORITHMS)
CLAIMS = {"iss": "https://id.example", "aud": "moldau", "sub": "alice", "exp": NOW + 600}


@cache
def private(kind: str) -> Any:
    """Keys are slow to make: one of each kind."""
    if kind in ("rsa", "other rsa"):
        return rsa.generate_private_key(65537, 2048)
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curves: dict[str, ec.EllipticCurve] = {
        "p256": ec.SECP256R1(),
        "p384": ec.SECP384R1(),
        "p521": ec.SECP521R1(),
    }
    return ec.generate_private_key(curves[kind])


def jwk(kind: str, **fields: object) -> dict[str, Any]:
    public = private(kind).public_key()
    parser: Any = RSAAlgorithm if "rsa" in kind else OKPAlgorithm if "ed" in kind else ECAlgorithm
    return {**parser.to_jwk(public, as_dict=True), "kid": kind, "use": "sig", **fields}


def keys(*kinds: str) -> tuple[PublicKey, ...]:
    return parse_keys({"keys": [jwk(kind) for kind in kinds or ("rsa", "p256")]})


def signed(
    algorithm: str = "RS256",
    kind: str = "rsa",
    headers: dict[str, object] | None = None,
    **claims: object,
) -> str:
    """None leaves a claim or a header out."""
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    named = {"kid": kind, **(headers or {})}
    return pyjwt.encode(
        given,
        private(kind),
        algorithm=algorithm,
        headers={name: value for name, value in named.items() if value is not None},
    )


def check(token: str, rules: TokenRules = RULES, now: float = NOW) -> VerifiedToken:
    return check_token(token, keys(), rules, now)


def reason(token: str, rules: TokenRules = RULES, now: float = NOW) -> str:
    with pytest.raises(AuthenticationError) as caught:
        check(token, rules, now)
    assert str(caught.value) == "Authentication failed: the token is not valid"
    assert caught.value.__cause__ is None
    return caught.value.reason


def raw(header: dict[str, object], claims: dict[str, object], signature: bytes = b"") -> str:
    def part(value: object) -> str:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return f"{part(header)}.{part(claims)}.{part(signature)}"


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        ("RS256", "rsa"),
        ("RS512", "rsa"),
        ("PS256", "rsa"),
        ("ES256", "p256"),
        ("ES384", "p384"),
        ("ES512", "p521"),
        ("EdDSA", "ed25519"),
    ],
)
def test_a_token_of_the_issuer_is_accepted(algorithm: str, kind: str):
    found = check_token(signed(algorithm, kind), keys(kind), RULES, NOW)
    assert found == VerifiedToken(user("alice"), int((NOW + 630) * 1000))


def test_a_token_without_a_signature_is_refused():
    for name in ("none", "None", "NONE", "nOnE", "", None):
        token = raw({"alg": name, "kid": "rsa"}, CLAIMS)
        assert "algorithm" in reason(token)
    assert reason(raw({"kid": "rsa"}, CLAIMS))
    # Nor can it be configured.
    for name in ("none", "HS256", "HS512", ""):
        with pytest.raises(ValueError, match="must be one of"):
            replace(RULES, algorithms=("RS256", name))
    with pytest.raises(ValueError):
        replace(RULES, algorithms=())


def test_a_public_key_is_no_shared_secret():
    """Key confusion: the token is signed by HMAC, with the public key that everyone knows."""
    public = private("rsa").public_key()
    formats = (
        (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        (serialization.Encoding.PEM, serialization.PublicFormat.PKCS1),
    )
    secrets = [public.public_bytes(*each) for each in formats]
    secrets.append(json.dumps(jwk("rsa")).encode())
    for secret in secrets:
        for algorithm, digest in (("HS256", "sha256"), ("HS512", "sha512")):
            unsigned = raw({"alg": algorithm, "kid": "rsa"}, CLAIMS).rpartition(".")[0]
            signature = hmac.digest(secret, unsigned.encode(), digest)
            token = f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
            assert "algorithm" in reason(token)


def test_a_shared_secret_among_the_keys_is_left_out():
    secret = base64.urlsafe_b64encode(b"k" * 32).decode()
    found = parse_keys({"keys": [{"kty": "oct", "k": secret, "kid": "o"}, jwk("rsa")]})
    assert [key.id for key in found] == ["rsa"]


def test_the_algorithm_must_fit_the_key():
    token = signed("ES256", "p256", {"kid": "rsa"})
    with pytest.raises(UnknownKeyError):
        check(token)
    # A key that is pinned to one algorithm is not used with another one.
    pinned = parse_keys({"keys": [jwk("rsa", alg="RS512")]})
    with pytest.raises(UnknownKeyError):
        check_token(signed("RS256"), pinned, RULES, NOW)
    check_token(signed("RS512"), pinned, RULES, NOW)
    for wrong in ("HS256", "none", "ES256", 1):
        assert parse_keys({"keys": [jwk("rsa", alg=wrong)]}) == ()


def test_only_configured_algorithms_are_accepted():
    only = replace(RULES, algorithms=("ES256",))
    assert "algorithm 'RS256', but ES256 expected" in reason(signed(), only)
    assert check(signed("ES256", "p256"), only)


def test_a_token_for_another_audience_is_refused():
    for audience in ("other", "moldau2", "MOLDAU", "", [], ["other"], None, 5, {"moldau": 1}):
        assert reason(signed(aud=audience))
    assert check(signed(aud=["other", "moldau"]))


def test_a_token_of_another_issuer_is_refused():
    for issuer in ("https://evil.example", "https://id.example/", "HTTPS://id.example", "", None):
        assert reason(signed(iss=issuer))


def test_a_token_signed_by_another_key_is_refused():
    assert "InvalidSignature" in reason(signed(kind="other rsa", headers={"kid": "rsa"}))
    with pytest.raises(UnknownKeyError):
        check(signed(kind="other rsa"))


def test_a_token_brings_no_key_and_no_address_along():
    theirs = jwk("other rsa")
    for header in (
        {"jwk": theirs},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["MIIB"]},
    ):
        token = signed(kind="other rsa", headers={**header, "kid": "rsa"})
        assert "InvalidSignature" in reason(token)


@pytest.mark.parametrize("kid", ["../../dev/null", "' OR 1=1", "", 5, ["rsa"], {"rsa": 1}])
def test_a_key_is_found_by_its_exact_id(kid: object):
    header = {"alg": "RS256", "kid": kid}
    with pytest.raises(AuthenticationError):
        check(raw(header, CLAIMS, b"x" * 256))


def test_a_token_may_name_no_key_if_there_is_one():
    token = signed(headers={"kid": None})
    single = keys("rsa")
    unnamed = tuple(replace(key, id=None) for key in single)
    for found in (single, unnamed):
        assert check_token(token, found, RULES, NOW)
    both = parse_keys({"keys": [jwk("rsa"), jwk("other rsa")]})
    with pytest.raises(AuthenticationError, match="not valid"):
        check_token(token, both, RULES, NOW)
    with pytest.raises(AuthenticationError, match="not valid"):
        check_token(token, (), RULES, NOW)


def test_a_changed_token_is_refused():
    head, body, signature = signed().split(".")
    forged = base64.urlsafe_b64encode(json.dumps({**CLAIMS, "sub": "root"}).encode())
    assert "InvalidSignature" in reason(f"{head}.{forged.rstrip(b'=').decode()}.{signature}")
    for broken in (f"{head}.{body}.", f"{head}.{body}", f"{head}..{signature}", f".{body}.", "a.b"):
        assert reason(broken)
    flipped = ("A" if signature[10] != "A" else "B").join((signature[:10], signature[11:]))
    assert "InvalidSignature" in reason(f"{head}.{body}.{flipped}")


def test_time_is_what_is_passed_in():
    token = signed(exp=NOW + 600, nbf=NOW, iat=NOW)
    assert check(token, now=NOW)
    assert check(token, now=NOW - 30)
    assert "not valid yet" in reason(token, now=NOW - 31)
    assert check(token, now=NOW + 629)
    assert "expired" in reason(token, now=NOW + 630)
    exact = replace(RULES, clock_skew_seconds=0)
    assert "expired" in reason(token, exact, NOW + 600)
    assert "not valid yet" in reason(signed(iat=NOW + 1), exact)
    assert "not valid yet" in reason(signed(nbf=NOW + 1), exact)


@pytest.mark.parametrize("exp", [None, "never", True, -1, 10**30, [1], float("nan"), float("inf")])
def test_a_token_expires(exp: object):
    payload = {**CLAIMS, "exp": exp}
    if exp is None:
        del payload["exp"]
    # By hand: the library refuses to write some of them.
    unsigned = raw({"alg": "RS256", "kid": "rsa"}, payload).rpartition(".")[0]
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(unsigned.encode(), private("rsa"))
    assert reason(f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}")


@pytest.mark.parametrize(
    "name", ["", "*", "ANONYMOUS", "moldau-admin", "a\0b", " alice", "a" * 256, 5, None, ["alice"]]
)
def test_a_token_names_a_user_that_may_come_from_outside(name: object):
    rules = replace(RULES, principal_claim="preferred_username")
    assert reason(signed(preferred_username=name), rules)


def test_another_claim_can_name_the_user():
    rules = replace(RULES, principal_claim="preferred_username")
    assert check(signed(preferred_username="carol"), rules).principal == user("carol")


def test_critical_extensions_are_refused():
    assert reason(signed(headers={"crit": ["exp"], "exp": 1}))
    assert reason(signed(headers={"b64": False, "crit": ["b64"]}))


def test_hostile_tokens_are_refused_quickly():
    deep = base64.urlsafe_b64encode(b'{"a":' + b"[" * 8000).rstrip(b"=").decode()
    for token in (
        "",
        ".",
        "..",
        "...",
        "a" * 20_000,
        "é.é.é",
        "\0.\0.\0",
        "\ud800.a.b",
        f"{deep}.{deep}.AAAA",
        "e30.e30.e30",
        "bnVsbA.bnVsbA.",
        signed() + ".more.parts",
        signed(padding="x" * 16_000),
    ):
        assert reason(token)


@given(st.text(max_size=60), st.binary(max_size=60))
def test_nothing_else_is_a_token(text: str, data: bytes):
    encoded = base64.urlsafe_b64encode(data).decode()
    header = raw({"alg": "RS256", "kid": "rsa"}, {}).partition(".")[0]
    for token in (text, f"{encoded}.{encoded}.{encoded}", f"{header}.{encoded}.{encoded}"):
        assert reason(token)


def test_keys_that_cannot_be_used_are_left_out():
    small = rsa.generate_private_key(65537, 1024).public_key()
    weak = {**RSAAlgorithm.to_jwk(small, as_dict=True), "kid": "weak"}
    off_curve = {**jwk("p256"), "x": jwk("p256")["y"]}
    unusable: list[object] = [
        jwk("rsa", use="enc"),
        jwk("rsa", kty="DSA"),
        jwk("rsa", kid=5),
        jwk("rsa", n="!"),
        jwk("rsa", d="AQAB"),
        jwk("p256", crv="P-192"),
        jwk("p256", crv=["P-256"]),
        {**RSAAlgorithm.to_jwk(private("rsa"), as_dict=True), "kid": "private"},
        {"kty": "RSA"},
        {},
        None,
        "key",
        weak,
        off_curve,
    ]
    found = parse_keys({"keys": [*unusable, jwk("rsa")]})
    assert [key.id for key in found] == ["rsa"]
    assert "RSAPublicKey" not in repr(found)


@pytest.mark.parametrize("document", [None, [], "keys", {}, {"keys": None}, {"keys": "rsa"}])
def test_what_is_no_set_of_keys_is_an_error(document: object):
    with pytest.raises(ValueError):
        parse_keys(document)


def test_the_number_of_keys_is_bounded():
    with pytest.raises(ValueError, match="the limit is 100"):
        parse_keys({"keys": [{}] * 101})


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": ""},
        {"audience": ""},
        {"principal_claim": ""},
        {"clock_skew_seconds": -1},
        {"clock_skew_seconds": 3600},
        {"clock_skew_seconds": float("nan")},
    ],
)
def test_rules_that_let_too_much_in_are_refused(change: dict[str, Any]):
    with pytest.raises(ValueError):
        replace(RULES, **change)


def test_no_part_of_a_token_is_in_an_error():
    token = signed(kind="other rsa", headers={"kid": "rsa"})
    digest = hashlib.sha256(token.encode()).hexdigest()
    text = reason(token)
    for part in (*token.split("."), digest):
        assert part not in text

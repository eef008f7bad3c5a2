"""What decides who a client is: SASL messages, tokens, names of certificates, and ACLs."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from fuzz.parts import join, pair, split
from fuzz.target import Target, check
from moldau.model.errors import RefusedError
from moldau.security.acl import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    is_allowed,
)
from moldau.security.acl_checks import check_acl, check_filter
from moldau.security.authorizer import Authorizer
from moldau.security.certificate_names import CertificateNames
from moldau.security.jwt import TokenRules, check_token, parse_keys
from moldau.security.principal import parse_principal, user
from moldau.security.sasl import AuthenticationError, parse_oauthbearer, parse_plain
from moldau.security.scram import ScramMechanism, ScramServer, make_credential

_NOW: Final = 1_790_000_000
_PASSWORD: Final = b"secret"
_ITERATIONS: Final = 4096
_DECOY_KEY: Final = b"decoy"
_MECHANISM: Final = ScramMechanism.SHA_256


@cache
def _credential() -> Any:
    return make_credential(_PASSWORD, b"salt-of-alice", _ITERATIONS, _MECHANISM)


def _server() -> ScramServer:
    return ScramServer(
        _MECHANISM,
        find=lambda name: _credential() if name == "alice" else None,
        nonce="server",
        decoy_key=_DECOY_KEY,
    )


def _proof(first: bytes, reply: bytes, final: bytes) -> bytes:
    """What a client that knows the password would send."""
    salted = hashlib.pbkdf2_hmac("sha256", _PASSWORD, b"salt-of-alice", _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client_key).digest()
    signed = first[3:] + b"," + reply + b"," + final
    signature = hmac.digest(stored, signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return final + b",p=" + base64.b64encode(proof)


def _exchange_scram(data: bytes) -> None:
    """Nobody gets in without the password, whatever is sent; a third message never helps."""
    server = _server()
    try:
        for message in split(data)[:3]:
            server.step(message)
    finally:
        check(server.principal is None, "SCRAM let somebody in without the password")


def _prove_scram(data: bytes) -> None:
    """With a right proof over fuzzed messages: only alice gets in, and only as herself."""
    first, final = pair(data)
    server = _server()
    reply = server.step(first)
    try:
        server.step(_proof(first, reply, final))
    finally:
        if server.principal is not None:
            check(str(server.principal) == "User:alice", "SCRAM let alice in as somebody else")
            check(b"server" in final, "SCRAM accepted another nonce")


def _parse_messages(data: bytes) -> None:
    kind, message = data[:1], data[1:]
    if kind == b"p":
        parse_plain(message)
    else:
        parse_oauthbearer(message)


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    # Any private key does: only tokens that it signs are checked.
    return ec.derive_private_key(0x1234567890ABCDEF1234567890ABCDEF, ec.SECP256R1())


@cache
def _keys() -> Any:
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    document = json.loads(algorithm.to_jwk(_key().public_key()))
    return parse_keys({"keys": [{**document, "kid": "k"}]})


_RULES: Final = TokenRules(issuer="https://issuer", audience="moldau")


def _check_token(data: bytes) -> None:
    """Signed tokens with any header and claims, and texts that are no tokens."""
    if data[:1] == b"t":
        check_token(data[1:].decode("latin-1"), _keys(), _RULES, _NOW)
        check(False, "a token without a signature was accepted")
    header, claims = pair(data[1:])
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, claims))
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    signature = algorithm.sign(signed, _key())
    token = signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    found = check_token(token.decode(), _keys(), _RULES, _NOW)
    check(found.expires_at_ms > (_NOW - 60) * 1000, "an expired token was accepted")
    said = json.loads(claims)
    check(said["iss"] == _RULES.issuer, "a token of another issuer was accepted")
    audience = said["aud"]
    check(
        _RULES.audience in ([audience] if isinstance(audience, str) else audience),
        "a token for another audience was accepted",
    )


def _parse_keys(data: bytes) -> None:
    parse_keys(json.loads(data))


def _map_names(data: bytes) -> None:
    rules, subject = pair(data)
    try:
        names = CertificateNames(rules.decode(errors="replace"))
    except ValueError:
        return
    names.principal(subject.decode(errors="replace"))


def _acl(part: bytes) -> Acl:
    """Four numbers, then three texts."""
    kind, pattern, operation, permission = part[:4].ljust(4, b"\0")
    texts = [text.decode(errors="replace") for text in part[4:].split(b"\0")] + [""] * 3
    return Acl(
        list(ResourceType)[kind % len(ResourceType)],
        texts[0],
        list(PatternType)[pattern % len(PatternType)],
        texts[1],
        texts[2],
        list(Operation)[operation % len(Operation)],
        list(Permission)[permission % len(Permission)],
    )


def _authorize(data: bytes) -> None:
    """Checked rules are indexed; the index decides as the plain rules do."""
    parts = split(data)[:12]
    if len(parts) < 2:
        return
    asked = _acl(parts[0])
    acls = []
    for part in parts[1:]:
        acl = _acl(part)
        check_acl(acl)
        acls.append(acl)
    acl_filter = AclFilter(
        asked.resource_type, asked.resource_name or None, asked.pattern_type, asked.principal
    )
    check_filter(acl_filter)
    acl_filter.find(frozenset(acls))
    try:
        principal = parse_principal(asked.principal)
    except ValueError:
        principal = user("alice")
    resource = Resource(asked.resource_type, asked.resource_name)
    authorizer = Authorizer(acls, frozenset())
    for host in (asked.host, "10.0.0.1"):
        expected = is_allowed(acls, str(principal), host, asked.operation, resource)
        for _ in range(2):
            allowed = authorizer.allows(principal, host, asked.operation, resource)
            check(allowed == expected, "the index of rules decides otherwise than the rules")
        if expected:
            some = authorizer.allows_any(principal, host, asked.operation, asked.resource_type)
            check(some, "one resource is allowed, but not any")


_FIRST: Final = b"n,,n=alice,r=client"
_FINAL: Final = b"c=biws,r=clientserver"


def _scram_seeds() -> Iterator[tuple[str, bytes]]:
    wrong = base64.b64encode(bytes(32))
    yield "wrong", join([_FIRST, _FINAL + b",p=" + wrong])
    yield "unknown", join([b"n,,n=bob,r=client", _FINAL + b",p=" + wrong])
    yield "authzid", join([b"n,a=alice,n=alice,r=client", b"c=bixhPWFsaWNlLA==,r=clientserver"])


def _token_seeds() -> Iterator[tuple[str, bytes]]:
    header = json.dumps({"alg": "ES256", "typ": "JWT", "kid": "k"}).encode()
    claims = {"iss": "https://issuer", "aud": "moldau", "sub": "alice", "exp": _NOW + 60}
    yield "good", b"s" + join([header, json.dumps(claims).encode()])
    yield "list", b"s" + join([header, json.dumps({**claims, "aud": ["x", "moldau"]}).encode()])
    yield "expired", b"s" + join([header, json.dumps({**claims, "exp": 1}).encode()])
    yield "none", b"teyJhbGciOiJub25lIn0.e30."


def _jwk_seeds() -> Iterator[tuple[str, bytes]]:
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    document = json.loads(algorithm.to_jwk(_key().public_key()))
    yield "ec", json.dumps({"keys": [{**document, "kid": "k", "use": "sig"}]}).encode()
    yield "rsa", b'{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"r"}]}'


def _acl_seeds() -> Iterator[tuple[str, bytes]]:
    names = [kind.name for kind in ResourceType]
    topic = names.index("TOPIC")
    literal = [pattern.name for pattern in PatternType].index("LITERAL")
    prefixed = [pattern.name for pattern in PatternType].index("PREFIXED")
    read = [operation.name for operation in Operation].index("READ")
    deny = [permission.name for permission in Permission].index("DENY")
    allow = [permission.name for permission in Permission].index("ALLOW")
    asked = bytes((topic, literal, read, allow)) + b"ab\0User:alice\x0010.0.0.1"
    allowed = bytes((topic, prefixed, read, allow)) + b"a\0User:*\0*"
    denied = bytes((topic, literal, read, deny)) + b"ab\0User:alice\x0010.0.0.0/8"
    yield "allowed", join([asked, allowed])
    yield "denied", join([asked, allowed, denied])


TARGETS: Final = [
    Target(
        name="security-scram",
        about="SCRAM without the password",
        run=_exchange_scram,
        allowed=(AuthenticationError,),
        seeds=_scram_seeds,
        bytes_max=1024,
    ),
    Target(
        name="security-proofs",
        about="SCRAM with a right proof over fuzzed messages",
        run=_prove_scram,
        allowed=(AuthenticationError,),
        seeds=lambda: {"alice": join([_FIRST, _FINAL])},
        bytes_max=512,
    ),
    Target(
        name="security-sasl",
        about="PLAIN and OAUTHBEARER messages",
        run=_parse_messages,
        allowed=(AuthenticationError,),
        seeds=lambda: {
            "plain": b"p\0alice\0secret",
            "bearer": b"on,,\x01auth=Bearer abc\x01\x01",
        },
        bytes_max=1024,
    ),
    Target(
        name="security-tokens",
        about="bearer tokens, signed and not",
        run=_check_token,
        allowed=(AuthenticationError,),
        seeds=_token_seeds,
        bytes_max=2048,
    ),
    Target(
        name="security-keys",
        about="key sets of issuers",
        run=_parse_keys,
        allowed=(ValueError, RecursionError),
        seeds=_jwk_seeds,
        bytes_max=2048,
    ),
    Target(
        name="security-certificates",
        about="names of certificates, by fuzzed rules",
        run=_map_names,
        allowed=(AuthenticationError,),
        seeds=lambda: {
            "default": join([b"DEFAULT", b"CN=alice,O=x"]),
            "rule": join([b"RULE:^CN=(.*?),.*$/$1/L,DEFAULT", b"CN=Alice,O=x"]),
        },
        bytes_max=1024,
    ),
    Target(
        name="security-acls",
        about="rules and filters, and what they decide",
        run=_authorize,
        allowed=(RefusedError,),
        seeds=_acl_seeds,
        bytes_max=1024,
    ),
]

"""Known class: a configured address that makes a server send requests for somebody else.

The one address that the broker asks on its own is that of an identity provider's keys. Clients
fetch no tokens, and so ask no other address than the brokers'.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from https_keys import IdentityProvider

from moldau.client.errors import ClientError
from moldau.client.http import call
from moldau.client.sasl import Sasl
from moldau.client.security import Security, parse_security
from moldau.security.jwt import TokenRules
from moldau.security.sasl import AuthenticationError
from moldau.server.clock import SystemClock
from moldau.server.config.load import InvalidConfigError, load_config
from moldau.server.jwks import Jwks, JwksError, JwksFetch
from moldau.server.oidc import OidcTokens
from moldau.spark.options import Options
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

METADATA = (
    "169.254.169.254",
    "[fe80::a9fe:a9fe]",
    "[::ffff:169.254.169.254]",
    # Other spellings of the first one, which resolvers understand.
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.16689662",
)
OIDC = {"security.oidc_issuer": "https://issuer.example", "security.oidc_audience": "moldau"}


@contextmanager
def witness() -> Iterator[tuple[str, list[str]]]:
    """A server inside, whose address an attacker knows; and the requests that it got."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(307 if self.path == "/from" else 200)
            self.send_header("Location", "/secrets")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/secrets", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path) as started:
        yield started


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/keys",
        "file:///etc/passwd",
        "ftp://127.0.0.1/keys",
        "gopher://127.0.0.1/keys",
        "jar:https://127.0.0.1/keys",
        "HTTP://127.0.0.1/keys",
        " https://127.0.0.1/keys",
        "https://trusted.example@127.0.0.1/keys",
        "https://127.0.0.1/keys#@trusted.example",
        "https://127.0.0.1/keys\r\nX-Injected: 1",
        "\\\\127.0.0.1\\keys",
    ],
)
def test_no_other_kind_of_address_is_accepted(url: str):
    """Neither when the broker starts, nor by what would ask there."""
    with pytest.raises(InvalidConfigError, match="oidc_jwks_url"):
        load_config({**OIDC, "security.oidc_jwks_url": url}, {})
    with pytest.raises(ValueError):
        JwksFetch(url, None)


@pytest.mark.parametrize("host", METADATA)
def test_services_of_the_machine_itself_are_not_asked(host: str):
    """They give credentials to whoever asks from the machine."""
    with pytest.raises(JwksError, match="link-local"):
        JwksFetch(f"https://{host}/latest/meta-data/", None).run()


def test_a_redirect_leads_nowhere(provider: IdentityProvider):
    """Not even to where the address could have been configured to."""
    with witness() as (inside, asked):
        provider.mode = "redirect"
        for target in (inside, "file:///etc/passwd", provider.url, "//169.254.169.254/"):
            provider.redirect_to = target
            with pytest.raises(JwksError, match="status 302"):
                JwksFetch(provider.url, str(provider.ca_file)).run()
        assert (asked, provider.requests) == ([], 4)


def test_the_environment_has_no_say(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch):
    """A proxy would see the requests, and could answer them."""
    with witness() as (inside, asked):
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "http_proxy"):
            monkeypatch.setenv(name, inside)
        assert JwksFetch(provider.url, str(provider.ca_file)).run()
        assert asked == []


async def test_a_token_names_no_address(provider: IdentityProvider):
    """`jku` and `x5u` say where the keys of a token are: where the attacker wants it."""
    with witness() as (inside, asked):
        keys = Jwks(provider.url, str(provider.ca_file), SystemClock())
        rules = TokenRules(
            issuer="https://issuer.example", audience="moldau", algorithms=("RS256",)
        )
        tokens = OidcTokens(rules, keys, SystemClock())
        stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        claims = {
            "sub": "alice",
            "iss": inside,
            "aud": "moldau",
            "exp": time.time() + 300,
        }
        for issuer in (inside, "https://issuer.example"):
            headers = {"kid": "unknown", "jku": inside, "x5u": inside}
            token = jwt.encode(
                {**claims, "iss": issuer}, stranger, algorithm="RS256", headers=headers
            )
            with pytest.raises(AuthenticationError):
                await tokens.check(token)
        await tokens.stop()
        assert asked == []


def test_a_client_follows_no_redirect_with_its_credentials():
    with witness() as (inside, asked):
        host, port = inside.removeprefix("http://").removesuffix("/secrets").split(":")
        known = Security(sasl=Sasl(mechanism="PLAIN", username="alice", password="secret"))
        found = call(
            host, int(port), "GET", "/from", None, seconds_max=wait_seconds_max(), security=known
        )
        assert (found.status, asked) == (307, ["/from"])


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://169.254.169.254/latest/", "https://127.0.0.1/token"]
)
def test_a_client_fetches_no_token_for_its_options(url: str):
    """Kafka's own clients do, and read files that way. Options of a stream may be somebody's."""
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.jwks.endpoint.url": url,
    }
    with pytest.raises(ClientError, match="unknown security option"):
        parse_security(options)
    with pytest.raises(ClientError, match="does not fetch tokens"):
        Options({f"kafka.{name}": value for name, value in options.items()}).security()

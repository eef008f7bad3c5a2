"""HTTP requests with TLS and credentials, against a real server."""

import base64
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from login_server import LoginServer, login_server
from secure_front import identity, server_context

from moldau.api.authentication import TOO_MANY, WRONG_TOKEN
from moldau.api.password_check import BUSY
from moldau.api.request_login import NEEDED
from moldau.client.cluster_client import ClusterClient, LoginReply, LoginRequest
from moldau.client.errors import ClientError, RejectedError, UnreachableError
from moldau.client.queue.rpc_failures import error_for
from moldau.client.security import parse_security, tls_context

pytestmark = pytest.mark.inprocess

SECRET = "pl4nted-s3cret"
CA = identity("tests' authority")
SERVER = identity("server", hosts=("localhost", "127.0.0.1"), signer=CA)
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": SECRET}
Serve = Callable[..., LoginServer]
TRUST = {"ssl.truststore.certificates": CA.pem}


@pytest.fixture
def as_python_3_13(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make = ssl.create_default_context

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = make(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*, tls: bool) -> LoginServer:
            context = server_context(SERVER, tmp_path) if tls else None
            return stack.enter_context(login_server(context, password=SECRET))

        yield start


def client(address: str, **properties: Any) -> ClusterClient:
    return ClusterClient([address], security=parse_security(properties))


def test_a_password_goes_along_as_basic_over_tls(serve: Serve) -> None:
    server = serve(tls=True)
    security = parse_security({"security.protocol": "SASL_SSL", **LOGIN, **TRUST})
    ClusterClient([f"localhost:{server.port}"], security=security).ready()
    pair = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert server.calls == [("/readyz", f"Basic {pair}")]


def test_an_authority_without_key_identifiers_is_trusted_by_every_python(
    serve: Serve, as_python_3_13: None
) -> None:
    server = serve(tls=True)
    security = {"security.protocol": "SASL_SSL", **LOGIN, **TRUST}
    client(f"localhost:{server.port}", **security).ready()


@pytest.mark.parametrize(
    ("properties", "token"),
    [
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t0ken"}, "t0ken"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": "moldau-admin", "sasl.password": "own"},
            "own",
        ),
    ],
)
def test_tokens_go_along_as_bearer(serve: Serve, properties: dict[str, str], token: str) -> None:
    server = serve(tls=False)
    security = parse_security({"security.protocol": "SASL_PLAINTEXT", **properties})
    ClusterClient([f"127.0.0.1:{server.port}"], security=security).ready()
    assert server.calls == [("/readyz", f"Bearer {token}")]


def test_the_scheme_of_an_address_decides_about_tls(serve: Serve) -> None:
    secure, plain = serve(tls=True), serve(tls=False)
    security = parse_security({"security.protocol": "SASL_SSL", **LOGIN, **TRUST})
    for address in (f"https://localhost:{secure.port}/", f"http://localhost:{plain.port}"):
        ClusterClient([address], security=security).ready()
    assert len(secure.calls) == len(plain.calls) == 1


def test_a_certificate_that_is_not_trusted_is_an_error(serve: Serve) -> None:
    server = serve(tls=True)
    with pytest.raises(ClientError, match="is not trusted"):
        client(f"https://localhost:{server.port}").ready()
    assert server.calls == []


def test_tls_to_a_plain_server_is_an_error(serve: Serve) -> None:
    with pytest.raises(ClientError, match="cannot encrypt the connection"):
        client(f"https://localhost:{serve(tls=False).port}").ready()


def test_nobody_is_sent_a_password_in_plain_text() -> None:
    security = parse_security({"security.protocol": "SASL_PLAINTEXT", **LOGIN})
    # An address of documentation (RFC 5737): nothing must be sent there.
    with pytest.raises(
        ClientError, match=r"will not send .* to 192\.0\.2\.1 without TLS"
    ) as caught:
        ClusterClient(["192.0.2.1:8080"], security=security, call_seconds_max=0.1).ready()
    assert not isinstance(caught.value, UnreachableError)
    assert SECRET not in f"{caught.value!r} {caught.value.hint}"


def test_without_credentials_the_error_says_what_to_do(serve: Serve) -> None:
    with pytest.raises(RejectedError, match="requires a valid user") as caught:
        client(f"127.0.0.1:{serve(tls=False).port}").ready()
    assert "sasl.username" in caught.value.hint


def test_a_login_gives_a_token(serve: Serve) -> None:
    address = f"127.0.0.1:{serve(tls=False).port}"
    assert client(address).login("ann", SECRET) == LoginReply("t0ken", 0)
    with pytest.raises(RejectedError):
        client(address).login("ann", "guessed")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Authentication failed: wrong user or password", "check name and password"),
        (TOO_MANY, "another program at this address"),
        (BUSY, "retry later"),
        (WRONG_TOKEN, "it may have expired"),
        (NEEDED, "pass security="),
    ],
)
def test_what_the_broker_says_about_a_refused_login_is_shown(
    serve: Serve, said: str, hint: str
) -> None:
    server = serve(tls=False)
    server.refusal = said
    with pytest.raises(RejectedError) as caught:
        client(f"127.0.0.1:{server.port}").login("ann", "guessed")
    assert said in str(caught.value)
    assert caught.value.hint.startswith(hint)
    # gRPC has the same text, and Kafka, too.
    assert error_for("UNAUTHENTICATED", said).hint == caught.value.hint


def test_no_password_leaves_this_machine_in_plain_text() -> None:
    with pytest.raises(ClientError, match="without TLS"):
        client("192.0.2.1:8080").login("ann", SECRET)


def test_messages_of_a_login_do_not_show_secrets() -> None:
    assert SECRET not in repr((LoginRequest("ann", SECRET), LoginReply(SECRET, 5)))


def test_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(ClientError, match="invalid address"):
        ClusterClient(["ftp://localhost:1"])

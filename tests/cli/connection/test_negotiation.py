"""The mechanism is the best that a listener has, and PLAIN only where it is safe."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from secure_front import SecureFront, identity, server_context

from moldau.cli.connection.negotiation import check_takes_tokens, chosen_mechanism
from moldau.cli.errors import CommandError
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

CA = identity("tests' authority")
SERVER = identity("server", hosts=("127.0.0.1",), signer=CA)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def front(
    request: pytest.FixtureRequest, tmp_path: Path, moldau_session_broker: Broker
) -> Iterator[tuple[SecureFront, Any]]:
    """A listener, and the properties of TLS for it."""
    (tmp_path / "ca.pem").write_text(CA.pem)
    context = server_context(SERVER, tmp_path) if request.param else None
    made = SecureFront(context, {"ann": "x"})
    made.target = ("127.0.0.1", moldau_session_broker.port)
    yield made, {"ssl.ca.location": str(tmp_path / "ca.pem")} if request.param else None
    made.close()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], "SCRAM-SHA-512"),
        (["PLAIN", "SCRAM-SHA-256"], "SCRAM-SHA-256"),
        (["PLAIN"], "PLAIN"),
        (["GSSAPI"], "SCRAM-SHA-512"),
    ],
)
def test_the_best_that_a_listener_has(
    front: tuple[SecureFront, Any], offered: list[str], chosen: str
) -> None:
    listener, tls = front
    listener.mechanisms = offered
    assert chosen_mechanism(listener.bootstrap, tls) == chosen


def test_plain_only_where_nobody_else_can_read_it(
    front: tuple[SecureFront, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, tls = front
    listener.mechanisms = ["PLAIN"]
    monkeypatch.setattr("moldau.cli.connection.negotiation.is_loopback", lambda host: False)
    expected = "SCRAM-SHA-512" if tls is None else "PLAIN"
    assert chosen_mechanism(listener.bootstrap, tls) == expected


def test_a_listener_without_tokens_is_named(front: tuple[SecureFront, Any]) -> None:
    listener, tls = front
    with pytest.raises(CommandError, match="does not accept tokens of moldau login") as caught:
        check_takes_tokens(listener.bootstrap, tls)
    assert "--user" in caught.value.hint
    listener.mechanisms = ["OAUTHBEARER"]
    check_takes_tokens(listener.bootstrap, tls)


def test_without_a_broker_it_is_the_default(
    nobody: str, moldau_session_broker: Broker, front: tuple[SecureFront, Any]
) -> None:
    assert chosen_mechanism(nobody, None) == "SCRAM-SHA-512"
    listener, tls = front
    listener.mechanisms = ["SCRAM-SHA-256"]
    assert chosen_mechanism(f"{nobody},{listener.bootstrap}", tls) == "SCRAM-SHA-256"

"""Connections with TLS and SASL, against a front that checks both: who comes in, and what is said
to those who do not."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from secure_front import SecureFront, identity, server_context

from moldau.client.errors import ClientError, UnreachableError
from moldau.client.security import parse_security
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse
from moldau.wire.registry import ApiKey

pytestmark = pytest.mark.inprocess

PASSWORD = 'a "=,; pässword'
CA = identity("tests' authority")
SERVER = identity("server", hosts=("localhost", "127.0.0.1"), signer=CA)
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": CA.pem}
NewFront = Callable[..., SecureFront]


@pytest.fixture
def new_front(scripted_broker: Any, tmp_path: Path) -> Iterator[NewFront]:
    scripted_broker.handlers[ApiKey.METADATA] = lambda request, version: MetadataResponse(
        brokers=[], topics=[], cluster_id="behind"
    )
    made: list[SecureFront] = []

    def make(
        *, tls: bool = True, sasl: bool = False, server: Any = SERVER, clients: Any = None
    ) -> SecureFront:
        front = SecureFront(
            server_context(server, tmp_path, clients) if tls else None,
            {"ann,b=c": PASSWORD} if sasl else None,
        )
        front.target = (scripted_broker.host, scripted_broker.port)
        made.append(front)
        return front

    yield make
    for front in made:
        front.close()


def jaas(mechanism: str, password: str = PASSWORD) -> str:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    quoted = password.replace('"', '\\"')
    return (
        f"org.apache.kafka.common.security.{module}LoginModule required "
        f'username="ann,b=c" password="{quoted}";'
    )


def with_sasl(mechanism: str, password: str = PASSWORD, protocol: str = "SASL_SSL") -> Any:
    return TRUST | {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, password),
    }


def ask(
    front: Any, properties: dict[str, str], host: str = "127.0.0.1", *, timeout: float = 5
) -> str | None:
    security = parse_security(properties, "kafka.")
    with KafkaConnection(host, front.port, security=security, timeout=timeout) as connection:
        return connection.request(MetadataRequest(topics=None), MetadataResponse).cluster_id


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_who_knows_the_password_comes_in(
    new_front: NewFront, mechanism: str, protocol: str
) -> None:
    front = new_front(tls=protocol == "SASL_SSL", sasl=True)
    assert ask(front, with_sasl(mechanism, protocol=protocol)) == "behind"
    assert front.logins == [f"{mechanism} ann,b=c"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls_alone_needs_only_a_certificate_that_is_trusted(new_front: NewFront, host: str) -> None:
    assert ask(new_front(), TRUST | {"security.protocol": "SSL"}, host) == "behind"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_reported_once_and_never_shown(
    new_front: NewFront, mechanism: str
) -> None:
    front = new_front(sasl=True)
    with pytest.raises(ClientError, match="rejected user ann,b=c") as caught:
        ask(front, with_sasl(mechanism, "guessed"))
    assert not isinstance(caught.value, UnreachableError), "it would be tried again"
    assert "kafka.sasl.jaas.config" in caught.value.hint
    assert "guessed" not in f"{caught.value!r} {caught.value.hint}"
    assert front.logins == []


def test_a_broker_that_does_not_know_the_password_is_not_believed(new_front: NewFront) -> None:
    front = new_front(sasl=True)
    front.forges_signatures = True
    with pytest.raises(ClientError, match="did not prove that it knows the password"):
        ask(front, with_sasl("SCRAM-SHA-256"))


def test_a_mechanism_that_the_broker_lacks_is_reported_with_those_that_it_has(
    new_front: NewFront,
) -> None:
    front = new_front(sasl=True)
    front.mechanisms = ["SCRAM-SHA-512"]
    with pytest.raises(ClientError, match=r"option kafka\.sasl\.mechanism") as caught:
        ask(front, with_sasl("PLAIN"))
    assert "it supports SCRAM-SHA-512" in caught.value.hint


def test_a_token_opens_as_well(new_front: NewFront) -> None:
    front = new_front(sasl=True)
    front.mechanisms = ["OAUTHBEARER"]
    given = TRUST | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    token = {"sasl.oauthbearer.token": base64.b64encode(PASSWORD.encode()).decode()}
    with pytest.raises(ClientError, match="rejected the token") as caught:
        ask(front, given | token)
    assert token["sasl.oauthbearer.token"] not in f"{caught.value!r} {caught.value.hint}"
    front._passwords = {"ann": token["sasl.oauthbearer.token"]}
    assert ask(front, given | token) == "behind"
    assert front.logins == ["OAUTHBEARER ann"]


def test_a_broker_that_takes_no_passwords_is_distinguished(scripted_broker: Any) -> None:
    del scripted_broker.served[ApiKey.SASL_HANDSHAKE]
    with pytest.raises(
        ClientError, match=r"does not support SASL.*option kafka\.security\.protocol"
    ):
        ask(scripted_broker, with_sasl("PLAIN", protocol="SASL_PLAINTEXT"))


def test_a_certificate_of_an_unknown_authority_is_not_trusted(new_front: NewFront) -> None:
    stranger = identity("stranger")
    trust = {"ssl.truststore.certificates": stranger.pem, "security.protocol": "SSL"}
    with pytest.raises(ClientError, match="is not trusted") as caught:
        ask(new_front(), trust)
    assert not isinstance(caught.value, UnreachableError)
    assert "kafka.ssl.truststore.certificates" in caught.value.hint


def test_a_certificate_of_another_host_is_refused_unless_names_are_not_checked(
    new_front: NewFront,
) -> None:
    front = new_front(server=identity("server", hosts=("elsewhere.example",), signer=CA))
    trust = TRUST | {"security.protocol": "SSL"}
    for host in ("localhost", "127.0.0.1"):
        with pytest.raises(ClientError, match="is for another host") as caught:
            ask(front, trust, host)
        assert "kafka.ssl.endpoint.identification.algorithm" in caught.value.hint
    assert ask(front, trust | {"ssl.endpoint.identification.algorithm": ""}) == "behind"


def test_a_plain_broker_that_is_asked_by_tls_names_the_option(scripted_broker: Any) -> None:
    with pytest.raises(ClientError, match=r"see option kafka\.security\.protocol"):
        ask(scripted_broker, TRUST | {"security.protocol": "SSL"}, timeout=0.3)


def test_a_broker_with_tls_that_is_asked_in_plain_text_names_the_option(
    new_front: NewFront,
) -> None:
    with pytest.raises(ClientError) as caught:
        ask(new_front(), {})
    assert "kafka.security.protocol" in caught.value.hint


def test_a_response_of_http_is_no_length_of_an_answer(scripted_broker: Any) -> None:
    """A listener with TLS is not asked in plain text before what it is."""
    page = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    scripted_broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: page
    with (
        pytest.raises(UnreachableError, match="is an HTTP listener") as caught,
        KafkaConnection("127.0.0.1", scripted_broker.port) as connection,
    ):
        connection.served_versions()
    assert "use the Kafka address" in caught.value.hint


def test_an_alert_of_tls_is_no_length_of_an_answer(scripted_broker: Any) -> None:
    alert = bytes([21, 3, 3, 0, 2, 2, 70])
    scripted_broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: alert
    with pytest.raises(ClientError, match="requires TLS") as caught:
        ask(scripted_broker, {})
    assert not isinstance(caught.value, UnreachableError)
    assert "kafka.security.protocol" in caught.value.hint


def test_a_broker_that_asks_for_a_certificate_gets_it(new_front: NewFront) -> None:
    front = new_front(clients=CA)
    own = identity("client", signer=CA)
    properties = TRUST | {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": own.pem,
        "ssl.keystore.key": own.key_pem,
    }
    assert ask(front, properties) == "behind"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_without_the_required_certificate_gets_the_options_that_set_it(
    new_front: NewFront, version: str
) -> None:
    properties = {"security.protocol": "SSL", "ssl.enabled.protocols": version}
    with pytest.raises(ClientError) as caught:
        ask(new_front(clients=CA), TRUST | properties)
    assert "kafka.ssl.keystore.location" in caught.value.hint
    if version == "TLSv1.2":
        # Later ones tell after the handshake, and what they tell may be lost as they hang up.
        assert "rejected the TLS handshake" in str(caught.value)


def test_a_login_that_ends_soon_is_renewed(new_front: NewFront) -> None:
    front = new_front(sasl=True)
    front.lifetime_ms = 1
    security = parse_security(with_sasl("SCRAM-SHA-256"))
    with KafkaClient(front.bootstrap, security=security) as client:
        for _ in range(3):
            assert client.cluster_id() == "behind"
            time.sleep(0.005)
    assert len(front.logins) == 3
    front.lifetime_ms = 3_600_000
    front.logins.clear()
    with KafkaClient(front.bootstrap, security=security) as client:
        for _ in range(3):
            client.cluster_id()
    assert len(front.logins) == 1

"""Clients on librdkafka with TLS and SASL: who comes in, and what those are told who do not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from secure_front import SecureFront, identity, server_context

from moldau import Admin, Consumer, Producer
from moldau.client.errors import ClientError, TimedOutError, UnreachableError
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

PASSWORD = "pl4nted-s3cret"
CA = identity("tests' authority")
SERVER = identity("server", hosts=("127.0.0.1",), signer=CA)
JAAS = (
    "org.apache.kafka.common.security.{module}LoginModule required "
    'username="ann" password="{password}";'
)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[SecureFront]:
    """Before a broker that sends all clients to it."""
    front = SecureFront(server_context(SERVER, tmp_path), {"ann": PASSWORD})
    front.mechanisms.append("OAUTHBEARER")
    with Broker(settings={"KAFKA__ADVERTISED": front.bootstrap}) as broker, closing(front):
        front.target = ("127.0.0.1", broker.port)
        yield front


def security(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    found = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "ssl.truststore.certificates": CA.pem,
    }
    if mechanism == "OAUTHBEARER":
        return found | {"sasl.oauthbearer.token": password}
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return found | {"sasl.jaas.config": JAAS.format(module=module, password=password)}


def test_all_clients_log_in_by_names_of_java_clients(front: SecureFront) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        topic, given = f"t-{mechanism}", security(mechanism)
        Admin(front.bootstrap, security=given).create_topic(topic)
        with Producer(front.bootstrap, security=given) as producer:
            producer.send(topic, b"v").result(60)
        with Consumer(front.bootstrap, security=given, group_id=mechanism) as consumer:
            consumer.subscribe(topic)
            found: list[Any] = []
            while not found:
                found = consumer.poll(timeout=5)
            assert [message.value for message in found] == [b"v"]
        assert set(front.logins) == {f"{mechanism} ann"}
        front.logins.clear()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_wrong_password_is_no_timeout(front: SecureFront, mechanism: str) -> None:
    given = security(mechanism, "guessed-" + PASSWORD)

    def produce() -> None:
        with Producer(front.bootstrap, security=given) as producer:
            producer.send("t", b"v").result(60)

    def consume() -> None:
        with Consumer(front.bootstrap, security=given, group_id="g") as consumer:
            consumer.subscribe("t")
            consumer.poll(timeout=60)

    for ask in (lambda: Admin(front.bootstrap, security=given).topics(), produce, consume):
        with pytest.raises(ClientError, match="Authentication failed") as caught:
            ask()
        assert not isinstance(caught.value, TimedOutError | UnreachableError)
        assert "sasl.mechanism" in caught.value.hint
        assert PASSWORD not in f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"


def test_a_certificate_that_is_not_trusted_is_no_timeout(front: SecureFront) -> None:
    given = security("PLAIN") | {"ssl.truststore.certificates": identity("another").pem}
    with pytest.raises(ClientError, match="certificate verify failed") as caught:
        Admin(front.bootstrap, security=given).topics()
    assert not isinstance(caught.value, TimedOutError | UnreachableError)
    assert front.logins == []

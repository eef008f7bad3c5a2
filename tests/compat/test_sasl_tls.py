"""Passwords over TLS, and certificates in place of passwords, with an unmodified client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka.admin as admin_api
import pytest
from confluent_kafka import KafkaException, Producer
from tls_world import TlsWorld

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.compat, pytest.mark.system]

PASSWORD = "alice's"


@pytest.fixture
def world(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path)


def settings(world: TlsWorld, security: str) -> dict[str, str]:
    return {
        "KAFKA__SECURITY": security,
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        "SECURITY__SUPER_USERS": "User:alice",
    }


def by_password(world: TlsWorld, broker: Broker, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(world.ca_file),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def by_certificate(world: TlsWorld, broker: Broker, name: str) -> dict[str, Any]:
    certificate, key = world.client_files(name)
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(world.ca_file),
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
        "log_level": 0,
    }


def produce(client: dict[str, Any], topic: str) -> None:
    """Raises KafkaException."""
    failures: list[Any] = []
    producer = Producer({**client, "message.timeout.ms": 30_000})
    producer.produce(topic, b"value", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(wait_seconds_max()) == 0
    if failures[0] is not None:
        raise KafkaException(failures[0])


def create_topic(client: dict[str, Any], name: str) -> str:
    admin = admin_api.AdminClient(client)
    for future in admin.create_topics([admin_api.NewTopic(name, 1)]).values():
        future.result(wait_seconds_max())
    return name


def test_a_user_logs_in_over_tls(world: TlsWorld, new_name: Callable[[str], str]):
    more = {"KAFKA__SASL_MECHANISMS": "SCRAM-SHA-256"}
    with Broker(settings={**settings(world, "tls"), **more}) as broker:
        token = (broker.data_dir / "admin.token").read_text().strip()
        admin = admin_api.AdminClient(by_password(world, broker, "moldau-admin", token))
        (made,) = admin.alter_user_scram_credentials(
            [
                admin_api.UserScramCredentialUpsertion(
                    "alice",
                    admin_api.ScramCredentialInfo(admin_api.ScramMechanism.SCRAM_SHA_256, 4096),
                    PASSWORD.encode(),
                )
            ]
        ).values()
        made.result(wait_seconds_max())
        alice = by_password(world, broker, "alice", PASSWORD)
        produce(alice, create_topic(alice, new_name("topic")))


def test_a_client_is_whom_its_certificate_names(world: TlsWorld, new_name: Callable[[str], str]):
    more = {"SECURITY__PRINCIPAL_MAPPING": "RULE:^CN=(.*)$/$1/"}
    with Broker(settings={**settings(world, "mtls"), **more}) as broker:
        alice = by_certificate(world, broker, "alice")
        topic = create_topic(alice, new_name("topic"))
        produce(alice, topic)
        with pytest.raises(KafkaException, match=r"(?i)authoriz"):
            produce(by_certificate(world, broker, "bob"), topic)

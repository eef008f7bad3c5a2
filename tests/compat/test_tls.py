"""Unmodified clients over TLS and mTLS; certificates that are refused."""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from listeners_world import metric
from secure_front import identity
from secured_broker import ManyListeners
from tls_world import TlsWorld

from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

MESSAGES = [b"message %d" % number for number in range(500)]
Pair = tuple[str, str] | None


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("certs"))


def secure_broker(world: TlsWorld, security: str, data_dir) -> Broker:
    settings = {
        "KAFKA__SECURITY": security,
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        # Rights of clients with certificates: test_sasl_tls.py.
        "SECURITY__AUTHORIZATION": "none",
    }
    return Broker(data_dir=data_dir, settings=settings)


@pytest.fixture(scope="module", params=["tls", "mtls"])
def secured(request, world, tmp_path_factory) -> Iterator[tuple[str, TlsWorld, Pair]]:
    folder = tmp_path_factory.mktemp(request.param)
    with secure_broker(world, request.param, folder / "data") as broker:
        pair = world.client_files("alice") if request.param == "mtls" else None
        yield broker.bootstrap, world, pair


def confluent_properties(bootstrap: str, world: TlsWorld, pair: Pair) -> dict[str, object]:
    found: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(world.ca_file),
        "log_level": 0,
    }
    if pair is not None:
        found |= {"ssl.certificate.location": pair[0], "ssl.key.location": pair[1]}
    return found


def with_confluent(bootstrap: str, world: TlsWorld, pair: Pair, topic: str) -> list[bytes]:
    properties = confluent_properties(bootstrap, world, pair)
    producer = confluent_kafka.Producer(properties)
    for message in MESSAGES:
        producer.produce(topic, message)
    assert producer.flush(wait_seconds_max()) == 0
    consumer = confluent_kafka.Consumer(
        {**properties, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    got: list[bytes] = []

    def read() -> bool:
        got.extend(one.value() or b"" for one in consumer.consume(100, 0.5) if not one.error())
        return len(got) >= len(MESSAGES)

    wait_until(read, "all messages")
    consumer.close()
    return got


def with_kafka_python(bootstrap: str, world: TlsWorld, pair: Pair, topic: str) -> list[bytes]:
    options = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(world.ca_file),
    }
    if pair is not None:
        options |= {"ssl_certfile": pair[0], "ssl_keyfile": pair[1]}
    producer = kafka.KafkaProducer(**options)
    for message in MESSAGES:
        producer.send(topic, message)
    producer.flush(wait_seconds_max())
    producer.close()
    consumer = kafka.KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **options)
    got: list[bytes] = []

    def read() -> bool:
        for records in consumer.poll(500).values():
            got.extend(record.value for record in records)
        return len(got) >= len(MESSAGES)

    wait_until(read, "all messages")
    consumer.close()
    return got


def with_aiokafka(bootstrap: str, world: TlsWorld, pair: Pair, topic: str) -> list[bytes]:
    async def run() -> list[bytes]:
        options = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SSL",
            "ssl_context": world.client(pair),
        }
        async with aiokafka.AIOKafkaProducer(**options) as producer:
            await asyncio.gather(*[await producer.send(topic, message) for message in MESSAGES])
        consumer = aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **options
        )
        async with consumer:
            async with asyncio.timeout(wait_seconds_max()):
                return [(await consumer.getone()).value for _ in MESSAGES]

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[str, TlsWorld, Pair, str], list[bytes]]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_produce_and_consume(secured, client) -> None:
    bootstrap, world, pair = secured
    assert CLIENTS[client](bootstrap, world, pair, f"of-{client}") == MESSAGES


def failure_of_confluent(properties: dict[str, object]) -> str:
    """What librdkafka says about a connection that fails."""
    said: list[str] = []
    producer = confluent_kafka.Producer(
        {**properties, "error_cb": lambda error: said.append(str(error))}
    )

    def failed() -> bool:
        producer.poll(0.1)
        return bool(said)

    wait_until(failed, "an error of the client")
    producer.purge()
    return " ".join(said).lower()


def test_a_client_without_a_certificate_is_refused_where_one_is_required(world, tmp_path) -> None:
    with secure_broker(world, "mtls", tmp_path / "data") as broker:
        properties = confluent_properties(broker.bootstrap, world, None)
        assert "ssl" in failure_of_confluent(properties)
        wait_until(lambda: "the client has sent no certificate" in broker.output, "a log line")
        strange = world.client_files("eve", signer=identity("another"))
        failure_of_confluent(confluent_properties(broker.bootstrap, world, strange))
        wait_until(lambda: "certificate is not accepted" in broker.output, "a log line")
        alice = world.client_files("alice")
        assert with_confluent(broker.bootstrap, world, alice, "after") == MESSAGES


@pytest.mark.parametrize(
    ("change", "expected", "warning"),
    [
        ({"hosts": ("other.example",)}, "hostname mismatch", "broker.pem is not for "),
        ({"expires_in": timedelta(hours=-1)}, "certificate has expired", "broker.pem expired on "),
        (
            {"begins_in": timedelta(hours=1)},
            "certificate is not yet valid",
            "broker.pem is not valid before ",
        ),
        ({"signer": identity("another")}, "self-signed certificate|unable to get local issuer", ""),
    ],
    ids=["wrong host name", "expired", "not yet valid", "unknown authority"],
)
def test_clients_refuse_a_broker_that_they_cannot_trust(
    tmp_path, change, expected, warning
) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    world = TlsWorld(certs)
    world.renew(**change)
    with secure_broker(world, "tls", tmp_path / "data") as broker:
        assert warning in broker.output
        said = failure_of_confluent(confluent_properties(broker.bootstrap, world, None))
        assert "ssl" in said
        with (
            socket.create_connection((broker.host, broker.port)) as raw,
            pytest.raises(ssl.SSLCertVerificationError, match=f"(?i){expected}|mismatch"),
        ):
            world.client().wrap_socket(raw, server_hostname="localhost")


def test_a_certificate_that_cannot_be_used_keeps_the_broker_from_starting(tmp_path) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    world = TlsWorld(certs)
    _, key = world.client_files()
    broker = secure_broker(world, "tls", tmp_path / "data")
    broker.settings["SECURITY__KEY_FILE"] = key
    with pytest.raises(Exception, match="is not the key of the certificate") as caught:
        broker.start()
    assert "Traceback" not in str(caught.value)


def test_clients_stay_on_the_listener_by_which_they_came(world, tmp_path) -> None:
    plain, secret = free_ports(2)
    listeners = [
        {"name": "inside", "protocol": "kafka", "address": f"127.0.0.1:{plain}"},
        {
            "name": "public",
            "protocol": "kafka",
            "address": f"127.0.0.1:{secret}",
            "advertised": f"localhost:{secret}",
            "security": "tls",
        },
    ]
    settings = {
        "LISTENERS": json.dumps(listeners),
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
    }
    with ManyListeners(data_dir=tmp_path / "data", settings=settings) as broker:
        assert broker.port == plain
        secured = confluent_properties(f"127.0.0.1:{secret}", world, None)
        found = {}
        clients: dict[str, Any] = {
            "inside": {"bootstrap.servers": f"127.0.0.1:{plain}"},
            "public": secured,
        }
        for name, properties in clients.items():
            nodes = AdminClient(properties).list_topics(timeout=wait_seconds_max()).brokers
            found[name] = [f"{node.host}:{node.port}" for node in nodes.values()]
        assert found == {"inside": [f"127.0.0.1:{plain}"], "public": [f"localhost:{secret}"]}
        # The numbers of both are added up.
        assert metric(broker, 'moldau_kafka_requests_total{api="Metadata"}') >= 2
        # Also its coordinator is found there: a group reads what was written.
        assert with_confluent(f"127.0.0.1:{secret}", world, None, "public") == MESSAGES

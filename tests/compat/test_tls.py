"""Unmodified clients over TLS and mTLS; certificates that are refused."""

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from listeners_world import metric
from sasl_clients import (
    CLIENTS,
    ClientTls,
    ConfluentSasl,
    Credentials,
    SaslClient,
    consume,
    librdkafka_settings,
)
from secure_front import identity
from secured_broker import ManyListeners
from tls_world import TlsWorld

from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

MESSAGES = [b"message %d" % number for number in range(500)]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("certs"))


def secure_broker(world: TlsWorld, security: str, data_dir) -> Broker:
    settings = {
        "KAFKA__SECURITY": security,
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        # Rights of clients with certificates: test_secured_clients.py.
        "SECURITY__AUTHORIZATION": "none",
    }
    return Broker(data_dir=data_dir, settings=settings)


def login(world: TlsWorld, pair: tuple[str, str] | None = None) -> Credentials:
    return Credentials("", tls=ClientTls(str(world.ca_file), pair))


def round_trip(client: SaslClient, bootstrap: str, credentials: Credentials) -> list[bytes]:
    """What a group reads of what was written."""
    topic = f"of-{client.name}"
    client.produce(bootstrap, credentials, topic, MESSAGES)
    return consume(client, bootstrap, credentials, topic, topic, len(MESSAGES))


@pytest.fixture(scope="module", params=["tls", "mtls"])
def secured(
    request: pytest.FixtureRequest, world: TlsWorld, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Credentials]]:
    folder = tmp_path_factory.mktemp(request.param)
    with secure_broker(world, request.param, folder / "data") as broker:
        pair = world.client_files("alice") if request.param == "mtls" else None
        yield broker.bootstrap, login(world, pair)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_produce_and_consume(secured: tuple[str, Credentials], client: str) -> None:
    assert round_trip(CLIENTS[client](), *secured) == MESSAGES


def test_a_client_without_a_certificate_is_refused_where_one_is_required(world, tmp_path) -> None:
    with secure_broker(world, "mtls", tmp_path / "data") as broker:
        client = ConfluentSasl()
        assert "certificate required" in client.login_failure(broker.bootstrap, login(world))
        wait_until(lambda: "the client has sent no certificate" in broker.output, "a log line")
        strange = world.client_files("eve", signer=identity("another"))
        client.login_failure(broker.bootstrap, login(world, strange))
        wait_until(lambda: "certificate is not accepted" in broker.output, "a log line")
        alice = login(world, world.client_files("alice"))
        assert round_trip(client, broker.bootstrap, alice) == MESSAGES


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
        assert "_SSL" in ConfluentSasl().login_failure(broker.bootstrap, login(world))
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
        public = f"127.0.0.1:{secret}"
        found = {}
        clients: dict[str, Any] = {
            "inside": {"bootstrap.servers": f"127.0.0.1:{plain}"},
            "public": librdkafka_settings(public, login(world)),
        }
        for name, properties in clients.items():
            nodes = AdminClient(properties).list_topics(timeout=wait_seconds_max()).brokers
            found[name] = [f"{node.host}:{node.port}" for node in nodes.values()]
        assert found == {"inside": [f"127.0.0.1:{plain}"], "public": [f"localhost:{secret}"]}
        # The numbers of both are added up.
        assert metric(broker, 'moldau_kafka_requests_total{api="Metadata"}') >= 2
        # Also its coordinator is found there: a group reads what was written.
        assert round_trip(ConfluentSasl(), public, login(world)) == MESSAGES

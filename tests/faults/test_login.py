"""The harness logs in as real clients do, and is refused as they are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tls_world import TlsWorld

from faults import login
from faults.raw import Connection
from moldau.client.security import parse_security
from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.system, pytest.mark.safety]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    login.properties.cache_clear()
    yield
    login.properties.cache_clear()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_raw_reader_logs_in_over_tls(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TlsWorld(tmp_path)
    settings = {
        "KAFKA__SECURITY": "tls",
        "KAFKA__SASL_MECHANISMS": mechanism,
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
    }
    with Broker(settings=settings) as broker:
        given = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(world.ca_file),
            "sasl.mechanism": mechanism,
            "sasl.username": "moldau-admin",
            "sasl.password": (broker.data_dir / "admin.token").read_text().strip(),
        }
        security = parse_security(given)
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max(), security=security) as client:
            client.create_topic("t")
        file = tmp_path / "client.json"
        monkeypatch.setenv(login.SECURITY_VARIABLE, str(file))
        file.write_text(json.dumps(given))
        reply = Connection(broker.bootstrap).fetch("t", 0, 0, stable=False, wait_ms=0)
        assert reply.error == 0
        file.write_text(json.dumps({**given, "sasl.password": "wrong"}))
        login.properties.cache_clear()
        with pytest.raises(ConnectionError, match="the login was refused with error 58"):
            Connection(broker.bootstrap)


def test_without_properties_clients_speak_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(login.SECURITY_VARIABLE, raising=False)
    assert login.properties() == {}

"""Brokers with certificates of their own, which join a secured cluster with tokens."""

import json
import shutil
from pathlib import Path

import pytest
from moldau_command import run_moldau
from tls_world import TlsWorld

from moldau.model.layout import SECRET_FILE
from moldau.testing.broker import Broker, BrokerFailedError
from moldau.testing.cluster import ClusterBroker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def settings_of(number: int, world: TlsWorld) -> dict[str, str]:
    """Of a broker with a certificate that no other has."""
    world.renew()
    own = world.folder / f"broker{number}.pem", world.folder / f"broker{number}.key"
    for source, target in zip((world.cert_file, world.key_file), own, strict=True):
        shutil.copy2(source, target)
    return {
        "RAFT__SECURITY": "mtls",
        "KAFKA__SECURITY": "tls",
        "KAFKA__SASL_MECHANISMS": "SCRAM-SHA-256",
        "HTTP__SECURITY": "tls",
        "HTTP__AUTHENTICATION": "users",
        "GRPC__SECURITY": "tls",
        "GRPC__AUTHENTICATION": "users",
        "SECURITY__CERT_FILE": str(own[0]),
        "SECURITY__KEY_FILE": str(own[1]),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
    }


def administer(broker: Broker, world: TlsWorld, *words: str) -> str:
    """A command of the local administrator, over HTTP."""
    how = ("--http", broker.http_address, "--data-dir", str(broker.data_dir))
    return run_moldau(*words, *how, "--cafile", str(world.ca_file))


def joining(first: Broker, world: TlsWorld, number: int, token: Path) -> ClusterBroker:
    return ClusterBroker(
        number=number,
        data_dir=world.folder / str(number),
        settings={**settings_of(number, world), "JOIN_TOKEN_FILE": str(token)},
        join=first.http_address,
    )


def test_a_broker_joins_with_a_token_and_returns_without(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    with Broker(settings=settings_of(1, world)) as first:

        def alive() -> list[int]:
            listed = administer(first, world, "broker", "list", "-o", "json")
            return [entry["id"] for entry in json.loads(listed) if entry["alive"]]

        token = tmp_path / "token"
        token.write_text(administer(first, world, "cluster", "token", "create"))
        with joining(first, world, 2, token) as second:
            wait_until(lambda: alive() == [1, 2], "it is there")
            # The token is used, and opens nothing more; nor does a good certificate.
            third = joining(first, world, 3, token)
            with pytest.raises(BrokerFailedError, match="unknown, used or expired"):
                third.start()
            assert not (third.data_dir / SECRET_FILE).exists()
            second.kill()
            token.unlink()
            second.start()
            wait_until(lambda: alive() == [1, 2], "it is back")

"""Owns a broker for clients with passwords, tokens and certificates, all of them over TLS.

It has two listeners, since a client with a certificate does not log in by SASL.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import confluent_kafka.admin as admin_api
from https_keys import AUDIENCE, ISSUER, IdentityProvider
from sasl_clients import ClientTls, Credentials, librdkafka_settings
from secured_broker import ManyListeners, admin_token, create_topic, put_users
from tls_world import TlsWorld

from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

SASL: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MTLS: Final = "mTLS"
WAYS: Final = (*SASL, MTLS)
PASSWORD: Final = "alice's planted secret"


class ListenersWorld:
    """The user alice may use topics and groups whose names begin with `a-`, and nothing else."""

    def __init__(self, folder: Path, provider: IdentityProvider) -> None:
        self.tls = TlsWorld(folder)
        self.provider = provider
        self._looks = 0
        ports = free_ports(2)
        self._ports = dict(zip(("sasl", "certificates"), ports, strict=True))
        self.broker = ManyListeners(data_dir=folder / "data", settings=self._settings())

    def _settings(self) -> dict[str, str]:
        listeners: list[dict[str, Any]] = [
            {
                "name": name,
                "protocol": "kafka",
                "address": f"127.0.0.1:{port}",
                "advertised": f"localhost:{port}",
                "security": "mtls" if name == "certificates" else "tls",
                "sasl": [] if name == "certificates" else list(SASL),
            }
            for name, port in self._ports.items()
        ]
        return {
            "LISTENERS": json.dumps(listeners),
            "SECURITY__CERT_FILE": str(self.tls.cert_file),
            "SECURITY__KEY_FILE": str(self.tls.key_file),
            "SECURITY__CLIENT_CA_FILE": str(self.tls.ca_file),
            "SECURITY__PRINCIPAL_MAPPING": "RULE:^CN=(.*)$/$1/",
            "SECURITY__OIDC_JWKS_URL": self.provider.url,
            "SECURITY__OIDC_CA_FILE": str(self.provider.ca_file),
            "SECURITY__OIDC_ISSUER": ISSUER,
            "SECURITY__OIDC_AUDIENCE": AUDIENCE,
            "HTTP__AUTHENTICATION": "users",
            "TOPIC__AUTO_CREATE": "false",
        }

    def bootstrap(self, way: str) -> str:
        return f"localhost:{self._ports['certificates' if way == MTLS else 'sasl']}"

    def credentials(
        self, way: str, user: str = "alice", password: str = PASSWORD, ca_file: Path | None = None
    ) -> Credentials:
        trusted = str(ca_file or self.tls.ca_file)
        if way == MTLS:
            return Credentials("", tls=ClientTls(trusted, self.tls.client_files(user)))
        if way == "OAUTHBEARER":
            return Credentials(way, token=lambda: self.provider.token(user), tls=ClientTls(trusted))
        return Credentials(way, user, password, tls=ClientTls(trusted))

    def admin_token(self) -> str:
        return admin_token(self.broker)

    def admin(self) -> admin_api.AdminClient:
        """The local administrator, who can read the data directory."""
        login = self.credentials("SCRAM-SHA-512", "moldau-admin", self.admin_token())
        return admin_api.AdminClient(librdkafka_settings(self.bootstrap("SCRAM-SHA-512"), login))

    def certificate(self, way: str) -> bytes:
        """What a new connection is shown now."""
        tls = self.credentials(way).tls
        assert tls is not None
        host, port = self.bootstrap(way).split(":")
        self._looks += 1
        with (
            socket.create_connection((host, int(port))) as raw,
            tls.context().wrap_socket(raw, server_hostname=host) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found

    def shows_another(self, way: str, certificate: bytes) -> bool:
        return self.certificate(way) != certificate

    def connections(self) -> float:
        """Accepted so far, without those of `certificate`."""
        return self.metric("moldau_kafka_connections_accepted_total") - self._looks

    def metric(self, name: str) -> float:
        return metric(self.broker, name, {"authorization": f"Bearer {self.admin_token()}"})

    def create_topic(self, name: str) -> str:
        return create_topic(self.admin(), name)


def metric(broker: Broker, name: str, headers: Mapping[str, str] | None = None) -> float:
    """The value of a metric, by its name and labels."""
    asked = Request(f"http://{broker.http_address}/metrics", headers=dict(headers or {}))
    with urlopen(asked) as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@contextmanager
def listeners_world(folder: Path) -> Iterator[ListenersWorld]:
    for name in ("provider", "broker"):
        (folder / name).mkdir()
    with IdentityProvider(folder / "provider") as provider:
        world = ListenersWorld(folder / "broker", provider)
        with world.broker:
            admin = world.admin()
            add_user(admin, "alice", PASSWORD)
            allow(admin, "User:alice", admin_api.ResourceType.TOPIC, "a-")
            allow(admin, "User:alice", admin_api.ResourceType.GROUP, "a-")
            yield world


def add_user(admin: admin_api.AdminClient, name: str, password: str) -> None:
    scram = admin_api.ScramMechanism
    put_users(admin, {name: password}, (scram.SCRAM_SHA_256, scram.SCRAM_SHA_512))


def allow(
    admin: admin_api.AdminClient,
    principal: str,
    kind: Any,
    prefix: str,
    operation: Any = admin_api.AclOperation.ALL,
) -> None:
    rule = admin_api.AclBinding(
        kind,
        prefix,
        admin_api.ResourcePatternType.PREFIXED,
        principal,
        "*",
        operation,
        admin_api.AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([rule]).values():
        future.result(wait_seconds_max())

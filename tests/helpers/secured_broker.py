"""A broker that asks all clients who they are, with users of different rights and a secret."""

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final

import confluent_kafka.admin as admin_api
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from msgspec.structs import astuple
from sasl_clients import ClientTls, Credentials, librdkafka_settings

from moldau.client.sasl import Sasl
from moldau.client.security import Security
from moldau.client.wire.security_admin import AclRule, SecurityAdmin
from moldau.security.acl import Acl
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max
from raw_client import RawClient

TOPIC: Final = "vault"
GROUP: Final = "vault-group"
SECRET: Final = "planted-record-77d1"
PASSWORDS: Final = {"powerless": "planted-password-1", "reader": "planted-password-2"}
"""`powerless` has no rights at all; `reader` may read the topic and use the group."""

SETTINGS: Final = {
    "KAFKA__SASL_MECHANISMS": "PLAIN",
    "HTTP__AUTHENTICATION": "users",
    "GRPC__AUTHENTICATION": "users",
}


class ManyListeners(Broker):
    """Its Kafka listeners are those of the settings."""

    def arguments(self) -> list[str]:
        given = super().arguments()
        at = given.index("--kafka-addr")
        return given[:at] + given[at + 2 :]


class SecuredBroker:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.admin_token = admin_token(broker)

    def authorization(self, who: str) -> dict[str, str]:
        """The header of a user, of the administrator, or of nobody."""
        if who == "nobody":
            return {}
        if who == "admin":
            return {"authorization": f"Bearer {self.admin_token}"}
        pair = base64.b64encode(f"{who}:{PASSWORDS[who]}".encode()).decode()
        return {"authorization": f"Basic {pair}"}

    def ask(
        self,
        who: str,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, HTTPResponse, str]:
        """Status, response and body; of a stream only its head."""
        connection = HTTPConnection(self.broker.http_address, timeout=wait_seconds_max())
        media_type = "application/json"
        if isinstance(body, bytes):
            sent, media_type = body, "application/octet-stream"
        else:
            sent = b"" if body is None else json.dumps(body).encode()
        head = {"content-type": media_type} if body is not None else {}
        try:
            named = {**head, **self.authorization(who), **(headers or {})}
            connection.request(method, path, sent, named)
            response = connection.getresponse()
            streams = str(response.getheader("content-type")).startswith("text/event-stream")
            return response.status, response, "" if streams else response.read().decode()
        finally:
            connection.close()

    def security(self, who: str, mechanism: str = "PLAIN") -> Security:
        """What a Kafka client of a user, or of the administrator, needs."""
        name, password = who, PASSWORDS.get(who, "")
        if who == "admin":
            name, password = "moldau-admin", self.admin_token
        return Security(sasl=Sasl(mechanism=mechanism, username=name, password=password))

    def kafka(self, who: str, mechanism: str = "PLAIN") -> RawClient:
        """A connection that has logged in."""
        broker = self.broker
        return RawClient(broker.host, broker.port, security=self.security(who, mechanism))

    def put_rules(self, *rules: Acl) -> None:
        with SecurityAdmin(self.broker.bootstrap, self.security("admin")) as admin:
            admin.create_acls([AclRule(*astuple(rule)) for rule in rules])

    def put_topic(self, name: str, *values: str) -> None:
        for path, body in (
            ("/api/v1/topics", {"name": name, "partitions": 1}),
            (f"/api/v1/topics/{name}/records", {"records": [{"value": each} for each in values]}),
        ):
            status, _, text = self.ask("admin", "POST", path, body)
            assert status < 300, text

    def read(self, path: str) -> Any:
        """As the administrator."""
        return self.read_as("admin", path)

    def read_as(self, who: str, path: str) -> Any:
        status, _, text = self.ask(who, "GET", path)
        assert status == 200, text
        return json.loads(text)


def admin_token(broker: Broker) -> str:
    return (broker.data_dir / "admin.token").read_text().strip()


def admin_of(broker: Broker, tls: ClientTls | None = None) -> admin_api.AdminClient:
    """The local administrator, who can read the data directory."""
    login = Credentials("PLAIN", "moldau-admin", admin_token(broker), tls=tls)
    return admin_api.AdminClient(librdkafka_settings(broker.bootstrap, login))


def put_users(
    admin: admin_api.AdminClient,
    passwords: dict[str, str],
    mechanisms: Iterable[Any] = (admin_api.ScramMechanism.SCRAM_SHA_256,),
) -> None:
    users: list[Any] = [
        admin_api.UserScramCredentialUpsertion(
            name, admin_api.ScramCredentialInfo(mechanism, 4096), password.encode()
        )
        for name, password in passwords.items()
        for mechanism in mechanisms
    ]
    for future in admin.alter_user_scram_credentials(users).values():
        future.result(wait_seconds_max())


def create_topic(admin: admin_api.AdminClient, name: str) -> str:
    for future in admin.create_topics([admin_api.NewTopic(name, 1)]).values():
        future.result(wait_seconds_max())
    return name


def _fill(secured: SecuredBroker) -> None:
    admin = admin_of(secured.broker)
    put_users(admin, PASSWORDS)
    rules = [
        admin_api.AclBinding(
            kind,
            name,
            admin_api.ResourcePatternType.LITERAL,
            "User:reader",
            "*",
            admin_api.AclOperation.READ,
            admin_api.AclPermissionType.ALLOW,
        )
        for kind, name in (
            (admin_api.ResourceType.TOPIC, TOPIC),
            (admin_api.ResourceType.GROUP, GROUP),
        )
    ]
    for future in admin.create_acls(rules).values():
        future.result(wait_seconds_max())
    secured.put_topic(TOPIC, SECRET)
    offsets = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0, 1)])
    for future in admin.alter_consumer_group_offsets([offsets]).values():
        future.result(wait_seconds_max())


@contextmanager
def secured_broker(
    settings: dict[str, str] | None = None, kind: type[Broker] = Broker
) -> Iterator[SecuredBroker]:
    with kind(settings={**SETTINGS, **(settings or {})}) as broker:
        secured = SecuredBroker(broker)
        _fill(secured)
        yield secured

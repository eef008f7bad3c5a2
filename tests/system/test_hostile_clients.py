"""One client cannot hurt the others: a well-behaved one is served while another attacks.

Nothing here is about time: the well-behaved client must get everything done, in order, and the
attack must go on until it has.
"""

from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka.admin as admin_api
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hostile_clients import ATTACKS, Attack, Target, attacked
from secured_broker import put_users
from tls_world import TlsWorld

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

USER, PASSWORD = "alice", "planted-password-3"
LARGE = "large"
RECORDS = 30


class WellBehaved:
    """A producer and a consumer of one topic, who are connected before the attack."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self._settings = settings
        self.topic = topic
        self.errors: list[Any] = []
        watched = {**settings, "error_cb": self.errors.append}
        self.producer = Producer(watched)
        self.consumer = Consumer(
            {**watched, "group.id": topic, "auto.offset.reset": "earliest"}  # never committed
        )
        self.consumer.assign([TopicPartition(topic, 0, 0)])

    def produce(self, value: bytes, producer: Producer | None = None) -> None:
        failures: list[Any] = []
        used = producer or self.producer
        used.produce(self.topic, value, on_delivery=lambda error, _: failures.append(error))
        assert used.flush(wait_seconds_max()) == 0
        assert failures == [None]

    def produce_as_newcomer(self, value: bytes) -> None:
        """With a new connection and a new login."""
        self.produce(value, Producer(self._settings))

    def consume(self, count: int) -> list[bytes]:
        found: list[bytes] = []

        def has_all() -> bool:
            message = self.consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                found.append(message.value() or b"")
            return len(found) >= count

        wait_until(has_all, f"{count} records")
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("tls"))


def client_settings(world: TlsWorld, broker: Broker, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(world.ca_file),
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.fixture(scope="module")
def target(world: TlsWorld) -> Iterator[Target]:
    settings = {
        "KAFKA__SECURITY": "tls",
        "KAFKA__SASL_MECHANISMS": "PLAIN",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__SUPER_USERS": f"User:{USER}",
        # Fewer than an attack opens.
        "KAFKA__CONNECTIONS_MAX": "200",
        "KAFKA__CONNECTIONS_PER_ADDRESS_MAX": "100",
        # Less than an attack announces.
        "KAFKA__INFLIGHT_BYTES_MAX": "8MiB",
        "KAFKA__INFLIGHT_BYTES_PER_CONNECTION_MAX": "4MiB",
    }
    with Broker(settings=settings) as broker:
        token = (broker.data_dir / "admin.token").read_text().strip()
        put_users(
            admin_api.AdminClient(client_settings(world, broker, "moldau-admin", token)),
            {USER: PASSWORD},
        )
        target = Target(broker, world.client(), USER, PASSWORD, LARGE)
        filler = WellBehaved(client_settings(world, broker, USER, PASSWORD), LARGE)
        create_topic(world, broker, LARGE)
        for _ in range(16):
            filler.produce(bytes(500_000))
        filler.consumer.close()
        yield target
        assert "Traceback" not in broker.output


def create_topic(world: TlsWorld, broker: Broker, name: str) -> None:
    admin = admin_api.AdminClient(client_settings(world, broker, USER, PASSWORD))
    for future in admin.create_topics([admin_api.NewTopic(name, 1)]).values():
        future.result(wait_seconds_max())


@pytest.mark.parametrize("once", ATTACKS, ids=lambda once: once.__name__)
def test_one_client_cannot_hurt_the_others(
    once: Callable[[Attack], None],
    target: Target,
    world: TlsWorld,
    new_name: Callable[[str], str],
) -> None:
    pid, topic = target.broker.pid, new_name("topic")
    create_topic(world, target.broker, topic)
    client = WellBehaved(client_settings(world, target.broker, USER, PASSWORD), topic)
    client.produce(b"before")
    assert client.consume(1) == [b"before"]
    sent = []
    with attacked(target, once) as attack:
        for number in range(RECORDS):
            attempts = attack.attempts
            sent.append(b"%d" % number)
            client.produce(sent[-1])
            assert client.consume(1) == sent[-1:]
            if number % 10 == 0:
                # The attack goes on.
                wait_until(lambda: attack.attempts > attempts, "the next attempt")  # noqa: B023
                for value in (b"newcomer %d" % number, bytes([number]) * 500_000):
                    client.produce_as_newcomer(value)
                    assert client.consume(1) == [value]
    assert client.errors == []
    client.consumer.close()
    assert target.broker.pid == pid

"""One client cannot hurt the others: a well-behaved one is served while another attacks.

Nothing here is about time: the well-behaved client must get everything done, in order, and the
attack must go on until it has.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hostile_clients import ATTACKS, Attack, Target, attacked
from sasl_clients import ClientTls, Credentials, librdkafka_settings
from secured_broker import admin_of, create_topic, put_users
from tls_world import TlsWorld

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)

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


@pytest.fixture(scope="module")
def trusted(world: TlsWorld) -> ClientTls:
    return ClientTls(str(world.ca_file))


def client_settings(trusted: ClientTls, broker: Broker) -> dict[str, Any]:
    login = Credentials("PLAIN", USER, PASSWORD, tls=trusted)
    return librdkafka_settings(broker.bootstrap, login)


@pytest.fixture(scope="module")
def target(world: TlsWorld, trusted: ClientTls) -> Iterator[Target]:
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
        admin = admin_of(broker, trusted)
        put_users(admin, {USER: PASSWORD})
        create_topic(admin, LARGE)
        target = Target(broker, world.client(), USER, PASSWORD, LARGE)
        filler = WellBehaved(client_settings(trusted, broker), LARGE)
        for _ in range(16):
            filler.produce(bytes(500_000))
        filler.consumer.close()
        yield target
        assert "Traceback" not in broker.output


@pytest.mark.parametrize("once", ATTACKS, ids=lambda once: once.__name__)
def test_one_client_cannot_hurt_the_others(
    once: Callable[[Attack], None],
    target: Target,
    trusted: ClientTls,
    new_name: Callable[[str], str],
) -> None:
    pid, topic = target.broker.pid, new_name("topic")
    create_topic(admin_of(target.broker, trusted), topic)
    client = WellBehaved(client_settings(trusted, target.broker), topic)
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


def test_members_cannot_take_more_memory_than_there_is_for_them() -> None:
    """They stay for half an hour, and their clients have gone."""
    settings = {
        "GROUP__SIZE_MAX": "20",
        "GROUP__MEMBER_BYTES_MAX": "64KiB",
        "GROUP__BYTES_MAX": "100KiB",
        "GROUP__MEMORY_BYTES_MAX": "256KiB",
    }
    with Broker(settings=settings) as broker:

        def join(group: str, size: int, instance: str | None = None) -> int:
            """Returns the error; a member that joined waits for others, and nobody for it."""
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                member_id="",
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size))],
            )
            with KafkaConnection(broker.host, broker.port, client_id="c" * 10_000) as client:
                response = client.send(request, 5)
            assert isinstance(response, JoinGroupResponse)
            return response.error_code

        given = ErrorCode.MEMBER_ID_REQUIRED
        wait_until(lambda: join("ids", 0) == given, "the coordinator")
        errors = [join("ids", 0) for _ in range(25)]
        assert errors[-5:] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 5
        assert join("large", 65_536, "i") == ErrorCode.MESSAGE_TOO_LARGE
        assert join("static", 50_000, "a") == ErrorCode.NONE
        assert join("static", 50_000, "b") == ErrorCode.GROUP_MAX_SIZE_REACHED

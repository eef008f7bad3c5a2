"""Unmodified clients over their quota are slowed down, lose nothing, and slow down nobody else."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import confluent_kafka
import grpc
import pytest
from proxy_process import proxy_process
from sasl_clients import Credentials, librdkafka_settings
from secured_broker import admin_of, admin_token, put_users

from moldau import QueueClient
from moldau.client.sasl import Sasl
from moldau.client.security import Security
from moldau.client.wire.security_admin import SecurityAdmin
from moldau.proto.v1 import queue_pb2, queue_pb2_grpc
from moldau.security.quotas import QuotaKey
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

PASSWORDS = {"alice": "alice's planted secret", "bob": "bob's planted secret"}
RATE = 100_000
VALUE_BYTES = 1000
COUNT = 600
"""Six seconds of the quota; one of them is free."""
POLLED = 5
SLOW_RATE = 1_000
"""With this it would be ten minutes, also while the machine is busy with something else."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Alice and Bob may do everything."""
    settings = {
        "KAFKA__SASL_MECHANISMS": "PLAIN",
        "HTTP__AUTHENTICATION": "users",
        "GRPC__AUTHENTICATION": "users",
        "SECURITY__SUPER_USERS": "User:alice;User:bob",
    }
    with Broker(settings=settings) as started:
        put_users(admin_of(started), PASSWORDS)
        yield started


@pytest.fixture
def limit(broker: Broker) -> Iterator[Callable[..., None]]:
    """Sets limits of alice, for the time of the test."""
    login = Sasl(mechanism="PLAIN", username="moldau-admin", password=admin_token(broker))
    security = Security(sasl=login)

    def alter(limits: dict[str, float | None]) -> None:
        with SecurityAdmin(broker.bootstrap, security) as admin:
            admin.alter_quotas("alice", None, limits)

    yield alter
    alter(dict.fromkeys(QuotaKey))


class Client:
    """Who it is, when it was throttled, and when it was done."""

    def __init__(self, broker: Broker, user: str) -> None:
        self.throttled_ms: list[float] = []
        self.seconds = 0.0
        self.settings: dict[str, Any] = {
            **librdkafka_settings(broker.bootstrap, Credentials("PLAIN", user, PASSWORDS[user])),
            "throttle_cb": lambda event: self.throttled_ms.append(event.throttle_time),
        }

    def produce(self, topic: str, events: list[str], name: str, **settings: object) -> None:
        failures: list[object] = []
        # Kept: without acks it is done when all is sent, and its connection must stay.
        self.producer = producer = confluent_kafka.Producer(
            {**self.settings, "batch.size": 16_000, "compression.type": "none", **settings}
        )
        began = time.monotonic()
        for number in range(COUNT):
            value = b"%06d" % number + b"x" * (VALUE_BYTES - 6)
            producer.produce(
                topic, value, partition=0, on_delivery=lambda error, _: failures.append(error)
            )
            producer.poll(0)
        assert producer.flush(wait_seconds_max()) == 0
        self.seconds = time.monotonic() - began
        events.append(f"{name} done")
        assert failures == [None] * COUNT

    def consume(self, topic: str, events: list[str], name: str) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {
                **self.settings,
                "group.id": f"{topic}-{name}",
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": 40_000,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        began = time.monotonic()
        while len(values) < COUNT and time.monotonic() - began < wait_seconds_max():
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        self.seconds = time.monotonic() - began
        events.append(f"{name} done")
        consumer.close()
        return values


def ask(broker: Broker, user: str, method: str, path: str, body: object) -> tuple[int, Any, str]:
    connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
    pair = base64.b64encode(f"{user}:{PASSWORDS[user]}".encode()).decode()
    headers = {"authorization": f"Basic {pair}", "content-type": "application/json"}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    response: HTTPResponse = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


def create(broker: Broker, topic: str) -> str:
    status, _, text = ask(broker, "bob", "POST", "/api/v1/topics", {"name": topic})
    assert status == 201, text
    return topic


def stored(broker: Broker, topic: str) -> int:
    path = f"/api/v1/topics/{topic}/records?limit=1"
    count: int = json.loads(ask(broker, "bob", "GET", path, None)[2])["end_offset"]
    return count


def throttled(broker: Broker, key: QuotaKey) -> float:
    _, _, text = ask(broker, "bob", "GET", "/metrics", None)
    found = re.search(rf'^moldau_throttled_requests_total\{{quota="{key}"\}} (\S+)$', text, re.M)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_producer_keeps_to_its_quota_and_another_user_is_not_slowed(
    broker: Broker, limit: Callable[..., None], new_name: Callable[[str], str], acks: int
) -> None:
    hers, his = create(broker, new_name("hers")), create(broker, new_name("his"))
    limit({QuotaKey.PRODUCE: SLOW_RATE})
    before = throttled(broker, QuotaKey.PRODUCE)
    alice, bob = Client(broker, "alice"), Client(broker, "bob")
    patient = {"socket.timeout.ms": 300_000, "request.timeout.ms": 300_000}
    slow = threading.Thread(
        target=alice.produce, args=(hers, [], "alice"), kwargs={"acks": acks, **patient}
    )
    slow.start()
    wait_until(lambda: throttled(broker, QuotaKey.PRODUCE) > before, "alice is over her quota")
    bob.produce(his, [], "bob", acks=acks)
    wait_until(lambda: stored(broker, his) == COUNT, "all of bob's are stored")
    # He began later, and sent as much.
    already = stored(broker, hers)
    assert already < COUNT
    began = time.monotonic()
    limit({QuotaKey.PRODUCE: RATE})
    wait_until(lambda: stored(broker, hers) == COUNT, "all of alice's are stored")
    # A loaded machine makes it slower, and nothing makes it much faster.
    assert (COUNT - already) * VALUE_BYTES / (time.monotonic() - began) < 2 * RATE
    slow.join()
    assert bob.throttled_ms == []
    # Without acks there are no responses that could say it.
    assert any(alice.throttled_ms) == bool(acks)


def test_a_consumer_keeps_to_its_quota_and_gets_everything(
    broker: Broker, limit: Callable[..., None], new_name: Callable[[str], str]
) -> None:
    topic = create(broker, new_name("topic"))
    events: list[str] = []
    Client(broker, "bob").produce(topic, events, "producer")
    limit({QuotaKey.FETCH: SLOW_RATE})
    before = throttled(broker, QuotaKey.FETCH)
    alice, bob = Client(broker, "alice"), Client(broker, "bob")
    got: list[bytes] = []
    slow = threading.Thread(target=lambda: got.extend(alice.consume(topic, events, "alice")))
    slow.start()
    wait_until(lambda: throttled(broker, QuotaKey.FETCH) > before, "alice is over her quota")
    assert len(bob.consume(topic, events, "bob")) == COUNT
    limit({QuotaKey.FETCH: RATE})
    slow.join()
    assert events == ["producer done", "bob done", "alice done"]
    assert [value[:6] for value in got] == [b"%06d" % number for number in range(COUNT)]
    assert max(alice.throttled_ms) > 0
    assert bob.throttled_ms == []
    assert COUNT * VALUE_BYTES / alice.seconds < 2 * RATE


def test_the_time_of_requests_is_limited_and_the_limit_can_be_taken_back(
    broker: Broker, limit: Callable[..., None], new_name: Callable[[str], str]
) -> None:
    topic = create(broker, new_name("topic"))
    limit({QuotaKey.REQUEST: 0.001})
    events: list[str] = []
    alice = Client(broker, "alice")
    slow = threading.Thread(target=alice.produce, args=(topic, events, "alice"))
    slow.start()
    wait_until(lambda: throttled(broker, QuotaKey.REQUEST) > 0, "alice is over her quota")
    # An administrator is not limited, and bob has no quota.
    limit({QuotaKey.REQUEST: None})
    Client(broker, "bob").produce(topic, events, "bob")
    slow.join()
    assert sorted(events) == ["alice done", "bob done"]


def test_http_refuses_a_client_over_its_quota_until_the_quota_is_gone(
    broker: Broker, limit: Callable[..., None], new_name: Callable[[str], str]
) -> None:
    topic = create(broker, new_name("topic"))
    limit({QuotaKey.PRODUCE: 100, QuotaKey.FETCH: 100})
    path = f"/api/v1/topics/{topic}/records"
    body = {"records": [{"value": "x" * 2000}]}
    assert ask(broker, "alice", "POST", path, body)[0] == 200
    status, headers, text = ask(broker, "alice", "POST", path, body)
    assert (status, json.loads(text)["error"]) == (429, "THROTTLING_QUOTA_EXCEEDED")
    assert int(headers["retry-after"]) >= 1
    assert ask(broker, "alice", "GET", path, None)[0] == 200
    assert ask(broker, "alice", "GET", path, None)[0] == 429
    assert ask(broker, "bob", "POST", path, body)[0] == 200
    limit({QuotaKey.PRODUCE: None, QuotaKey.FETCH: None})
    assert ask(broker, "alice", "POST", path, body)[0] == 200
    assert ask(broker, "alice", "GET", path, None)[0] == 200


def test_grpc_refuses_a_client_over_its_quota_and_says_how_long(
    broker: Broker, limit: Callable[..., None], new_name: Callable[[str], str]
) -> None:
    topic = create(broker, new_name("topic"))
    limit({QuotaKey.PRODUCE: 100})
    pair = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    message = queue_pb2.OutgoingMessage(value=b"x" * 2000)
    request = queue_pb2.SendRequest(topic=topic, message=message)
    with grpc.insecure_channel(broker.grpc_address) as channel:
        send = queue_pb2_grpc.QueueStub(channel).Send
        options = {"metadata": [("authorization", f"Basic {pair}")], "timeout": wait_seconds_max()}
        assert send(request, **options).offset == 0
        with pytest.raises(grpc.RpcError) as refused:
            send(request, **options)
        status: Any = refused.value
        trailers = dict(status.trailing_metadata())
        assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailers["moldau-reason"] == "BUSY"
        assert int(trailers["moldau-retry-ms"]) > 0
        limit({QuotaKey.PRODUCE: None})
        assert send(request, **options).offset == 1


@pytest.mark.safety
@pytest.mark.parametrize("through", ["brokers", "proxy"])
def test_queue_clients_and_the_proxy_wait_and_lose_nothing(
    broker: Broker,
    limit: Callable[..., None],
    new_name: Callable[[str], str],
    tmp_path: Path,
    through: str,
) -> None:
    topic = create(broker, new_name("topic"))
    # Each of the two takes about three seconds; one of them is free.
    limit({QuotaKey.PRODUCE: 10_000, QuotaKey.FETCH: 10_000})
    before = [throttled(broker, key) for key in (QuotaKey.PRODUCE, QuotaKey.FETCH)]
    login = Sasl(mechanism="PLAIN", username="alice", password=PASSWORDS["alice"])
    sent = [f"{number:02}".ljust(VALUE_BYTES, "x") for number in range(40)]
    with ExitStack() as stack:
        address = broker.grpc_address
        if through == "proxy":
            # Its own user finds the brokers; calls are those of alice.
            password = tmp_path / "password"
            password.write_text(PASSWORDS["bob"])
            password.chmod(0o600)
            user = ("--user", "bob", "--password-file", str(password))
            address = stack.enter_context(proxy_process([address], *user)).address
        seconds = wait_seconds_max()
        client = stack.enter_context(
            QueueClient(address, timeout=seconds, security=Security(sasl=login))
        )
        for value in sent[:20]:
            client.send(topic, value)
        for first in (20, 30):
            client.send_many(topic, sent[first : first + 10])
        got: list[str] = []
        with client.connect(topic, topic) as worker:
            while len(got) < len(sent):
                for message in worker.poll(POLLED):
                    message.ack()
                    got.append(message.text)
    assert sorted(got) == sent
    after = [throttled(broker, key) for key in (QuotaKey.PRODUCE, QuotaKey.FETCH)]
    produces, fetches = (now - then for now, then in zip(after, before, strict=True))
    assert produces > 0
    # One per wait; without it they would be several times as many.
    assert 0 < fetches <= 2 * len(sent) / POLLED

"""Whatever a client sends, well-formed or not, the broker answers or hangs up, and goes on.

Values are drawn from what means something (names that exist, epochs, limits) and from the edges
of their types. A handler that trips over one shows as an internal error in the broker's log.
"""

import math
import random
from typing import Any

import pytest
from chunks import joined

from moldau.client.errors import ClientError, TimedOutError
from moldau.client.wire.connection import KafkaConnection
from moldau.edge.kafka.served_apis import APIS
from moldau.model.errors import PeerProtocolError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.fields import Field
from moldau.wire.framing import frame_request
from moldau.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request, Struct

pytestmark = pytest.mark.system

BITS = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}
NAMES = [
    "",
    "t",
    "t",
    "u",
    "g",
    "1",
    "x" * 300,
    "ä€😀",
    "a b",
    "__consumer_offsets",
    "retention.ms",
]
ROUNDS = 4
MAY_WAIT = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""Answered when other members do something, which nobody does here."""


class RequestMaker:
    """The same seed gives the same requests."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(str(seed))

    def primitive(self, kind: str, name: str) -> Any:
        rng = self.rng
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        if kind == "string":
            return rng.choice(NAMES)
        if kind == "f64":
            return rng.choice((0.0, -1.0, 1.5, 1e300, math.inf, math.nan))
        if kind == "bytes":
            return rng.randbytes(rng.choice((0, 1, 20, 300)))
        if kind == "records":
            return self.records()
        if name == "max_wait_ms":
            return rng.choice((-1, 0, 10))
        if name in ("timeout_ms", "session_timeout_ms", "rebalance_timeout_ms"):
            return rng.choice((-1, 0, 10, 6_000))
        if name in ("num_partitions", "count"):
            # Thousands of partitions are legal, and slow.
            return rng.choice((-2, -1, 0, 1, 3))
        limit = 1 << BITS[kind]
        return rng.choice((0, 0, 1, -1, -2, 2, 4, 7, -limit, limit - 1))

    def records(self) -> bytes:
        rng = self.rng
        record = Record(Offset(0), TimestampMs(rng.choice((-1, 0, 10**12))), b"k", b"v", [])
        data = bytearray(build_batch([record]))
        if rng.random() < 0.7:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data[: rng.choice((len(data), len(data), 0, 5, 61))])

    def value(self, field: Field, name: str, version: int) -> Any:
        if version in field.nullable and self.rng.random() < 0.2:
            return None
        if field.kind == "array":
            count = self.rng.choice((0, 1, 1, 2, 3))
            if isinstance(field.element, str):
                return [self.primitive(field.element, name) for _ in range(count)]
            return [self.struct(field.element, version) for _ in range(count)]
        if field.kind == "struct":
            return self.struct(field.element, version)
        return self.primitive(field.kind, name)

    def struct(self, cls: Any, version: int) -> Any:
        fields: dict[str, Field] = cls.FIELDS
        values = {
            name: self.value(field, name, version)
            for name, field in fields.items()
            if version in field.versions
        }
        for name, field in fields.items():
            if name not in values and field.required:
                values[name] = [] if field.kind == "array" else field.absent_value
        made: Struct = cls(**values)
        return made


@pytest.fixture(scope="module")
def broker() -> Any:
    """One of its own: what these requests leave behind should not meet other tests."""
    with Broker() as started:
        yield started


def exchange(broker: Broker, key: ApiKey, request: Request, version: int) -> None:
    with KafkaConnection(broker.host, broker.port, timeout=wait_seconds_max()) as connection:
        try:
            if key in MAY_WAIT or getattr(request, "acks", None) == 0:
                connection.post(request, version, reply=False)
            else:
                connection.send(request, version)
        except TimedOutError:
            raise
        except ClientError:
            # Hanging up is an answer too: to acks=0, say. The log tells whether it was meant.
            pass


def check_alive(broker: Broker, said_before: int) -> None:
    with KafkaConnection(broker.host, broker.port, timeout=wait_seconds_max()) as connection:
        connection.send(DescribeClusterRequest(include_cluster_authorized_operations=False))
    output = broker.output[said_before:]
    assert "internal error" not in output, output[-3000:]
    assert "Traceback" not in output, output[-3000:]


@pytest.mark.parametrize("key", [api.key for api in APIS.values()], ids=lambda key: key.name)
def test_arbitrary_values_are_answered(broker: Broker, key: ApiKey) -> None:
    api, said_before = APIS[key], len(broker.output)
    for version in range(api.versions[0], api.versions[1] + 1):
        for number in range(ROUNDS):
            maker = RequestMaker(f"{key.name}/{version}/{number}")
            exchange(broker, key, maker.struct(api.request, version), version)
    check_alive(broker, said_before)


@pytest.mark.parametrize("key", [api.key for api in APIS.values()], ids=lambda key: key.name)
def test_damaged_requests_close_only_their_connection(broker: Broker, key: ApiKey) -> None:
    api, said_before = APIS[key], len(broker.output)
    rng = random.Random(key.name)
    for number in range(12):
        version = rng.randint(*api.versions)
        maker = RequestMaker(f"damaged/{key.name}/{number}")
        request = maker.struct(api.request, version)
        frame = bytearray(joined(frame_request(request, version, 1, "")))
        # Behind the header: what is read there is the handler's message.
        for _ in range(rng.randint(1, 4)):
            if len(frame) > 16:
                frame[rng.randrange(14, len(frame))] = rng.randrange(256)
        with KafkaConnection(broker.host, broker.port, timeout=0.3) as connection:
            connection.post_raw([bytes(frame)])
            try:
                connection.receive_raw()
            except (ClientError, PeerProtocolError):
                continue
    check_alive(broker, said_before)

"""Encodes messages of an application for the API, and rejects invalid ones."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from moldau.client.encoding import (
    Headers,
    Key,
    Value,
    encode_headers,
    encode_key,
    encode_timestamp,
    encode_value,
)
from moldau.client.errors import InvalidArgumentError
from moldau.proto.v1 import queue_pb2 as pb

if TYPE_CHECKING:
    from moldau.tracing.otel import OtelTracer, Sending

PARTITION_MAX = 2**31 - 1
QUEUE_SYSTEM: Final = "moldau"
"""The messaging system, in spans."""

M = TypeVar("M")


QueueAcks = Literal["all", "leader", "none", "1", "0", "-1", 1, 0, -1]
_ACKS = {
    "all": pb.ACKS_ALL,
    "-1": pb.ACKS_ALL,
    "leader": pb.ACKS_LEADER,
    "1": pb.ACKS_LEADER,
    "none": pb.ACKS_NONE,
    "0": pb.ACKS_NONE,
}


class Sent(NamedTuple):
    """Where a message was written. With acks="none" the offset is -1 (unknown)."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for `send_many` with more than a key and a value."""

    value: Value = None
    key: Key = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp: int | datetime | None = None
    deliver_at: int | datetime | None = None
    delay: float | None = None


def encode(message: Outgoing) -> pb.OutgoingMessage:
    """Encode for the API. Raises InvalidArgumentError."""
    value = encode_value(message.value)
    key = encode_key(message.key)
    encoded = pb.OutgoingMessage(
        key=_bytes(key),
        value=_bytes(value),
        deliver_at_ms=_deliver_at_ms(message.deliver_at, message.delay),
    )
    if message.headers is not None:
        for name, content in encode_headers(message.headers):
            encoded.headers.add(key=name, value=_bytes(content))
    if message.partition is not None:
        number = message.partition
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidArgumentError(f"invalid partition {number!r}", hint="an int, 0 or more")
        if number > PARTITION_MAX:
            raise InvalidArgumentError(f"unknown partition {number}", hint=f"0 to {PARTITION_MAX}")
        encoded.partition = number
    if message.timestamp is not None:
        encoded.timestamp_ms = encode_timestamp(message.timestamp)
    return encoded


def traced(tracer: "OtelTracer", topic: str, message: pb.OutgoingMessage) -> "Sending":
    """Adds the context of a new span to the headers of a message."""
    given = [(each.key, each.value) for each in message.headers]
    sending = tracer.sending(topic, given, QUEUE_SYSTEM)
    for name, value in sending.headers[len(given) :]:
        message.headers.add(key=name, value=_bytes(value))
    return sending


def traced_many(
    tracer: "OtelTracer", topic: str, messages: Iterable[pb.OutgoingMessage]
) -> Iterator[pb.OutgoingMessage]:
    """Their spans end when they are handed over: batches have one result for many."""
    for message in messages:
        traced(tracer, topic, message).end()
        yield message


def checked_many(messages: Iterable[M]) -> Iterable[M]:
    """Reject text and dicts for send_many: they are iterable, but never meant."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidArgumentError(
            f"send_many needs a list of messages, not {type(messages).__name__}",
            hint="pass a list, or use send",
        )
    return messages


def encode_any(message: object) -> pb.OutgoingMessage:
    """A value, a pair of key and value, or an Outgoing."""
    if isinstance(message, Outgoing):
        return encode(message)
    if isinstance(message, tuple):
        if len(message) != 2:
            raise InvalidArgumentError(
                f"invalid message {message!r}", hint="pass values, (key, value), or Outgoing(…)"
            )
        return pb.OutgoingMessage(
            key=_bytes(encode_key(message[0])), value=_bytes(encode_value(message[1]))
        )
    return pb.OutgoingMessage(value=_bytes(encode_value(message)))


def encode_acks(acks: object) -> "pb.Acks.ValueType":
    """ "all", "leader" or "none"; or "all", 1 and 0, as in Kafka."""
    plain = acks.value if isinstance(acks, Enum) else acks
    found = _ACKS.get(str(plain).lower())
    if found is None:
        raise InvalidArgumentError(
            f'acks must be "all", "leader" or "none", not {acks!r}', hint='write acks="all"'
        )
    return found


def milliseconds(seconds: float, what: str) -> int:
    """Milliseconds of a duration in seconds. Raises InvalidArgumentError."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and 0 <= seconds <= _SECONDS_MAX:
        return int(seconds * 1000)
    raise InvalidArgumentError(
        f"{what} must be 0 to {_SECONDS_MAX:,} seconds, not {seconds!r}", hint="a number of seconds"
    )


_SECONDS_MAX = 2**31 // 1000 - 1


def _deliver_at_ms(deliver_at: int | datetime | None, delay: float | None) -> int:
    if deliver_at is not None and delay is not None:
        raise InvalidArgumentError("both deliver_at and delay given", hint="pass one of them")
    if deliver_at is not None:
        return encode_timestamp(deliver_at)
    if delay is not None:
        return int(time.time() * 1000) + milliseconds(delay, "delay")
    return 0


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value

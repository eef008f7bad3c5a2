"""Encodes the responses of polls, without a protobuf object for each message of them.

To fill in and serialize such objects took most of the time of a poll. What the messages of a poll
have in common is encoded once: topic, partition, time, and the end of the lease.
"""

from typing import Final

from moldau.api.queues import PollResult
from moldau.edge.grpc.messages import write_headers
from moldau.proto.v1.queue_pb2 import Message, PollResponse
from moldau.records.record import Headers

_VARINT, _BYTES = 0, 2
_UINT64: Final = 2**64 - 1


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number] if number >= 0 else _varint(number & _UINT64)
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


_SMALL: Final = [bytes((number,)) for number in range(0x80)]


def _tag(message: "type[Message | PollResponse]", field: str, kind: int) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | kind)


_MESSAGE: Final = _tag(PollResponse, "messages", _BYTES)
_IS_FULL: Final = _tag(PollResponse, "is_full", _VARINT) + b"\1"
_TOPIC: Final = _tag(Message, "topic", _BYTES)
_PARTITION: Final = _tag(Message, "partition", _VARINT)
_OFFSET: Final = _tag(Message, "offset", _VARINT)
_TIMESTAMP: Final = _tag(Message, "timestamp_ms", _VARINT)
_KEY: Final = _tag(Message, "key", _BYTES)
_VALUE: Final = _tag(Message, "value", _BYTES)
_TOKEN: Final = _tag(Message, "token", _BYTES)
_ATTEMPT: Final = _tag(Message, "attempt", _VARINT)
_LEASE_UNTIL: Final = _tag(Message, "lease_until_ms", _VARINT)


def encode_poll_response(polled: PollResult) -> bytes:
    """A PollResponse."""
    parts: list[bytes] = []
    append, join = parts.append, b"".join
    place: tuple[str, int] | None = None
    lease: tuple[int, int] | None = None
    time = -1
    head = tail = stamp = b""
    for topic, partition, record, token, attempt, lease_until in polled.deliveries:
        offset, timestamp, key, value, headers = record
        if place != (topic, partition):
            place = (topic, partition)
            head = _bytes(_TOPIC, topic.encode()) + _PARTITION + _varint(partition)
        if lease != (attempt, lease_until):
            lease = (attempt, lease_until)
            tail = _ATTEMPT + _varint(attempt) + _LEASE_UNTIL + _varint(lease_until)
        if timestamp != time or not stamp:
            time = timestamp
            stamp = _TIMESTAMP + _varint(timestamp)
        encoded = join(
            (
                head,
                _OFFSET,
                _varint(offset),
                stamp,
                b"" if key is None else _bytes(_KEY, key),
                b"" if value is None else _bytes(_VALUE, value),
                _headers(headers) if headers else b"",
                _TOKEN,
                _varint(len(token)),
                token,
                tail,
            )
        )
        append(_MESSAGE)
        append(_varint(len(encoded)))
        append(encoded)
    if polled.is_full:
        append(_IS_FULL)
    return join(parts)


def _bytes(tag: bytes, data: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(data)), data)


def _headers(headers: Headers) -> bytes:
    message = Message()
    write_headers(message, headers)
    return message.SerializeToString()

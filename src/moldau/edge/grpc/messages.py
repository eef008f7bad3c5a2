"""Converts between gRPC messages and records."""

from collections.abc import Iterable
from typing import Final

from moldau.api.queues import invalid
from moldau.edge.grpc.checks import LONG_MAX, number
from moldau.model.ids import Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_AT_HEADER, DELIVER_DAYS_MAX
from moldau.proto.v1.queue_pb2 import Header, Message, OutgoingMessage
from moldau.records.record import Headers, Record

_FIRST: Final = Offset(0)
HEADERS_MAX: Final = 1000
_DAY_MS: Final = 24 * 3_600_000


def read_message(message: OutgoingMessage, now: TimestampMs) -> Record:
    """Raises QueueRefusedError."""
    # Fields are read only if it matters: most messages have a value, and many have no key.
    key = message.key if message.HasField("key") else None
    value = message.value or (b"" if message.HasField("value") else None)
    timestamp, deliver_at = message.timestamp_ms, message.deliver_at_ms
    headers: Headers = []
    if message.headers:
        headers = _read_headers(message.headers)
    if deliver_at:
        number("deliver_at_ms", deliver_at)
        if deliver_at - now > DELIVER_DAYS_MAX * _DAY_MS:
            days = -((now - deliver_at) // _DAY_MS)
            raise invalid(
                f"deliver_at_ms is {days} days ahead; the limit is {DELIVER_DAYS_MAX} days"
            )
        headers = [header for header in headers if header[0] != DELIVER_AT_HEADER]
        headers.append((DELIVER_AT_HEADER, b"%d" % deliver_at))
    if timestamp:
        number("timestamp_ms", timestamp, most=LONG_MAX)
        return Record(_FIRST, TimestampMs(timestamp), key, value, headers)
    return Record(_FIRST, now, key, value, headers)


def _read_headers(headers: Iterable[Header]) -> Headers:
    found: Headers = [
        (header.key, header.value if header.HasField("value") else None) for header in headers
    ]
    if len(found) > HEADERS_MAX:
        raise invalid(f"{len(found)} headers; the limit is {HEADERS_MAX} per message")
    return found


def write_record(message: Message, topic: str, partition: int, record: Record) -> None:
    """Fill in the fields that are stored in the log."""
    offset, timestamp, key, value, headers = record
    message.topic = topic
    message.partition = partition
    message.offset = offset
    message.timestamp_ms = timestamp
    if key is not None:
        message.key = key
    if value is not None:
        message.value = value
    if headers:
        write_headers(message, headers)


def write_headers(message: Message, headers: Headers) -> None:
    for name, value in headers:
        header = message.headers.add()
        try:
            header.key = name
        except (UnicodeEncodeError, ValueError):
            # Written by a Kafka client: Kafka does not require valid text.
            header.key = name.encode("utf-8", "replace").decode()
        if value is not None:
            header.value = value

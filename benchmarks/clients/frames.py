"""Kafka frames for the raw loads: built once, sent many times.

Packed by hand rather than with the product's codec, so that a load is the same in every version of
the product and a mistake in the codec cannot hide itself.
"""

from __future__ import annotations

import struct
import time

import crc32c

CLIENT_ID = b"moldau-bench"
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
PRODUCE_VERSION = 7
FETCH_VERSION = 11


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record_batch(values: list[bytes]) -> bytes:
    """A batch of version 2 without keys, headers and compression."""
    now = int(time.time() * 1000)
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    checked = (
        struct.pack(">hiqqqhii", 0, len(values) - 1, now, now, -1, -1, -1, len(values)) + records
    )
    head = struct.pack(">iBI", -1, 2, crc32c.crc32c(checked))
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _frame(api: int, version: int, correlation: int, body: bytes) -> bytes:
    payload = struct.pack(">hhi", api, version, correlation) + _string(CLIENT_ID) + body
    return struct.pack(">i", len(payload)) + payload


def api_versions() -> bytes:
    return _frame(API_VERSIONS, 0, 1, b"")


def produce(topic: str, partition: int, batch: bytes, *, acks: int) -> bytes:
    body = (
        struct.pack(">hhii", -1, acks, 30_000, 1)
        + _string(topic.encode())
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    return _frame(PRODUCE, PRODUCE_VERSION, 7, body)


def produce_reply_bytes(topic: str) -> int:
    """The size of a whole reply frame to `produce`."""
    return 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + (4 + 2 + 8 + 8 + 8) + 4


def produce_error_at(topic: str) -> int:
    """Where the error code stands in a reply frame to `produce`."""
    return 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4


def fetch(
    topic: str, offsets: dict[int, int], *, bytes_max: int, partition_bytes_max: int
) -> bytes:
    body = struct.pack(">iiiibiii", -1, 500, 1, bytes_max, 0, 0, -1, 1)
    body += _string(topic.encode()) + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, partition_bytes_max)
    body += struct.pack(">i", 0) + _string(b"")
    return _frame(FETCH, FETCH_VERSION, 9, body)


def parse_fetch(reply: memoryview, topic: str) -> list[tuple[int, int, int, memoryview]]:
    """(partition, error, high watermark, records) of a reply (without its size field)."""
    _, _, error, _, topics = struct.unpack_from(">iihii", reply, 0)
    if error or topics > 1:
        return [(-1, error or -1, 0, reply[:0])]
    position = 18
    found = []
    for _ in range(topics):
        position += 2 + len(topic.encode())
        (partitions,) = struct.unpack_from(">i", reply, position)
        position += 4
        for _ in range(partitions):
            partition, code, high, _, _, aborted = struct.unpack_from(">ihqqqi", reply, position)
            position += 34 + 16 * max(0, aborted)
            _, size = struct.unpack_from(">ii", reply, position)
            position += 8
            found.append((partition, code, high, reply[position : position + max(0, size)]))
            position += max(0, size)
    return found


def offset_after(records: memoryview, start: int) -> tuple[int, int]:
    """(next offset to fetch, records) after the whole batches in `records`."""
    position, following, count = 0, start, 0
    while position + 61 <= len(records):
        base, size = struct.unpack_from(">qi", records, position)
        if position + 12 + size > len(records):
            break
        (delta,) = struct.unpack_from(">i", records, position + 23)
        following = base + delta + 1
        count += delta + 1
        position += 12 + size
    return following, count

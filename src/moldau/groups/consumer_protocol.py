"""ConsumerProtocolSubscription and ConsumerProtocolAssignment: the payloads of classic consumers.

They are opaque to the classic group protocol. They are decoded to know which topics a group uses,
to describe groups, and to assign partitions on the broker. Other bytes decode to None.
"""

import struct
from collections.abc import Iterable, Mapping

from msgspec import Struct

from moldau.model.errors import CorruptionError
from moldau.records.kafka_types import Reader, string_bytes

Partitions = Mapping[str, frozenset[int]]
"""Partitions by topic name."""


class Subscription(Struct, frozen=True, kw_only=True):
    topics: frozenset[str]
    owned: Partitions
    """Partitions that the member keeps; empty for clients that revoke all before they join."""
    generation: int = -1
    """In which it got them; -1 in older versions."""
    rack: str | None = None
    user_data: bytes = b""
    """Data of the client-side assignor."""


class ConsumerAssignment(Struct, frozen=True, kw_only=True):
    partitions: Partitions
    user_data: bytes = b""


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics only; the bytes after them are not checked."""
    try:
        return _topics(_reader(subscription)[0])
    except CorruptionError:
        return None


def read_subscription(subscription: bytes) -> Subscription | None:
    try:
        reader, version = _reader(subscription)
        topics = _topics(reader)
        user_data = reader.nullable_blob()
        owned = _partitions(reader) if version >= 1 and not reader.is_at_end else {}
        generation = reader.int32() if version >= 2 and not reader.is_at_end else -1
        rack = reader.nullable_string() if version >= 3 and not reader.is_at_end else None
    except CorruptionError:
        return None
    return Subscription(
        topics=topics,
        owned=owned,
        generation=generation,
        rack=rack or None,
        user_data=user_data or b"",
    )


def read_assignment(assignment: bytes) -> ConsumerAssignment | None:
    """Empty bytes are an empty assignment: leaders send them for members without partitions."""
    if not assignment:
        return ConsumerAssignment(partitions={})
    try:
        reader, _ = _reader(assignment)
        partitions = _partitions(reader)
        user_data = b"" if reader.is_at_end else reader.nullable_blob()
    except CorruptionError:
        return None
    return ConsumerAssignment(partitions=partitions, user_data=user_data or b"")


def assignment_bytes(partitions: Mapping[str, Iterable[int]]) -> bytes:
    """In version 0, which every client reads."""
    parts = [struct.pack(">hi", 0, len(partitions))]
    for topic in sorted(partitions):
        indexes = sorted(partitions[topic])
        parts += (string_bytes(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


def _reader(data: bytes) -> tuple[Reader, int]:
    """Later versions only append fields, so every version from 0 on can be read."""
    reader = Reader(data)
    version = reader.int16()
    if version < 0:
        raise CorruptionError(f"version {version}")
    return reader, version


def _topics(reader: Reader) -> frozenset[str]:
    return frozenset(reader.string() for _ in range(reader.array_length()))


def _partitions(reader: Reader) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for _ in range(reader.array_length()):
        topic = reader.string()
        indexes = frozenset(reader.int32() for _ in range(reader.array_length()))
        found[topic] = found.get(topic, frozenset()) | indexes
    return {topic: indexes for topic, indexes in found.items() if indexes}

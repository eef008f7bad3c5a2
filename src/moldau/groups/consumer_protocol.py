"""Owns the bytes in which classic consumers say what they want and are told what they have.

They are the clients' own (ConsumerProtocolSubscription and ConsumerProtocolAssignment), opaque to
the classic protocol. They are read to know which topics a group still uses, to show a group to
people, and where the broker assigns in the place of a client. Bytes of another kind read as None.
"""

import struct
from collections.abc import Iterable, Mapping

from msgspec import Struct

from moldau.groups.format import Reader, string_bytes
from moldau.model.errors import CorruptionError

Partitions = Mapping[str, frozenset[int]]
"""Partitions by the name of their topic."""


class Subscription(Struct, frozen=True, kw_only=True):
    topics: frozenset[str]
    owned: Partitions
    """What the member still reads; nothing of clients that let go of all before they join."""
    rack: str | None = None
    user_data: bytes = b""
    """What the assignor of the clients adds for itself."""


class ConsumerAssignment(Struct, frozen=True, kw_only=True):
    partitions: Partitions
    user_data: bytes = b""


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics alone; what follows them may be anything."""
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
        if version >= 2 and not reader.is_at_end:
            reader.int32()
        rack = reader.nullable_string() if version >= 3 and not reader.is_at_end else None
    except CorruptionError:
        return None
    return Subscription(topics=topics, owned=owned, rack=rack or None, user_data=user_data or b"")


def read_assignment(assignment: bytes) -> ConsumerAssignment | None:
    """No bytes at all are no partitions: so a leader says it of a member that has none."""
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
    """In the first version, which every client reads."""
    parts = [struct.pack(">hi", 0, len(partitions))]
    for topic in sorted(partitions):
        indexes = sorted(partitions[topic])
        parts += (string_bytes(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


def _reader(data: bytes) -> tuple[Reader, int]:
    """Later versions only add at the end, so every version from 0 on is read."""
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

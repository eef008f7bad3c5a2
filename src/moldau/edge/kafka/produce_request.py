"""A produce request for a single partition: read at once when one like it was decoded before.

Un-batched producers send the same request over and over, with other records. All that comes before
the records is the same bytes each time, so these are looked up instead of decoded. They are made by
the ordinary encoder; what is not equal to that, byte by byte, is decoded as any other request.
"""

import struct
from typing import Final

from moldau.edge.kafka.pending_produce import TOPIC_IDS_FROM
from moldau.edge.kafka.produce_reply import ReplyTemplate
from moldau.model.slices import FileSlice
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from moldau.wire.take import take
from moldau.wire.varint import read_uvarint

_FLEXIBLE_FROM: Final = ProduceRequest.FLEXIBLE
_KNOWN_MAX: Final = 4096
_NAME_AT: Final = 12
"""After a null id of a transaction, acks, timeout and a count of one topic; its length."""
_FLEXIBLE_NAME_AT: Final = 8
_COUNT_AND_INDEX: Final = 8
"""Of partitions, between the name and the length of the records."""
_FLEXIBLE_COUNT_AND_INDEX: Final = 5
_ID_BYTES: Final = 16
"""Of a topic, in place of its name and the length of that."""
_ONE_BYTE_MAX: Final = 127
_VARINT_MAX: Final = 5
_TAIL: Final = b"\0\0\0"
"""Empty sections of tagged fields after the records, in flexible versions."""
_END_BYTES: Final = 4
"""From the length of records that are empty: of any version."""

_unpack_short: Final = struct.Struct(">h").unpack_from
_unpack_int: Final = struct.Struct(">i").unpack_from


class KnownProduce:
    """What a request says before its records. From version 13 on, `topic` is empty; before, the
    `topic_id` is zero."""

    __slots__ = ("acks", "is_learned", "partition", "template", "timeout_ms", "topic", "topic_id")

    def __init__(
        self, acks: int, timeout_ms: int, topic: str, topic_id: bytes, partition: int
    ) -> None:
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.is_learned = False
        self.template: ReplyTemplate | None = None


class SingleProduce:
    """One request; `records` is a view of its frame."""

    __slots__ = ("known", "records")

    def __init__(self, known: KnownProduce, records: memoryview) -> None:
        self.known = known
        self.records = records


_by_version: Final[list[dict[bytes, KnownProduce]]] = [
    {} for _ in range(ProduceRequest.VERSIONS.last + 1)
]
_learned: Final[set[tuple[int, int, int, str, bytes, int]]] = set()
_left_out = 0
"""How many requests were decoded since there was no room for them."""


def read_single(frame: memoryview, version: int, position: int) -> SingleProduce | None:
    """None: the request has to be decoded."""
    by_head = _by_version[version]
    size = len(frame)
    if version < _FLEXIBLE_FROM:
        name_at = position + _NAME_AT
        if name_at + 2 > size:
            return None
        topic_bytes: int = _unpack_short(frame, name_at)[0]
        head_end = name_at + 2 + topic_bytes + _COUNT_AND_INDEX
        if topic_bytes < 0 or head_end + 4 > size:
            return None
        known = by_head.get(take(frame, position, head_end - position))
        if known is None:
            return None
        length: int = _unpack_int(frame, head_end)[0]
        start = head_end + 4
        if length < 0 or start + length != size:
            return None
        return SingleProduce(known, frame[start:size])
    name_at = position + _FLEXIBLE_NAME_AT
    if version >= TOPIC_IDS_FROM:
        topic_bytes = _ID_BYTES
    elif name_at < size:
        # A compact length is one more; the byte of it is counted instead.
        topic_bytes = frame[name_at]
    else:
        return None
    head_end = name_at + topic_bytes + _FLEXIBLE_COUNT_AND_INDEX
    if topic_bytes > _ONE_BYTE_MAX or head_end + _VARINT_MAX > size:
        return None
    known = by_head.get(take(frame, position, head_end - position))
    if known is None:
        return None
    length, start = read_uvarint(frame, head_end)
    end = start + length - 1
    if not length or end + len(_TAIL) != size or take(frame, end, len(_TAIL)) != _TAIL:
        return None
    return SingleProduce(known, frame[start:end])


def learn(known: KnownProduce, version: int) -> None:
    """From now on, such a request is not decoded."""
    global _left_out
    topic, topic_id = known.topic, known.topic_id
    key = (version, known.acks, known.timeout_ms, topic, topic_id, known.partition)
    if key in _learned:
        # The client encodes it in another way.
        return
    if version >= _FLEXIBLE_FROM and len(topic.encode()) >= _ONE_BYTE_MAX:
        return
    if len(_learned) >= _KNOWN_MAX:
        _left_out += 1
        if _left_out < _KNOWN_MAX:
            return
        # What is in use now may be something else than long ago.
        _left_out = 0
        _learned.clear()
        for by_head in _by_version:
            by_head.clear()
    _learned.add(key)
    partition = ProducePartition(index=known.partition, records=b"")
    topics = [ProduceTopic(name=topic, topic_id=topic_id, partitions=[partition])]
    request = ProduceRequest(acks=known.acks, timeout_ms=known.timeout_ms, topics=topics)
    chunks = request.encode(version)
    encoded = b"".join(chunk for chunk in chunks if not isinstance(chunk, FileSlice))
    known.is_learned = True
    _by_version[version][encoded[:-_END_BYTES]] = known

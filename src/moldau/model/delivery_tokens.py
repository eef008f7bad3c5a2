"""The format of delivery tokens, as far as clients and proxies need it for routing.

kind (1 byte) · topic id (16 bytes) · partition (int32) · rest, for the broker only
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from moldau.model.ids import PartitionIndex, TopicId

_HEAD: Final = struct.Struct(">B16si")
ROUTING_BYTES: Final = _HEAD.size
"""The first bytes of a token name its kind and partition: equal bytes, equal destination."""


class TokenKind(IntEnum):
    """The kind of the group that delivered the message."""

    ORDERED = 1
    QUEUE = 2


class DeliveryToken(NamedTuple):
    """A decoded token."""

    kind: TokenKind
    topic_id: TopicId
    partition: PartitionIndex
    rest: bytes


def encode_delivery_token(token: DeliveryToken) -> bytes:
    return _HEAD.pack(token.kind, token.topic_id, token.partition) + token.rest


def decode_delivery_token(data: bytes) -> DeliveryToken | None:
    """None if the bytes are not a valid token."""
    if len(data) < _HEAD.size:
        return None
    kind, topic_id, partition = _HEAD.unpack_from(data)
    if kind not in (TokenKind.ORDERED, TokenKind.QUEUE) or partition < 0:
        return None
    rest = data[_HEAD.size :]
    return DeliveryToken(TokenKind(kind), TopicId(topic_id), PartitionIndex(partition), rest)

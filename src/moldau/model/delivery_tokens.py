"""Owns the outer form of a delivery's token: what it is, and where it is to be brought back.

    kind (1 byte) · topic id (16 bytes) · partition (int32) · what the broker makes of it

Whoever routes, a client or a proxy, reads the place and nothing else.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from moldau.model.ids import PartitionIndex, TopicId

_HEAD: Final = struct.Struct(">B16si")
ROUTING_BYTES: Final = _HEAD.size
"""The first bytes of a token name its kind and partition: equal bytes, equal destination."""


class TokenKind(IntEnum):
    """The kind of group that it is from."""

    ORDERED = 1
    QUEUE = 2


class DeliveryToken(NamedTuple):
    """A token taken apart."""

    kind: TokenKind
    topic_id: TopicId
    partition: PartitionIndex
    rest: bytes


def encode_delivery_token(ticket: DeliveryToken) -> bytes:
    return _HEAD.pack(ticket.kind, ticket.topic_id, ticket.partition) + ticket.rest


def decode_delivery_token(data: bytes) -> DeliveryToken | None:
    """None for bytes that are no token of ours."""
    if len(data) < _HEAD.size:
        return None
    kind, topic_id, partition = _HEAD.unpack_from(data)
    if kind not in (TokenKind.ORDERED, TokenKind.QUEUE) or partition < 0:
        return None
    rest = data[_HEAD.size :]
    return DeliveryToken(TokenKind(kind), TopicId(topic_id), PartitionIndex(partition), rest)

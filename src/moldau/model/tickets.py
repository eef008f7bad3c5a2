"""Owns the outer form of a delivery's token: what it is, and where it is to be brought back.

    kind (1 byte) · topic id (16 bytes) · partition (int32) · what the broker makes of it

Whoever routes, a client or a proxy, reads the place and nothing else.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from moldau.model.ids import PartitionIndex, TopicId

_HEAD: Final = struct.Struct(">B16si")
PLACE_BYTES: Final = _HEAD.size
"""So many bytes from the beginning on tell where it is to be brought."""
HEAD_BYTES: Final = _HEAD.size
"""Tokens that begin with the same bytes are of the same kind and place."""


class TicketKind(IntEnum):
    """The kind of group that it is from."""

    ORDERED = 1
    QUEUE = 2


class Ticket(NamedTuple):
    """A token taken apart."""

    kind: TicketKind
    topic_id: TopicId
    partition: PartitionIndex
    rest: bytes


def encode_ticket(ticket: Ticket) -> bytes:
    return _HEAD.pack(ticket.kind, ticket.topic_id, ticket.partition) + ticket.rest


def decode_ticket(data: bytes) -> Ticket | None:
    """None for bytes that are no token of ours."""
    if len(data) < _HEAD.size:
        return None
    kind, topic_id, partition = _HEAD.unpack_from(data)
    if kind not in (TicketKind.ORDERED, TicketKind.QUEUE) or partition < 0:
        return None
    rest = data[_HEAD.size :]
    return Ticket(TicketKind(kind), TopicId(topic_id), PartitionIndex(partition), rest)

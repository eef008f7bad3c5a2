"""The token of a lease, which a worker sends to settle a message.

It identifies the delivery, not the worker: leader epoch, offset and attempt. This combination is
unique in a queue, so a token is valid for one delivery. It contains a checksum of the queue's name,
so that a token of another group or partition is distinguished from one that is too late. Tokens
are not secret, and no means of access control.
"""

import struct
from typing import Final, NamedTuple

from moldau.model.ids import Epoch, Offset

_VERSION: Final = 1
_LAYOUT: Final = struct.Struct(">BIiqi")


class Token(NamedTuple):
    queue_checksum: int
    """CRC-32 of the queue's key."""
    epoch: Epoch
    offset: Offset
    attempt: int


def encode_token(token: Token) -> bytes:
    return _LAYOUT.pack(_VERSION, *token)


def decode_token(data: bytes, start: int = 0) -> Token | None:
    """The token that the bytes from `start` on are; None if they are not a valid one."""
    if len(data) - start != _LAYOUT.size:
        return None
    version, checksum, epoch, offset, attempt = _LAYOUT.unpack_from(data, start)
    if version != _VERSION or epoch < 0 or offset < 0 or attempt < 1:
        return None
    # Avoids the constructor call: an ack has hundreds of tokens.
    return tuple.__new__(Token, (checksum, epoch, offset, attempt))

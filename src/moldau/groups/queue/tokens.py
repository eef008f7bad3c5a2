"""Owns the token of a lease: what a worker shows to settle the message that it was given.

It names the delivery, not the worker: leader epoch, offset and attempt. None of these comes twice
in a queue, so a token is good for one delivery and for nothing after it. A sum over the queue's
name is in it, so that a token of another group or partition is told from one that came too late.
Tokens keep honest workers apart; they are no secret and give no right.
"""

import struct
import zlib
from typing import Final, NamedTuple

from moldau.model.ids import Epoch, Offset

_VERSION: Final = 1
_LAYOUT: Final = struct.Struct(">BIiqi")


class Token(NamedTuple):
    """One delivery of one message."""

    queue_sum: int
    epoch: Epoch
    offset: Offset
    attempt: int


def queue_sum(queue_key: bytes) -> int:
    return zlib.crc32(queue_key)


def encode_token(token: Token) -> bytes:
    return _LAYOUT.pack(_VERSION, *token)


def decode_token(data: bytes) -> Token | None:
    """None for bytes that are no token of ours."""
    if len(data) != _LAYOUT.size:
        return None
    version, *fields = _LAYOUT.unpack(data)
    _, epoch, offset, attempt = fields
    if version != _VERSION or epoch < 0 or offset < 0 or attempt < 1:
        return None
    # Without the call of its own constructor: there are hundreds in an ack.
    return tuple.__new__(Token, fields)

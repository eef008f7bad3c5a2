"""Owns the frames between brokers: u32 length, u8 kind, body. What is in a body others know."""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from moldau.model.limits import REQUEST_BYTES_MAX
from moldau.model.slices import Chunk

FRAME_BYTES_MAX: Final = REQUEST_BYTES_MAX + 16 * 1024 * 1024
"""A batch as large as a client's request may be, and what travels along with it."""
_HEAD: Final = struct.Struct(">IB")


class FrameKind(IntEnum):
    """What a frame after the handshake holds."""

    RAFT = 1
    HEARTBEAT = 2
    REQUEST = 3
    REPLY = 4
    FAILURE = 5


def frame_head(kind: FrameKind, body_bytes: int) -> bytes:
    """What stands before a body of that size."""
    return _HEAD.pack(body_bytes + 1, kind)


def size_of(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk) for chunk in chunks)

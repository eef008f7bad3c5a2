"""The frames between brokers: u32 length, u8 kind, body.

A large frame is sent in pieces, so that heartbeats can be sent between them: all pieces but the
last have the highest bit of the kind set. Pieces of two frames never mix.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from moldau.model.limits import REQUEST_BYTES_MAX
from moldau.model.slices import Chunk, FileSlice

FRAME_BYTES_MAX: Final = REQUEST_BYTES_MAX + 16 * 1024 * 1024
"""The largest client request, plus room for other messages in the frame."""
PIECE_BYTES_MAX = 2 * 1024 * 1024
"""Most frames are smaller: only those with a large batch or snapshot are split."""
MORE_FOLLOWS: Final = 0x80
_HEAD: Final = struct.Struct(">IB")


class FrameKind(IntEnum):
    """The content of a frame after the handshake."""

    RAFT = 1
    HEARTBEAT = 2
    REQUEST = 3
    REPLY = 4
    FAILURE = 5


class FrameHead(bytes):
    """The head of a frame or piece; marks in a send queue where one begins."""

    __slots__ = ()


def frame_head(kind: int, body_bytes: int) -> FrameHead:
    return FrameHead(_HEAD.pack(body_bytes + 1, kind))


def size_of(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk) for chunk in chunks)


def encode_frame(kind: FrameKind, chunks: Sequence[Chunk], size: int) -> list[Chunk]:
    if size <= PIECE_BYTES_MAX:
        return [frame_head(kind, size), *chunks]
    framed: list[Chunk] = []
    piece: list[Chunk] = []
    room = PIECE_BYTES_MAX
    left = size
    for chunk in chunks:
        position, length = 0, len(chunk)
        while position < length:
            taken = min(room, length - position)
            piece.append(_part(chunk, position, taken))
            position += taken
            room -= taken
            left -= taken
            if not room or not left:
                flag = MORE_FOLLOWS if left else 0
                framed.append(frame_head(kind | flag, PIECE_BYTES_MAX - room))
                framed += piece
                piece, room = [], PIECE_BYTES_MAX
    return framed


def _part(chunk: Chunk, position: int, size: int) -> Chunk:
    if size == len(chunk):
        return chunk
    if isinstance(chunk, FileSlice):
        return FileSlice(chunk.file, chunk.position + position, size)
    return memoryview(chunk)[position : position + size]

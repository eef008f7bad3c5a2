"""Copies short parts of frames: twice as fast as slicing a view."""

import struct
from typing import Final

TAKE: Final = [struct.Struct(f"{size}s").unpack_from for size in range(128)]
"""By the number of bytes."""
_SIZES: Final = len(TAKE)


def take(frame: memoryview, position: int, size: int) -> bytes:
    """A copy of a part of a frame, which has it: nearly always a short one."""
    taken: bytes
    if size < _SIZES:
        taken = TAKE[size](frame, position)[0]
    else:
        taken = bytes(frame[position : position + size])
    return taken

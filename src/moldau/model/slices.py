"""Owns FileSlice: a run of bytes in an open file that is sent without being read.

`log` makes it, `wire` counts its length inside a message, `net` hands it to sendfile. The slice
holds the file object, so the descriptor stays open until the bytes are sent, even if retention
unlinks the segment meanwhile.
"""

from typing import Protocol


class HasDescriptor(Protocol):
    """An open file. Closing is the owner's business; a slice only keeps it alive."""

    def fileno(self) -> int: ...


class FileSlice:
    """`size` bytes of `file` from `position` on."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: HasDescriptor, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileSlice(position={self.position}, size={self.size})"


Chunk = bytes | bytearray | memoryview | FileSlice
"""A piece of an encoded message, as `wire` makes it and `net` sends it."""

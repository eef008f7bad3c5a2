"""Owns FileSlice: a run of bytes in an open file that is sent without being read.

`log` makes it, `wire` counts its length inside a message, `net` lets the file send it. The slice
holds the file object, so the descriptor stays open until the bytes are sent, even if retention
unlinks the segment meanwhile.
"""

from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, as far as a file that is sent needs it."""

    def fileno(self) -> int: ...


class SlicedFile(Protocol):
    """An open file. Closing is the owner's business; a slice only keeps it alive."""

    def pread(self, size: int, position: int) -> bytes: ...

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        """As much as a non-blocking socket takes; 0 at the end of the file."""
        ...


class FileSlice:
    """`size` bytes of `file` from `position` on."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: SlicedFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileSlice(position={self.position}, size={self.size})"


Chunk = bytes | bytearray | memoryview | FileSlice
"""A piece of an encoded message, as `wire` makes it and `net` sends it."""

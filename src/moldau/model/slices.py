"""FileSlice: a range of an open file that is sent without being read (sendfile).

`log` makes it, `wire` uses its length in a message, `net` sends it. The slice references the file
object, so the descriptor stays open until the bytes are sent, even if retention deletes the segment
in the meantime.
"""

from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, as far as sendfile needs it."""

    def fileno(self) -> int: ...


class SlicedFile(Protocol):
    """An open file. A slice keeps it alive and does not close it."""

    def pread(self, size: int, position: int) -> bytes: ...

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        """As much as a non-blocking socket accepts; 0 at the end of the file."""
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
"""A part of an encoded message."""

"""The file system interface of the log.

It is small because the simulator implements it too, and crashes it between any two calls. Paths
are relative to the data directory, with forward slashes.
"""

import errno
from collections.abc import Sequence
from typing import Protocol

from moldau.model.slices import HasDescriptor

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Closed by close() or when the last reference is dropped."""

    def pwrite(self, data: Buffer | Sequence[Buffer], position: int) -> int:
        """Write at a position; returns the number of bytes written, which may be fewer."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        """Send up to `size` bytes to a socket without reading them; 0 at the end of the file."""
        ...

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a read there needs no disk access, judged by a few samples."""
        ...

    def flush(self) -> None:
        """fdatasync. May run in another thread than the writes."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


def write_all(file: File, data: Buffer, position: int) -> None:
    """Write all of `data`, in several writes if need be. Raises OSError, also on a full disk."""
    view = memoryview(data)
    while view:
        written = file.pwrite(view, position)
        if not written:
            raise OSError(errno.ENOSPC, "short write")
        position += written
        view = view[written:]


class Files(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File: ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Atomically and durably make `path` hold `data` (temporary file, fsync, rename, fsync).

        A private file can be read by nobody but its owner.
        """
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def makedirs(self, path: str) -> None:
        """Durable when it returns."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Durable when it returns."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it exists and is empty."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable (after creating or removing files in it)."""
        ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int:
        """Size of the file system that holds the tree."""
        ...

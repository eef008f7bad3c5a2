"""A directory tree that is read, and never written: all changes stay in memory.

Opening a log repairs it: a torn end is truncated, marks are written. Who only looks at the
directory of a stopped broker opens its logs through this, and sees what the broker would see.
"""

import errno
from collections.abc import Sequence

from msgspec import Struct, field

from moldau.log.filesystem import Buffer, File, Files, write_all
from moldau.model.slices import HasDescriptor


class _Changes(Struct, eq=False):
    """What was written to one file."""

    size: int
    kept: int
    """Bytes of the stored file that are still part of this one: from its begin."""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    """Position and bytes, oldest first."""


class UnwrittenFile:
    """One open file; its changes are shared by all that have it open."""

    def __init__(self, stored: File | None, changes: _Changes) -> None:
        self._stored = stored
        self._changes = changes

    def pwrite(self, data: Buffer | Sequence[Buffer], position: int) -> int:
        parts = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
        joined = b"".join(bytes(part) for part in parts)
        self._changes.writes.append((position, joined))
        self._changes.size = max(self._changes.size, position + len(joined))
        return len(joined)

    def pread(self, size: int, position: int) -> bytes:
        changes = self._changes
        end = min(position + size, changes.size)
        if end <= position:
            return b""
        found = bytearray(end - position)
        kept = min(end, changes.kept) - position
        if self._stored is not None and kept > 0:
            data = self._stored.pread(kept, position)
            found[: len(data)] = data
        for start, data in changes.writes:
            first, last = max(start, position), min(start + len(data), end)
            if first < last:
                found[first - position : last - position] = data[first - start : last - start]
        return bytes(found)

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "this file is only read, and not sent")

    def is_cached(self, size: int, position: int) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is kept."""

    def truncate(self, size: int) -> None:
        changes = self._changes
        changes.kept = min(changes.kept, size)
        changes.writes = [(at, data[: size - at]) for at, data in changes.writes if at < size]
        changes.size = size

    def size(self) -> int:
        return self._changes.size

    def close(self) -> None:
        if self._stored is not None:
            self._stored.close()
            self._stored = None


class UnwrittenFiles:
    """`Files` over other files, which are opened for reading only."""

    def __init__(self, stored: Files) -> None:
        self._stored = stored
        self._changed: dict[str, _Changes] = {}
        self._removed: set[str] = set()
        self._directories: set[str] = set()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> UnwrittenFile:
        changes = self._changed.get(path)
        is_stored = not self._is_removed(path) and self._stored.exists(path)
        if changes is None and not is_stored and not create:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        stored = self._stored.open(path, writable=False) if is_stored else None
        if changes is None:
            size = 0 if stored is None else stored.size()
            changes = self._changed[path] = _Changes(size, size)
        return UnwrittenFile(stored, changes)

    def read(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        self._changed[path] = _Changes(0, 0)
        write_all(UnwrittenFile(None, self._changed[path]), data, 0)

    def listdir(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        names = {name for name in self._stored.listdir(path) if not self._is_removed(prefix + name)}
        for each in (*self._changed, *self._directories):
            if each.startswith(prefix) and each != path:
                names.add(each[len(prefix) :].partition("/")[0])
        return sorted(names)

    def exists(self, path: str) -> bool:
        if path in self._changed or path in self._directories:
            return True
        return not self._is_removed(path) and self._stored.exists(path)

    def _is_removed(self, path: str) -> bool:
        parts = path.split("/")
        return any("/".join(parts[:count]) in self._removed for count in range(1, len(parts) + 1))

    def makedirs(self, path: str) -> None:
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        self.replace(target, self.read(source))
        self.remove(source)

    def remove(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        self._changed.pop(path, None)
        self._removed.add(path)

    def remove_tree(self, path: str) -> None:
        self._removed.add(path)
        for each in [each for each in self._changed if each.startswith(f"{path}/")]:
            del self._changed[each]
        self._directories = {
            each for each in self._directories if each != path and not each.startswith(f"{path}/")
        }

    def remove_dir(self, path: str) -> None:
        if not self.listdir(path):
            self.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        """Nothing is kept."""

    def free_bytes(self) -> int:
        return self._stored.free_bytes()

    def total_bytes(self) -> int:
        return self._stored.total_bytes()

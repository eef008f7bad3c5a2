"""The file system of the operating system: the only module that opens data files.

Errors stay OSError: the log distinguishes a full disk, a missing file and a failed disk.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from moldau.log.filesystem import Buffer, write_all
from moldau.model.slices import HasDescriptor

READ_BYTES_MAX: Final = 1 << 30
"""Linux transfers at most 2 GiB - 4 KiB in one call; larger reads take several."""
BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX of Linux: more buffers than this fail with EINVAL."""
REPLACEMENT_SUFFIX: Final = ".tmp"
"""After a crash, a file with this suffix is a leftover and is overwritten next time."""
_SAMPLE_BYTES: Final = 256 * 1024
"""What is between two samples is cached as well, nearly always: pages go in the order they came."""
_PAGE_BYTES: Final = 4096
_SAMPLE = [bytearray(1)]
_REMOVE_TRIES: Final = 10
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


class OsFile:
    """One open descriptor, closed by close() or with the last reference.

    A FileSlice being sent references this object, so a segment that retention unlinks stays
    readable until the bytes are sent. Do not close() a file that slices may use: drop it.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor; ValueError once closed, since another file may have its number."""
        if self._descriptor < 0:
            raise ValueError("the file is closed")
        return self._descriptor

    def pwrite(self, data: Buffer | Sequence[Buffer], position: int) -> int:
        """One system call; fewer bytes than given are written when the disk is full."""
        if isinstance(data, (bytes, bytearray, memoryview)):
            return os.pwrite(self.fileno(), data, position)
        return os.pwritev(self.fileno(), data[:BUFFERS_PER_WRITE_MAX], position)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self.fileno(), min(size, READ_BYTES_MAX), position)
        if len(data) == size or not data:
            return data
        chunks = [data]
        read = len(data)
        while read < size:
            data = os.pread(self.fileno(), min(size - read, READ_BYTES_MAX), position + read)
            if not data:
                break
            chunks.append(data)
            read += len(data)
        return b"".join(chunks)

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        return os.sendfile(sock.fileno(), self.fileno(), position, size)

    def is_cached(self, size: int, position: int) -> bool:
        descriptor = self.fileno()
        last = position + size - 1
        try:
            os.preadv(descriptor, _SAMPLE, position, os.RWF_NOWAIT)
            if last // _PAGE_BYTES != position // _PAGE_BYTES:
                os.preadv(descriptor, _SAMPLE, last, os.RWF_NOWAIT)
            for at in range(position + _SAMPLE_BYTES, last, _SAMPLE_BYTES):
                os.preadv(descriptor, _SAMPLE, at, os.RWF_NOWAIT)
        except OSError as error:
            # A file system without RWF_NOWAIT is in memory, or the read will wait.
            return error.errno != errno.EAGAIN
        return True

    def flush(self) -> None:
        """fdatasync: the data, and of the metadata what is needed to read it (the size)."""
        os.fdatasync(self.fileno())

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # An error cannot be handled here, and does not affect flushed data.
        with suppress(OSError):
            self.close()

    def __repr__(self) -> str:
        return f"OsFile({self._descriptor})"


class OsFiles:
    """The directory tree below `root`. No path leaves it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        """The name of a created file is durable only after sync_dir."""
        return OsFile(self._opened(path, create=create, writable=writable))

    def _opened(self, path: str, *, create: bool, writable: bool) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return os.open(self._resolve(path), flags, _FILE_MODE)

    def read(self, path: str) -> bytes:
        with open(self._resolve(path), "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        target = self._resolve(path)
        temporary = target + REPLACEMENT_SUFFIX
        flags = os.O_CLOEXEC | os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file = OsFile(os.open(temporary, flags, _FILE_MODE))
        try:
            if is_private:
                # A leftover of a crash keeps its mode.
                os.fchmod(file.fileno(), _FILE_MODE)
                _give_to_owner_of(os.path.dirname(target), file.fileno())
            write_all(file, data, 0)
            # The content before the name: a crash leaves the old file or the new one, whole.
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            file.close()
        os.replace(temporary, target)
        _sync_directory(os.path.dirname(target))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._resolve(path)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._resolve(path))

    def makedirs(self, path: str) -> None:
        for _ in range(_REMOVE_TRIES):
            try:
                self._make_directories(self._resolve(path))
                return
            except FileNotFoundError:
                # Another thread has just removed an empty parent directory.
                continue
        self._make_directories(self._resolve(path))

    def remove_dir(self, path: str) -> None:
        try:
            os.rmdir(self._resolve(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _make_directories(self, target: str) -> None:
        missing = []
        while not os.path.isdir(target):
            missing.append(target)
            target = os.path.dirname(target)
        for directory in reversed(missing):
            try:
                os.mkdir(directory, _DIRECTORY_MODE)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise
            _sync_directory(os.path.dirname(directory))
        # It may exist because of a crash before its parent was synced.
        if not missing and target != self._root:
            _sync_directory(os.path.dirname(target))

    def rename(self, source: str, target: str) -> None:
        source_path, target_path = self._resolve(source), self._resolve(target)
        os.rename(source_path, target_path)
        target_directory = os.path.dirname(target_path)
        _sync_directory(target_directory)
        source_directory = os.path.dirname(source_path)
        if source_directory != target_directory:
            _sync_directory(source_directory)

    def remove(self, path: str) -> None:
        os.unlink(self._resolve(path))

    def remove_tree(self, path: str) -> None:
        target = self._resolve(path)
        if target == self._root:
            raise PermissionError(errno.EPERM, "the data directory must not be removed", target)
        for tries_left in range(_REMOVE_TRIES - 1, -1, -1):
            try:
                shutil.rmtree(target)
                return
            except FileNotFoundError:
                if not os.path.exists(target):
                    return
            except OSError as error:
                # The cleaner process may just have created another file in it.
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise

    def sync_dir(self, path: str) -> None:
        _sync_directory(self._resolve(path))

    def free_bytes(self) -> int:
        """What this process may still write, without the blocks reserved for root."""
        stat = os.statvfs(self._root)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self) -> int:
        stat = os.statvfs(self._root)
        return stat.f_blocks * stat.f_frsize

    def _resolve(self, path: str) -> str:
        """The real path; PermissionError for one that would leave the root.

        Names are checked, not links: only the owner can create a link in the data directory.
        """
        if path in ("", "."):
            return self._root
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise PermissionError(errno.EPERM, "outside the data directory", path)
        return os.path.normpath(f"{self._root}/{path}")


def _give_to_owner_of(directory: str, descriptor: int) -> None:
    """What an administrator writes as root is for the broker, which may run as another user."""
    if os.geteuid() == 0:
        owner = os.stat(directory)
        if (owner.st_uid, owner.st_gid) != (0, 0):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

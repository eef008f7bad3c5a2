"""Where backups are: a directory, or a prefix of an object store. Files there are never changed."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

from moldau.client.errors import ClientError, NotFoundError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3_SCHEME: Final = "s3://"
INSTALL_HINT: Final = "install it: pip install 'moldau[backup]'"
_SETTLED_SECONDS: Final = 24 * 60 * 60.0
_ASIDE: Final = ".tmp-"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class BackupStore(Protocol):
    """Files by their path below the place of the backup. All raise ClientError."""

    place: str

    def put(self, path: str, data: bytes) -> None:
        """Write a file atomically: after a crash it is there whole, or not at all."""
        ...

    def get(self, path: str) -> bytes:
        """The whole file. Raises NotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """Of files and folders in a folder, sorted; empty if it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Succeeds if it does not exist."""
        ...

    def is_settled(self, path: str) -> bool:
        """Whether no command that runs now has written the file, which is locked or is old."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keeps other commands from changing the backup, where the place has locks."""
        ...


class DirectoryStore:
    """A directory; each file and its name are on disk when `put` returns."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = str(root)

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path
        aside = target.with_name(f"{_ASIDE}{uuid4().hex}")
        try:
            # Backups hold records, and what is stored of passwords.
            self._make_folder(target.parent)
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(target)
            _sync_folder(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise self._failed("write", error) from None

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if folder != self.root:
            self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, parents=folder == self.root, exist_ok=True)
        _sync_folder(folder.parent)

    def get(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"{self.root / path} is missing") from None
        except OSError as error:
            raise self._failed("read", error) from None

    def names(self, folder: str) -> list[str]:
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed("read", error) from None
        return sorted(name for name in found if not name.startswith(_ASIDE))

    def delete(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
            for parent in (self.root / path).parents:
                if parent == self.root or any(parent.iterdir()):
                    break
                parent.rmdir()
        except OSError as error:
            raise self._failed("delete from", error) from None

    def is_settled(self, path: str) -> bool:
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self._make_folder(self.root)
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._failed("write", error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ClientError(
                f"another command is changing the backup in {self.root}", hint="wait for its end"
            ) from None
        try:
            self._remove_leftovers()
            yield
        finally:
            os.close(descriptor)

    def _remove_leftovers(self) -> None:
        """Of writes that were cut short."""
        for aside in self.root.rglob(f"{_ASIDE}*"):
            with contextlib.suppress(OSError):
                aside.unlink()

    def _failed(self, doing: str, error: OSError) -> ClientError:
        if error.errno in _FULL:
            return ClientError(
                f"the disk of {self.root} is full",
                hint="free some space and repeat the command: it continues where it stopped",
            )
        return ClientError(f"cannot {doing} {self.root}: {error.strerror or error}")


class ObjectStore:
    """A prefix of an S3 bucket. An object is there when its upload is complete, and not before."""

    def __init__(self, filesystem: "FileSystem", location: str) -> None:
        """`location` is bucket and prefix."""
        self._filesystem = filesystem
        self._location = location.rstrip("/")
        self.place = f"{S3_SCHEME}{self._location}"

    def put(self, path: str, data: bytes) -> None:
        with self._errors("write to"), self._filesystem.open_output_stream(self._at(path)) as out:
            out.write(data)

    def get(self, path: str) -> bytes:
        with self._errors("read"), self._filesystem.open_input_stream(self._at(path)) as stream:
            data: bytes = stream.read()
            return data

    def names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._at(folder), allow_not_found=True)
        with self._errors("list"):
            return sorted(info.base_name for info in self._filesystem.get_file_info(selector))

    def delete(self, path: str) -> None:
        with self._errors("delete from"), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._at(path))

    def is_settled(self, path: str) -> bool:
        with self._errors("list"):
            info = self._filesystem.get_file_info(self._at(path))
        return info.mtime is not None and time.time() - info.mtime.timestamp() > _SETTLED_SECONDS

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        # Object stores have no locks; the manifest of one of two backups is refused (manifests.py).
        yield

    def _at(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.place}: {error}") from None
        except OSError as error:
            raise ClientError(
                f"cannot {doing} {self.place}: {error}",
                hint="check the bucket, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and "
                "AWS_ENDPOINT_URL",
            ) from None


def open_store(place: str) -> BackupStore:
    """`place` is a directory or s3://BUCKET/PREFIX. Raises ClientError."""
    if not place.startswith(S3_SCHEME):
        if not place or "://" in place:
            raise ClientError(f"{place!r} is neither a directory nor s3://BUCKET/PREFIX")
        root = Path(place)
        if root.exists() and not root.is_dir():
            raise ClientError(f"{place} is not a directory")
        return DirectoryStore(root)
    location = place.removeprefix(S3_SCHEME).strip("/")
    if not location:
        raise ClientError(f"{place} names no bucket", hint="write s3://BUCKET/PREFIX")
    try:
        from pyarrow.fs import S3FileSystem
    except ImportError:
        raise ClientError("backups to S3 need pyarrow", hint=INSTALL_HINT) from None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
    # Credentials are found as all of Amazon's tools find them.
    return ObjectStore(S3FileSystem(endpoint_override=endpoint, region=region), location)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

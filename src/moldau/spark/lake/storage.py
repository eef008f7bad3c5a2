"""Owns how a table's small files are kept: created by one only, moved, listed, removed; for good.

A `Store` is a folder of a local disk or a prefix of a bucket. What returns has reached the disk.
Data files are written and read through pyarrow's file systems (`open_filesystem`), which can do
neither an exclusive create nor an fsync.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import LakeError

S3_SCHEMES: Final = ("s3://", "s3a://", "s3n://")
TEMPORARY: Final = ".tmp-"
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):")


class Stored(NamedTuple):
    """A file of a store."""

    path: str
    bytes: int
    age_seconds: float


class Store(Protocol):
    """Files by their path below the table's location, with `/`."""

    def read(self, path: str) -> bytes | None:
        """All of it; None if it is not there."""

    def exists(self, path: str) -> bool: ...

    def create(self, path: str, data: bytes) -> bool:
        """False, and nothing changed, if it is there. It is never there in part."""

    def put(self, path: str, data: bytes) -> None:
        """Whether it is there or not; what was there is replaced as a whole."""

    def move(self, source: str, target: str) -> bool:
        """False if there is no source."""

    def delete(self, path: str) -> None:
        """Also if it is not there."""

    def list(self, prefix: str) -> Iterator[Stored]:
        """The files below a folder, and below its folders."""


class Disk:
    """What a local store does to a disk, step by step, so that tests can stop it at each."""

    def write(self, path: Path, data: bytes) -> None:
        with path.open("xb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """A file's bytes, or the names in a folder."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)


class LocalStore:
    """A folder of a local disk."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self._root = Path(root)
        self._disk = disk or Disk()

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        temporary = self._written_aside(target, data)
        try:
            # A link fails if the name is taken, and shows all of the file or none.
            self._disk.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            self._disk.unlink(temporary)
        self._disk.sync(target.parent)
        return True

    def put(self, path: str, data: bytes) -> None:
        target = self._root / path
        self._disk.rename(self._written_aside(target, data), target)
        self._disk.sync(target.parent)

    def move(self, source: str, target: str) -> bool:
        into = self._root / target
        self._make_folders(into.parent)
        try:
            self._disk.rename(self._root / source, into)
        except FileNotFoundError:
            return False
        self._disk.sync(into.parent)
        return True

    def delete(self, path: str) -> None:
        self._disk.unlink(self._root / path)

    def list(self, prefix: str) -> Iterator[Stored]:
        now = time.time()
        for folder, _, names in os.walk(self._root / prefix):
            for name in names:
                path = Path(folder) / name
                try:
                    known = path.stat()
                except FileNotFoundError:
                    continue
                found = PurePosixPath(path.relative_to(self._root)).as_posix()
                yield Stored(found, known.st_size, now - known.st_mtime)

    def _written_aside(self, target: Path, data: bytes) -> Path:
        self._make_folders(target.parent)
        temporary = target.parent / f"{TEMPORARY}{uuid4().hex}"
        self._disk.write(temporary, data)
        self._disk.sync(temporary)
        return temporary

    def _make_folders(self, folder: Path) -> None:
        """With names that outlive a power failure, as the files in them must."""
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        self._disk.make_folder(folder)
        self._disk.sync(folder.parent)


def is_s3(location: str) -> bool:
    return location.startswith(S3_SCHEMES)


def normal_location(location: str) -> str:
    """s3://bucket/prefix, or the whole path of a folder. InvalidArgumentError for other kinds."""
    for scheme in S3_SCHEMES:
        if location.startswith(scheme):
            bucket, _, prefix = location.removeprefix(scheme).partition("/")
            if not bucket or not prefix.strip("/"):
                raise InvalidArgumentError(
                    f"{location} is no place for a table",
                    hint="name a bucket and a prefix: --to s3://bucket/prefix",
                )
            return f"s3://{bucket}/{prefix.strip('/')}"
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    elif found := _SCHEME.match(location):
        known = "on Databricks, DBFS is the folder /dbfs; " if found[1] == "dbfs" else ""
        raise InvalidArgumentError(
            f"a table cannot be at {location!r}: {found[1]}: is no kind of place that is known",
            hint=f"{known}--to is a folder (./a:b if its name has a colon), or s3://bucket/prefix",
        )
    if not location:
        raise InvalidArgumentError(
            "a table needs a place", hint="--to is a folder, or s3://bucket/prefix"
        )
    return str(Path(location).absolute())


def open_store(location: str, storage: Mapping[str, str]) -> Store:
    """For a location as `normal_location` returns it."""
    if is_s3(location):
        from moldau.spark.lake.s3 import S3Store

        return S3Store(location, storage)
    if storage and (strange := set(storage) - {"catalog"}):
        raise InvalidArgumentError(
            f"a local folder has no option {', '.join(sorted(strange))}",
            hint="--storage is for tables at s3://bucket/prefix",
        )
    return LocalStore(location)


def open_filesystem(location: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """pyarrow's file system, and the location as that names it."""
    if is_s3(location):
        from moldau.spark.lake.s3 import s3_filesystem

        return s3_filesystem(storage), location.removeprefix("s3://")
    from pyarrow import fs

    return fs.LocalFileSystem(), location


def sync_file(path: str) -> None:
    """A file that somebody else wrote, and its name."""
    disk = Disk()
    try:
        disk.sync(Path(path))
        disk.sync(Path(path).parent)
    except OSError as error:
        raise LakeError(f"{path} did not reach the disk: {error}") from error

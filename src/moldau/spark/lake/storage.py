"""Storage locations: folders of a local disk, and prefixes of object stores.

Object stores are accessed through the library of the table format (deltalake or pyiceberg), with
its options, so that we can access whatever it can. On a local disk, files are synced before a call
returns, which neither library does.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.model import LakeError, Layout, TableFormat

SCHEMES: Final = ("s3", "gs", "abfs", "abfss", "hdfs")
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):")
_LOCATIONS: Final = f"a folder, or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"


class Folder:
    """Files by their path below a location."""

    def __init__(self, location: str, filesystem: Any) -> None:
        """`filesystem` is a pyarrow one, with the location as its root."""
        self.location = location
        self.is_local = is_local(location)
        self._filesystem = filesystem

    def __str__(self) -> str:
        """The location as Spark's file systems spell it."""
        return re.sub("^s3://", "s3a://", self.location)

    def open_output(self, path: str) -> Any:
        """A stream; on a local disk, call `sync` after closing it."""
        self._make_folder(path)
        return self._filesystem.open_output_stream(path)

    def open_input(self, path: str) -> Any:
        """A file that can be read at any position. Raises FileNotFoundError."""
        return self._filesystem.open_input_file(path)

    def size(self, path: str) -> int | None:
        """In bytes; None if it does not exist."""
        size: int | None = self._filesystem.get_file_info(path).size
        return size

    def read(self, path: str) -> bytes | None:
        """The whole file; None if it does not exist."""
        try:
            with self.open_input(path) as file:
                data: bytes = file.read()
        except FileNotFoundError:
            return None
        return data

    def write(self, path: str, data: bytes) -> None:
        """Replaces the file atomically. On a disk only the owner can read it."""
        if not self.is_local:
            # deltalake's streams accept only bytes objects, which a buffer produces.
            size = len(data) + 1
            with self._filesystem.open_output_stream(path, buffer_size=size) as stream:
                stream.write(data)
            return
        self._make_folder(path)
        aside = f"{path}.tmp-{uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(Path(self.location, aside), flags, 0o600), "wb") as file:
            file.write(data)
        self.sync(aside)
        self.move(aside, path)

    def move(self, source: str, target: str) -> None:
        self._make_folder(target)
        self._filesystem.move(source, target)
        self.sync(target)

    def delete(self, path: str) -> None:
        """Succeeds if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def move_all(self, source: str, target: str) -> None:
        """Moves all files of a folder; on a local disk atomically."""
        if self.is_local:
            self.move(source, target)
            return
        for found in list(self.list(source)):
            self.move(found.path, target + found.path.removeprefix(source))

    def delete_all(self) -> None:
        if self.is_local:
            shutil.rmtree(self.location)
            return
        for found in list(self.list()):
            self.delete(found.path)

    def list(self, folder: str = "") -> Iterator[Any]:
        """The pyarrow.fs.FileInfo of all files in the folder, recursively."""
        from pyarrow import fs

        selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
        return (found for found in self._filesystem.get_file_info(selector) if found.is_file)

    def sync(self, path: str) -> None:
        """Syncs a file and its folders to a local disk; does nothing for object stores."""
        if not self.is_local:
            return
        full = Path(self.location, path)
        try:
            # The folders up to the location may be new.
            for each in (full, *full.parents):
                handle = os.open(each, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                if each == Path(self.location).parent:
                    break
        except OSError as error:
            raise LakeError(f"cannot sync {full} to disk: {error}") from error

    def _make_folder(self, path: str) -> None:
        """Creates the parent folder; object stores have no folders."""
        if self.is_local:
            Path(self.location, path).parent.mkdir(parents=True, exist_ok=True)


def is_local(location: str) -> bool:
    return "://" not in location


def normal_location(location: str, *, option: str = "--to") -> str:
    """The absolute path of a folder, or scheme://…; InvalidArgumentError for others."""
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    elif found := _SCHEME.match(location):
        return _normal_url(location, found[1], option)
    if not location:
        raise InvalidArgumentError("the location is empty", hint=f"{option} must be {_LOCATIONS}")
    return str(Path(location).absolute())


def _normal_url(location: str, name: str, option: str) -> str:
    scheme = _SAME.get(name.lower(), name.lower())
    if scheme not in SCHEMES:
        known = "on Databricks, DBFS is the folder /dbfs; " if scheme == "dbfs" else ""
        raise InvalidArgumentError(
            f"unknown scheme {name}: of the location {location!r}",
            hint=f"{known}{option} must be {_LOCATIONS}; ./a:b is a folder with a colon",
        )
    host, _, path = location.partition("://")[2].partition("/")
    path = path.strip("/")
    if not host or not path:
        raise InvalidArgumentError(
            f"the location {location} has no path",
            hint=f"give a bucket or host, and a path: {option} {scheme}://bucket/path",
        )
    return f"{scheme}://{host}/{path}"


def open_folder(layout: Layout) -> Folder:
    return folder_at(layout.location, layout.storage, layout.format)


def folder_at(
    location: str, storage: Mapping[str, str], format: TableFormat = TableFormat.DELTA
) -> Folder:
    """`location` is as `normal_location` returns it. Raises LakeError if access fails."""
    from pyarrow import fs

    if is_local(location):
        return Folder(location, fs.SubTreeFileSystem(location, fs.LocalFileSystem()))
    try:
        if format is TableFormat.ICEBERG:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            scheme, host, path = PyArrowFileIO.parse_location(location)
            whole = PyArrowFileIO(dict(storage)).fs_by_scheme(scheme, host)
            return Folder(location, fs.SubTreeFileSystem(path, whole))
        from deltalake.fs import DeltaStorageHandler

        return Folder(location, fs.PyFileSystem(DeltaStorageHandler(location, dict(storage))))
    except Exception as error:
        # Each library has its own errors, and one of them panics.
        raise LakeError(
            f"cannot access {location}: {error}",
            hint="check --storage KEY=VALUE; missing packages: pip install 'moldau[spark]'",
        ) from error

"""Responsible for places: folders of a local disk, and prefixes of object stores.

Object stores are reached through the library that keeps the table (deltalake or pyiceberg), with
the options of that library, so that whatever it reads and writes, we do, too. A file on a local
disk is there, whole, when a call returns: neither library waits for the disk.
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
from moldau.spark.lake.table import LakeError, Layout, TableFormat

SCHEMES: Final = ("s3", "gs", "abfs", "abfss", "hdfs")
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):")
_PLACES: Final = f"a folder, or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"


class Folder:
    """Files by their path below a location."""

    def __init__(self, location: str, filesystem: Any) -> None:
        """`filesystem` is one of pyarrow's, and begins at the location."""
        self.location = location
        self.is_local = is_local(location)
        self._filesystem = filesystem

    def __str__(self) -> str:
        """As Spark's own file systems name it."""
        return re.sub("^s3://", "s3a://", self.location)

    def open_output(self, path: str) -> Any:
        """A stream; on a local disk, `sync` the file after it was closed."""
        self._make_folder(path)
        return self._filesystem.open_output_stream(path)

    def open_input(self, path: str) -> Any:
        """A file that can be read at any position. Raises FileNotFoundError."""
        return self._filesystem.open_input_file(path)

    def size(self, path: str) -> int | None:
        """In bytes; None if it is not there."""
        size: int | None = self._filesystem.get_file_info(path).size
        return size

    def read(self, path: str) -> bytes | None:
        """All of it; None if it is not there."""
        try:
            with self.open_input(path) as file:
                data: bytes = file.read()
        except FileNotFoundError:
            return None
        return data

    def write(self, path: str, data: bytes) -> None:
        """What was there is replaced as a whole. Nobody but the owner may read it on a disk."""
        if not self.is_local:
            # deltalake's streams take bytes alone, which is what comes out of a buffer.
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
        """Also if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def move_all(self, source: str, target: str) -> None:
        """All files of a folder; on a local disk in one step."""
        if self.is_local:
            self.move(source, target)
            return
        for found in list(self.list(source)):
            self.move(found.path, target + found.path.removeprefix(source))

    def delete_all(self) -> None:
        """The folder itself."""
        if self.is_local:
            shutil.rmtree(self.location)
            return
        for found in list(self.list()):
            self.delete(found.path)

    def list(self, folder: str = "") -> Iterator[Any]:
        """The pyarrow.fs.FileInfo of all files, or of those of a folder, also in folders of it."""
        from pyarrow import fs

        selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
        return (found for found in self._filesystem.get_file_info(selector) if found.is_file)

    def sync(self, path: str) -> None:
        """Have a file and its name reach a local disk; object stores need no such call."""
        if not self.is_local:
            return
        full = Path(self.location, path)
        try:
            # Folders may be new, up to the location.
            for each in (full, *full.parents):
                handle = os.open(each, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                if each == Path(self.location).parent:
                    break
        except OSError as error:
            raise LakeError(f"{full} did not reach the disk: {error}") from error

    def _make_folder(self, path: str) -> None:
        """For a file; object stores have none."""
        if self.is_local:
            Path(self.location, path).parent.mkdir(parents=True, exist_ok=True)


def is_local(location: str) -> bool:
    return "://" not in location


def normal_location(location: str, *, option: str = "--to") -> str:
    """The whole path of a folder, or scheme://…; InvalidArgumentError for other kinds."""
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    elif found := _SCHEME.match(location):
        return _normal_url(location, found[1], option)
    if not location:
        raise InvalidArgumentError("no place is named", hint=f"{option} is {_PLACES}")
    return str(Path(location).absolute())


def _normal_url(location: str, name: str, option: str) -> str:
    scheme = _SAME.get(name.lower(), name.lower())
    if scheme not in SCHEMES:
        known = "on Databricks, DBFS is the folder /dbfs; " if scheme == "dbfs" else ""
        raise InvalidArgumentError(
            f"nothing can be kept at {location!r}: {name}: is no kind of place that is known",
            hint=f"{known}{option} is {_PLACES}; ./a:b is a folder whose name has a colon",
        )
    host, _, path = location.partition("://")[2].partition("/")
    path = path.strip("/")
    if not host or not path:
        raise InvalidArgumentError(
            f"nothing can be kept at {location}: it names no path",
            hint=f"name a bucket or host, and a path: {option} {scheme}://bucket/path",
        )
    return f"{scheme}://{host}/{path}"


def open_folder(layout: Layout) -> Folder:
    """Of a table, whose location is as `normal_location` returns it."""
    return folder_at(layout.location, layout.storage, layout.format)


def folder_at(
    location: str, storage: Mapping[str, str], format: TableFormat = TableFormat.DELTA
) -> Folder:
    """Raises LakeError if the place cannot be reached with these options."""
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
            f"{location} cannot be reached: {error}",
            hint="--storage KEY=VALUE says how; packages: pip install 'moldau[spark]'",
        ) from error

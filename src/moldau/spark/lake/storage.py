"""Responsible for places: folders of a local disk, and prefixes of object stores.

Object stores are reached through the library that keeps the table (deltalake or pyiceberg), with
the options of that library, so that whatever it reads and writes, we do, too. A file on a local
disk is there, whole, when a call returns: neither library waits for the disk.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import LakeError, Layout, TableFormat

TEMPORARY: Final = ".tmp-"
SCHEMES: Final = ("s3", "gs", "abfs", "abfss", "hdfs")
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):")
_PLACES: Final = f"a folder, or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"


class Stored(NamedTuple):
    """A file of a folder."""

    path: str
    """Relative to the folder, with `/`."""
    age_seconds: float


class Folder:
    """Files by their path below a location."""

    def __init__(self, location: str, filesystem: Any, root: str) -> None:
        """`root` is the location as pyarrow's file system names it."""
        self.location = location
        self.is_local = is_local(location)
        self._filesystem = filesystem
        self._root = root

    def __str__(self) -> str:
        """As Spark's own file systems name it."""
        return re.sub("^s3://", "s3a://", self.location)

    def open_output(self, path: str) -> Any:
        """A stream; on a local disk, `sync` the file after it was closed."""
        if self.is_local:
            Path(self._root, path).parent.mkdir(parents=True, exist_ok=True)
        return self._filesystem.open_output_stream(self._full(path))

    def open_input(self, path: str) -> Any:
        """A file that can be read at any position. Raises FileNotFoundError."""
        return self._filesystem.open_input_file(self._full(path))

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
            with self.open_output(path) as file:
                file.write(data)
            return
        aside = Path(self._root, path).with_name(f"{TEMPORARY}{uuid4().hex}")
        aside.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.move(str(aside.relative_to(self._root)), path)

    def move(self, source: str, target: str) -> None:
        if not self.is_local:
            self._filesystem.move(self._full(source), self._full(target))
            return
        into = Path(self._root, target)
        into.parent.mkdir(parents=True, exist_ok=True)
        os.replace(Path(self._root, source), into)
        self.sync(target)

    def delete(self, path: str) -> None:
        """Also if it is not there."""
        try:
            self._filesystem.delete_file(self._full(path))
        except FileNotFoundError:
            return

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
            shutil.rmtree(self._root)
            return
        for found in list(self.list()):
            self.delete(found.path)

    def list(self, folder: str = "") -> Iterator[Stored]:
        """All files, or those of a folder, also in folders of it."""
        from pyarrow import fs

        now = time.time()
        start = self._full(folder).rstrip("/")
        selector = fs.FileSelector(start, recursive=True, allow_not_found=True)
        for found in self._filesystem.get_file_info(selector):
            if found.type == fs.FileType.File:
                path = found.path.removeprefix(self._root).lstrip("/")
                # What does not say how old it is, is new: nobody removes it.
                yield Stored(path, now - found.mtime_ns / 1e9 if found.mtime_ns else 0.0)

    def sync(self, path: str) -> None:
        """Have a file and its name reach a local disk; object stores need no such call."""
        if not self.is_local:
            return
        full = Path(self._root, path)
        try:
            # Folders may be new, up to the location.
            for each in (full, *full.parents):
                _fsync(each)
                if each == Path(self._root).parent:
                    break
        except OSError as error:
            raise LakeError(f"{full} did not reach the disk: {error}") from error

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        return Folder(location, fs.LocalFileSystem(), location)
    try:
        if format is TableFormat.ICEBERG:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            scheme, host, path = PyArrowFileIO.parse_location(location)
            return Folder(location, PyArrowFileIO(dict(storage)).fs_by_scheme(scheme, host), path)
        return Folder(location, fs.PyFileSystem(_delta_handler(location, storage)), "")
    except ImportError as error:
        raise LakeError(
            f"a table at {location} needs the package {error.name}",
            hint="install it: pip install 'moldau[spark]'",
        ) from None
    except Exception as error:
        # Each library has its own errors, and one of them panics.
        raise LakeError(
            f"{location} cannot be reached: {error}", hint="--storage KEY=VALUE says how"
        ) from error


def _delta_handler(location: str, storage: Mapping[str, str]) -> Any:
    import pyarrow as pa
    from deltalake.fs import DeltaStorageHandler

    class Handler(DeltaStorageHandler):
        def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
            return pa.PythonFile(_TakesBuffers(self._handler.open_output_stream(path, metadata)))

    return Handler(location, dict(storage))


class _TakesBuffers:
    """pyarrow hands over buffers, of which deltalake takes those only that are bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        written: int = self._stream.write(bytes(data))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

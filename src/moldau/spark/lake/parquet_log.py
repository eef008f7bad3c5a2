"""Owns the commit log of a Parquet table: what an entry says, and what a table is after some.

An entry per version, `_moldau/log/<version>.json`, created by one writer only. Every `STRIDE`
versions a checkpoint says all that the entries up to it amount to, so that to open a table reads a
few files however old it is. Nothing here touches a disk.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from moldau.spark.lake.table import DataFile, LakeError, Writing

FOLDER: Final = "_moldau/log"
STAGED: Final = "_moldau/staged/"
STAGED_SUFFIX: Final = ".staged"
STRIDE: Final = 64
FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One commit."""

    version: int
    writing: Writing | None = None
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    schema: str | None = None
    """As `schemas.to_text` writes it; None if it stays the same."""
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table after all entries up to `version`."""

    version: int = -1
    files: Mapping[str, DataFile] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    schema: str | None = None
    partition_columns: tuple[str, ...] = ()

    def after(self, entry: Entry) -> "TableState":
        if entry.version != self.version + 1:
            raise LakeError(f"version {entry.version} of a table follows {self.version}")
        files = dict(self.files)
        for path in entry.removed:
            files.pop(path, None)
        files.update((file.path, file) for file in entry.added)
        batches = dict(self.batches)
        if entry.writing is not None:
            batches[entry.writing.query] = entry.writing.batch
        return replace(
            self,
            version=entry.version,
            files=files,
            batches=batches,
            schema=entry.schema or self.schema,
            partition_columns=(entry.partition_columns if entry.schema else self.partition_columns),
        )

    def has(self, writing: Writing) -> bool:
        return self.batches.get(writing.query, -1) >= writing.batch


def entry_path(version: int) -> str:
    return f"{FOLDER}/{version:020}.json"


def checkpoint_path(version: int) -> str:
    return f"{FOLDER}/{version:020}.checkpoint.json"


def latest_checkpoint(paths: Sequence[str]) -> str | None:
    """The one of some paths that says most."""
    return max((path for path in paths if path.endswith(".checkpoint.json")), default=None)


def entry_to_bytes(entry: Entry) -> bytes:
    said: dict[str, Any] = {"moldau": FORMAT, "version": entry.version}
    if entry.writing is not None:
        said |= {"query": entry.writing.query, "batch": entry.writing.batch}
    if entry.schema is not None:
        said |= {"schema": entry.schema, "partition_columns": list(entry.partition_columns)}
    said |= {"add": [_file_to_json(file) for file in entry.added], "remove": list(entry.removed)}
    return json.dumps(said).encode()


def entry_from_bytes(data: bytes, path: str) -> Entry:
    said = _parsed(data, path)
    try:
        return Entry(
            version=said["version"],
            writing=Writing(said["query"], said["batch"]) if "query" in said else None,
            added=tuple(_file_from_json(file) for file in said["add"]),
            removed=tuple(said["remove"]),
            schema=said.get("schema"),
            partition_columns=tuple(said.get("partition_columns", ())),
        )
    except (KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def state_to_bytes(state: TableState) -> bytes:
    said = {
        "moldau": FORMAT,
        "version": state.version,
        "batches": dict(state.batches),
        "schema": state.schema,
        "partition_columns": list(state.partition_columns),
        "files": [_file_to_json(file) for file in state.files.values()],
    }
    return json.dumps(said).encode()


def state_from_bytes(data: bytes, path: str) -> TableState:
    said = _parsed(data, path)
    try:
        files = [_file_from_json(file) for file in said["files"]]
        return TableState(
            version=said["version"],
            files={file.path: file for file in files},
            batches=said["batches"],
            schema=said["schema"],
            partition_columns=tuple(said["partition_columns"]),
        )
    except (KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(said, dict):
        raise _damaged(path, TypeError("not an object"))
    if said.get("moldau") != FORMAT:
        raise LakeError(
            f"{path} is written in format {said.get('moldau')!r}, and this version reads {FORMAT}",
            hint="a newer moldau has written this table: use that one",
        )
    return said


def _damaged(path: str, error: Exception) -> LakeError:
    return LakeError(f"{path} cannot be read as an entry of a table's log: {error!r}")


def _file_to_json(file: DataFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "partition": dict(file.partition),
    }


def _file_from_json(said: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=said["path"], rows=said["rows"], bytes=said["bytes"], partition=said["partition"]
    )

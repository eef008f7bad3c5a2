"""The terms of lake tables: formats, data files, layouts, snapshots, commits and errors."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from moldau.client.errors import ClientError


class TableFormat(StrEnum):
    """Delta and Iceberg have commits; Parquet is plain files."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


WRITER: Final = "writer."
"""Prefix of the mark with a pipeline's name."""
MARK: Final = "moldau.mark."
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
TABLES: Final = (TableFormat.DELTA, TableFormat.ICEBERG)


class LakeError(ClientError):
    """An error of a table or its storage."""


class ConflictError(LakeError):
    """A conflict with another commit. Nothing was committed."""


class Writing(NamedTuple):
    """The identity of a commit: the query of a pipeline, and its batch number."""

    query: str
    batch: int
    marks: tuple[tuple[str, str], ...] = ()
    """Names and texts that the table stores: which pipeline writes what to it."""

    def numbers(self) -> dict[str, int]:
        """What the table stores: the batch of the query, and the marks."""
        marks = {f"{MARK}{name}": marked(text) for name, text in self.marks}
        return {self.query: self.batch, **marks}


def marked(text: str) -> int:
    """A mark as a number: Delta's `txn` stores only numbers."""
    return zlib.crc32(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet data file, committed or new. Sent as JSON."""

    path: str
    """Relative to the table's location, with `/`."""
    rows: int
    bytes: int
    partition: Mapping[str, str] = field(default_factory=dict)
    """Values of the partition columns, as text."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Statistics in Delta's format; only of a new file."""
    offsets: tuple[int, int] | None = None
    """Lowest and highest offset, if known; only of a committed file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where and how data files are written. Plain values, sent to tasks."""

    location: str
    format: TableFormat = TableFormat.DELTA
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_columns: tuple[str, ...] = ()
    """Not in the files: their values are in the table's metadata, and in the path."""
    staged_prefix: str = ""
    """Files are written below it, and moved when they are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version of a table and its data files."""

    version: int | None
    """None before the first commit."""
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

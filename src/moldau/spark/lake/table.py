"""Responsible for what pipelines and the tables of a lake say to each other, whatever the format.

Tasks write Parquet files where the table's `layout` says (`moldau.spark.lake.files.FileWriter` does
it); nobody sees them until the driver commits them, in one commit of the table that carries who
wrote it: a name and a number that only grows. A commit that is there already is not made twice, so
that a batch that Spark plays again changes nothing.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from moldau.client.errors import ClientError


class TableFormat(StrEnum):
    """Delta and Iceberg keep commits; Parquet is files alone, for whoever can read nothing else."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


WRITER: Final = "writer."
"""Begins the mark of a pipeline, by its name."""
TABLES: Final = (TableFormat.DELTA, TableFormat.ICEBERG)


class LakeError(ClientError):
    """Something of a table or its storage that keeps us from going on."""


class ConflictError(LakeError):
    """Another commit has taken away what this one builds on. Nothing was committed."""


class Writing(NamedTuple):
    """Who commits: a pipeline's query, and the number of its batch."""

    query: str
    batch: int
    marks: tuple[tuple[str, str], ...] = ()
    """Names and texts that the table keeps: who writes what, also when a checkpoint is lost."""


def marked(text: str) -> int:
    """Tables keep numbers, as Delta does."""
    return zlib.crc32(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of a table, or one that wants to become one."""

    path: str
    """Relative to the table's location, with `/`."""
    rows: int
    bytes: int
    partition: Mapping[str, str] = field(default_factory=dict)
    """Values of the columns by which the table is partitioned, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where and how the files of a table are written. Plain values: it travels to tasks."""

    location: str
    format: TableFormat = TableFormat.DELTA
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_columns: tuple[str, ...] = ()
    """Not in the files: their values stand in the table's list of files, and in the path."""
    staged_prefix: str = ""
    """Files are written below it, and moved to their own place when they are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as it was at one moment."""

    version: int | None
    """None if nothing was committed yet."""
    files: tuple[DataFile, ...]
    rows: int


class Destination(Protocol):
    """Where batches are written. Opened in the driver; tasks only write files."""

    @property
    def location(self) -> str:
        """A folder, or a URL such as s3://bucket/prefix."""

    @property
    def format(self) -> TableFormat: ...

    @property
    def partition_columns(self) -> tuple[str, ...]: ...

    @property
    def layout(self) -> Layout:
        """For those who write files that this table is to have."""

    def schema(self) -> Any | None:
        """The pyarrow.Schema with the partition columns at its end; None before the table is."""

    def ensure(self, schema: Any) -> None:
        """Create the table, or add columns that are new. LakeError for a type that changed."""

    def last_batch(self, query: str) -> int | None:
        """The last batch that this query has committed."""

    def mark(self, name: str) -> int | None:
        """What `marked` makes of the text that the last commit with a mark of that name had."""

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        """One commit of all files. False, and nothing done, if that batch was committed before."""


class LakeTable(Destination, Protocol):
    """A table that knows its commits, and so can be read, changed and compared."""

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool = False,
        since: int | None = None,
    ) -> bool:
        """One commit that puts files in the place of others. ConflictError if one is not there.

        With `same_rows` who follows the changes of the table is told that there are none. With
        `since` it is a ConflictError, too, if the table is not at that version any more.
        """

    def snapshot(self) -> Snapshot: ...

    def clean(self, *, orphan_seconds_min: float = ...) -> int:
        """Remove files that no commit names and no running writer can still want; how many.

        Only those that are older than that; by default a time that is long for the format.
        """

"""Owns what pipelines and the tables of a lake say to each other, whatever the table's format.

Tasks write Parquet files where the table's `layout` says (`moldau.spark.lake.files.FileWriter` does
it); nobody sees them until the driver commits them, in one commit of the table that carries who
wrote it: a name and a number that only grows. A commit that is there already is not made twice, so
that a batch that Spark plays again changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from moldau.client.errors import ClientError


class TableFormat(StrEnum):
    """How a table keeps its commits."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class LakeError(ClientError):
    """Something of a table or its storage that keeps us from going on."""


class ConflictError(LakeError):
    """Another commit has taken away what this one builds on. Nothing was committed."""


class Writing(NamedTuple):
    """Who commits: a pipeline's query, and the number of its batch."""

    query: str
    batch: int


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
    storage: Mapping[str, str] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    staged_prefix: str = ""
    """Files are written below it, and at their own place once they are committed."""
    staged_suffix: str = ""
    keeps_partition_columns: bool = False
    """The partition columns are in the files, too."""

    def written_path(self, path: str) -> str:
        """Where a file that wants to be `path` is written."""
        return f"{self.staged_prefix}{path}{self.staged_suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as it was at one moment."""

    version: int | None
    """None if nothing was committed yet."""
    files: tuple[DataFile, ...]
    rows: int


class LakeTable(Protocol):
    """A table. Opened in the driver; tasks only write files (see `moldau.spark.lake.files`)."""

    @property
    def location(self) -> str:
        """A folder, or s3://bucket/prefix."""

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

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        """One commit of all files. False, and nothing done, if that batch was committed before."""

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool = False,
    ) -> bool:
        """One commit that puts files in the place of others. ConflictError if one is not there.

        With `same_rows` who follows the changes of the table is told that there are none.
        """

    def snapshot(self) -> Snapshot: ...

    def read(
        self, snapshot: Snapshot | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """The rows as pyarrow.RecordBatch, with the partition columns."""

    def clean(self, *, orphan_seconds_min: float = ...) -> int:
        """Remove files that no commit names and no running writer can still want; how many.

        Only those that are older than that; by default a time that is long for the format.
        """

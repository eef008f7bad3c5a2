"""Responsible for what tables of all formats have in common: their words, and the order of steps.

Tasks write Parquet files where the table's `layout` says (`parquet_files.FileWriter` does
it); nobody sees them until the driver commits them, in one commit of the table that carries who
wrote it: a name and a number that only grows. A commit that is there already is not made twice, so
that a batch that Spark plays again changes nothing.
"""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from moldau.client.errors import ClientError

if TYPE_CHECKING:
    from moldau.spark.lake.parquet_export import ParquetExport


class TableFormat(StrEnum):
    """Delta and Iceberg keep commits; Parquet is files alone, for whoever can read nothing else."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


WRITER: Final = "writer."
"""Begins the mark of a pipeline, by its name."""
_MARK: Final = "moldau.mark."
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
TABLES: Final = (TableFormat.DELTA, TableFormat.ICEBERG)
ATTEMPTS_MAX: Final = 100


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

    def numbers(self) -> dict[str, int]:
        """What the table keeps of all that: the last batch of each query, and marks."""
        marks = {f"{_MARK}{name}": marked(text) for name, text in self.marks}
        return {self.query: self.batch, **marks}


def marked(text: str) -> int:
    """Tables keep numbers, as Delta does."""
    return zlib.crc32(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of a table, or one that wants to become one. Travels as JSON."""

    path: str
    """Relative to the table's location, with `/`."""
    rows: int
    bytes: int
    partition: Mapping[str, str] = field(default_factory=dict)
    """Values of the columns by which the table is partitioned, as text."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Of a new file: its statistics, as Delta writes them."""
    offsets: tuple[int, int] | None = None
    """Of a file of the table: the lowest and the highest that may be in it, if the table knows."""


@dataclass(frozen=True, slots=True)
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

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class LakeTable(ABC):
    """A table that knows its commits, and so can be read, changed and compared.

    Opened in the driver; tasks only write files. Subclasses know how a library does a step: there,
    `table` is that library's, as it was just loaded.
    """

    format: ClassVar[TableFormat]

    def __init__(
        self, location: str, storage: Mapping[str, str], partition_columns: tuple[str, ...] | None
    ) -> None:
        """`location` is a folder, or a URL such as s3://bucket/prefix."""
        self.location: Final = location
        self._storage = dict(storage)
        self._asked_columns = partition_columns

    @property
    def partition_columns(self) -> tuple[str, ...]:
        if self._asked_columns is None:
            self._current()
        return self._asked_columns or ()

    @property
    def layout(self) -> Layout:
        """For those who write files that this table is to have."""
        return Layout(self.location, self.format, self._storage, self.partition_columns)

    def schema(self) -> Any | None:
        """The pyarrow.Schema with the partition columns at its end; None before the table is."""
        table = self._current()
        return None if table is None else self._schema(table)

    def last_batch(self, query: str) -> int | None:
        """The last batch that this query has committed."""
        table = self._current()
        return None if table is None else self._last_batch(table, query)

    def mark(self, name: str) -> int | None:
        """What `marked` makes of the text that the last commit with a mark of that name had."""
        return self.last_batch(f"{_MARK}{name}")

    def snapshot(self) -> Snapshot:
        table = self._current()
        if table is None:
            return Snapshot(version=None, files=())
        return Snapshot(version=self._version(table), files=tuple(self._files(table)))

    def ensure(self, schema: Any) -> None:
        """Create the table, or add columns that are new. LakeError for a type that changed."""
        from moldau.spark.lake.schema_evolution import merged

        def change(table: Any) -> bool:
            old = None if table is None else self._schema(table)
            new = merged(old, schema, self.partition_columns, self.location)
            if is_changed := old is None or not new.equals(old):
                self._set_columns(table, new)
            return is_changed

        self._attempted(change)

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        """One commit of all files. False, and nothing done, if that batch was committed before."""
        return self.replace((), files, writing)

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

        def change(table: Any) -> bool:
            if table is None:
                raise LakeError(f"there is no table at {self.location} yet: call ensure first")
            last = self._last_batch(table, writing.query)
            if last is not None and last >= writing.batch:
                return False
            if since not in (None, self._version(table)):
                raise ConflictError(f"the table at {self.location} is not at version {since} now")
            self._commit(table, removed, added, writing, same_rows=same_rows)
            return True

        return self._attempted(change)

    @abstractmethod
    def clean(self, *, orphan_seconds_min: float = ...) -> int:
        """Remove files that no commit names and no running writer can still want; how many.

        Only those that are older than that; by default a time that is long for the format.
        """

    # -- what a library does

    @abstractmethod
    def _load(self) -> Any | None:
        """The table as it is now, None if there is none. Any error of the library's."""

    @abstractmethod
    def _schema(self, table: Any) -> Any: ...

    @abstractmethod
    def _last_batch(self, table: Any, query: str) -> int | None: ...

    @abstractmethod
    def _version(self, table: Any) -> int | None: ...

    @abstractmethod
    def _files(self, table: Any) -> Iterable[DataFile]:
        """Raises LakeError if rows of files were marked as deleted: who reads the files as they are
        would bring them back."""

    @abstractmethod
    def _set_columns(self, table: Any, new: Any) -> None:
        """Creates the table if there is none."""

    @abstractmethod
    def _commit(
        self,
        table: Any,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool,
    ) -> None:
        """On top of the table as it was loaded, or not at all: the library must not try again by
        itself, since the batch has to be looked for again before each attempt.

        Raises FileNotFoundError if a file to add is not there, or not whole.
        """

    @abstractmethod
    def _is_conflict(self, error: Exception) -> bool:
        """Whether somebody else was faster, so that nothing is wrong."""

    @abstractmethod
    def _sync(self) -> None:
        """Have the last commit reach a local disk: libraries leave to the system when it does."""

    # -- what is the same for all of them

    def _current(self) -> Any | None:
        try:
            return self._load()
        except ClientError:
            raise
        except Exception as error:
            # Each library and each kind of catalog has its own errors.
            raise self._failed(error) from error

    def _attempted(self, change: Callable[[Any], bool]) -> bool:
        for _ in range(ATTEMPTS_MAX):
            table = self._current()
            try:
                is_changed = change(table)
            except ClientError:
                raise
            except FileNotFoundError as error:
                raise LakeError(
                    f"a file that was to be committed to {self.location} is not there: {error}",
                    hint="it was cleaned away, or tasks see another disk than the driver: "
                    "a table in a folder needs one that all machines share, or an object store",
                ) from error
            except Exception as error:
                if self._is_conflict(error):
                    continue
                raise self._failed(error) from error
            if is_changed:
                self._sync()
            return is_changed
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def _check_there(self, removed: Sequence[DataFile], there: Iterable[str]) -> None:
        if gone := {file.path for file in removed} - set(there):
            raise ConflictError(
                f"{min(gone)} is not in the table at {self.location} any more",
                hint="another commit replaced it: read the table again",
            )

    def _check_partitions(self, had: tuple[str, ...]) -> None:
        """A table that was opened without a word about them is taken as it is."""
        if self._asked_columns is None:
            self._asked_columns = had
        if had != self._asked_columns:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(self._asked_columns) or 'nothing'}",
                hint="tables that keep every record and those that are kept by key (--mode upsert) "
                "are not the same: use another place (--to)",
            )

    def _failed(self, error: Exception) -> LakeError:
        # deltalake paints its errors, over several lines.
        text = " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error)).split())
        if self.format is not TableFormat.DELTA:
            # What comes after the first line may be what was sent, with its token.
            text = str(error).partition("\n")[0]
        return LakeError(
            f"the {self.format.capitalize()} table at {self.location}: {type(error).__name__}: "
            f"{text}",
            hint="is it such a table (--format)? are you allowed to write there? --storage says "
            "how the place is reached, and the catalog of Iceberg: type, uri, token, …",
        )


Destination: TypeAlias = "LakeTable | ParquetExport"
"""Where batches are written, for somebody who only appends."""

"""What tables of all formats have in common.

Tasks write Parquet files by the table's `layout` (see `parquet_files.FileWriter`). Readers do not
see them until the driver commits them, in one commit with the query and the batch number. A batch
that is already committed is not committed again, so repeating a batch has no effect.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from moldau.client.errors import ClientError
from moldau.spark.lake.model import (
    MARK,
    ConflictError,
    DataFile,
    LakeError,
    Layout,
    Snapshot,
    TableFormat,
    Writing,
)

ATTEMPTS_MAX: Final = 100


class LakeTable(ABC):
    """A table with commits, which can be read, changed and compared.

    Opened in the driver; tasks only write files. The argument `table` is the library's object.
    """

    format: ClassVar[TableFormat]

    def __init__(
        self, location: str, storage: Mapping[str, str], partition_columns: tuple[str, ...] | None
    ) -> None:
        """`location` is a folder, or a URL such as s3://bucket/prefix."""
        self.location: Final = location
        self._storage = dict(storage)
        self._partition_columns = partition_columns

    @property
    def partition_columns(self) -> tuple[str, ...]:
        if self._partition_columns is None:
            self._current()
        return self._partition_columns or ()

    @property
    def layout(self) -> Layout:
        """For writers of new data files."""
        return Layout(self.location, self.format, self._storage, self.partition_columns)

    def schema(self) -> Any | None:
        """The pyarrow.Schema with partition columns last; None if the table does not exist."""
        table = self._current()
        return None if table is None else self._schema(table)

    def last_batch(self, query: str) -> int | None:
        """The last committed batch of a query."""
        table = self._current()
        return None if table is None else self._last_batch(table, query)

    def mark(self, name: str) -> int | None:
        """The number (see `marked`) of the last committed mark of that name."""
        return self.last_batch(f"{MARK}{name}")

    def snapshot(self) -> Snapshot:
        table = self._current()
        if table is None:
            return Snapshot(version=None, files=())
        return Snapshot(version=self._version(table), files=tuple(self._files(table)))

    def ensure(self, schema: Any) -> None:
        """Creates the table, or adds new columns. Raises LakeError for a changed type."""
        from moldau.spark.lake.schema_evolution import merged  # Needs Arrow.

        def change(table: Any) -> bool:
            old = None if table is None else self._schema(table)
            new = merged(old, schema, self.partition_columns, self.location)
            if is_changed := old is None or not new.equals(old):
                self._set_columns(table, new)
            return is_changed

        self._attempted(change)

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        """Commits new files. False if that batch was already committed."""
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
        """Replaces files in one commit. Raises ConflictError if a removed file is not present.

        With `same_rows` the commit is not a change for readers of the change feed. With `since`, a
        table at another version is a conflict, too.
        """

        def change(table: Any) -> bool:
            if table is None:
                raise LakeError(f"there is no table at {self.location}: call ensure first")
            last = self._last_batch(table, writing.query)
            if last is not None and last >= writing.batch:
                return False
            if since not in (None, self._version(table)):
                raise ConflictError(f"the table at {self.location} is no longer at version {since}")
            self._commit(table, removed, added, writing, same_rows=same_rows)
            return True

        return self._attempted(change)

    @abstractmethod
    def clean(self, *, orphan_seconds_min: float = ...) -> int:
        """Deletes orphan files older than this; returns how many. The default spares writers."""

    # -- implemented for each format

    @abstractmethod
    def _load(self) -> Any | None:
        """The current table, None if it does not exist. May raise any error of the library."""

    @abstractmethod
    def _schema(self, table: Any) -> Any: ...

    @abstractmethod
    def _last_batch(self, table: Any, query: str) -> int | None: ...

    @abstractmethod
    def _version(self, table: Any) -> int | None: ...

    @abstractmethod
    def _files(self, table: Any) -> Iterable[DataFile]:
        """Raises LakeError if rows are marked as deleted, which plain reads would return."""

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
        """Commits on top of the loaded table only: the library must not retry by itself, since the
        batch must be checked again before each attempt.

        Raises FileNotFoundError if a new file is missing or incomplete.
        """

    @abstractmethod
    def _is_conflict(self, error: Exception) -> bool:
        """Whether the commit lost against another one, and can be retried."""

    @abstractmethod
    def _sync(self) -> None:
        """Syncs the last commit to a local disk, which the libraries do not."""

    # -- the same for all formats

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
                    f"cannot commit to {self.location}: a new data file is missing: {error}",
                    hint="it was removed by a cleanup, or tasks and driver use different disks: "
                    "use a folder that all machines share, or an object store",
                ) from error
            except Exception as error:
                if self._is_conflict(error):
                    continue
                raise self._failed(error) from error
            if is_changed:
                self._sync()
            return is_changed
        raise ConflictError(
            f"gave up after {ATTEMPTS_MAX} conflicts with other commits to {self.location}"
        )

    def _check_present(self, removed: Sequence[DataFile], present: Iterable[str]) -> None:
        if missing := {file.path for file in removed} - set(present):
            raise ConflictError(
                f"{min(missing)} is no longer in the table at {self.location}",
                hint="another commit replaced it: read the table again",
            )

    def _check_partitions(self, had: tuple[str, ...]) -> None:
        """Uses the table's partition columns if none were given."""
        if self._partition_columns is None:
            self._partition_columns = had
        if had != self._partition_columns:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(self._partition_columns) or 'nothing'}",
                hint="--mode append and --mode upsert need different tables: use another location "
                "(--to)",
            )

    def _failed(self, error: Exception) -> LakeError:
        # deltalake's errors have colours and several lines.
        text = " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error)).split())
        if self.format is not TableFormat.DELTA:
            # Later lines may contain the request, with its token.
            text = str(error).partition("\n")[0]
        return LakeError(
            f"the {self.format.capitalize()} table at {self.location}: {type(error).__name__}: "
            f"{text}",
            hint="check --format, write permissions, and --storage: options of the storage and of "
            "Iceberg's catalog (type, uri, token, …)",
        )

"""Responsible for a Delta table: files that tasks wrote become its files in one commit.

Files are added as they are, none is written again. The commit carries Delta's own transaction
marker (`txn`: query and batch), by which a batch that is there already is known, also to others
who read the table. deltalake creates the next entry of the log exclusively; it is not left to
retry by itself, since the marker has to be looked at again before each attempt.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from moldau.spark.lake import schemas
from moldau.spark.lake.delta_stats import delta_stats
from moldau.spark.lake.files import NULL_PARTITION, is_data_path
from moldau.spark.lake.storage import folder_at
from moldau.spark.lake.table import (
    ConflictError,
    DataFile,
    LakeError,
    Layout,
    Snapshot,
    TableFormat,
    Writing,
    marked,
)

ATTEMPTS_MAX: Final = 100
MARK: Final = "moldau.mark."
VACUUM_HOURS_MIN: Final = 7 * 24
"""So long old versions can be read, as is usual for Delta."""


class DeltaLakeTable:
    """A Delta table through the package deltalake."""

    format: Final = TableFormat.DELTA

    def __init__(
        self,
        location: str,
        *,
        storage: Mapping[str, str],
        partition_columns: tuple[str, ...] | None,
    ) -> None:
        try:
            import deltalake
        except ImportError:
            raise LakeError(
                "Delta tables need the package deltalake",
                hint="install it: pip install 'moldau[spark]'",
            ) from None
        self._lib = deltalake
        self.location: Final = location
        self._storage = dict(storage)
        self._folder = folder_at(location, storage)
        self._asked_columns = partition_columns
        self._table: Any = None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        if self._asked_columns is None:
            self._refreshed()
        return self._asked_columns or ()

    @property
    def layout(self) -> Layout:
        return Layout(
            location=self.location,
            storage=self._storage,
            partition_columns=self.partition_columns,
        )

    # -- reading

    def schema(self) -> Any | None:
        return self._schema(self._refreshed())

    def last_batch(self, query: str) -> int | None:
        table = self._refreshed()
        if table is None:
            return None
        found: int | None = table.transaction_version(query)
        return found

    def mark(self, name: str) -> int | None:
        table = self._refreshed()
        found: int | None = None if table is None else table.transaction_version(f"{MARK}{name}")
        return found

    def snapshot(self) -> Snapshot:
        table = self._refreshed()
        if table is None:
            return Snapshot(version=None, files=(), rows=0)
        self._check_deletions(table)
        files = _files(table)
        return Snapshot(version=table.version(), files=files, rows=sum(file.rows for file in files))

    def _check_deletions(self, table: Any) -> None:
        """Who reads the files as they are would bring back what was deleted."""
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise LakeError(
                f"the table at {self.location} has deletion vectors, which are not read here",
                hint="rewrite it first: REORG TABLE … APPLY (PURGE), then ALTER TABLE … DROP "
                "FEATURE deletionVectors",
            )

    # -- writing

    def ensure(self, schema: Any) -> None:
        for _ in range(ATTEMPTS_MAX):
            table = self._refreshed()
            old = self._schema(table)
            new = schemas.merged(old, schema, self.partition_columns, self.location)
            if old is not None and new.equals(old):
                return
            try:
                if old is None:
                    self._lib.DeltaTable.create(
                        self.location,
                        schema=self._lib.Schema.from_arrow(new),
                        partition_by=list(self.partition_columns),
                        storage_options=self._storage,
                        # So that engines can follow the table from one version to the next.
                        configuration={"delta.enableChangeDataFeed": "true"},
                    )
                else:
                    changed = pa.schema([field for field in new if field not in old])
                    table.alter.add_columns(list(self._lib.Schema.from_arrow(changed).fields))
            except self._lib.exceptions.SchemaMismatchError as error:
                raise LakeError(
                    f"a column of the Delta table at {self.location} would become wider, which "
                    f"deltalake cannot do: {error}",
                    hint="write to another table (--to), or decode as before (--schema); Iceberg "
                    "tables can (--format iceberg)",
                ) from error
            except (self._lib.exceptions.DeltaError, OSError) as error:
                if _is_conflict(error):
                    continue
                raise self._failed(error) from error
            self._sync()
            return
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        return self._commit(writing, lambda table: self._added(files, data_change=True))

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool = False,
        since: int | None = None,
    ) -> bool:
        def actions(table: Any) -> list[Any]:
            self._check_deletions(table)
            if since not in (None, table.version()):
                raise ConflictError(f"the table at {self.location} is not at version {since} now")
            there = {file.path for file in _files(table)}
            gone = [file.path for file in removed if file.path not in there]
            if gone:
                raise ConflictError(
                    f"{gone[0]} is not in the table at {self.location} any more",
                    hint="another commit replaced it: read the table again",
                )
            return [
                *self._added(added, data_change=not same_rows),
                *self._removed(removed, data_change=not same_rows),
            ]

        return self._commit(writing, actions)

    def clean(self, *, orphan_seconds_min: float = VACUUM_HOURS_MIN * 3600.0) -> int:
        table = self._refreshed()
        if table is None:
            return 0
        found = table.vacuum(
            retention_hours=math.ceil(orphan_seconds_min / 3600),
            # It would take away all that lies below, also what is of other tables.
            dry_run=True,
            full=True,
            # Whoever asks for less than the usual week means it.
            enforce_retention_duration=orphan_seconds_min >= VACUUM_HOURS_MIN * 3600.0,
        )
        # Again: what was committed meanwhile is not to go.
        named = {file.path for file in _files(self._refreshed())}
        removed = [
            path
            for path in found
            if path not in named and is_data_path(path, self.partition_columns)
        ]
        for path in removed:
            self._folder.delete(path)
        return len(removed)

    def _commit(self, writing: Writing, actions: Callable[[Any], list[Any]]) -> bool:
        from deltalake.transaction import CommitProperties, Transaction

        for _ in range(ATTEMPTS_MAX):
            table = self._refreshed()
            if table is None:
                raise LakeError(f"there is no table at {self.location} yet: call ensure first")
            last = table.transaction_version(writing.query)
            if last is not None and last >= writing.batch:
                return False
            now = int(time.time() * 1000)
            markers = [Transaction(writing.query, writing.batch, now)]
            markers += [
                Transaction(f"{MARK}{name}", marked(text), now) for name, text in writing.marks
            ]
            try:
                table.create_write_transaction(
                    actions(table),
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(self.partition_columns),
                    commit_properties=CommitProperties(
                        app_transactions=markers,
                        max_commit_retries=0,
                        custom_metadata={
                            "moldau.query": writing.query,
                            "moldau.batch": str(writing.batch),
                        },
                    ),
                )
            except (self._lib.exceptions.DeltaError, OSError) as error:
                if _is_conflict(error):
                    continue
                raise self._failed(error) from error
            self._sync()
            return True
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def _added(self, files: Sequence[DataFile], *, data_change: bool) -> list[Any]:
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        try:
            stats = delta_stats(self.layout, [file.path for file in files])
        except FileNotFoundError as error:
            raise LakeError(
                f"a file that was to be committed to {self.location} is not there: {error}",
                hint="it was cleaned away, or tasks see another disk than the driver: "
                "a table in a folder needs one that all machines share, or an object store",
            ) from error
        return [
            AddAction(
                path=file.path,
                size=file.bytes,
                partition_values=_delta_values(file.partition),
                modification_time=now,
                data_change=data_change,
                stats=found,
            )
            for file, found in zip(files, stats, strict=True)
        ]

    def _removed(self, files: Sequence[DataFile], *, data_change: bool) -> list[Any]:
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        return [
            RemoveAction(
                path=file.path,
                data_change=data_change,
                deletion_timestamp=now,
                size=file.bytes,
                partition_values=_delta_values(file.partition),
            )
            for file in files
        ]

    # -- following the table

    def _refreshed(self) -> Any:
        try:
            if self._table is None:
                if not self._lib.DeltaTable.is_deltatable(self.location, self._storage):
                    return None
                self._table = self._lib.DeltaTable(self.location, storage_options=self._storage)
            else:
                self._table.update_incremental()
        except (self._lib.exceptions.DeltaError, OSError) as error:
            raise self._failed(error) from error
        had = tuple(self._table.metadata().partition_columns)
        if self._asked_columns is None:
            self._asked_columns = had
        if had != self._asked_columns:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(self.partition_columns) or 'nothing'}",
                hint="tables that keep every record and those that are kept by key (--mode upsert) "
                "are not the same: use another place (--to)",
            )
        return self._table

    def _schema(self, table: Any) -> Any | None:
        if table is None:
            return None
        known = schemas.plain_schema(pa.schema(table.schema().to_arrow()))
        return schemas.with_partitions_last(known, self.partition_columns)

    def _sync(self) -> None:
        """deltalake leaves to the system when an entry of the log reaches a local disk."""
        if self._folder.is_local:
            self._table = self._refreshed()
            self._folder.sync(f"_delta_log/{self._table.version():020}.json")

    def _failed(self, error: Exception) -> LakeError:
        return LakeError(
            f"the Delta table at {self.location}: {_one_line(error)}",
            hint="is it a Delta table (--format)? are you allowed to write there? for object "
            "stores, --storage says how they are reached",
        )


def _files(table: Any) -> tuple[DataFile, ...]:
    actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return tuple(
        DataFile(
            path=found["path"],
            rows=found["num_records"] or 0,
            bytes=found["size_bytes"],
            partition={
                name: NULL_PARTITION if value is None else str(value)
                for name, value in (found.get("partition") or {}).items()
            },
        )
        for found in actions
    )


def _delta_values(partition: Mapping[str, str]) -> dict[str, str | None]:
    return {name: None if value == NULL_PARTITION else value for name, value in partition.items()}


def _one_line(error: Exception) -> str:
    """deltalake paints its errors, over several lines."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error)).split())


def _is_conflict(error: Exception) -> bool:
    """Somebody else made the version that this was to be."""
    text = str(error).lower()
    return type(error).__name__ == "CommitFailedError" or "already exists" in text

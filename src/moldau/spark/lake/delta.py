"""A Delta table: commits data files that tasks wrote.

Files are added as they are, none is rewritten. The commit carries Delta's transaction identifier
(`txn`: query and batch), by which a repeated batch is detected.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import SchemaMismatchError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from moldau.spark.lake import schema_evolution
from moldau.spark.lake.model import NULL_PARTITION, DataFile, LakeError, TableFormat, Writing
from moldau.spark.lake.parquet_files import is_data_path
from moldau.spark.lake.storage import folder_at
from moldau.spark.lake.table import LakeTable

PARALLEL_STATS: Final = 16
VACUUM_HOURS_MIN: Final = 7 * 24
"""How long old versions can be read: Delta's default retention."""


class DeltaLakeTable(LakeTable):
    """A Delta table through the package deltalake."""

    format = TableFormat.DELTA

    def __init__(
        self, location: str, storage: Mapping[str, str], partition_columns: tuple[str, ...] | None
    ) -> None:
        super().__init__(location, storage, partition_columns)
        self._folder = folder_at(location, storage)
        self._table: Any = None

    def clean(self, *, orphan_seconds_min: float = VACUUM_HOURS_MIN * 3600.0) -> int:
        table = self._current()
        if table is None:
            return 0
        found = table.vacuum(
            retention_hours=math.ceil(orphan_seconds_min / 3600),
            # It would also delete files of other tables below this location.
            dry_run=True,
            full=True,
            # An explicit shorter retention is intended.
            enforce_retention_duration=orphan_seconds_min >= VACUUM_HOURS_MIN * 3600.0,
        )
        # Loaded again: files committed meanwhile must stay.
        named = {found["path"] for found in _actions(self._current())}
        removed = [
            path
            for path in found
            if path not in named and is_data_path(path, self.partition_columns)
        ]
        for path in removed:
            self._folder.delete(path)
        return len(removed)

    # -- reading

    def _load(self) -> Any:
        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(self.location, self._storage):
            self._table = DeltaTable(self.location, storage_options=self._storage)
        else:
            return None
        self._check_partitions(tuple(self._table.metadata().partition_columns))
        return self._table

    def _schema(self, table: Any) -> Any:
        known = schema_evolution.plain_schema(pa.schema(table.schema().to_arrow()))
        return schema_evolution.with_partitions_last(known, self.partition_columns)

    def _last_batch(self, table: Any, query: str) -> int | None:
        found: int | None = table.transaction_version(query)
        return found

    def _version(self, table: Any) -> int:
        return int(table.version())

    def _files(self, table: Any) -> Iterable[DataFile]:
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise LakeError(
                f"the table at {self.location} has deletion vectors, which are not supported",
                hint="rewrite it first: REORG TABLE … APPLY (PURGE), then ALTER TABLE … DROP "
                "FEATURE deletionVectors",
            )
        return map(_data_file, _actions(table))

    # -- writing

    def _set_columns(self, table: Any, new: Any) -> None:
        if table is None:
            DeltaTable.create(
                self.location,
                schema=Schema.from_arrow(new),
                partition_by=list(self.partition_columns),
                storage_options=self._storage,
                # So that engines can read the changes between versions.
                configuration={"delta.enableChangeDataFeed": "true"},
            )
            return
        old = self._schema(table)
        changed = pa.schema([field for field in new if field not in old])
        try:
            table.alter.add_columns(list(Schema.from_arrow(changed).fields))
        except SchemaMismatchError as error:
            raise LakeError(
                f"cannot widen a column of the Delta table at {self.location}, which deltalake "
                f"does not support: {error}",
                hint="write to another table (--to), use the previous --schema, or use Iceberg "
                "(--format iceberg)",
            ) from error

    def _commit(
        self,
        table: Any,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool,
    ) -> None:
        if removed:
            self._check_present(removed, (file.path for file in self._files(table)))
        with ThreadPoolExecutor(PARALLEL_STATS) as pool:
            sizes = list(pool.map(self._folder.size, [file.path for file in added]))
        for file, size in zip(added, sizes, strict=True):
            if size != file.bytes:
                raise FileNotFoundError(file.path)
        now = int(time.time() * 1000)
        adds = [
            AddAction(
                path=file.path,
                size=file.bytes,
                partition_values=_delta_values(file.partition),
                modification_time=now,
                data_change=not same_rows,
                stats=msgspec.json.encode({"numRecords": file.rows, **file.stats}).decode(),
            )
            for file in added
        ]
        removes = [
            RemoveAction(
                path=file.path,
                data_change=not same_rows,
                deletion_timestamp=now,
                size=file.bytes,
                partition_values=_delta_values(file.partition),
            )
            for file in removed
        ]
        markers = [Transaction(name, number, now) for name, number in writing.numbers().items()]
        metadata = {"moldau.query": writing.query, "moldau.batch": str(writing.batch)}
        table.create_write_transaction(
            [*adds, *removes],
            mode="append",
            schema=table.schema(),
            partition_by=list(self.partition_columns),
            commit_properties=CommitProperties(
                app_transactions=markers,
                max_commit_retries=0,
                custom_metadata=metadata,
            ),
        )

    def _is_conflict(self, error: Exception) -> bool:
        return type(error).__name__ == "CommitFailedError" or "already exists" in str(error).lower()

    def _sync(self) -> None:
        if self._folder.is_local:
            self._folder.sync(f"_delta_log/{self._version(self._current()):020}.json")


def _actions(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return found


def _data_file(found: dict[str, Any]) -> DataFile:
    low, high = ((found.get(bound) or {}).get("offset") for bound in ("min", "max"))
    return DataFile(
        path=found["path"],
        rows=found["num_records"] or 0,
        bytes=found["size_bytes"],
        partition={
            name: NULL_PARTITION if value is None else str(value)
            for name, value in (found.get("partition") or {}).items()
        },
        offsets=(low, high) if isinstance(low, int) and isinstance(high, int) else None,
    )


def _delta_values(partition: Mapping[str, str]) -> dict[str, str | None]:
    return {name: None if value == NULL_PARTITION else value for name, value in partition.items()}

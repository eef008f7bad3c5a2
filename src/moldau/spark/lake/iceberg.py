"""An Iceberg table: commits data files that tasks wrote.

pyiceberg loads the catalog from the options (REST, Glue, Hive, SQL); without any, a table in a
local folder has a SQLite catalog in that folder. Archives are partitioned by the day of
`timestamp`, which pyiceberg derives from file statistics; our column `date` is not stored. The
snapshot summary has the query and batch of a commit. The table properties, updated in the same
commit, have the last batch of each query, since snapshots expire. A catalog accepts a commit only
on the snapshot it was based on, so no other commit can come between the check and the commit.
"""

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import ExpireSnapshots, _OverwriteFiles
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake import schema_evolution
from moldau.spark.lake.model import (
    NULL_PARTITION,
    DataFile,
    LakeError,
    Layout,
    TableFormat,
    Writing,
)
from moldau.spark.lake.parquet_files import is_data_path
from moldau.spark.lake.storage import Folder, folder_at, is_local, normal_location
from moldau.spark.lake.table import LakeTable

NAMESPACE: Final = "moldau"
CATALOG_FILE: Final = "_catalog.sqlite"
CATALOG_OPTION: Final = "catalog"
"""Names a catalog of pyiceberg's configuration; all other options are pyiceberg's."""
DATE: Final = "date"
BATCH_PROPERTY: Final = "moldau.batch."
ORPHAN_SECONDS_MIN: Final = 24 * 3600.0
SNAPSHOTS_MAX: Final = 500
"""More are expired: every commit rewrites the list of snapshots."""
SNAPSHOT_SECONDS_MAX: Final = 5 * 24 * 3600.0
_KEPT_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Unless the table has its own: keeps 100 metadata files, of which every commit writes one."""


class IcebergTable(LakeTable):
    """An Iceberg table through the package pyiceberg."""

    format = TableFormat.ICEBERG

    def __init__(
        self,
        location: str,
        storage: Mapping[str, str],
        partition_columns: tuple[str, ...] | None,
        name: str,
    ) -> None:
        super().__init__(location, storage, partition_columns)
        if partition_columns not in (None, (), (DATE,)):
            raise InvalidArgumentError("an Iceberg table must be partitioned by day, or not at all")
        namespace, _, last = name.rpartition(".")
        self._identifier = (namespace or NAMESPACE, last)
        self._opened: Any = None

    @property
    def layout(self) -> Layout:
        table = self._current()
        # Includes credentials that a catalog issues for the table.
        storage = self._storage if table is None else table.io.properties
        return replace(super().layout, storage=dict(storage))

    def clean(self, *, orphan_seconds_min: float = ORPHAN_SECONDS_MIN) -> int:
        table = self._current()
        if table is None:
            return 0
        # Listed first, so that files committed in the meantime are found in the metadata below.
        folder = self._folder(table)
        listed = list(folder.list())
        before = time.time() - orphan_seconds_min
        table = table.refresh()
        named = {*table.inspect.all_files()["file_path"].to_pylist()}
        named |= {*table.inspect.all_manifests()["path"].to_pylist()}
        named |= {snapshot.manifest_list for snapshot in table.snapshots()}
        prefix = _prefix(table)
        if named and not any(path.startswith(prefix) for path in named):
            raise LakeError(
                f"the files of the table at {self.location} are not below {prefix}: cannot "
                "detect orphan files, so none is deleted"
            )
        removed = [
            found.path
            for found in listed
            # A file without a modification time counts as new.
            if (found.mtime_ns or math.inf) / 1e9 <= before
            and prefix + found.path not in named
            and (
                is_data_path(found.path, self.partition_columns)
                or (found.path.startswith("metadata/") and found.path.endswith(".avro"))
            )
        ]
        for path in removed:
            folder.delete(path)
        return len(removed)

    # -- reading

    def _load(self) -> Any:
        # Checking for a table must not create a catalog.
        has_catalog = self._has_catalog() or (Path(self.location) / CATALOG_FILE).exists()
        if self._opened is None and not has_catalog:
            return None
        try:
            table = self._catalog().load_table(self._identifier)
        except NoSuchTableError:
            return None
        if (location := _plain_location(table.location())) != self.location:
            raise LakeError(
                f"the catalog's table {'.'.join(self._identifier)} is at {location}, not at "
                f"{self.location}",
                hint="use another catalog (--storage), or a location with another last part",
            )
        had = tuple(f"{field.transform}({field.name})" for field in table.spec().fields)
        if self._partition_columns is None and had:
            self._partition_columns = (DATE,)
        self._check_partitions((DATE,) if had == ("day(timestamp_day)",) else had)
        return table

    def _has_catalog(self) -> bool:
        return not self._storage.keys().isdisjoint((CATALOG_OPTION, "uri", "type"))

    def _catalog(self) -> Any:
        if self._opened is not None:
            return self._opened
        options = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **self._storage}
        name = options.pop(CATALOG_OPTION, NAMESPACE)
        if not self._has_catalog():
            if not is_local(self.location):
                raise InvalidArgumentError(
                    f"an Iceberg table at {self.location} needs a catalog",
                    hint="with pyiceberg's options: --storage type=rest --storage uri=… (or glue, "
                    "hive, sql), or --storage catalog=NAME of .pyiceberg.yaml",
                )
            Path(self.location).mkdir(parents=True, exist_ok=True)
            options |= {"type": "sql", "uri": f"sqlite:///{self.location}/{CATALOG_FILE}"}
            options.setdefault("warehouse", self._uri())
        self._opened = load_catalog(name, **options)
        return self._opened

    def _uri(self) -> str:
        return f"file://{self.location}" if is_local(self.location) else self.location

    def _folder(self, table: Any) -> Folder:
        return folder_at(self.location, table.io.properties, self.format)

    def _schema(self, table: Any) -> Any:
        known = schema_evolution.plain_schema(table.schema().as_arrow())
        return pa.schema([*known, *((name, pa.string()) for name in self.partition_columns)])

    def _last_batch(self, table: Any, query: str) -> int | None:
        found = table.properties.get(f"{BATCH_PROPERTY}{query}")
        return None if found is None else int(found)

    def _version(self, table: Any) -> int | None:
        current = table.current_snapshot()
        return None if current is None else current.snapshot_id

    def _files(self, table: Any) -> Iterable[DataFile]:
        longs = {f.name: f.field_id for f in table.schema().fields if f.field_type == LongType()}
        offset = longs.get("offset")
        for path, entry in self._entries(table).items():
            found = [
                int.from_bytes(bounds[offset], "little", signed=True)
                for bounds in (entry.lower_bounds, entry.upper_bounds)
                if bounds and offset in bounds
            ]
            yield DataFile(
                path=path,
                rows=entry.record_count,
                bytes=entry.file_size_in_bytes,
                partition=dict(
                    zip(self.partition_columns, map(_day, entry.partition), strict=True)
                ),
                offsets=(found[0], found[1]) if len(found) == 2 else None,
            )

    def _entries(self, table: Any) -> dict[str, Any]:
        """The manifest entry of each data file, by its path below the location."""
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise LakeError(
                f"the table at {self.location} has delete files, which are not supported",
                hint="rewrite it first, with rewrite_data_files of the engine that deleted rows",
            )
        prefix = _prefix(table)
        return {str(task.file.file_path).removeprefix(prefix): task.file for task in tasks}

    # -- writing

    def _set_columns(self, table: Any, new: Any) -> None:
        inner = pa.schema([field for field in new if field.name not in self.partition_columns])
        if table is not None:
            with table.update_schema() as update:
                update.union_by_name(inner)
            return
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._identifier[0])
        creation = catalog.create_table_transaction(
            self._identifier, schema=inner, location=self._uri()
        )
        with creation as transaction, transaction.update_spec() as spec:
            if self._partition_columns:
                spec.add_field("timestamp", DayTransform(), "timestamp_day")

    def _commit(
        self,
        table: Any,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool,
    ) -> None:
        entries = self._entries(table) if removed else {}
        self._check_present(removed, entries)
        # pyiceberg would rebase the commit on others by itself, without checking their batches.
        # Changed only in memory, not in the table.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        kept = {k: v for k, v in _KEPT_PROPERTIES.items() if k not in table.properties}
        kept |= {f"{BATCH_PROPERTY}{name}": str(n) for name, n in writing.numbers().items()}
        if table.name_mapping() is None:
            # The files have no Iceberg column ids.
            mapping = table.schema().name_mapping.model_dump_json()
            kept[TableProperties.DEFAULT_NAME_MAPPING] = mapping
        with table.transaction() as transaction:
            transaction.set_properties(kept)
            if removed or added:
                summary = {"moldau.query": writing.query, "moldau.batch": str(writing.batch)}
                with _producer(transaction, summary, bool(removed), same_rows) as producer:
                    for file in removed:
                        producer.delete_data_file(entries[file.path])
                    for file in added:
                        path, metadata = _prefix(table) + file.path, transaction.table_metadata
                        entry = parquet_file_to_data_file(table.io, metadata, path)
                        producer.append_data_file(entry)
            # The table's own property overrides our defaults.
            age_ms = table.properties.get("history.expire.max-snapshot-age-ms")
            if age_ms is None:
                expire_snapshots(transaction, SNAPSHOTS_MAX, SNAPSHOT_SECONDS_MAX)
            else:
                expire_snapshots(transaction, sys.maxsize, int(age_ms) / 1000)

    def _is_conflict(self, error: Exception) -> bool:
        # After a lost response, the next attempt finds the batch in the table's properties.
        conflicts = (CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError)
        # A SQLite catalog with another writer.
        return isinstance(error, conflicts) or "database is locked" in str(error)

    def _sync(self) -> None:
        table = self._current() if is_local(self.location) else None
        if table is None:
            return
        paths = [table.metadata_location]
        if (snapshot := table.current_snapshot()) is not None:
            paths.append(snapshot.manifest_list)
            paths += [
                manifest.manifest_path
                for manifest in snapshot.manifests(table.io)
                if manifest.added_snapshot_id == snapshot.snapshot_id
            ]
        for path in paths:
            self._folder(table).sync(str(path).removeprefix(_prefix(table)))


def _day(value: int | None) -> str:
    return NULL_PARTITION if value is None else str(date(1970, 1, 1) + timedelta(days=value))


def _plain_location(text: str) -> str:
    try:
        return normal_location(text)
    except InvalidArgumentError:
        return text


def _prefix(table: Any) -> str:
    """The prefix of its file paths: a catalog may spell the location in another way."""
    return str(table.location()).rstrip("/") + "/"


def _producer(transaction: Any, summary: dict[str, str], is_change: bool, same_rows: bool) -> Any:
    """Creates one snapshot. Uses private API of pyiceberg: its version is pinned and tested.

    The public API replaces files by two snapshots, of which the first has neither the old nor the
    new files: readers of every snapshot would see rows vanish and come back. With `same_rows` the
    operation is `replace`, which readers of changes ignore.
    """
    if same_rows:
        io = transaction._table.io
        producer: Any = _Replacement(Operation.OVERWRITE, transaction, io, None, summary)
    else:
        update = transaction.update_snapshot(snapshot_properties=summary)
        producer = update.overwrite() if is_change else update.fast_append()
    # Keep the files of a failed commit: it may have succeeded with a lost response.
    producer._clean_all_uncommitted = lambda: None
    return producer


class _Replacement(_OverwriteFiles):
    def _summary(self, snapshot_properties: dict[str, str]) -> Any:
        # pyiceberg computes no totals for REPLACE, so the operation is changed afterwards.
        found = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **found.additional_properties)


def expire_snapshots(transaction: Any, count_max: int, seconds_max: float) -> None:
    """Expires snapshots beyond the count or age, except those of branches and tags."""
    metadata = transaction.table_metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    known = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    before_ms = (time.time() - seconds_max) * 1000
    expired = [
        snapshot.snapshot_id
        for number, snapshot in enumerate(known)
        if snapshot.snapshot_id not in named
        and (snapshot.timestamp_ms < before_ms or number < len(known) - count_max)
    ]
    if expired:
        ExpireSnapshots(transaction).by_ids(expired).commit()

"""Owns an Iceberg table: files that tasks wrote become its files in one commit of pyiceberg.

The catalog is an SQL one, by default a SQLite file in the table's folder. A commit's snapshot says
in its summary which query and batch it is, and the table's properties say the last batch of each
query, in the same commit: they outlive the snapshots, which are expired some day. The catalog takes
a commit only on top of the snapshot that it was built on, so that nobody slips in between the look
at the properties and the commit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake import schemas
from moldau.spark.lake.files import NULL_PARTITION, completed, is_data_path
from moldau.spark.lake.iceberg_snapshots import change_files, expire_snapshots
from moldau.spark.lake.storage import is_s3, normal_location, open_store, sync_file
from moldau.spark.lake.table import (
    ConflictError,
    DataFile,
    LakeError,
    Layout,
    Snapshot,
    TableFormat,
    Writing,
)

ATTEMPTS_MAX: Final = 100
NAMESPACE: Final = "moldau"
CATALOG_FILE: Final = "_catalog.sqlite"
BATCH_PROPERTY: Final = "moldau.batch."
RETRIES_PROPERTY: Final = "commit.retry.num-retries"
QUERY_SUMMARY: Final = "moldau.query"
BATCH_SUMMARY: Final = "moldau.batch"
ORPHAN_SECONDS_MIN: Final = 24 * 3600.0
SNAPSHOTS_MAX: Final = 500
"""That are kept. All of them stand in a file that every commit writes anew."""
SNAPSHOT_SECONDS_MAX: Final = 5 * 24 * 3600.0
_KEPT_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Unless the table says otherwise: of the file that every commit writes anew, a hundred stay."""


class IcebergTable:
    """An Iceberg table through the package pyiceberg."""

    format: Final = TableFormat.ICEBERG

    def __init__(
        self,
        location: str,
        *,
        name: str,
        storage: Mapping[str, str],
        partition_columns: tuple[str, ...],
    ) -> None:
        self.location: Final = location
        self._storage = dict(storage)
        self._store = open_store(location, storage)
        self._asked_columns = partition_columns
        namespace, _, last = name.rpartition(".")
        self._identifier = (namespace or NAMESPACE, last)
        self._opened: Any = None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self._asked_columns

    @property
    def layout(self) -> Layout:
        # pyiceberg learns a file's partition from the statistics of the columns in it.
        return Layout(
            location=self.location,
            storage=self._storage,
            partition_columns=self._asked_columns,
            keeps_partition_columns=True,
        )

    # -- reading

    def schema(self) -> Any | None:
        return self._schema(self._table())

    def last_batch(self, query: str) -> int | None:
        table = self._table()
        return None if table is None else _last_batch(table, query)

    def snapshot(self) -> Snapshot:
        table = self._table()
        if table is None:
            return Snapshot(version=None, files=(), rows=0)
        current = table.current_snapshot()
        if current is None:
            return Snapshot(version=None, files=(), rows=0)
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            # Who reads the files as they are would bring back what was deleted.
            raise LakeError(
                f"the table at {self.location} has files of deletes, which are not read here",
                hint="rewrite it first, with rewrite_data_files of whoever deleted rows",
            )
        files = tuple(self._known(task.file) for task in tasks)
        return Snapshot(
            version=current.snapshot_id, files=files, rows=sum(file.rows for file in files)
        )

    def read(
        self, snapshot: Snapshot | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        found = snapshot or self.snapshot()
        table = self._table()
        schema = self._schema(table)
        if schema is None or found.version is None:
            return
        names = tuple(schema.names if columns is None else columns)
        if strange := [name for name in names if name not in schema.names]:
            raise LakeError(f"the table at {self.location} has no column {', '.join(strange)}")
        wanted = pa.schema([schema.field(name) for name in names])
        scan = table.scan(snapshot_id=found.version)
        old = scan.projection().column_names
        scan = scan.select(*([name for name in names if name in old] or old))
        for batch in scan.to_arrow_batch_reader():
            if batch.num_rows:
                yield completed(batch, wanted, {})

    # -- writing

    def ensure(self, schema: Any) -> None:
        for _ in range(ATTEMPTS_MAX):
            table = self._table()
            old = self._schema(table)
            new = schemas.merged(old, schema, self._asked_columns, self.location)
            if old is not None and new.equals(old):
                return
            try:
                if table is None:
                    self._create(new)
                else:
                    with table.update_schema() as update:
                        update.union_by_name(new)
            except _conflicts():
                continue
            self._sync()
            return
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        return self.replace((), files, writing)

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        writing: Writing,
        *,
        same_rows: bool = False,
    ) -> bool:
        def change(table: Any, transaction: Any) -> None:
            gone = _files_there(table, self._uri(), removed)
            paths = [f"{self._uri()}/{file.path}" for file in added]
            if gone or paths:
                said = {QUERY_SUMMARY: writing.query, BATCH_SUMMARY: str(writing.batch)}
                change_files(transaction, gone, paths, said, same_rows=same_rows)

        return self._commit(writing, change)

    def clean(self, *, orphan_seconds_min: float = ORPHAN_SECONDS_MIN) -> int:
        # Listed first: what is committed while we list is known to be so afterwards.
        listed = list(self._store.list(""))
        table = self._table()
        if table is None:
            return 0
        named = set(table.inspect.all_files()["file_path"].to_pylist())
        named |= set(table.inspect.all_manifests()["path"].to_pylist())
        named |= {snapshot.manifest_list for snapshot in table.snapshots()}
        count = 0
        for found in listed:
            is_ours = is_data_path(found.path, self._asked_columns) or (
                found.path.startswith("metadata/") and found.path.endswith(".avro")
            )
            is_old = found.age_seconds >= orphan_seconds_min
            if is_ours and is_old and f"{self._uri()}/{found.path}" not in named:
                self._store.delete(found.path)
                count += 1
        return count

    def _commit(self, writing: Writing, change: Callable[[Any, Any], None]) -> bool:
        for _ in range(ATTEMPTS_MAX):
            table = self._table()
            if table is None:
                raise LakeError(f"there is no table at {self.location} yet: call ensure first")
            last = _last_batch(table, writing.query)
            if last is not None and last >= writing.batch:
                return False
            # pyiceberg would put the commit on top of those of others by itself, without a look at
            # the batches they are of. Here only: the table keeps the property that it has.
            table.metadata.properties[RETRIES_PROPERTY] = "0"
            try:
                with table.transaction() as transaction:
                    change(table, transaction)
                    kept = {k: v for k, v in _KEPT_PROPERTIES.items() if k not in table.properties}
                    transaction.set_properties(
                        {f"{BATCH_PROPERTY}{writing.query}": str(writing.batch), **kept}
                    )
                    expire_snapshots(
                        transaction, count_max=SNAPSHOTS_MAX, seconds_max=SNAPSHOT_SECONDS_MAX
                    )
            except _conflicts():
                continue
            except FileNotFoundError as error:
                raise LakeError(
                    f"a file that was to be committed to {self.location} is not there: {error}",
                    hint="it was cleaned away, or tasks see another disk than the driver: "
                    "a table in a folder needs one that all machines share, or S3",
                ) from error
            self._sync()
            return True
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def _create(self, schema: Any) -> None:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._identifier[0])
        begun = catalog.create_table_transaction(
            self._identifier, schema=schema, location=self._uri()
        )
        with begun as transaction, transaction.update_spec() as spec:
            for name in self._asked_columns:
                spec.add_identity(name)

    # -- following the table

    def _table(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        if self._opened is None and not self._is_begun():
            return None
        try:
            table = self._catalog().load_table(self._identifier)
        except NoSuchTableError:
            return None
        if (place := _plain_location(table.location())) != self.location:
            raise LakeError(
                f"the catalog has a table {'.'.join(self._identifier)}, and it is at {place}, not "
                f"at {self.location}",
                hint="one of the two needs another catalog (--storage catalog=…) or another last "
                "part of its location",
            )
        had = tuple(field.name for field in table.spec().fields)
        if had != self._asked_columns:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(self._asked_columns) or 'nothing'}"
            )
        return table

    def _is_begun(self) -> bool:
        """So that to look for a table leaves no catalog behind."""
        return "catalog" in self._storage or (Path(self.location) / CATALOG_FILE).exists()

    def _catalog(self) -> Any:
        if self._opened is not None:
            return self._opened
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise LakeError(
                "Iceberg tables need the package pyiceberg",
                hint="install it: pip install 'moldau[spark]'",
            ) from None
        uri = self._storage.get("catalog")
        if uri is None:
            if is_s3(self.location):
                raise InvalidArgumentError(
                    f"an Iceberg table at {self.location} needs a catalog, which S3 cannot be",
                    hint="name one: --storage catalog=sqlite:////path/catalog.sqlite, or "
                    "catalog=postgresql+psycopg2://…",
                )
            Path(self.location).mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self.location}/{CATALOG_FILE}"
        options = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
        if is_s3(self.location):
            from moldau.spark.lake.s3 import iceberg_options

            options |= iceberg_options(self._storage)
        self._opened = load_catalog("moldau", uri=uri, warehouse=self._uri(), **options)
        return self._opened

    def _schema(self, table: Any) -> Any | None:
        if table is None:
            return None
        known = schemas.plain_schema(table.schema().as_arrow())
        return schemas.with_partitions_last(known, self._asked_columns)

    def _uri(self) -> str:
        return self.location if is_s3(self.location) else f"file://{self.location}"

    def _known(self, file: Any) -> DataFile:
        values = dict(zip(self._asked_columns, list(file.partition), strict=True))
        return DataFile(
            path=str(file.file_path).removeprefix(f"{self._uri()}/"),
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition={
                name: NULL_PARTITION if value is None else str(value)
                for name, value in values.items()
            },
        )

    def _sync(self) -> None:
        """pyiceberg leaves to the system when metadata reaches a local disk."""
        table = None if is_s3(self.location) else self._table()
        if table is None:
            return
        paths = [table.metadata_location]
        snapshot = table.current_snapshot()
        if snapshot is not None:
            paths.append(snapshot.manifest_list)
            paths += [
                manifest.manifest_path
                for manifest in snapshot.manifests(table.io)
                if manifest.added_snapshot_id == snapshot.snapshot_id
            ]
        for path in paths:
            sync_file(str(path).removeprefix("file://"))


def _plain_location(text: str) -> str:
    try:
        return normal_location(text)
    except InvalidArgumentError:
        return text


def _last_batch(table: Any, query: str) -> int | None:
    known = table.properties.get(f"{BATCH_PROPERTY}{query}")
    if known is not None:
        return int(known)
    batches = [
        int(snapshot.summary.additional_properties[BATCH_SUMMARY])
        for snapshot in table.snapshots()
        if snapshot.summary is not None
        and snapshot.summary.additional_properties.get(QUERY_SUMMARY) == query
    ]
    return max(batches, default=None)


def _files_there(table: Any, uri: str, asked: Sequence[DataFile]) -> list[Any]:
    """The table's own entries for files, which must be in it as they were read."""
    if not asked:
        return []
    there = {task.file.file_path: task for task in table.scan().plan_files()}
    found = [there.get(f"{uri}/{file.path}") for file in asked]
    for file, task in zip(asked, found, strict=True):
        if task is None or task.delete_files:
            raise ConflictError(
                f"{file.path} is not in the table at {uri} any more, or rows of it were deleted",
                hint="another commit changed it: read the table again",
            )
    return [task.file for task in found if task is not None]


def _conflicts() -> tuple[type[Exception], ...]:
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        TableAlreadyExistsError,
    )

    # Whether one whose answer was lost is there is told by the table's last batch.
    return CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError

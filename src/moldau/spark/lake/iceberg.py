"""Responsible for an Iceberg table: files that tasks wrote become its files in one commit.

The catalog is whichever pyiceberg loads with the options that it is given (REST, Glue, Hive, SQL);
with none, and a local folder, a SQLite file in that folder. Tables of archives are partitioned by
the day of `timestamp`, which pyiceberg finds out from the files' statistics; `date` is a column for
those who ask us, and none of the table. A commit's snapshot says
in its summary which query and batch it is, and the table's properties say the last batch of each
query, in the same commit: they outlive the snapshots, which are expired some day. The catalog takes
a commit only on top of the snapshot that it was built on, so that nobody slips in between the look
at the properties and the commit.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake import schemas
from moldau.spark.lake.files import NULL_PARTITION, is_data_path
from moldau.spark.lake.iceberg_snapshots import change_files, expire_snapshots
from moldau.spark.lake.storage import folder_at, is_local, normal_location
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
NAMESPACE: Final = "moldau"
CATALOG_FILE: Final = "_catalog.sqlite"
CATALOG_OPTION: Final = "catalog"
"""The name of a catalog of pyiceberg's own configuration; all other options are pyiceberg's."""
DATE: Final = "date"
_DAY_OF: Final = "timestamp"
_DAY_FIELD: Final = "timestamp_day"
BATCH_PROPERTY: Final = "moldau.batch."
MARK_PROPERTY: Final = "moldau.mark."
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
        partition_columns: tuple[str, ...] | None,
    ) -> None:
        self.location: Final = location
        self._storage = dict(storage)
        if partition_columns not in (None, (), (DATE,)):
            raise InvalidArgumentError("an Iceberg table is partitioned by day, or not at all")
        self._asked_columns = partition_columns
        namespace, _, last = name.rpartition(".")
        self._identifier = (namespace or NAMESPACE, last)
        self._opened: Any = None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        if self._asked_columns is None:
            self._table()
        return self._asked_columns or ()

    @property
    def layout(self) -> Layout:
        table = self._table()
        return Layout(
            location=self.location,
            format=self.format,
            # With credentials that a catalog hands out for the table.
            storage=self._storage if table is None else dict(table.io.properties),
            partition_columns=self.partition_columns,
        )

    # -- reading

    def schema(self) -> Any | None:
        return self._schema(self._table())

    def last_batch(self, query: str) -> int | None:
        table = self._table()
        return None if table is None else _last_batch(table, query)

    def mark(self, name: str) -> int | None:
        table = self._table()
        found = None if table is None else table.properties.get(f"{MARK_PROPERTY}{name}")
        return None if found is None else marked(found)

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
        files = tuple(self._known(task.file, _prefix(table)) for task in tasks)
        return Snapshot(
            version=current.snapshot_id, files=files, rows=sum(file.rows for file in files)
        )

    # -- writing

    def ensure(self, schema: Any) -> None:
        for _ in range(ATTEMPTS_MAX):
            table = self._table()
            old = self._schema(table)
            new = schemas.merged(old, schema, self.partition_columns, self.location)
            if old is not None and new.equals(old):
                return
            kept = pa.schema([field for field in new if field.name not in self.partition_columns])
            try:
                if table is None:
                    self._create(kept)
                else:
                    with table.update_schema() as update:
                        update.union_by_name(kept)
            except _conflicts():
                continue
            except ClientError:
                raise
            except Exception as error:
                if _is_locked(error):
                    continue
                raise self._failed(error) from error
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
        since: int | None = None,
    ) -> bool:
        def change(table: Any, transaction: Any) -> None:
            current = table.current_snapshot()
            if since is not None and (current is None or current.snapshot_id != since):
                raise ConflictError(f"the table at {self.location} is not at snapshot {since} now")
            gone = _files_there(table, removed)
            paths = [f"{_prefix(table)}/{file.path}" for file in added]
            if gone or paths:
                said = {QUERY_SUMMARY: writing.query, BATCH_SUMMARY: str(writing.batch)}
                change_files(transaction, gone, paths, said, same_rows=same_rows)

        return self._commit(writing, change)

    def clean(self, *, orphan_seconds_min: float = ORPHAN_SECONDS_MIN) -> int:
        # Listed first: what is committed while we list is known to be so afterwards.
        table = self._table()
        if table is None:
            return 0
        folder = folder_at(self.location, self.layout.storage, self.format)
        listed = list(folder.list())
        table = table.refresh()
        named = {*table.inspect.all_files()["file_path"].to_pylist()}
        named |= {*table.inspect.all_manifests()["path"].to_pylist()}
        named |= {snapshot.manifest_list for snapshot in table.snapshots()}
        prefix = _prefix(table)
        if named and not any(path.startswith(f"{prefix}/") for path in named):
            raise LakeError(
                f"the files of the table at {self.location} are not below {prefix}: nothing is "
                "removed, since nobody can tell what is left over"
            )
        count = 0
        for found in listed:
            is_ours = is_data_path(found.path, self.partition_columns) or (
                found.path.startswith("metadata/") and found.path.endswith(".avro")
            )
            is_old = found.age_seconds >= orphan_seconds_min
            if is_ours and is_old and f"{prefix}/{found.path}" not in named:
                folder.delete(found.path)
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
                    kept[f"{BATCH_PROPERTY}{writing.query}"] = str(writing.batch)
                    kept |= {f"{MARK_PROPERTY}{name}": text for name, text in writing.marks}
                    transaction.set_properties(kept)
                    _expire(transaction)
            except _conflicts():
                continue
            except ClientError:
                raise
            except FileNotFoundError as error:
                raise LakeError(
                    f"a file that was to be committed to {self.location} is not there: {error}",
                    hint="it was cleaned away, or tasks see another disk than the driver: "
                    "a table in a folder needs one that all machines share, or an object store",
                ) from error
            except Exception as error:
                if _is_locked(error):
                    continue
                raise self._failed(error) from error
            self._sync()
            return True
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def _failed(self, error: Exception) -> LakeError:
        text = str(error).partition("\n")[0]
        return LakeError(
            f"the Iceberg table at {self.location}: {type(error).__name__}: {text}",
            hint="are you allowed to write there? --storage says how the place and its catalog are "
            "reached",
        )

    def _create(self, schema: Any) -> None:
        from pyiceberg.transforms import DayTransform

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._identifier[0])
        begun = catalog.create_table_transaction(
            self._identifier, schema=schema, location=self._uri()
        )
        with begun as transaction, transaction.update_spec() as spec:
            if self._asked_columns:
                spec.add_field(_DAY_OF, DayTransform(), _DAY_FIELD)

    # -- following the table

    def _table(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        if self._opened is None and not self._is_begun():
            return None
        try:
            table = self._catalog().load_table(self._identifier)
        except NoSuchTableError:
            return None
        except ClientError:
            raise
        except Exception as error:
            # Each kind of catalog has its own errors.
            raise self._failed(error) from error
        if (place := _plain_location(table.location())) != self.location:
            raise LakeError(
                f"the catalog has a table {'.'.join(self._identifier)}, and it is at {place}, not "
                f"at {self.location}",
                hint="one of the two needs another catalog (--storage), or another last part of "
                "its location",
            )
        had = [f"{field.transform}({field.name})" for field in table.spec().fields]
        if self._asked_columns is None:
            self._asked_columns = (DATE,) if had else ()
        asked = [f"day({_DAY_FIELD})"] if self._asked_columns else []
        if had != asked:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(asked) or 'nothing'}",
                hint="use another place (--to)",
            )
        return table

    def _is_begun(self) -> bool:
        """So that to look for a table leaves no catalog behind."""
        return self._has_catalog() or (Path(self.location) / CATALOG_FILE).exists()

    def _has_catalog(self) -> bool:
        return not self._storage.keys().isdisjoint((CATALOG_OPTION, "uri", "type"))

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
        options = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **self._storage}
        name = options.pop(CATALOG_OPTION, NAMESPACE)
        if not self._has_catalog():
            if not is_local(self.location):
                raise InvalidArgumentError(
                    f"an Iceberg table at {self.location} needs a catalog",
                    hint="say which, as pyiceberg does: --storage type=rest --storage uri=… "
                    "(or glue, hive, sql), or --storage catalog=NAME of .pyiceberg.yaml",
                )
            Path(self.location).mkdir(parents=True, exist_ok=True)
            options |= {"type": "sql", "uri": f"sqlite:///{self.location}/{CATALOG_FILE}"}
            options.setdefault("warehouse", self._uri())
        try:
            self._opened = load_catalog(name, **options)
        except Exception as error:
            # Each kind of catalog has its own errors.
            raise LakeError(
                f"the catalog of {self.location} cannot be used: {error}",
                hint="--storage has the options of pyiceberg's catalogs: type, uri, token, …",
            ) from error
        return self._opened

    def _schema(self, table: Any) -> Any | None:
        if table is None:
            return None
        known = schemas.plain_schema(table.schema().as_arrow())
        for name in self.partition_columns:
            known = known.append(pa.field(name, pa.string()))
        return known

    def _uri(self) -> str:
        return f"file://{self.location}" if is_local(self.location) else self.location

    def _known(self, file: Any, prefix: str) -> DataFile:
        values = dict(zip(self.partition_columns, map(_day, file.partition), strict=True))
        return DataFile(
            path=str(file.file_path).removeprefix(f"{prefix}/"),
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition=values,
        )

    def _sync(self) -> None:
        """pyiceberg leaves to the system when metadata reaches a local disk."""
        table = self._table() if is_local(self.location) else None
        if table is None:
            return
        folder = folder_at(self.location, {})
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
            folder.sync(str(path).removeprefix(f"{_prefix(table)}/"))


def _day(value: int | None) -> str:
    return NULL_PARTITION if value is None else str(date(1970, 1, 1) + timedelta(days=value))


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


def _is_locked(error: Exception) -> bool:
    """A catalog of SQLite that somebody else is writing to."""
    return "database is locked" in str(error)


def _expire(transaction: Any) -> None:
    """As the table says, if it does; else as many and as old ones as stand above."""
    asked = transaction.table_metadata.properties.get("history.expire.max-snapshot-age-ms")
    if asked is not None:
        expire_snapshots(transaction, count_max=sys.maxsize, seconds_max=int(asked) / 1000)
        return
    expire_snapshots(transaction, count_max=SNAPSHOTS_MAX, seconds_max=SNAPSHOT_SECONDS_MAX)


def _prefix(table: Any) -> str:
    """What the paths of its files begin with: a catalog may spell a place in another way."""
    return str(table.location()).rstrip("/")


def _files_there(table: Any, asked: Sequence[DataFile]) -> list[Any]:
    """The table's own entries for files, which must be in it as they were read."""
    if not asked:
        return []
    there = {task.file.file_path: task for task in table.scan().plan_files()}
    found = [there.get(f"{_prefix(table)}/{file.path}") for file in asked]
    for file, task in zip(asked, found, strict=True):
        if task is None or task.delete_files:
            raise ConflictError(
                f"{file.path} is not in the table at {_prefix(table)} any more, or rows of it "
                "were deleted",
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

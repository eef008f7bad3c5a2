"""Owns a table of plain Parquet files: a commit log says which files it has.

How a commit goes, so that it is made once and survives a crash at any moment:

1. tasks write their files below `_moldau/staged/`, where readers of Parquet folders do not look;
2. the next entry of the log is created, by one writer only: this is the commit;
3. the entry's files are moved to their places, those that it removes are deleted: they are
   *published*. Whoever commits next, or opens the table to write, does it first if it was not done.

So a version is there only if all before it are published, and at most the last one is not. Who
reads through the table sees whole commits at all times. Who reads the folder as plain Parquet
sees committed rows only, and for the moment of step 3 a commit in part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from moldau.spark.lake import parquet_log as log
from moldau.spark.lake import schemas
from moldau.spark.lake.files import is_data_path, read_files
from moldau.spark.lake.storage import Store, open_store
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
"""Commits of others that may come in between, one after another."""
ORPHAN_SECONDS_MIN: Final = 24 * 3600.0
"""A file that no commit names may still be wanted for so long by the task that wrote it."""


class ParquetTable:
    """A folder of Parquet files with a log of its commits."""

    format: Final = TableFormat.PARQUET

    def __init__(
        self,
        location: str,
        *,
        storage: Mapping[str, str],
        partition_columns: tuple[str, ...],
        store: Store | None = None,
    ) -> None:
        self.location: Final = location
        self._storage = dict(storage)
        self._store = store or open_store(location, storage)
        self._state = log.TableState()
        self._opened = False
        self._unpublished: log.Entry | None = None
        self._asked_columns = partition_columns

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self._asked_columns

    @property
    def layout(self) -> Layout:
        return Layout(
            location=self.location,
            storage=self._storage,
            partition_columns=self._asked_columns,
            staged_prefix=log.STAGED,
            staged_suffix=log.STAGED_SUFFIX,
        )

    # -- reading

    def schema(self) -> Any | None:
        self._refresh()
        text = self._state.schema
        return None if text is None else schemas.from_text(text)

    def last_batch(self, query: str) -> int | None:
        self._refresh()
        return self._state.batches.get(query)

    def snapshot(self) -> Snapshot:
        self._refresh()
        files = tuple(self._state.files.values())
        version = self._state.version if self._state.version >= 0 else None
        return Snapshot(version=version, files=files, rows=sum(file.rows for file in files))

    def read(
        self, snapshot: Snapshot | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        found = snapshot or self.snapshot()
        schema = self.schema()
        if schema is None:
            return iter(())
        paths = [
            ((file.path, self.layout.written_path(file.path)), file.partition)
            for file in found.files
        ]
        return read_files(self.layout, paths, schema, columns)

    # -- writing

    def ensure(self, schema: Any) -> None:
        def made(state: log.TableState) -> log.Entry | None:
            old = None if state.schema is None else schemas.from_text(state.schema)
            new = schemas.merged(old, schema, self._asked_columns, self.location)
            if old is not None and new.equals(old):
                return None
            return log.Entry(
                version=state.version + 1,
                schema=schemas.to_text(new),
                partition_columns=self._asked_columns,
            )

        self._commit(made)

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
        def made(state: log.TableState) -> log.Entry | None:
            if state.has(writing):
                return None
            self._check(state, removed, added)
            return log.Entry(
                version=state.version + 1,
                writing=writing,
                added=tuple(added),
                removed=tuple(file.path for file in removed),
            )

        done = self._commit(made)
        if not done:
            # Written again for nothing; unless it is ours, and we were not told that it is done.
            for file in added:
                if file.path not in self._state.files:
                    self._store.delete(self.layout.written_path(file.path))
        return done

    def clean(self, *, orphan_seconds_min: float = ORPHAN_SECONDS_MIN) -> int:
        # Listed first: what is committed while we list is known to be so afterwards.
        listed = list(self._store.list(""))
        self._refresh()
        self._publish()
        known = self._state.files
        count = 0
        for found in listed:
            if found.age_seconds < orphan_seconds_min or found.path in known:
                continue
            inside = found.path.startswith("_moldau/")
            if inside and found.path.startswith(f"{log.FOLDER}/") and found.path.endswith(".json"):
                continue
            if inside or is_data_path(found.path, self._asked_columns):
                self._store.delete(found.path)
                count += 1
        return count

    def _check(
        self, state: log.TableState, removed: Sequence[DataFile], added: Sequence[DataFile]
    ) -> None:
        if state.schema is None:
            raise LakeError(f"there is no table at {self.location} yet: call ensure first")
        gone = [file.path for file in removed if file.path not in state.files]
        if gone:
            raise ConflictError(
                f"{gone[0]} is not in the table at {self.location} any more",
                hint="another commit replaced it: read the table again",
            )
        for file in added:
            if not self._store.exists(self.layout.written_path(file.path)):
                raise LakeError(
                    f"{file.path} was to be committed to {self.location} and is not there",
                    hint="it was cleaned away, or tasks see another disk than the driver: "
                    "a table in a folder needs one that all machines share, or S3",
                )

    def _commit(self, made: Callable[[log.TableState], log.Entry | None]) -> bool:
        """Make one entry, on top of those of others. False if there is none to make."""
        for _ in range(ATTEMPTS_MAX):
            self._refresh()
            self._publish()
            entry = made(self._state)
            if entry is None:
                return False
            if self._store.create(log.entry_path(entry.version), log.entry_to_bytes(entry)):
                self._take(entry)
                self._publish()
                return True
        raise ConflictError(f"others commit to {self.location} faster than this could")

    def _publish(self) -> None:
        """Do what the last entry says; it may have been done before, in part or by others."""
        entry = self._unpublished
        if entry is None:
            return
        for file in entry.added:
            staged = self.layout.written_path(file.path)
            if not self._store.move(staged, file.path) and not self._store.exists(file.path):
                if self._store.exists(log.entry_path(entry.version + 1)):
                    continue
                raise LakeError(
                    f"{file.path} of version {entry.version} of {self.location} is lost: "
                    f"neither it nor {staged} is there"
                )
        for path in entry.removed:
            self._store.delete(path)
        self._unpublished = None
        if entry.version % log.STRIDE == 0 and entry.version:
            self._store.put(log.checkpoint_path(entry.version), log.state_to_bytes(self._state))

    # -- following the log

    def _refresh(self) -> None:
        """Take the entries that came since."""
        if not self._opened:
            self._open()
        while True:
            path = log.entry_path(self._state.version + 1)
            data = self._store.read(path)
            if data is None:
                break
            self._take(log.entry_from_bytes(data, path))
        had = self._state.partition_columns
        if self._state.schema is not None and had != self._asked_columns:
            raise LakeError(
                f"the table at {self.location} is partitioned by {', '.join(had) or 'nothing'}, "
                f"not by {', '.join(self._asked_columns) or 'nothing'}"
            )

    def _take(self, entry: log.Entry) -> None:
        self._state = self._state.after(entry)
        self._unpublished = entry

    def _open(self) -> None:
        checkpoint = log.latest_checkpoint([found.path for found in self._store.list(log.FOLDER)])
        if checkpoint is not None:
            data = self._store.read(checkpoint)
            if data is not None:
                self._state = log.state_from_bytes(data, checkpoint)
        self._opened = True

"""Responsible for what the driver does with a batch: dead letters first, then commits to tables.

Spark plays a batch again, with the same offsets, if it was interrupted before Spark knew that it
was done. Tables know by (query, batch) what they have. Dead letters go out before the commit, by a
write that is made once for the same query and batch, so that a row that is skipped is never lost.

A batch that changes rows (`Upsert`) is merged: the files of the table that hold one of its keys are
read together with those that tasks have written, the newest row of each key is written to new
files, and one commit puts these in the place of the old ones. The same for all formats: no rows of
a table are marked as deleted, and every engine reads it.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from moldau.spark import decode
from moldau.spark.decode.registry import CONFLUENT_BYTES, Framing
from moldau.spark.lake.table import (
    ConflictError,
    DataFile,
    Destination,
    LakeTable,
    Snapshot,
    Writing,
)
from moldau.spark.pipelines.archive.change_events import DELETED, Changes
from moldau.spark.pipelines.archive.file_source import FILE, UNKNOWN, file_of
from moldau.spark.pipelines.archive.pipeline import ArchiveSettings
from moldau.spark.pipelines.home import query_id
from moldau.spark.pipelines.rows import discard, newest, once, table_rows, write_rows
from moldau.spark.pipelines.spec import PipelineContext
from moldau.spark.pipelines.streaming import missing_topics, write_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 10
FILE_BYTES: Final = 128 * 1024 * 1024
_PATH: Final = "_path"


@dataclass
class Committer:
    """Commits the batches of one query. `tables` by their location."""

    settings: ArchiveSettings
    tables: Mapping[str, Destination]
    context: PipelineContext
    query: str | None = None
    rows: int = 0
    files: int = 0
    commits: int = 0
    dead: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    """Fields that the schema does not name: how often they were left out."""

    def __call__(self, returned: "DataFrame", batch: int) -> None:
        """For `foreachBatch`: what tasks have returned, once they have run."""
        if self.query is None:
            self.query = query_id(self.settings.checkpoint)
            if self._is_done(Writing(self.query, batch)):
                return
        writing = Writing(self.query, batch)
        if not self.settings.has_dead_letters:
            self._commit([row[FILE] for row in returned.select(FILE).collect()], writing)
            return
        # The tasks run once, and what they return is used twice.
        kept = returned.persist()
        try:
            found = kept.filter("error IS NULL").select(FILE, UNKNOWN).collect()
            self._send_dead_letters(kept.filter("error IS NOT NULL"), writing)
            self._commit([row[FILE] for row in found if row[FILE] is not None], writing)
            for row in found:
                self._note_unknown(json.loads(row[UNKNOWN] or "{}"))
        finally:
            kept.unpersist()

    def _send_dead_letters(self, bad: "DataFrame", writing: Writing) -> None:
        count: int = bad.count()
        if not count:
            return
        settings = self.settings
        missing_topics(settings, [settings.dead], create=True)
        rows = decode.dead_letters(bad, topic=settings.dead, group=settings.name)
        write_once(rows, settings, f"{writing.query}.dead", writing.batch)
        self.dead += count
        self.context.dead_letters(count)

    def _note_unknown(self, counts: Mapping[str, int]) -> None:
        """Once for each name: whoever looks at the log wants to know what is new."""
        new = sorted(name for name in counts if name not in self.unknown)
        self.unknown.update(counts)
        if new:
            log.warning(
                "values have fields that the schema does not name, and that are not in the table: "
                "%s. Name them: --schema; or keep the bytes of values: --keep-raw",
                ", ".join(new),
            )

    def _is_done(self, writing: Writing) -> bool:
        """A batch that all tables have need not be read again; the first one after a start."""
        last = [table.last_batch(writing.query) for table in self.tables.values()]
        return all(batch is not None and batch >= writing.batch for batch in last)

    def _commit(self, texts: list[str], writing: Writing) -> None:
        by_table: dict[str, list[DataFile]] = {}
        for text in texts:
            location, file = file_of(text)
            by_table.setdefault(location, []).append(file)
        changes = self.settings.changes()
        for location, files in by_table.items():
            table = self.tables[location]
            marked = writing._replace(marks=self.settings.marks(location))
            if changes is None:
                is_new = table.append(files, marked)
            else:
                # Upserts are for tables, which is checked before anything begins.
                merging = Upsert(self.context.spark, cast(LakeTable, table), changes)
                is_new = merging.apply(files, marked, self.settings.name)
            if is_new:
                self.commits += 1
                self.rows += sum(file.rows for file in files)
                self.files += len(files)


class Upsert:
    """Applies batches to one table."""

    def __init__(self, spark: "SparkSession", table: LakeTable, changes: Changes) -> None:
        self._spark = spark
        self._table = table
        self._keys = {f"_key{at}": _key(key, changes) for at, key in enumerate(changes.keys)}
        self._columns = sorted({"topic", *(key.partition(".")[0] for key in changes.keys)})

    def apply(self, staged: Sequence[DataFile], writing: Writing, label: str) -> bool:
        """False, and nothing done, if that batch was committed before. Raises ConflictError."""
        last = self._table.last_batch(writing.query)
        if last is not None and last >= writing.batch:
            return False
        for _ in range(ATTEMPTS_MAX):
            snapshot = self._table.snapshot()
            old, added = self._merged(snapshot, staged, label)
            try:
                # On this snapshot: a row that came since may have one of the keys.
                done = self._table.replace(old, added, writing, since=snapshot.version)
            except ConflictError as error:
                # Only this says for sure that nothing was committed.
                discard(self._table, added)
                log.info("the batch is merged again: %s", error)
                continue
            # Not `added`: a commit whose answer was lost is found as one that was made before.
            discard(self._table, staged)
            return done
        raise ConflictError(
            f"others change the table at {self._table.location} faster than this could",
            hint="run compactions of it while the archive is stopped",
        )

    def _merged(
        self, snapshot: Snapshot, staged: Sequence[DataFile], label: str
    ) -> tuple[list[DataFile], tuple[DataFile, ...]]:
        """The files that hold one of the keys, and those that take their place."""
        # Not before the snapshot: a column that its files have must not be lost.
        schema: Any = self._table.schema()
        wide = schema.append(pa.field(DELETED, pa.bool_()))
        changed = table_rows(self._spark, self._table, wide, staged, wide.names)
        keys = changed.withColumns(self._keys).select("topic", *self._keys).distinct()
        # Reads the columns of keys, of all files.
        rows = table_rows(
            self._spark, self._table, schema, snapshot.files, self._columns, path_column=_PATH
        )
        same = rows.withColumns(self._keys).join(keys, ["topic", *self._keys], "left_semi")
        paths = {row[_PATH] for row in same.select(_PATH).distinct().collect()}
        old = [file for file in snapshot.files if file.path in paths]
        both = table_rows(self._spark, self._table, wide, [*old, *staged], wide.names)
        merged = newest(once(both), list(self._keys.values()))
        kept = merged.where(f"NOT coalesce({DELETED}, false)").drop(DELETED)
        count = max(1, round(sum(file.bytes for file in (*old, *staged)) / FILE_BYTES))
        return old, write_rows(kept.repartition(count), self._table, schema, label)


def _key(name: str, changes: Changes) -> "Column":
    """What is compared. A registry's header is no part of a key: its schema may grow."""
    from pyspark.sql import functions as F  # noqa: N812

    if name != "key" or changes.key_framing != Framing.CONFLUENT:
        return F.col(name)
    return F.substring(name, CONFLUENT_BYTES + 1, 2**31 - 1)

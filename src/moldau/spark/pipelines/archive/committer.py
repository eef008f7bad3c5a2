"""Commits a batch in the driver: first the dead letters, then the tables.

Spark repeats a batch with the same offsets if it was interrupted before its commit. A table knows
its commits by (query, batch). Dead letters are sent before the commit, exactly once for each query
and batch, so that no skipped row is lost.

A batch of changes (`Upsert`) is merged: the data files that hold one of its keys are read with the
files that tasks have written, the newest row of each key is written to new files, and one commit
replaces the old files. It works the same for all formats, and needs no delete files, so every
engine can read the table.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from moldau.spark import decode
from moldau.spark.decode.registry import CONFLUENT_BYTES
from moldau.spark.formats import Framing
from moldau.spark.lake.model import ConflictError, DataFile, Snapshot, Writing
from moldau.spark.lake.open import Destination
from moldau.spark.lake.table import LakeTable
from moldau.spark.pipelines.archive.change_events import DELETED, UpsertSettings
from moldau.spark.pipelines.archive.file_source import FILE, UNKNOWN, file_of
from moldau.spark.pipelines.home import query_id
from moldau.spark.pipelines.rows import deduplicated, discard, newest, table_rows, write_rows
from moldau.spark.pipelines.settings.archive import ArchiveSettings
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
    """Commits the batches of one query. `tables` are by location."""

    settings: ArchiveSettings
    tables: Mapping[str, Destination]
    context: PipelineContext
    query: str | None = None
    rows: int = 0
    files: int = 0
    commits: int = 0
    dead: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    """Fields that are not in the schema, and how often they were dropped."""

    def __call__(self, returned: "DataFrame", batch: int) -> None:
        """For `foreachBatch`, with the rows that tasks return."""
        if self.query is None:
            self.query = query_id(self.settings.checkpoint)
            if self._is_done(Writing(self.query, batch)):
                return
        writing = Writing(self.query, batch)
        if not self.settings.has_dead_letters:
            self._commit([row[FILE] for row in returned.select(FILE).collect()], writing)
            return
        # Used twice below, but the tasks must run once.
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
        """Logs each new name once."""
        new = sorted(name for name in counts if name not in self.unknown)
        self.unknown.update(counts)
        if new:
            log.warning(
                "dropped fields that are not in the schema: %s. To archive them, add them to "
                "--schema, or keep the bytes of values: --keep-raw",
                ", ".join(new),
            )

    def _is_done(self, writing: Writing) -> bool:
        """Whether all tables have this batch. Only possible for the first one after a start."""
        last = [table.last_batch(writing.query) for table in self.tables.values()]
        return all(batch is not None and batch >= writing.batch for batch in last)

    def _commit(self, texts: list[str], writing: Writing) -> None:
        by_table: dict[str, list[DataFile]] = {}
        for text in texts:
            location, file = file_of(text)
            by_table.setdefault(location, []).append(file)
        changes = UpsertSettings.of(self.settings)
        for location, files in by_table.items():
            table = self.tables[location]
            marked = writing._replace(marks=self.settings.marks(location))
            if changes is None:
                is_new = table.append(files, marked)
            else:
                # The settings are checked: upserts need a LakeTable.
                merging = Upsert(self.context.spark, cast(LakeTable, table), changes)
                is_new = merging.apply(files, marked, self.settings.name)
            if is_new:
                self.commits += 1
                self.rows += sum(file.rows for file in files)
                self.files += len(files)


class Upsert:
    """Applies batches to one table."""

    def __init__(self, spark: "SparkSession", table: LakeTable, changes: UpsertSettings) -> None:
        self._spark = spark
        self._table = table
        self._keys = {f"_key{at}": _key(key, changes) for at, key in enumerate(changes.keys)}
        self._columns = sorted({"topic", *(key.partition(".")[0] for key in changes.keys)})

    def apply(self, staged: Sequence[DataFile], writing: Writing, label: str) -> bool:
        """False if that batch was already committed. Raises ConflictError."""
        last = self._table.last_batch(writing.query)
        if last is not None and last >= writing.batch:
            return False
        for _ in range(ATTEMPTS_MAX):
            snapshot = self._table.snapshot()
            old, added = self._merged(snapshot, staged, label)
            try:
                # Only on this snapshot: newer rows may have one of the keys.
                done = self._table.replace(old, added, writing, since=snapshot.version)
            except ConflictError as error:
                # Only this error means that nothing was committed.
                discard(self._table, added)
                log.info("merging the batch again after a conflict: %s", error)
                continue
            # Keep `added` even if `done` is False: the commit may be ours, with a lost response.
            discard(self._table, staged)
            return done
        raise ConflictError(
            f"gave up after {ATTEMPTS_MAX} conflicts with other writers of the table at "
            f"{self._table.location}",
            hint="stop the archive while you compact its table",
        )

    def _merged(
        self, snapshot: Snapshot, staged: Sequence[DataFile], label: str
    ) -> tuple[list[DataFile], tuple[DataFile, ...]]:
        """The files that hold one of the keys, and their replacements."""
        # After the snapshot, so that no column of its files is missing.
        schema: Any = self._table.schema()
        wide = schema.append(pa.field(DELETED, pa.bool_()))
        changed = table_rows(self._spark, self._table, wide, staged, wide.names)
        keys = changed.withColumns(self._keys).select("topic", *self._keys).distinct()
        # Reads only the key columns, but of all files.
        rows = table_rows(
            self._spark, self._table, schema, snapshot.files, self._columns, path_column=_PATH
        )
        same = rows.withColumns(self._keys).join(keys, ["topic", *self._keys], "left_semi")
        paths = {row[_PATH] for row in same.select(_PATH).distinct().collect()}
        old = [file for file in snapshot.files if file.path in paths]
        both = table_rows(self._spark, self._table, wide, [*old, *staged], wide.names)
        merged = newest(deduplicated(both), list(self._keys.values()))
        kept = merged.where(f"NOT coalesce({DELETED}, false)").drop(DELETED)
        count = max(1, round(sum(file.bytes for file in (*old, *staged)) / FILE_BYTES))
        return old, write_rows(kept.repartition(count), self._table, schema, label)


def _key(name: str, changes: UpsertSettings) -> "Column":
    """The compared key, without a Confluent header, since its schema id may change."""
    from pyspark.sql import functions as F  # noqa: N812

    if name != "key" or changes.key_framing != Framing.CONFLUENT:
        return F.col(name)
    return F.substring(name, CONFLUENT_BYTES + 1, 2**31 - 1)

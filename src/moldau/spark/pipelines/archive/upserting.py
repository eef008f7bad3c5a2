"""Responsible for a batch that changes rows of a table: the newest of each key stays.

Tasks have written the batch to files that are none of the table. The files of the table that hold
one of its keys are read together with them, the newest row of each key is written to new files,
and one commit puts these in the place of the old ones. It carries the query and the batch, so a
batch that Spark plays again changes nothing. The same for all formats: no rows of a table are
marked as deleted, and every engine reads it.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from moldau.spark.decode.framing import CONFLUENT_BYTES, Framing
from moldau.spark.lake.table import ConflictError, DataFile, LakeTable, Snapshot, Writing
from moldau.spark.pipelines.archive.changes import DELETED, RECORD_KEY, Changes
from moldau.spark.pipelines.newest import newest, once
from moldau.spark.pipelines.tables import discard, table_rows, write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 10
FILE_BYTES: Final = 128 * 1024 * 1024
_PATH: Final = "_path"


class Upsert:
    """Applies batches to one table."""

    def __init__(self, spark: "SparkSession", table: LakeTable, changes: Changes) -> None:
        self._spark = spark
        self._table = table
        self._keys = [key_column(key, changes.key_framing) for key in changes.keys]
        self._names = [f"_key{at}" for at in range(len(changes.keys))]
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
            discard(self._table, staged if done else (*staged, *added))
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
        batch = self._rows(wide, staged)
        keys = self._with_keys(batch).select("topic", *self._names).distinct()
        old = self._files_with(keys, snapshot, schema)
        rows = newest(once(self._rows(wide, [*old, *staged])), self._keys)
        kept = rows.where(f"NOT coalesce({DELETED}, false)").drop(DELETED)
        size = sum(file.bytes for file in (*old, *staged))
        count = max(1, round(size / FILE_BYTES))
        return old, write_rows(kept.repartition(count), self._table, schema, label)

    def _rows(self, schema: Any, files: Sequence[DataFile]) -> "DataFrame":
        return table_rows(self._spark, self._table, schema, files, schema.names)

    def _with_keys(self, rows: "DataFrame") -> "DataFrame":
        for name, column in zip(self._names, self._keys, strict=True):
            rows = rows.withColumn(name, column)
        return rows

    def _files_with(self, keys: "DataFrame", snapshot: Snapshot, schema: Any) -> list[DataFile]:
        """Reads the columns of keys, of all files."""
        files = snapshot.files
        rows = table_rows(self._spark, self._table, schema, files, self._columns, path_column=_PATH)
        found = self._with_keys(rows).join(keys, ["topic", *self._names], "left_semi")
        paths = {row[_PATH] for row in found.select(_PATH).distinct().collect()}
        return [file for file in files if file.path in paths]


def key_column(name: str, framing: str) -> "Column":
    """What is compared. A registry's header is no part of a key: its schema may grow."""
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(name)
    if name != RECORD_KEY or framing != Framing.CONFLUENT:
        return column
    return F.substring(column, CONFLUENT_BYTES + 1, 2**31 - 1)

"""Owns what the driver does with a batch: dead letters first, then one commit for each table.

Spark plays a batch again, with the same offsets, if it was interrupted before Spark knew that it
was done. Tables know by (query, batch) what they have. Dead letters go out before the commit, by a
write that is made once for the same query and batch, so that a row that is skipped is never lost.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from moldau.spark.lake.table import DataFile, Destination, LakeTable, Writing
from moldau.spark.pipelines.archive.remembered import marks_of
from moldau.spark.pipelines.archive.settings import ArchiveSettings
from moldau.spark.pipelines.archive.source import FILE, UNKNOWN, file_of
from moldau.spark.pipelines.home import query_id
from moldau.spark.pipelines.spec import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class Committer:
    """Commits the batches of one query."""

    def __init__(
        self,
        settings: ArchiveSettings,
        tables: Mapping[str, Destination],
        send_dead_letters: Callable[["DataFrame", Writing], int] | None,
        context: Context,
    ) -> None:
        """`tables` by their location."""
        self._context = context
        self._settings = settings
        self._tables = tables
        self._send_dead_letters = send_dead_letters
        self._query: str | None = None
        self.rows = 0
        self.files = 0
        self.commits = 0
        self.unknown: Counter[str] = Counter()
        """Fields that the schema does not name: how often they were left out."""

    def __call__(self, returned: "DataFrame", batch: int) -> None:
        """For `foreachBatch`: what tasks have returned, once they have run."""
        if self._query is None:
            self._query = query_id(self._settings.checkpoint)
            if self._is_done(Writing(self._query, batch)):
                return
        writing = Writing(self._query, batch)
        if self._send_dead_letters is None:
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
        last = [table.last_batch(writing.query) for table in self._tables.values()]
        return all(batch is not None and batch >= writing.batch for batch in last)

    def _commit(self, texts: list[str], writing: Writing) -> None:
        by_table: dict[str, list[DataFile]] = {}
        for text in texts:
            location, file = file_of(text)
            by_table.setdefault(location, []).append(file)
        for location, files in by_table.items():
            marked = writing._replace(marks=marks_of(self._settings, location))
            if self._written(self._tables[location], files, marked):
                self.commits += 1
                self.rows += sum(file.rows for file in files)
                self.files += len(files)

    def _written(self, table: Destination, files: list[DataFile], writing: Writing) -> bool:
        changes = self._settings.changes()
        if changes is None:
            return table.append(files, writing)
        from moldau.spark.pipelines.archive.upserting import Upsert

        # Upserts are for tables, which is checked before anything begins.
        merging = Upsert(self._context.spark, cast(LakeTable, table), changes)
        return merging.apply(files, writing, self._settings.name)

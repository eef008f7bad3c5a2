"""Responsible for the course of a compaction: count, write, read back, compare, and then commit.

One way for all formats: deltalake merges files in the driver alone, and pyiceberg not at all.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import ClientError
from moldau.spark.lake.files import NULL_PARTITION
from moldau.spark.lake.table import ConflictError, DataFile, LakeTable, Snapshot, Writing
from moldau.spark.pipelines.compact.choosing import (
    Chosen,
    Part,
    by_part,
    check_dates,
    choose,
    file_count,
    part_name,
)
from moldau.spark.pipelines.compact.counting import Census, take_census
from moldau.spark.pipelines.compact.settings import CompactSettings
from moldau.spark.pipelines.newest import newest, once
from moldau.spark.pipelines.spec import Context, Outcome, Progress
from moldau.spark.pipelines.tables import (
    IDENTITY,
    discard,
    existing_table,
    table_rows,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_QUERY: Final = "compact-"
_PARTS_AT_ONCE: Final = 50
"""Partitions of the table that one job of Spark rewrites."""


class MismatchError(ClientError):
    """What was written is not what was to be kept. Nothing was committed."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message, hint="nothing was changed; please report this")
        self.details = details


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    census: Census


def run_compaction(settings: CompactSettings, context: Context) -> Outcome:
    """Until it is committed, or there is nothing to do, or others are in the way too often."""
    settings.check()
    table, _ = existing_table(settings.table, settings.table_format, settings.storage)
    check_dates(table.snapshot().files, settings.dates)
    for attempt in range(1, settings.attempts_max + 1):
        if context.stopping:
            return Outcome(summary="stopped; nothing was changed")
        snapshot = table.snapshot()
        try:
            # Not before: a column that files of the snapshot have must not be lost.
            schema = table.schema()
            done = _Compaction(settings, context, table, schema, snapshot).run()
        except MismatchError as error:
            return Outcome(ok=False, summary=str(error), details=error.details)
        except ConflictError as error:
            if attempt == settings.attempts_max:
                raise
            log.info("attempt %d began anew: %s", attempt, error)
            continue
        cleaned = _clean(settings, table)
        return _outcome(settings, done, cleaned, attempt)
    raise ConflictError(f"others change {table.location} all the time")


class _Compaction:
    """One attempt, from one snapshot."""

    def __init__(
        self,
        settings: CompactSettings,
        context: Context,
        table: LakeTable,
        schema: Any,
        snapshot: Snapshot,
    ) -> None:
        self._settings = settings
        self._context = context
        self._table = table
        self._schema = schema
        self._snapshot = snapshot
        self._parts = by_part(snapshot.files, settings.dates)

    def run(self) -> _Done | None:
        """None if there is nothing to do."""
        from pyspark.errors import PySparkException

        try:
            return self._run()
        except PySparkException as error:
            # Tasks cannot read files that another compaction has replaced and removed.
            there = {file.path for file in self._table.snapshot().files}
            if all(file.path in there for file in self._snapshot.files):
                raise
            raise ConflictError(f"files were replaced while they were read: {error}") from error

    def _run(self) -> _Done | None:
        chosen = self._chosen()
        if not chosen:
            return None
        files = tuple(file for each in chosen for file in each.files)
        total = sum(file.rows for file in files)
        self._tell("counting", 0, total)
        census = self._census(files, is_input=True)
        self._check_input(census, total)
        if not self._is_worth_it(census):
            return None
        self._tell("writing", 0, total)
        added = self._write(chosen, census)
        self._tell("comparing", total, total)
        is_right = False
        try:
            self._compare(census, added)
            is_right = True
        finally:
            if not is_right:
                discard(self._table, added)
        self._commit(files, added, same_rows=census.kept == census.rows)
        return _Done(removed=files, added=added, census=census)

    # -- what is rewritten

    def _chosen(self) -> list[Chosen]:
        settings = self._settings
        if settings.latest_per_key:
            return [Chosen(part=part, files=tuple(files)) for part, files in self._parts.items()]
        small = choose(self._parts, (), settings.file_bytes)
        if sum(len(each.files) for each in small) == sum(map(len, self._parts.values())):
            # All of it is rewritten, whether or not there are duplicates.
            return small
        return choose(self._parts, self._doubled(), settings.file_bytes)

    def _doubled(self) -> set[Part]:
        """Partitions of the table that hold a row twice. Reads what tells rows apart, no more."""
        files = [file for found in self._parts.values() for file in found]
        if not files:
            return set()
        columns = [*IDENTITY, *self._table.partition_columns]
        rows = table_rows(self._context.spark, self._table, self._schema, files, columns)
        doubled = rows.groupBy(*columns).count().where("count > 1")
        found = doubled.select(*self._table.partition_columns).distinct().collect()
        values = {tuple(row) for row in found}
        return {part for part in self._parts if self._values(part) in values}

    def _values(self, part: Part) -> tuple[str | None, ...]:
        """As rows have them: a null has a word of its own in a folder's name."""
        values = [dict(part).get(name, NULL_PARTITION) for name in self._table.partition_columns]
        return tuple(None if value == NULL_PARTITION else value for value in values)

    def _is_worth_it(self, census: Census) -> bool:
        """Always, unless it is for old versions of which there are none."""
        if not self._settings.latest_per_key or census.kept < census.rows:
            return True
        return bool(choose(self._parts, (), self._settings.file_bytes))

    # -- counting

    def _census(self, files: Sequence[DataFile], *, is_input: bool) -> Census:
        return take_census(
            self._rows(files),
            latest_per_key=is_input and self._settings.latest_per_key,
            drop_tombstones=is_input and self._settings.drop_tombstones,
        )

    def _rows(self, files: Sequence[DataFile]) -> "DataFrame":
        return table_rows(self._context.spark, self._table, self._schema, files, self._schema.names)

    def _check_input(self, census: Census, total: int) -> None:
        if census.differing:
            raise MismatchError(
                "rows with the same topic, partition and offset are not the same: "
                f"{', '.join(census.differing)}. Was a topic deleted and made again?",
                {"differing": list(census.differing), **_counts(census)},
            )
        if census.rows != total:
            raise MismatchError(
                f"the table says that {total} rows are in the files, and {census.rows} are: "
                f"{census.kept} to keep, {census.duplicates} twice, {census.older} older, "
                f"{census.tombstones} tombstones",
                _counts(census),
            )

    def _compare(self, census: Census, added: Sequence[DataFile]) -> None:
        """What was written, read back, is what was to be kept."""
        found = self._census(added, is_input=False) if added else Census()
        told = sum(file.rows for file in added)
        if (found.rows, found.duplicates, found.checksum, told) != (
            census.kept,
            0,
            census.checksum,
            census.kept,
        ):
            raise MismatchError(
                f"{census.kept} rows were to be kept with checksum {census.checksum:016x}; written "
                f"were {found.rows}, {found.duplicates} of them twice, with checksum "
                f"{found.checksum:016x}",
                {
                    **_counts(census),
                    "written": found.rows,
                    "written_duplicates": found.duplicates,
                    "written_checksum": f"{found.checksum:016x}",
                },
            )

    # -- writing

    def _write(self, chosen: Sequence[Chosen], census: Census) -> tuple[DataFile, ...]:
        """Of each partition of the table some files: neighbours by topic, partition and offset, so
        that a reader who wants some offsets opens few of them."""
        ratio = census.kept / census.rows if census.rows else 0.0
        kept = self._kept(chosen) if self._settings.latest_per_key else None
        added: list[DataFile] = []
        for first in range(0, len(chosen), _PARTS_AT_ONCE):
            group = chosen[first : first + _PARTS_AT_ONCE]
            frames = []
            for each in group:
                count = file_count(each.bytes * ratio, self._settings.file_bytes)
                rows = once(self._rows(each.files)) if kept is None else self._of(kept, each.part)
                rows = (
                    rows.repartitionByRange(count, *IDENTITY) if count > 1 else rows.repartition(1)
                )
                frames.append(rows.sortWithinPartitions(*IDENTITY))
            rows = reduce(lambda one, other: one.unionByName(other), frames)
            added += write_rows(rows, self._table, self._schema, "compact")
        if kept is not None:
            kept.unpersist()
        return tuple(added)

    def _kept(self, chosen: Sequence[Chosen]) -> "DataFrame":
        """The newest row of each key, wherever in the table the older ones are."""
        files = [file for each in chosen for file in each.files]
        rows = newest(once(self._rows(files)), ["key"])
        if self._settings.drop_tombstones:
            rows = rows.where("value IS NOT NULL OR key IS NULL")
        return rows.persist()

    def _of(self, rows: "DataFrame", part: Part) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        values = zip(self._table.partition_columns, self._values(part), strict=True)
        for name, value in values:
            rows = rows.where(F.col(name).eqNullSafe(F.lit(value)))
        return rows

    def _commit(
        self, removed: Sequence[DataFile], added: Sequence[DataFile], *, same_rows: bool
    ) -> None:
        query = f"{_QUERY}{self._settings.name}"
        last = self._table.last_batch(query)
        writing = Writing(query, 0 if last is None else last + 1)
        try:
            is_new = self._table.replace(removed, added, writing, same_rows=same_rows)
        except ConflictError:
            # Only this says for sure that nothing was committed: else the files may be the table's.
            discard(self._table, added)
            raise
        if not is_new:
            raise ConflictError(f"another run of {self._settings.name} commits at the same time")

    def _tell(self, note: str, rows: int, total: int) -> None:
        self._context.report(Progress(rows=rows, rows_total=total, note=note))


def _clean(settings: CompactSettings, table: LakeTable) -> int | None:
    if settings.clean_seconds is None:
        return None
    return table.clean(orphan_seconds_min=settings.clean_seconds)


def _counts(census: Census) -> dict[str, Any]:
    return {
        "rows": census.rows,
        "kept": census.kept,
        "duplicates": census.duplicates,
        "older": census.older,
        "tombstones": census.tombstones,
        "checksum": f"{census.checksum:016x}",
    }


def _outcome(
    settings: CompactSettings, done: _Done | None, cleaned: int | None, attempts: int
) -> Outcome:
    details: dict[str, Any] = {"table": settings.table, "attempts": attempts}
    if cleaned is not None:
        details["cleaned"] = cleaned
    said = "" if cleaned is None else f"; {cleaned} old files removed"
    if done is None:
        return Outcome(summary=f"nothing to compact{said}", details={**details, "files": 0})
    census = done.census
    parts = sorted({part_name(tuple(sorted(file.partition.items()))) for file in done.removed})
    gone = [
        f"{count} {what}"
        for count, what in (
            (census.duplicates, "duplicates"),
            (census.older, "older versions"),
            (census.tombstones, "tombstones"),
        )
        if count
    ]
    dropped = f", {' and '.join(gone)} dropped" if gone else ""
    return Outcome(
        summary=f"{len(done.removed)} files became {len(done.added)}, {census.kept} rows "
        f"kept{dropped}{said}",
        rows=census.kept,
        details={
            **details,
            **_counts(census),
            "files": len(done.removed),
            "files_written": len(done.added),
            "bytes": sum(file.bytes for file in done.removed),
            "bytes_written": sum(file.bytes for file in done.added),
            "partitions": parts,
        },
    )

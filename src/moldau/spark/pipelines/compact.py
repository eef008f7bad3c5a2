"""Compacts a table: merges small files into few large ones, drops duplicates and old versions.

Rows are counted, written to new data files, read back and compared, and then committed in one
commit. All formats use the same code: deltalake merges files only in the driver and keeps
duplicates, and pyiceberg does not merge files.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake.model import NULL_PARTITION, ConflictError, DataFile, Writing
from moldau.spark.lake.table import LakeTable
from moldau.spark.pipelines.rows import (
    IDENTITY,
    deduplicated,
    discard,
    existing_table,
    newest,
    row_hash,
    table_rows,
    write_rows,
)
from moldau.spark.pipelines.settings.compact import CompactSettings
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Progress, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""How often to start over because other writers changed the same files."""
_PARTS_AT_ONCE: Final = 50
"""Table partitions that one Spark job rewrites."""
_NAMED_MAX: Final = 10
_NOTHING: Final = Outcome(summary="nothing to compact", details={"files": 0})


SETTINGS = CompactSettings

# -- which files are rewritten (pure)

Parts = Mapping[str, Sequence[DataFile]]
"""Data files by the name of their table partition."""


def part_name(partition: Mapping[str, str | None]) -> str:
    values = sorted((name, value or NULL_PARTITION) for name, value in partition.items())
    return "/".join(f"{name}={value}" for name, value in values) or "the table"


def by_part(files: Sequence[DataFile], dates: Collection[str]) -> dict[str, list[DataFile]]:
    """The files to consider; with `dates`, only those of these dates.

    Raises InvalidArgumentError for a date without data files.
    """
    if missing := set(dates) - {file.partition.get("date", "") for file in files}:
        raise InvalidArgumentError(
            f"the table has no data for --date {', '.join(sorted(missing))}",
            hint="write a date as 2026-01-31; omit --date to compact all partitions",
        )
    found: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (part_name(file.partition), file.path)):
        if not dates or file.partition.get("date") in dates:
            found.setdefault(part_name(file.partition), []).append(file)
    return found


def choose(parts: Parts, whole: Collection[str], file_bytes: int) -> dict[str, list[DataFile]]:
    """All files of the partitions in `whole`; of others the small ones, if there are several."""
    chosen = {}
    for part, files in parts.items():
        small = [file for file in files if file.bytes < file_bytes // 2]
        if part in whole:
            chosen[part] = list(files)
        elif len(small) > 1:
            chosen[part] = small
    return chosen


def file_count(size: float, file_bytes: int) -> int:
    """How many files of the target size `size` bytes make."""
    return max(1, round(size / file_bytes))


def _all(parts: Parts) -> tuple[DataFile, ...]:
    return tuple(file for files in parts.values() for file in files)


def _rows_in(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)


def _bytes_in(files: Sequence[DataFile]) -> int:
    return sum(file.bytes for file in files)


# -- the pipeline


def plan(settings: CompactSettings) -> Plan:
    """Which files would be merged, from the table's metadata; only a run finds duplicates."""
    settings.check()
    table, _ = existing_table(settings.table, settings.table_format, settings.storage)
    files = table.snapshot().files
    parts = by_part(files, settings.dates)
    chosen = choose(parts, parts if settings.latest_per_key else (), settings.file_bytes)
    steps = [
        Step(
            what=f"{part}: merge {len(merged)} files into "
            f"{file_count(_bytes_in(merged), settings.file_bytes)}",
            rows=_rows_in(merged),
            bytes=_bytes_in(merged),
        )
        for part, merged in chosen.items()
    ]
    older = ", and for older versions of keys" if settings.latest_per_key else ""
    steps.append(
        Step(
            what=f"search for duplicate rows{older}",
            rows=_rows_in(_all(parts)),
            bytes=_bytes_in(_all(parts)),
        )
    )
    if settings.clean_seconds is not None:
        steps.append(Step(what="remove old orphan files"))
    return Plan(
        reads=(f"table {table.location}",),
        writes=(f"table {table.location}",),
        steps=tuple(steps),
        warnings=() if files else ("the table is empty",),
    )


def run(settings: CompactSettings, context: PipelineContext) -> Outcome:
    """Compacts and commits. Raises ConflictError after too many conflicts with other writers."""
    settings.check()
    table, _ = existing_table(settings.table, settings.table_format, settings.storage)
    attempt = 1
    while True:
        if context.stopping:
            return Outcome(summary="stopped; nothing was changed")
        try:
            done = _Compaction(settings, context, table).run()
            break
        except MismatchError as error:
            return Outcome(ok=False, summary=str(error), details=error.details)
        except ConflictError as error:
            if attempt == ATTEMPTS_MAX:
                raise
            log.info("compaction attempt %d had a conflict, retrying: %s", attempt, error)
            attempt += 1
    details = {"table": settings.table, "attempts": attempt, **done.details}
    if settings.clean_seconds is None:
        return replace(done, details=details)
    cleaned = table.clean(orphan_seconds_min=settings.clean_seconds)
    summary = f"{done.summary}; {cleaned} orphan files removed"
    return replace(done, summary=summary, details={**details, "cleaned": cleaned})


class RowCounts(NamedTuple):
    """How many rows the files hold, and how many are kept."""

    rows: int
    duplicates: int
    older: int
    """Rows with a newer one of the same key."""
    tombstones: int
    """Dropped ones."""
    kept: int
    checksum: str
    """Of the kept rows."""


class MismatchError(ClientError):
    """The files do not hold the expected rows. Nothing was committed."""

    def __init__(self, message: str, counts: RowCounts, **details: Any) -> None:
        super().__init__(message, hint="nothing was changed; please report this")
        self.details = {**counts._asdict(), **details}


class _Compaction:
    """One attempt, based on one snapshot."""

    def __init__(
        self, settings: CompactSettings, context: PipelineContext, table: LakeTable
    ) -> None:
        self._settings = settings
        self._context = context
        self._table = table
        self._snapshot = table.snapshot()
        # After the snapshot, so that no column of its files is missing.
        self._schema: Any = table.schema()
        self._parts = by_part(self._snapshot.files, settings.dates)

    def run(self) -> Outcome:
        from pyspark.errors import PySparkException

        try:
            chosen = self._chosen()
            return self._rewritten(chosen) if chosen else _NOTHING
        except PySparkException as error:
            # Tasks cannot read files that another compaction has replaced and removed.
            current = {file.path for file in self._table.snapshot().files}
            if all(file.path in current for file in self._snapshot.files):
                raise
            raise ConflictError(f"files were replaced while they were read: {error}") from error

    def _rewritten(self, chosen: Parts) -> Outcome:
        settings, files = self._settings, _all(chosen)
        total = _rows_in(files)
        self._report("counting", 0, total)
        distinct = self._distinct(files).persist()
        try:
            kept = newest(distinct, ["key"]) if settings.latest_per_key else distinct
            tombstones = kept.where("dead").count() if settings.drop_tombstones else 0
            if tombstones:
                kept = kept.where("NOT dead")
            counts = self._count(distinct, kept, tombstones, total)
            has_small = bool(choose(self._parts, (), settings.file_bytes))
            if settings.latest_per_key and counts.kept == counts.rows and not has_small:
                return _NOTHING
            self._report("writing", 0, total)
            added = self._write(chosen, kept, counts.kept / max(1, counts.rows))
        finally:
            distinct.unpersist()
        self._report("comparing", total, total)
        try:
            self._compare(counts, added)
        except BaseException:
            discard(self._table, added)
            raise
        self._commit(files, added, same_rows=counts.kept == counts.rows)
        return _outcome(files, added, counts)

    def _chosen(self) -> Parts:
        if self._settings.latest_per_key:
            return self._parts
        small = choose(self._parts, (), self._settings.file_bytes)
        if len(_all(small)) == len(_all(self._parts)):
            # All files are rewritten, with or without duplicates.
            return small
        return choose(self._parts, self._with_duplicates(), self._settings.file_bytes)

    def _with_duplicates(self) -> set[str]:
        """Table partitions with duplicate rows. Reads only the columns that identify rows."""
        from pyspark.sql import functions as F  # noqa: N812

        names = self._table.partition_columns
        rows = self._rows(_all(self._parts), [*IDENTITY, *names])
        duplicated = rows.groupBy(*IDENTITY, *names).count().where("count > 1")
        found = duplicated.select(F.lit(1), *names).distinct().collect()
        return {part_name({name: row[name] for name in names}) for row in found}

    def _rows(self, files: Sequence[DataFile], columns: Sequence[str] | None = None) -> "DataFrame":
        names = columns or self._schema.names
        return table_rows(self._context.spark, self._table, self._schema, files, names)

    # -- counting

    def _distinct(self, files: Sequence[DataFile]) -> "DataFrame":
        """One row for each topic, partition and offset, with a hash of all columns."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = self._rows(files)
        hashed = rows.withColumn("dead", F.expr("value IS NULL AND key IS NOT NULL"))
        hashed = hashed.select(*IDENTITY, "key", "timestamp", "dead", _hash(rows))
        return hashed.groupBy(*IDENTITY).agg(
            F.count(F.lit(1)).alias("n"),
            F.min("hash").alias("hash"),
            (F.min("hash") != F.max("hash")).alias("differs"),
            *(F.first(name).alias(name) for name in ("key", "timestamp", "dead")),
        )

    def _count(
        self, distinct: "DataFrame", kept_rows: "DataFrame", tombstones: int, total: int
    ) -> RowCounts:
        rows, offsets = distinct.selectExpr("coalesce(sum(n), 0)", "count(*)").collect()[0]
        kept, checksum = _summed(kept_rows)
        older = offsets - kept - tombstones
        counts = RowCounts(rows, rows - offsets, older, tombstones, kept, checksum)
        found = distinct.where("differs").orderBy(*IDENTITY).limit(_NAMED_MAX).collect()
        if found:
            named = [f"{row['topic']}-{row['partition']} offset {row['offset']}" for row in found]
            raise MismatchError(
                "rows with the same topic, partition and offset differ: "
                f"{', '.join(named)}. Was a topic deleted and recreated?",
                counts,
                differing=named,
            )
        if rows != total:
            raise MismatchError(
                f"the metadata of the table counts {total} rows, but the files hold {rows}", counts
            )
        return counts

    def _compare(self, counts: RowCounts, added: Sequence[DataFile]) -> None:
        """Reads the new files back: they must hold exactly the kept rows."""
        rows = self._rows(added)
        written, checksum = _summed(rows.select(_hash(rows)))
        if (written, _rows_in(added), checksum) != (counts.kept, counts.kept, counts.checksum):
            raise MismatchError(
                f"checksum mismatch: expected {counts.kept} rows with checksum {counts.checksum}, "
                f"wrote {written} with checksum {checksum}",
                counts,
                written=written,
                written_checksum=checksum,
            )

    # -- writing

    def _write(self, chosen: Parts, kept: "DataFrame", ratio: float) -> tuple[DataFile, ...]:
        """Sorted, so that a reader of some offsets opens few files."""
        frames = []
        for files in chosen.values():
            rows = deduplicated(self._rows(files))
            if self._settings.latest_per_key:
                rows = rows.join(kept.select(*IDENTITY), list(IDENTITY), "left_semi")
                rows = rows.select(*self._schema.names)
            count = file_count(_bytes_in(files) * ratio, self._settings.file_bytes)
            rows = rows.repartitionByRange(count, *IDENTITY)
            frames.append(rows.sortWithinPartitions(*IDENTITY))
        added: list[DataFile] = []
        for first in range(0, len(frames), _PARTS_AT_ONCE):
            group = frames[first : first + _PARTS_AT_ONCE]
            rows = reduce(lambda one, other: one.unionByName(other), group)
            added += write_rows(rows, self._table, self._schema, "compact")
        return tuple(added)

    def _commit(
        self, removed: Sequence[DataFile], added: Sequence[DataFile], *, same_rows: bool
    ) -> None:
        query = f"compact-{self._settings.name}"
        last = self._table.last_batch(query)
        writing = Writing(query, 0 if last is None else last + 1)
        try:
            is_new = self._table.replace(removed, added, writing, same_rows=same_rows)
        except ConflictError:
            # Only this error means that nothing was committed and the files can be deleted.
            discard(self._table, added)
            raise
        if not is_new:
            raise ConflictError(f"another run of {self._settings.name} commits at the same time")

    def _report(self, note: str, rows: int, total: int) -> None:
        self._context.report(Progress(rows=rows, rows_total=total, note=note))


def _hash(rows: "DataFrame") -> "Column":
    return row_hash(rows, sorted(rows.columns)).alias("hash")


def _summed(hashed: "DataFrame") -> tuple[int, str]:
    """The row count, and the sum of the row hashes as a checksum that ignores the order."""
    # The sum of 64-bit hashes needs more than 64 bits.
    count, total = hashed.selectExpr("count(*)", "sum(CAST(hash AS decimal(20,0)))").collect()[0]
    return count, f"{int(total or 0) % 2**64:016x}"


def _outcome(removed: Sequence[DataFile], added: Sequence[DataFile], counts: RowCounts) -> Outcome:
    dropped_counts = {
        "duplicates": counts.duplicates,
        "older versions": counts.older,
        "tombstones": counts.tombstones,
    }
    dropped = " and ".join(f"{count} {what}" for what, count in dropped_counts.items() if count)
    return Outcome(
        summary=f"{len(removed)} files became {len(added)}, {counts.kept} rows kept"
        + (f", {dropped} dropped" if dropped else ""),
        rows=counts.kept,
        details={
            **counts._asdict(),
            "files": len(removed),
            "files_written": len(added),
            "bytes": _bytes_in(removed),
            "bytes_written": _bytes_in(added),
            "partitions": sorted({part_name(file.partition) for file in removed}),
        },
    )

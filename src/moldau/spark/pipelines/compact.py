"""Responsible for compaction: few large files of many small ones; duplicates and old versions go.

Rows are counted, written to new files, read back and compared, and then committed: in one commit,
or not at all. One way for all formats: deltalake merges files in the driver alone and keeps
duplicates, and pyiceberg merges none.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake.table import NULL_PARTITION, ConflictError, DataFile, LakeTable, Writing
from moldau.spark.pipelines.rows import (
    IDENTITY,
    discard,
    existing_table,
    newest,
    once,
    row_hash,
    table_rows,
    write_rows,
)
from moldau.spark.pipelines.spec import (
    Outcome,
    PipelineContext,
    PipelineSettings,
    Plan,
    Progress,
    Step,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

FILE_BYTES_DEFAULT: Final = 128 * 1024 * 1024
FILE_BYTES_MIN: Final = 64 * 1024
CLEAN_SECONDS_MIN: Final = 24 * 3600.0
"""Younger files may be those of a batch that is being written, and clocks may differ."""
ATTEMPTS_MAX: Final = 5
"""How often to begin anew because others changed the same files."""
_PARTS_AT_ONCE: Final = 50
"""Partitions of the table that one job of Spark rewrites."""
_NAMED_MAX: Final = 10
_NOTHING: Final = Outcome(summary="nothing to compact", details={"files": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings(PipelineSettings):
    """One table that `archive` wrote."""

    kind: ClassVar[str] = "compact"

    table: str
    """Its location: a folder, or s3://…"""
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    """Only these partitions; none is all."""
    file_bytes: int = FILE_BYTES_DEFAULT
    """About so large files become."""
    latest_per_key: bool = False
    """Of each key of a topic only the newest row stays."""
    drop_tombstones: bool = False
    """Not even that, if it has no value."""
    clean_seconds: float | None = None
    """Remove files that no commit names, and that are older than that."""

    def check(self) -> None:
        """Raises InvalidArgumentError for what contradicts itself."""
        if not self.table:
            raise InvalidArgumentError("a compaction needs a table", hint="name it: --table PLACE")
        if self.file_bytes < FILE_BYTES_MIN:
            raise InvalidArgumentError(f"--file-size is at least {FILE_BYTES_MIN} bytes")
        if self.drop_tombstones and (self.dates or not self.latest_per_key):
            raise InvalidArgumentError(
                "--drop-tombstones goes with --latest-per-key, and without --date: else what a "
                "tombstone deletes would come back"
            )
        if self.clean_seconds is not None and self.clean_seconds < CLEAN_SECONDS_MIN:
            raise InvalidArgumentError(
                "--clean is at least 1d: younger files may be those of a batch that is being "
                "written"
            )


SETTINGS = CompactSettings

# -- which files are rewritten: pure

Parts = Mapping[str, Sequence[DataFile]]
"""Files by the name of the table's partition."""


def part_name(partition: Mapping[str, str | None]) -> str:
    values = sorted((name, value or NULL_PARTITION) for name, value in partition.items())
    return "/".join(f"{name}={value}" for name, value in values) or "the table"


def by_part(files: Sequence[DataFile], dates: Collection[str]) -> dict[str, list[DataFile]]:
    """The files that may be looked at; with `dates`, only of those.

    Raises InvalidArgumentError for a date of which the table has nothing.
    """
    if missing := set(dates) - {file.partition.get("date", "") for file in files}:
        raise InvalidArgumentError(
            f"the table has nothing of --date {', '.join(sorted(missing))}",
            hint="a date is written as 2026-01-31; leave --date out to compact all there is",
        )
    found: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (part_name(file.partition), file.path)):
        if not dates or file.partition.get("date") in dates:
            found.setdefault(part_name(file.partition), []).append(file)
    return found


def choose(parts: Parts, whole: Collection[str], file_bytes: int) -> dict[str, list[DataFile]]:
    """All files of the partitions in `whole`, and those of others that are worth merging: less than
    half as large as they should be, at least two."""
    chosen = {}
    for part, files in parts.items():
        small = [file for file in files if file.bytes < file_bytes // 2]
        if part in whole:
            chosen[part] = list(files)
        elif len(small) > 1:
            chosen[part] = small
    return chosen


def file_count(size: float, file_bytes: int) -> int:
    """Files of about the wanted size that so many bytes make."""
    return max(1, round(size / file_bytes))


def _all(parts: Parts) -> tuple[DataFile, ...]:
    return tuple(file for files in parts.values() for file in files)


def _rows_in(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)


def _bytes_in(files: Sequence[DataFile]) -> int:
    return sum(file.bytes for file in files)


# -- the pipeline


def plan(settings: CompactSettings) -> Plan:
    """Which files would be merged, by the table's list of files: duplicates are found by a run."""
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
            what=f"look for rows that are there twice{older}",
            rows=_rows_in(_all(parts)),
            bytes=_bytes_in(_all(parts)),
        )
    )
    if settings.clean_seconds is not None:
        steps.append(Step(what="remove old files that no commit names"))
    return Plan(
        reads=(f"table {table.location}",),
        writes=(f"table {table.location}",),
        steps=tuple(steps),
        warnings=() if files else ("the table is empty",),
    )


def run(settings: CompactSettings, context: PipelineContext) -> Outcome:
    """Until it is committed, or there is nothing to do, or others are in the way too often."""
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
            log.info("attempt %d began anew: %s", attempt, error)
            attempt += 1
    details = {"table": settings.table, "attempts": attempt, **done.details}
    if settings.clean_seconds is None:
        return replace(done, details=details)
    cleaned = table.clean(orphan_seconds_min=settings.clean_seconds)
    summary = f"{done.summary}; {cleaned} old files removed"
    return replace(done, summary=summary, details={**details, "cleaned": cleaned})


class RowCounts(NamedTuple):
    """What some files hold, and what of it is to stay."""

    rows: int
    duplicates: int
    older: int
    """Rows with a newer one of the same key."""
    tombstones: int
    """That go."""
    kept: int
    checksum: str
    """Of the rows that stay."""


class MismatchError(ClientError):
    """What is in files is not what should be. Nothing was committed."""

    def __init__(self, message: str, census: RowCounts, **details: Any) -> None:
        super().__init__(message, hint="nothing was changed; please report this")
        self.details = {**census._asdict(), **details}


class _Compaction:
    """One attempt, from one snapshot."""

    def __init__(
        self, settings: CompactSettings, context: PipelineContext, table: LakeTable
    ) -> None:
        self._settings = settings
        self._context = context
        self._table = table
        self._snapshot = table.snapshot()
        # Not before: a column that files of the snapshot have must not be lost.
        self._schema: Any = table.schema()
        self._parts = by_part(self._snapshot.files, settings.dates)

    def run(self) -> Outcome:
        from pyspark.errors import PySparkException

        try:
            chosen = self._chosen()
            return self._rewritten(chosen) if chosen else _NOTHING
        except PySparkException as error:
            # Tasks cannot read files that another compaction has replaced and removed.
            there = {file.path for file in self._table.snapshot().files}
            if all(file.path in there for file in self._snapshot.files):
                raise
            raise ConflictError(f"files were replaced while they were read: {error}") from error

    def _rewritten(self, chosen: Parts) -> Outcome:
        settings, files = self._settings, _all(chosen)
        total = _rows_in(files)
        self._tell("counting", 0, total)
        distinct = self._distinct(files).persist()
        try:
            stays = newest(distinct, ["key"]) if settings.latest_per_key else distinct
            tombstones = stays.where("dead").count() if settings.drop_tombstones else 0
            if tombstones:
                stays = stays.where("NOT dead")
            census = self._census(distinct, stays, tombstones, total)
            is_small = bool(choose(self._parts, (), settings.file_bytes))
            if settings.latest_per_key and census.kept == census.rows and not is_small:
                return _NOTHING
            self._tell("writing", 0, total)
            added = self._write(chosen, stays, census.kept / max(1, census.rows))
        finally:
            distinct.unpersist()
        self._tell("comparing", total, total)
        try:
            self._compare(census, added)
        except BaseException:
            discard(self._table, added)
            raise
        self._commit(files, added, same_rows=census.kept == census.rows)
        return _outcome(files, added, census)

    def _chosen(self) -> Parts:
        if self._settings.latest_per_key:
            return self._parts
        small = choose(self._parts, (), self._settings.file_bytes)
        if len(_all(small)) == len(_all(self._parts)):
            # All of it is rewritten, whether or not there are duplicates.
            return small
        return choose(self._parts, self._doubled(), self._settings.file_bytes)

    def _doubled(self) -> set[str]:
        """Partitions of the table that hold a row twice. Reads what tells rows apart, no more."""
        from pyspark.sql import functions as F  # noqa: N812

        names = self._table.partition_columns
        rows = self._rows(_all(self._parts), [*IDENTITY, *names])
        doubled = rows.groupBy(*IDENTITY, *names).count().where("count > 1")
        found = doubled.select(F.lit(1), *names).distinct().collect()
        return {part_name({name: row[name] for name in names}) for row in found}

    def _rows(self, files: Sequence[DataFile], columns: Sequence[str] | None = None) -> "DataFrame":
        names = columns or self._schema.names
        return table_rows(self._context.spark, self._table, self._schema, files, names)

    # -- counting

    def _distinct(self, files: Sequence[DataFile]) -> "DataFrame":
        """A row for each topic, partition and offset, with a hash of all columns."""
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

    def _census(
        self, distinct: "DataFrame", stays: "DataFrame", tombstones: int, total: int
    ) -> RowCounts:
        rows, places = distinct.selectExpr("coalesce(sum(n), 0)", "count(*)").collect()[0]
        kept, checksum = _summed(stays)
        older = places - kept - tombstones
        census = RowCounts(rows, rows - places, older, tombstones, kept, checksum)
        found = distinct.where("differs").orderBy(*IDENTITY).limit(_NAMED_MAX).collect()
        if found:
            named = [f"{row['topic']}-{row['partition']} offset {row['offset']}" for row in found]
            raise MismatchError(
                "rows with the same topic, partition and offset are not the same: "
                f"{', '.join(named)}. Was a topic deleted and made again?",
                census,
                differing=named,
            )
        if rows != total:
            told = f"the table says that {total} rows are in the files, and {rows} are"
            raise MismatchError(told, census)
        return census

    def _compare(self, census: RowCounts, added: Sequence[DataFile]) -> None:
        """What was written, read back, is what was to be kept."""
        rows = self._rows(added)
        written, checksum = _summed(rows.select(_hash(rows)))
        if (written, _rows_in(added), checksum) != (census.kept, census.kept, census.checksum):
            raise MismatchError(
                f"{census.kept} rows were to be kept with checksum {census.checksum}; written "
                f"were {written} with checksum {checksum}",
                census,
                written=written,
                written_checksum=checksum,
            )

    # -- writing

    def _write(self, chosen: Parts, stays: "DataFrame", ratio: float) -> tuple[DataFile, ...]:
        """Of each partition of the table some files: neighbours by topic, partition and offset, so
        that a reader who wants some offsets opens few of them."""
        frames = []
        for files in chosen.values():
            rows = once(self._rows(files))
            if self._settings.latest_per_key:
                rows = rows.join(stays.select(*IDENTITY), list(IDENTITY), "left_semi")
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
            # Only this says for sure that nothing was committed: else the files may be the table's.
            discard(self._table, added)
            raise
        if not is_new:
            raise ConflictError(f"another run of {self._settings.name} commits at the same time")

    def _tell(self, note: str, rows: int, total: int) -> None:
        self._context.report(Progress(rows=rows, rows_total=total, note=note))


def _hash(rows: "DataFrame") -> "Column":
    return row_hash(rows, sorted(rows.columns)).alias("hash")


def _summed(hashed: "DataFrame") -> tuple[int, str]:
    """How many rows, and a checksum: the sum of their hashes, so that order does not matter."""
    # A hash has 64 bits, and their sum more.
    count, total = hashed.selectExpr("count(*)", "sum(CAST(hash AS decimal(20,0)))").collect()[0]
    return count, f"{int(total or 0) % 2**64:016x}"


def _outcome(removed: Sequence[DataFile], added: Sequence[DataFile], census: RowCounts) -> Outcome:
    gone = {
        "duplicates": census.duplicates,
        "older versions": census.older,
        "tombstones": census.tombstones,
    }
    dropped = " and ".join(f"{count} {what}" for what, count in gone.items() if count)
    return Outcome(
        summary=f"{len(removed)} files became {len(added)}, {census.kept} rows kept"
        + (f", {dropped} dropped" if dropped else ""),
        rows=census.kept,
        details={
            **census._asdict(),
            "files": len(removed),
            "files_written": len(added),
            "bytes": _bytes_in(removed),
            "bytes_written": _bytes_in(added),
            "partitions": sorted({part_name(file.partition) for file in removed}),
        },
    )

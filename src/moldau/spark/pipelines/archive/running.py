"""Owns an archive while it runs: the query, the tables, and what came of it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import ClientError
from moldau.spark.lake.opening import check_place, open_destination
from moldau.spark.lake.table import Destination
from moldau.spark.pipelines.archive.committing import Committer
from moldau.spark.pipelines.archive.decoding import DeadLetters, made_decoder
from moldau.spark.pipelines.archive.remembered import recall, remember
from moldau.spark.pipelines.archive.settings import UPSERT, ArchiveSettings
from moldau.spark.pipelines.archive.starts import START_OPTIONS, first_offsets
from moldau.spark.pipelines.spec import Context, Outcome
from moldau.spark.pipelines.state import OBSERVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

STARTS_MAX: Final = 4
NOT_IN_TIME: Final = "Python worker failed to connect back"


def run_archive(settings: ArchiveSettings, context: Context) -> Outcome:
    """Until all is done, or until told to stop. Raises ClientError."""
    from moldau.spark.pipelines.archive.source import table_schema

    tables = open_tables(settings)
    known = recall(settings, tables)
    start = first_offsets(settings, known)
    _ = context.spark  # Whose parser reads a schema as DDL.
    decoder = made_decoder(settings)
    changes = settings.changes()
    dead_letters = DeadLetters(settings, context) if settings.has_dead_letters else None
    schema = table_schema(decoder, keep_raw=settings.keep_raw, changes=changes)
    for table in tables.values():
        table.ensure(schema)
    remember(settings, start)
    committer = Committer(settings, tables, dead_letters, context)
    _run_query(lambda: start_query(settings, context, tables, decoder, committer, start), context)
    dead = 0 if dead_letters is None else dead_letters.count
    where = next(iter(tables)) if len(tables) == 1 else f"{len(tables)} tables in {settings.to}"
    summary = f"{committer.rows} rows in {committer.files} new files of {where}"
    if dead:
        summary += f", {dead} to {settings.dead_letters_to()}"
    if committer.unknown:
        names = ", ".join(sorted(committer.unknown))
        summary += f"; not in the table, since the schema does not name them: {names}"
    return Outcome(
        summary=summary,
        rows=committer.rows,
        dead_letters=dead,
        details={
            "tables": sorted(tables),
            "format": settings.table_format,
            "files": committer.files,
            "commits": committer.commits,
            "unknown_fields": dict(committer.unknown),
        },
    )


def _run_query(begin: Callable[[], "StreamingQuery"], context: Context) -> None:
    """Until it ends. Begun again if a busy machine did not give Spark its Python in time."""
    from pyspark.errors import PySparkException

    for attempt in range(1, STARTS_MAX + 1):
        try:
            context.watch(begin())
            return
        except (ClientError, PySparkException) as error:
            # Spark waits for 10 s, which no option changes. To go on is what checkpoints are for.
            if NOT_IN_TIME not in str(error) or attempt == STARTS_MAX or context.stopping:
                raise
            log.warning("Spark's Python did not start in time: once more (%d)", attempt)


def open_tables(settings: ArchiveSettings) -> dict[str, Destination]:
    """By location. Raises InvalidArgumentError if a new one would not be alone there."""
    tables = {
        location: open_destination(
            location,
            settings.table_format,
            storage=settings.storage,
            partition_columns=() if settings.mode == UPSERT else ("date",),
        )
        for location in settings.locations().values()
    }
    for table in tables.values():
        check_place(table)
    return tables


def start_query(
    settings: ArchiveSettings,
    context: Context,
    tables: dict[str, Destination],
    decoder: Any,
    committer: Committer,
    start: str,
) -> "StreamingQuery":
    from pyspark.sql import functions as f

    from moldau.spark.pipelines.archive.source import NAME, WORK, ArchiveSource, Work

    spark = context.spark
    spark.dataSource.register(ArchiveSource)
    layouts = {topic: tables[place].layout for topic, place in settings.locations().items()}
    work = Work(
        layouts=layouts,
        label=settings.name,
        decoder=decoder,
        keep_raw=settings.keep_raw,
        changes=settings.changes(),
    )
    asked = settings.source_options()
    options = {
        # A topic of one partition is work for all cores, too.
        "minPartitions": str(spark.sparkContext.defaultParallelism),
        **{name: value for name, value in asked.items() if name not in START_OPTIONS},
        "startingOffsets": start,
        WORK: work.to_text(),
    }
    returned: DataFrame = spark.readStream.format(NAME).options(**options).load()
    # Spark sees files only; those who watch want records.
    returned = returned.observe(OBSERVED, f.sum("rows").alias("rows"))
    writer = (
        returned.writeStream.queryName(settings.name)
        .option("checkpointLocation", str(settings.checkpoint))
        .foreachBatch(committer)
    )
    if settings.continuous:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    return writer.start()

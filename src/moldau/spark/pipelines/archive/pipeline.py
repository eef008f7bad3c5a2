"""The archive pipeline: its plan, the schema of values, and its query."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import infer_json, spark_json
from moldau.spark.decode.arrow_types import with_new_fields
from moldau.spark.decode.decoder import json_struct
from moldau.spark.formats import Format
from moldau.spark.lake import schema_evolution
from moldau.spark.lake.model import TableFormat
from moldau.spark.lake.open import Destination, check_location, open_destination
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.pipelines import streaming
from moldau.spark.pipelines.archive.change_events import UpsertSettings, events_in
from moldau.spark.pipelines.archive.committer import Committer
from moldau.spark.pipelines.archive.file_source import NAME, ArchiveTask, source_of, table_schema
from moldau.spark.pipelines.settings.archive import UPSERT, ArchiveSettings
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Step
from moldau.spark.pipelines.status import OBSERVED

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

SCHEMA_FILE: Final = "archive-schema.ddl"
"""In the pipeline's home: Spark's JSON, or DDL of older versions. An inferred type of a field never
changes; each start adds new fields."""


def plan_archive(settings: ArchiveSettings) -> Plan:
    """What would be archived. Reads from brokers and tables, changes nothing."""
    settings.check()
    tables = open_tables(settings)
    known = streaming.load_state(settings, tables)
    decoder, _ = make_decoder(settings)
    wanted = table_schema(decoder, keep_raw=settings.keep_raw, changes=UpsertSettings.of(settings))
    for location, table in tables.items():
        schema_evolution.merged(table.schema(), wanted, table.partition_columns, location)
    steps = [
        Step(what=f"read {topic}", rows=rows)
        for topic, rows in streaming.count_unread(settings, known).items()
    ]
    if decoder is not None:
        what = f"decode values as {settings.decode}, bad rows to {settings.dead}"
        steps.append(Step(what=what))
    for location, table in tables.items():
        verb = "create" if table.schema() is None else settings.mode
        is_plain = table.format is TableFormat.PARQUET
        what = "write Parquet files to" if is_plain else f"{verb} the {table.format} table"
        steps.append(Step(what=f"{what} {location}"))
    return Plan(
        reads=settings.topics,
        writes=(*tables, settings.dead) if settings.has_dead_letters else tuple(tables),
        steps=tuple(steps),
    )


def run_archive(settings: ArchiveSettings, context: PipelineContext) -> Outcome:
    """Runs until all available records are archived, or until it is stopped."""
    settings.check()
    tables = open_tables(settings)
    known = streaming.load_state(settings, tables)
    start = streaming.resolve_start(settings, known)
    _ = context.spark  # Its parser reads a schema in DDL.
    decoder, schema = make_decoder(settings)
    changes = UpsertSettings.of(settings)
    wanted = table_schema(decoder, keep_raw=settings.keep_raw, changes=changes)
    for table in tables.values():
        table.ensure(wanted)
    if schema is not None:
        _home(settings).write(SCHEMA_FILE, schema.encode())
    streaming.save_state(settings, tables, start)
    committer = Committer(settings, tables, context)
    task = ArchiveTask(
        layouts={topic: tables[each].layout for topic, each in settings.locations().items()},
        label=settings.name,
        decoder=decoder,
        keep_raw=settings.keep_raw,
        changes=changes,
    )

    def begin() -> "StreamingQuery":
        from pyspark.sql import functions as F  # noqa: N812

        spark = context.spark
        spark.dataSource.register(source_of(task))
        # All cores share the work, even for a topic with one partition.
        most = str(spark.sparkContext.defaultParallelism)
        returned = streaming.read_stream(spark, settings, start, NAME, minPartitions=most)
        # Spark counts files, but the progress should count records.
        returned = returned.observe(OBSERVED, F.sum("rows").alias("rows"))
        return streaming.start_query(returned, settings, "append", committer)

    streaming.run_query(begin, context)
    where = next(iter(tables)) if len(tables) == 1 else f"{len(tables)} tables in {settings.to}"
    summary = f"{committer.rows} rows in {committer.files} new files of {where}"
    if committer.dead:
        summary += f", {committer.dead} to {settings.dead}"
    if committer.unknown:
        names = ", ".join(sorted(committer.unknown))
        summary += f"; dropped fields that are not in the schema: {names}"
    return Outcome(
        summary=summary,
        rows=committer.rows,
        dead_letters=committer.dead,
        details={
            "tables": sorted(tables),
            "format": settings.table_format,
            "files": committer.files,
            "commits": committer.commits,
            "unknown_fields": dict(committer.unknown),
        },
    )


def open_tables(settings: ArchiveSettings) -> dict[str, Destination]:
    """By location. Raises InvalidArgumentError if a new table's location is not empty."""
    columns = () if settings.mode == UPSERT else ("date",)
    tables = {}
    for location in settings.locations().values():
        tables[location] = open_destination(
            location, settings.table_format, storage=settings.storage, partition_columns=columns
        )
        check_location(tables[location])
    return tables


# -- the schema of values


def make_decoder(settings: ArchiveSettings) -> tuple[Any, str | None]:
    """The decoder of values, None for raw ones; and the schema, if it was inferred.

    It is inferred from the first records; later starts add fields of the newest ones.
    """
    if settings.decode == Format.RAW:
        return None, None
    if not settings.is_inferred:
        return streaming.decoder_of(settings), None
    known = _home(settings).read(SCHEMA_FILE)
    if known is None:
        schema = spark_json(_inferred(settings, streaming.sample_values(settings)))
    else:
        schema = known.decode()
        # An incomplete batch is repeated with the same schema. Ignore a sample without objects,
        # or with a field of two types.
        if not streaming.is_pending(settings.checkpoint):
            with suppress(InvalidArgumentError):
                seen = _inferred(settings, streaming.sample_values(settings, newest=True))
                schema = spark_json(with_new_fields(json_struct(schema), seen))
    return streaming.decoder_of(settings, schema), schema


def _home(settings: ArchiveSettings) -> Folder:
    return folder_at(normal_location(settings.home, option="--home"), {})


def _inferred(settings: ArchiveSettings, values: list[bytes]) -> Any:
    """A pyarrow.StructType. Raises InvalidArgumentError."""
    if settings.envelope == "none":
        return infer_json(values, framing=settings.framing)
    is_inside, rows = events_in(values, settings.framing)
    # From both sides: right after the first snapshot no event has a row before a change yet.
    row = infer_json(rows)
    event = pa.struct([("op", pa.string()), ("before", row), ("after", row)])
    return pa.struct([("payload", event)]) if is_inside else event

"""Responsible for an archive: what it is told, its plan, the schema of values, and its query."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import Format, infer_json, spark_json
from moldau.spark.decode.arrow_types import with_new_fields
from moldau.spark.decode.decoder import json_struct
from moldau.spark.lake.open import check_place, open_destination
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.lake.table import Destination, TableFormat
from moldau.spark.pipelines import streaming
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Step
from moldau.spark.pipelines.status import OBSERVED
from moldau.spark.pipelines.streaming import StreamSettings, one_of

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from moldau.spark.pipelines.archive.change_events import Changes

SCHEMA_FILE: Final = "archive-schema.ddl"
"""In the pipeline's folder: JSON of Spark's, or DDL of older ones. The type that was inferred of a
field once holds, whatever comes later; fields that are new are added whenever it starts."""


OFFSETS_PER_TRIGGER_DEFAULT: Final = 2_000_000
"""A batch is one commit, and what is done again after a crash."""
UPSERT: Final = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(StreamSettings):
    """Topics to one table, or each to one of its own."""

    kind: ClassVar[str] = "archive"

    to: str
    """Where the table is: a folder, or s3://bucket/prefix."""
    table_per_topic: bool = False
    """Below `to`, by the topic's name."""
    keep_raw: bool = False
    """The bytes of each value, too: in the column `raw`."""
    keys: tuple[str, ...] = ()
    """For upsert: `key`, or fields of the value as `value.id`."""
    envelope: str = "none"
    """debezium: values are events that hold the row before and after a change."""
    key_framing: str = "none"
    """What stands before keys: none or confluent."""
    offsets_per_trigger_max: int = OFFSETS_PER_TRIGGER_DEFAULT

    def wrongs(self) -> Iterator[tuple[bool, str, str]]:
        yield from StreamSettings.wrongs(self)
        yield one_of("--format", self.table_format, tuple(TableFormat))
        yield one_of("--mode", self.mode, ("append", UPSERT))
        yield one_of("--envelope", self.envelope, ("none", "debezium"))
        yield one_of("--key-framing", self.key_framing, ("none", "confluent"))
        yield self.offsets_per_trigger_max < 1, "--max-offsets is at least 1", ""
        is_raw, is_upsert = self.decode == Format.RAW, self.mode == UPSERT
        has_schema = bool(self.schema or self.message)
        decoded = "say what values are: --decode json|avro|protobuf"
        yield is_raw and has_schema, "a schema is given, and values are not decoded", decoded
        yield is_raw and self.keep_raw, "values are bytes already", "leave out --keep-raw"
        yield is_raw and self.envelope != "none", "--envelope is of decoded values", decoded
        is_loop = self.has_dead_letters and self.dead in self.topics
        said = f"topic {self.dead} is read, and would get the rows that cannot be decoded"
        yield is_loop, said, "see --dead-letter-topic and --topic"
        for name, is_given in (
            ("--key", bool(self.keys)),
            ("--envelope", self.envelope != "none"),
            ("--key-framing", self.key_framing != "none"),
        ):
            said = f"{name} is for tables that keep the newest row of each key"
            yield is_given and not is_upsert, said, f"say so: --mode {UPSERT}; or leave out {name}"
        is_plain = self.table_format == TableFormat.PARQUET
        said = "plain Parquet files cannot be changed row by row"
        yield is_upsert and is_plain, said, f"--mode {UPSERT} goes with --format delta or iceberg"
        for key in self.keys:
            is_field = key.startswith("value.") and not is_raw
            said = f"--key {key} is neither the key of records nor a field of decoded values"
            yield key != "key" and not is_field, said, "--key key, or --key value.FIELD"
        normal_location(self.to)

    def asked(self) -> dict[str, Any]:
        return {
            **StreamSettings.asked(self),
            # Half of the rows would have no bytes, and be taken for tombstones.
            "--keep-raw": self.keep_raw,
            "--key": list(self.keys) or ["key"],
            "--envelope": self.envelope,
            "--key-framing": self.key_framing,
        }

    def changes(self) -> "Changes | None":
        """How records change the table; None if it keeps all of them."""
        if self.mode != UPSERT:
            return None
        from moldau.spark.pipelines.archive.change_events import Changes

        return Changes(
            keys=self.keys or ("key",), envelope=self.envelope, key_framing=self.key_framing
        )

    def locations(self) -> dict[str, str]:
        """The table of each topic."""
        place = normal_location(self.to)
        return {
            topic: f"{place}/{topic}" if self.table_per_topic else place for topic in self.topics
        }

    def marks(self, place: str) -> tuple[tuple[str, str], ...]:
        topics = [topic for topic, table in self.locations().items() if table == place]
        named = ((f"topic.{topic}", self.name) for topic in topics)
        return (*StreamSettings.marks(self, place), *named)

    @property
    def has_dead_letters(self) -> bool:
        """Whether a row can be one that is not kept: undecodable, without a key, out of time."""
        is_iceberg = self.table_format == TableFormat.ICEBERG
        return self.decode != Format.RAW or self.mode == UPSERT or is_iceberg

    def source_options(self) -> dict[str, str]:
        most = {"maxOffsetsPerTrigger": str(self.offsets_per_trigger_max)}
        return most | StreamSettings.source_options(self)


def plan_archive(settings: ArchiveSettings) -> Plan:
    """What would be archived. Asks brokers and tables; changes nothing. Raises ClientError."""
    from moldau.spark.lake import schema_evolution
    from moldau.spark.pipelines.archive.file_source import table_schema

    settings.check()
    tables = open_tables(settings)
    known = streaming.recall(settings, tables)
    decoder, _ = made_decoder(settings)
    wanted = table_schema(decoder, keep_raw=settings.keep_raw, changes=settings.changes())
    for place, table in tables.items():
        schema_evolution.merged(table.schema(), wanted, table.partition_columns, place)
    steps = [
        Step(what=f"read {topic}", rows=rows)
        for topic, rows in streaming.waiting(settings, known).items()
    ]
    if decoder is not None:
        what = f"decode values as {settings.decode}, bad ones to {settings.dead}"
        steps.append(Step(what=what))
    for place, table in tables.items():
        begun = "create" if table.schema() is None else settings.mode
        is_plain = table.format is TableFormat.PARQUET
        what = "write Parquet files to" if is_plain else f"{begun} the {table.format} table"
        steps.append(Step(what=f"{what} {place}"))
    return Plan(
        reads=settings.topics,
        writes=(*tables, settings.dead) if settings.has_dead_letters else tuple(tables),
        steps=tuple(steps),
    )


def run_archive(settings: ArchiveSettings, context: PipelineContext) -> Outcome:
    """Until all is done, or until told to stop. Raises ClientError."""
    from moldau.spark.pipelines.archive.committer import Committer
    from moldau.spark.pipelines.archive.file_source import (
        NAME,
        ArchiveTask,
        source_of,
        table_schema,
    )

    settings.check()
    tables = open_tables(settings)
    known = streaming.recall(settings, tables)
    start = streaming.settled_start(settings, known)
    _ = context.spark  # Whose parser reads a schema as DDL.
    decoder, schema = made_decoder(settings)
    changes = settings.changes()
    wanted = table_schema(decoder, keep_raw=settings.keep_raw, changes=changes)
    for table in tables.values():
        table.ensure(wanted)
    if schema is not None:
        _home(settings).write(SCHEMA_FILE, schema.encode())
    streaming.remember(settings, tables, start)
    committer = Committer(settings, tables, context)
    work = ArchiveTask(
        layouts={topic: tables[place].layout for topic, place in settings.locations().items()},
        label=settings.name,
        decoder=decoder,
        keep_raw=settings.keep_raw,
        changes=changes,
    )

    def begin() -> "StreamingQuery":
        from pyspark.sql import functions as F  # noqa: N812

        spark = context.spark
        spark.dataSource.register(source_of(work))
        # A topic of one partition is work for all cores, too.
        most = str(spark.sparkContext.defaultParallelism)
        returned = streaming.stream_of(spark, settings, start, NAME, minPartitions=most)
        # Spark sees files only; those who watch want records.
        returned = returned.observe(OBSERVED, F.sum("rows").alias("rows"))
        return streaming.start_query(returned, settings, "append", committer)

    streaming.run_query(begin, context)
    where = next(iter(tables)) if len(tables) == 1 else f"{len(tables)} tables in {settings.to}"
    summary = f"{committer.rows} rows in {committer.files} new files of {where}"
    if committer.dead:
        summary += f", {committer.dead} to {settings.dead}"
    if committer.unknown:
        names = ", ".join(sorted(committer.unknown))
        summary += f"; not in the table, since the schema does not name them: {names}"
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
    """By location. Raises InvalidArgumentError if a new one would not be alone there."""
    columns = () if settings.mode == UPSERT else ("date",)
    tables = {}
    for place in settings.locations().values():
        tables[place] = open_destination(
            place, settings.table_format, storage=settings.storage, partition_columns=columns
        )
        check_place(tables[place])
    return tables


# -- the schema of values


def made_decoder(settings: ArchiveSettings) -> tuple[Any, str | None]:
    """What decodes the values, None if they stay bytes; and the schema, if it was inferred.

    From the first records; later starts add what the newest ones have. Raises InvalidArgumentError.
    """
    if settings.decode == Format.RAW:
        return None, None
    if not settings.is_inferred:
        return streaming.decoder_of(settings), None
    known = _home(settings).read(SCHEMA_FILE)
    if known is None:
        schema = spark_json(_inferred(settings, streaming.sampled(settings)))
    else:
        schema = known.decode()
        # A batch that waits is read as it was begun. If no new value is an object, or a field is
        # of two types, there is nothing to learn from them.
        if not streaming.is_pending(settings.checkpoint):
            with suppress(InvalidArgumentError):
                seen = _inferred(settings, streaming.sampled(settings, newest=True))
                schema = spark_json(with_new_fields(json_struct(schema), seen))
    return streaming.decoder_of(settings, schema), schema


def _home(settings: ArchiveSettings) -> Folder:
    return folder_at(normal_location(settings.home, option="--home"), {})


def _inferred(settings: ArchiveSettings, values: list[bytes]) -> Any:
    """A pyarrow.StructType. Raises InvalidArgumentError."""
    if settings.envelope == "none":
        return infer_json(values, framing=settings.framing)
    from moldau.spark.pipelines.archive.change_events import events_in

    is_inside, rows = events_in(values, settings.framing)
    # Of both: after a first snapshot, no event has said yet what a row before a change looks like.
    row = infer_json(rows)
    event = pa.struct([("op", pa.string()), ("before", row), ("after", row)])
    return pa.struct([("payload", event)]) if is_inside else event

"""Owns the decoding of an archive: its schema, which stays what it was, and its dead letters."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.spark.lake.storage import folder_at, normal_location
from moldau.spark.lake.table import Writing
from moldau.spark.pipelines.archive.settings import RAW, ArchiveSettings
from moldau.spark.pipelines.spec import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA_FILE: Final = "archive-schema.ddl"
"""In the pipeline's folder, as Spark's JSON, or as DDL by older ones. The type that was inferred of a
field once holds, whatever comes later; fields that are new are added whenever it starts."""
SAMPLE_ROWS: Final = 1000


def made_decoder(settings: ArchiveSettings, *, keep: bool = True) -> Any:
    """What decodes the values; None if they stay bytes.

    A schema of JSON that is not given is inferred from the first records, and kept unless told not
    to. Raises InvalidArgumentError.
    """
    if settings.decode == RAW:
        return None
    from moldau.spark import decode

    schema: Any = settings.schema
    if schema is None and settings.decode == "json":
        schema = _remembered(settings, keep=keep)
    return decode.decoder(
        settings.decode,
        schema,
        message=settings.message or "",
        framing=settings.framing,
        registry=settings.registry,
        registry_options=settings.registry_options,
    )


def _remembered(settings: ArchiveSettings, *, keep: bool) -> str:
    from moldau.spark.decode import spark_json

    home = folder_at(normal_location(settings.home, option="--home"), {})
    known = home.read(SCHEMA_FILE)
    before = None if known is None else known.decode()
    values = sampled(settings, newest=before is not None)
    if before is not None:
        text = _grown(settings, before, values)
    elif values:
        text = spark_json(_inferred(settings, values))
    else:
        raise InvalidArgumentError(
            f"there is no record in {', '.join(settings.topics)} to infer a schema from",
            hint="say what values look like: --schema 'id bigint, name string'",
        )
    if keep and text != before:
        home.write(SCHEMA_FILE, text.encode())
    return text


def _inferred(settings: ArchiveSettings, values: list[bytes]) -> Any:
    """A pyarrow.StructType. Raises InvalidArgumentError."""
    import pyarrow as pa

    from moldau.spark.decode import infer_json

    if settings.envelope == "none":
        return infer_json(values, framing=settings.framing)
    from moldau.spark.pipelines.archive.changes import events_in

    is_inside, rows = events_in(values, settings.framing)
    # Of both: after a first snapshot, no event has said yet what a row before a change looks like.
    row = infer_json(rows)
    event = pa.struct([("op", pa.string()), ("before", row), ("after", row)])
    return pa.struct([("payload", event)]) if is_inside else event


def _grown(settings: ArchiveSettings, known: str, values: list[bytes]) -> str:
    """A schema with the fields that newer values have."""
    from moldau.spark.decode import spark_json
    from moldau.spark.decode.decoder import json_struct
    from moldau.spark.decode.schemas import with_new_fields

    try:
        seen = _inferred(settings, values)
    except InvalidArgumentError:
        # None of them is an object, or a field is of two types: nothing to learn from.
        return known
    before = json_struct(known)
    grown = with_new_fields(before, seen)
    return known if grown == before else spark_json(grown)


def sampled(settings: ArchiveSettings, *, newest: bool = False) -> list[bytes]:
    """Values of the first, or of the newest, records of each partition."""
    from moldau.spark.source.read_options import parse_read_options
    from moldau.spark.source.readers import plan
    from moldau.spark.source.reading import read_ranges

    options = settings.source_options() | {"startingOffsets": "earliest"}
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        options.pop(name, None)
    asked = parse_read_options(options, streaming=False)
    ranges = plan(asked)
    some = [
        replace(each, start=max(each.start, each.end - SAMPLE_ROWS))
        if newest
        else replace(each, end=min(each.end, each.start + SAMPLE_ROWS))
        for each in ranges
    ]
    values: list[bytes] = []
    for batch in read_ranges(asked, some):
        values += [value for value in batch.column("value").to_pylist() if value is not None]
    return values[: SAMPLE_ROWS * len(ranges)]


class DeadLetters:
    """Sends rows that could not be decoded to a topic: once for each batch, however often asked."""

    def __init__(self, settings: ArchiveSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._is_there = False
        self.count = 0

    def __call__(self, bad: "DataFrame", writing: Writing) -> int:
        """How many there are."""
        from moldau.spark import decode

        count: int = bad.count()
        if not count:
            return 0
        topic = self._settings.dead_letters_to()
        self._make_topic(topic)
        rows = decode.dead_letters(bad, group=self._settings.name)
        (
            rows.write.format("moldau")
            .mode("append")
            .option("kafka.bootstrap.servers", self._settings.bootstrap)
            .option("topic", topic)
            .option("txnAppId", f"{writing.query}.dead")
            .option("txnVersion", str(writing.batch))
            .save()
        )
        self.count += count
        self._context.dead_letters(count)
        return count

    def _make_topic(self, topic: str) -> None:
        if self._is_there:
            return
        with KafkaClient(self._settings.bootstrap) as client:
            try:
                client.layout(topic)
            except NotFoundError:
                try:
                    client.create_topic(topic)
                except RejectedError as error:
                    if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
        self._is_there = True

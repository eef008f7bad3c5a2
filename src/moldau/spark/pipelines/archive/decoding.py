"""Owns the decoding of an archive: its schema, which stays what it was, and its dead letters."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.spark.lake.table import Writing
from moldau.spark.pipelines.archive.settings import RAW, ArchiveSettings
from moldau.spark.pipelines.spec import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA_FILE: Final = "archive-schema.ddl"
"""In the pipeline's folder. The type that was inferred of a field once holds, whatever comes later;
fields that are new are added whenever the archive starts."""
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
    from moldau.spark import decode

    path = Path(settings.home) / SCHEMA_FILE
    before = path.read_text() if path.exists() else None
    values = sampled(settings, newest=before is not None)
    if before is not None:
        text = _grown(before, values, settings.framing)
    elif values:
        text = decode.fields_ddl(decode.infer_json(values, framing=settings.framing))
    else:
        raise InvalidArgumentError(
            f"there is no record in {', '.join(settings.topics)} to infer a schema from",
            hint="say what values look like: --schema 'id bigint, name string'",
        )
    if keep and text != before:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text)
        os.replace(temporary, path)
    return text


def _grown(known: str, values: list[bytes], framing: str) -> str:
    """A schema with the fields that newer values have."""
    from moldau.spark.decode import fields_ddl, infer_json
    from moldau.spark.decode.column_types import Struct, with_new_fields
    from moldau.spark.decode.making import json_struct

    try:
        seen = infer_json(values, framing=framing)
    except InvalidArgumentError:
        # None of them is an object, or a field is of two types: nothing to learn from.
        return known
    grown = with_new_fields(json_struct(known), seen)
    return fields_ddl(grown) if isinstance(grown, Struct) else known


def sampled(settings: ArchiveSettings, *, newest: bool = False) -> list[bytes]:
    """Values of the first, or of the newest, records of each partition."""
    from moldau.spark.source.batch import plan
    from moldau.spark.source.planning import Narrowing
    from moldau.spark.source.read_options import parse_read_options
    from moldau.spark.source.reading import read_ranges

    options = settings.source_options() | {"startingOffsets": "earliest"}
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        options.pop(name, None)
    asked = parse_read_options(options, streaming=False)
    ranges = plan(asked, Narrowing())
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

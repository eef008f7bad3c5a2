"""Owns the count of values that cannot be decoded by a schema: drift of what producers write."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import Decoder, decoder
from moldau.spark.pipelines.audit.report import Undecodable
from moldau.spark.pipelines.audit.settings import AuditSettings
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.reading import read_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tasks = Sequence[tuple[OffsetRange, ...]]

_DDL: Final = "decoded bigint, undecodable bigint, example string"
_SCHEMA: Final = pa.schema(
    [
        pa.field("decoded", pa.int64()),
        pa.field("undecodable", pa.int64()),
        pa.field("example", pa.string()),
    ]
)


def made_decoder(settings: AuditSettings) -> Decoder | None:
    """Raises InvalidArgumentError for a schema that is none."""
    if settings.value_format is None:
        return None
    if settings.value_schema is None:
        raise InvalidArgumentError(
            f"--decode {settings.value_format} needs to know the schema", hint="--schema FILE"
        )
    return decoder(
        settings.value_format, settings.value_schema, message=settings.value_message or ""
    )


def count_undecodable(
    spark: "SparkSession",
    settings: AuditSettings,
    found: Decoder,
    options: ReadOptions,
    tasks: Tasks,
) -> Undecodable:
    """Reads the values of all ranges. A null value is no error."""
    rows: list[dict[str, Any]] = []
    if tasks:
        frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
            partial(_count_task, found, options, tuple(tasks)), _DDL
        )
        rows = frame.toArrow().to_pylist()
    bad = sum(row["undecodable"] for row in rows)
    return Undecodable(
        format=str(found.format),
        values=bad + sum(row["decoded"] for row in rows),
        undecodable=bad,
        share_max=settings.undecodable_max,
        example=min((row["example"] for row in rows if row["example"] is not None), default=""),
    )


def _count_task(
    found: Decoder, options: ReadOptions, tasks: Tasks, batches: Iterable[Any]
) -> Iterator[Any]:
    good = bad = 0
    example = None
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in read_ranges(options, tasks[number]):
                for index, each in enumerate(found.decode(rows.column("value").to_pylist())):
                    if each.error is None:
                        good += 1
                        continue
                    bad += 1
                    example = example or _where(rows, index, each.error)
    told = zip((good, bad, example), _SCHEMA, strict=True)
    columns = [pa.array([value], field.type) for value, field in told]
    yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _where(rows: Any, index: int, error: str) -> str:
    topic, partition, offset = (rows.column(n)[index] for n in ("topic", "partition", "offset"))
    return f"{topic}-{partition} offset {offset}: {error}"

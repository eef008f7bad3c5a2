"""The columns of written rows: their names, types and values.

Those of Spark's Kafka connector (`key`, `value`, `headers`, `topic`, `partition`), and `timestamp`
with `writeTimestamp`. Other columns are ignored, as by the connector, so that rows read from a
topic can be written to another as they are.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from moldau.client.errors import InvalidArgumentError
from moldau.spark.schema import HEADERS_COLUMN

Headers = list[tuple[str, bytes | None]]

_TYPES: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (HEADERS_COLUMN[1],),
}
_NO_HEADERS: Final[Headers] = []


class Row(NamedTuple):
    """One message to be written."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str | None
    partition: int | None
    time_ms: int | None


def check_columns(types: dict[str, str], *, topic: str | None, takes_timestamps: bool) -> None:
    """`types` are Spark SQL type names by column.

    Raises InvalidArgumentError, which names the column that is missing or has a wrong type.
    """
    if "value" not in types:
        raise InvalidArgumentError(
            f"the column value is missing; the columns are {', '.join(types) or 'none'}",
            hint='add it: .select(to_json(struct("*")).alias("value"))',
        )
    if topic is None and "topic" not in types:
        raise InvalidArgumentError(
            "no topic to write to: there is neither an option topic nor a column topic",
            hint='.option("topic", "NAME")',
        )
    for name, allowed in _TYPES.items():
        if name == "timestamp" and not takes_timestamps:
            continue
        if types.get(name, allowed[0]) not in allowed:
            raise InvalidArgumentError(
                f"column {name} has type {types[name]}, and must be {' or '.join(allowed)}",
                hint=f'cast it: .withColumn("{name}", col("{name}").cast("{allowed[-1]}"))',
            )


def rows_of(batch: Any, *, takes_timestamps: bool) -> Iterator[Row]:
    """The messages in a pyarrow.RecordBatch whose columns were checked."""
    import pyarrow as pa

    names = batch.schema.names

    def values(name: str, *kinds: Any) -> list[Any]:
        if name not in names:
            return [None] * batch.num_rows
        column = batch.column(names.index(name))
        for kind in kinds:
            column = column.cast(kind)
        return cast("list[Any]", column.to_pylist())

    times = [None] * batch.num_rows
    if takes_timestamps:
        micros = values("timestamp", pa.timestamp("us", tz="UTC"), pa.int64())
        # Rounded down, also before 1970.
        times = [None if time is None else time // 1000 for time in micros]
    rows = zip(
        values("key", pa.large_binary()),
        values("value", pa.large_binary()),
        map(_headers, values("headers")) if "headers" in names else [_NO_HEADERS] * batch.num_rows,
        values("topic"),
        values("partition"),
        times,
        strict=True,
    )
    # Plain tuples in the order of a Row: constructing Rows would take a quarter of the time.
    return cast("Iterator[Row]", rows)


def _headers(listed: list[dict[str, Any]] | None) -> Headers:
    if not listed:
        return _NO_HEADERS
    if any(header is None or header["key"] is None for header in listed):
        raise InvalidArgumentError("column headers holds a header without a key")
    return [(header["key"], header["value"]) for header in listed]

"""Owns the columns of what is written: which there may be, of which types, and their values.

Those of Spark's Kafka connector (`key`, `value`, `headers`, `topic`, `partition`), and `timestamp`
if that is asked for. All others are left out, as the connector does it: what was read from a topic
can be written to another as it is.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from moldau.client.errors import InvalidArgumentError

Headers = list[tuple[str, bytes | None]]

_TYPES: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
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
    """`types` by the name of the column, as Spark's SQL writes them.

    Raises InvalidArgumentError, which names the column that is missing or of a wrong type.
    """
    if "value" not in types:
        raise InvalidArgumentError(
            f"there is no column value among {', '.join(types) or 'none'}: it is what a message "
            "holds",
            hint='name one: .select(to_json(struct("*")).alias("value"))',
        )
    if topic is None and "topic" not in types:
        raise InvalidArgumentError(
            "nothing says which topic to write to: neither the option topic nor a column of that "
            "name",
            hint='.option("topic", "NAME")',
        )
    for name, allowed in _TYPES.items():
        found = types.get(name)
        if name == "timestamp" and not takes_timestamps:
            continue
        if found is not None and found not in allowed:
            raise InvalidArgumentError(
                f"column {name} is of type {found}, and has to be {' or '.join(allowed)}",
                hint=f'cast it: .withColumn("{name}", col("{name}").cast("{allowed[-1]}"))'
                if name != "headers"
                else "",
            )


def rows_of(batch: Any, *, takes_timestamps: bool) -> Iterator[Row]:
    """The messages of a pyarrow.RecordBatch whose columns were checked."""
    names = batch.schema.names
    count = batch.num_rows
    rows = zip(
        _bytes_of(batch, names, "key", count),
        _bytes_of(batch, names, "value", count),
        _headers_of(batch, names, count),
        _plain(batch, names, "topic", count),
        _plain(batch, names, "partition", count),
        _times_of(batch, names, count) if takes_timestamps else [None] * count,
        strict=True,
    )
    # Plain tuples in the order of a Row: to give each its names takes a quarter of the time.
    return cast("Iterator[Row]", rows)


def _bytes_of(batch: Any, names: list[str], name: str, count: int) -> list[bytes | None]:
    import pyarrow as pa

    if name not in names:
        return [None] * count
    column = batch.column(names.index(name))
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _plain(batch: Any, names: list[str], name: str, count: int) -> list[Any]:
    return batch.column(names.index(name)).to_pylist() if name in names else [None] * count


def _times_of(batch: Any, names: list[str], count: int) -> list[int | None]:
    import pyarrow as pa

    if "timestamp" not in names:
        return [None] * count
    micros = batch.column(names.index("timestamp")).cast(pa.timestamp("us", tz="UTC"))
    # Rounded down, also before 1970.
    return [None if time is None else time // 1000 for time in micros.cast(pa.int64()).to_pylist()]


def _headers_of(batch: Any, names: list[str], count: int) -> list[Headers]:
    if "headers" not in names:
        return [_NO_HEADERS] * count
    found: list[Headers] = []
    for listed in batch.column(names.index("headers")).to_pylist():
        if not listed:
            found.append(_NO_HEADERS)
            continue
        if any(header is None or header["key"] is None for header in listed):
            raise InvalidArgumentError("column headers holds a header without a key")
        found.append([(header["key"], header["value"]) for header in listed])
    return found

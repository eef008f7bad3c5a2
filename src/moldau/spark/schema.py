"""Owns the columns of a topic: those of Spark's Kafka connector, in its order.

Needs Spark for nothing but the two functions that return types of Spark or Arrow, so that options
and plans can be made and tested without either.
"""

import functools
from typing import Any, Final

COLUMNS: Final = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
HEADERS_COLUMN: Final = ("headers", "array<struct<key:string,value:binary>>")

CREATE_TIME: Final = 0
APPEND_TIME: Final = 1


def ddl(*, include_headers: bool) -> str:
    """The schema as Spark's SQL writes it."""
    columns = (*COLUMNS, HEADERS_COLUMN) if include_headers else COLUMNS
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def column_names(*, include_headers: bool) -> list[str]:
    names = [name for name, _ in COLUMNS]
    return [*names, HEADERS_COLUMN[0]] if include_headers else names


@functools.cache
def arrow_schema(*, include_headers: bool) -> Any:
    """The same as Arrow has it; Spark compares it field by field with its own."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(pa.field("headers", headers_type()))
    return pa.schema(fields)


def headers_type() -> Any:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.list_(pa.field("element", header))

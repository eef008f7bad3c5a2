"""The columns of a topic: those of Spark's Kafka connector, in its order.

Imports Arrow only for Arrow types, so that options and plans work without it.
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


def columns(*, include_headers: bool) -> tuple[tuple[str, str], ...]:
    return (*COLUMNS, HEADERS_COLUMN) if include_headers else COLUMNS


def ddl(*, include_headers: bool) -> str:
    """The schema as Spark's SQL writes it."""
    return ", ".join(f"{name} {kind}" for name, kind in columns(include_headers=include_headers))


@functools.cache
def arrow_schema(*, include_headers: bool) -> Any:
    """The Arrow schema; Spark compares it field by field with its own."""
    import pyarrow as pa

    found = columns(include_headers=include_headers)
    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    types |= {"timestamp": pa.timestamp("us", tz="UTC"), HEADERS_COLUMN[1]: headers_type()}
    return pa.schema([(name, types[kind]) for name, kind in found])


def headers_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.field("element", pa.struct({"key": pa.string(), "value": pa.binary()})))

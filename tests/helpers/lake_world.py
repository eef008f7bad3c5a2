"""Tables as archives write them, made without Spark: rows in small files, a commit each."""

import functools
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from moldau.spark.lake.model import Writing
from moldau.spark.lake.table import LakeTable


class Row(NamedTuple):
    """What is archived of a record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


def archive_schema() -> Any:
    import pyarrow as pa

    from moldau.spark.schema import arrow_schema

    return pa.schema([*arrow_schema(include_headers=True), pa.field("date", pa.string())])


def batch_of(rows: Sequence[Row]) -> Any:
    import pyarrow as pa

    columns = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [row.topic for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "timestamp": [row.time_ms * 1000 for row in rows],
        "timestampType": [0] * len(rows),
        "headers": [[{"key": k, "value": v} for k, v in row.headers] for row in rows],
        "date": [
            datetime.fromtimestamp(row.time_ms / 1000, UTC).date().isoformat() for row in rows
        ],
    }
    schema = archive_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def append(table: LakeTable, rows: Sequence[Row], *, query: str = "archive") -> None:
    """One commit of one small file per date."""
    from moldau.spark.lake.parquet_files import write_files

    table.ensure(archive_schema())
    last = table.last_batch(query)
    files = write_files(table.layout, archive_schema(), [batch_of(rows)])
    if not table.append(files, Writing(query, 0 if last is None else last + 1)):
        raise RuntimeError("a batch was committed before")


def read_table(table: LakeTable, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """All rows of the current snapshot, as batches."""
    from moldau.spark.lake.parquet_files import read_files

    schema = table.schema()
    if schema is None:
        return iter(())
    return read_files(table.layout, table.snapshot().files, schema, columns or schema.names)


def rows_in(table: LakeTable) -> list[Row]:
    """All rows, in the order of topic, partition and offset."""
    found = []
    for batch in read_table(table):
        for row in batch.to_pylist():
            found.append(
                Row(
                    row["topic"],
                    row["partition"],
                    row["offset"],
                    row["key"],
                    row["value"],
                    round(row["timestamp"].timestamp() * 1000),
                    tuple((each["key"], each["value"]) for each in row["headers"] or ()),
                )
            )
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))


def use_once(location: str, storage: Mapping[str, str] | None = None) -> None:
    """The libraries start threads when they are first used, which stay, with the files they have
    open, as long as the process: not what a test left behind."""
    from moldau.spark.lake import open_table

    if not importlib.util.find_spec("deltalake"):
        return
    table = open_table(location, "delta", storage=dict(storage or {}))
    append(table, [Row("t", 0, 0, None, b"", 0)])
    rows_in(table)
    table.snapshot()


@functools.cache
def use_on_disk_once() -> None:
    with tempfile.TemporaryDirectory() as folder:
        use_once(folder)

"""Owns the way of results into a lake's table: tasks write files, the driver commits them once."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.opening import open_table
from moldau.spark.lake.table import DataFile, LakeTable, Layout, Writing
from moldau.spark.pipelines.aggregate.settings import AggregateSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def opened(settings: AggregateSettings, result: "DataFrame") -> tuple[LakeTable, Any]:
    """The table with the columns of the result, made if it is not there; and its pyarrow.Schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    if settings.to_table is None:
        raise InvalidArgumentError("results go to no table: see --to-table")
    # As files hold it, whatever the time zone of the session is: everything may be null.
    schema = pa.schema(
        [pa.field(field.name, _plain(field.type)) for field in to_arrow_schema(result.schema)]
    )
    table = open_table(
        settings.to_table, settings.table_format, storage=settings.storage, partition_columns=()
    )
    table.ensure(schema)
    return table, schema


def _plain(kind: Any) -> Any:
    """Moments in UTC; fields that may be null."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC") if kind.tz is not None else pa.timestamp("us")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    return kind


def append(
    table: LakeTable, schema: Any, result: "DataFrame", writing: Writing, label: str
) -> None:
    """Add the rows of a batch, unless that batch is there already."""
    before = table.last_batch(writing.query)
    if before is not None and before >= writing.batch:
        return
    write = _FileTask(table.layout, schema, label)
    files = [_file(row[0]) for row in result.mapInArrow(write, "file string").collect()]
    if files:
        table.append(files, writing)


class _FileTask:
    """Writes the rows of a task to a file; its result is a row that names it. Travels there."""

    def __init__(self, layout: Layout, schema: Any, label: str) -> None:
        self._layout = layout
        self._schema = schema
        self._label = label

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from moldau.spark.lake.files import FileWriter

        writer = FileWriter(self._layout, self._schema, label=self._label)
        finished = False
        try:
            for batch in batches:
                writer.write(batch.cast(self._schema))
            files = writer.close()
            finished = True
        finally:
            if not finished:
                writer.abort()
        texts = [json.dumps([file.path, file.rows, file.bytes]) for file in files]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["file"])


def _file(text: str) -> DataFile:
    path, rows, size = json.loads(text)
    return DataFile(path=path, rows=rows, bytes=size)

"""Owns the way of results into a lake's table: tasks write files, the driver commits them once."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import arrow_of
from moldau.spark.decode.ddl import from_spark_json
from moldau.spark.lake.opening import open_table
from moldau.spark.lake.places import check_place
from moldau.spark.lake.table import DataFile, LakeTable, Layout, Writing
from moldau.spark.pipelines.aggregate.settings import AggregateSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def opened(settings: AggregateSettings, result: "DataFrame") -> tuple[LakeTable, Any]:
    """The table with the columns of the result, made if it is not there; and its pyarrow.Schema."""
    import pyarrow as pa

    if settings.to_table is None:
        raise InvalidArgumentError("results go to no table: see --to-table")
    try:
        # Moments in UTC, and every column may be null, whatever Spark knows about this query.
        struct = from_spark_json(result.schema.jsonValue())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"what --sql gives cannot be kept in a table: {error}", hint="CAST it in the SQL"
        ) from None
    schema = pa.schema(list(arrow_of(struct)))
    table = open_table(
        settings.to_table, settings.table_format, storage=settings.storage, partition_columns=()
    )
    check_place(table)
    table.ensure(schema)
    return table, schema


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

"""Owns the way of results into a lake's table: tasks write files, the driver commits them once."""

from typing import TYPE_CHECKING, Any

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import arrow_of
from moldau.spark.decode.ddl import from_spark_json
from moldau.spark.lake.opening import check_place, open_table
from moldau.spark.lake.table import WRITER, LakeTable, Writing, marked
from moldau.spark.pipelines.aggregate.settings import AggregateSettings
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.tables import write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def opened(settings: AggregateSettings, result: "DataFrame") -> tuple[LakeTable, Any]:
    """The table with the columns of the result, made if it is not there; and its pyarrow.Schema."""
    import pyarrow as pa

    table = _table(settings)
    try:
        # Moments in UTC, and every column may be null, whatever Spark knows about this query.
        struct = from_spark_json(result.schema.jsonValue())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"what --sql gives cannot be kept in a table: {error}", hint="CAST it in the SQL"
        ) from None
    schema = pa.schema(list(arrow_of(struct)))
    check_place(table)
    table.ensure(schema)
    return table, schema


def check_new(settings: AggregateSettings) -> None:
    """Raises InvalidArgumentError if the results are there, and the checkpoint is lost."""
    if settings.to_table is None or Home(settings.home).has_new_start():
        return
    table = _table(settings)
    if table.mark(f"{WRITER}{settings.name}") == marked(settings.name):
        raise InvalidArgumentError(
            f"aggregate {settings.name} has written to {table.location} before, and its checkpoint "
            f"is not in {settings.home}: all results would be there twice",
            hint="is --home the same as before? · begin again, knowing that: moldau pipeline "
            f"reset {settings.name} --to … · write to another table: --to-table",
        )


def _table(settings: AggregateSettings) -> LakeTable:
    if settings.to_table is None:
        raise InvalidArgumentError("results go to no table: see --to-table")
    return open_table(
        settings.to_table, settings.table_format, storage=settings.storage, partition_columns=()
    )


def append(
    table: LakeTable, schema: Any, result: "DataFrame", writing: Writing, label: str
) -> None:
    """Add the rows of a batch, unless that batch is there already."""
    before = table.last_batch(writing.query)
    if before is not None and before >= writing.batch:
        return
    if files := write_rows(result, table, schema, label):
        table.append(files, writing)

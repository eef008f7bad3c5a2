"""Owns what an audit compares: rows of topics within a cut, rows of a table, and which columns of
the two can be held against each other.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import TopicPartition
from moldau.spark.decode import RAW_COLUMN
from moldau.spark.lake import LakeTable
from moldau.spark.lake.table import Snapshot
from moldau.spark.pipelines.audit.cut import Bounds, read_options
from moldau.spark.pipelines.audit.joining import PLACE
from moldau.spark.pipelines.audit.settings import COMPARED, AuditSettings
from moldau.spark.pipelines.tables import row_hash, table_rows
from moldau.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def topic_rows(
    spark: "SparkSession", settings: AuditSettings, places: Mapping[TopicPartition, Bounds]
) -> "DataFrame":
    """What readers of committed records get of some partitions."""
    bounds: dict[str, dict[str, dict[str, int]]] = {"starting": {}, "ending": {}}
    for place, each in places.items():
        for side, offset in (("starting", each.start), ("ending", each.end)):
            bounds[side].setdefault(place.topic, {})[str(place.partition)] = offset
    return (
        spark.read.format("moldau")
        .options(**read_options(settings, sorted(bounds["starting"])))
        .options(**{f"{side}Offsets": json.dumps(found) for side, found in bounds.items()})
        .load()
    )


def columns_of(schema: Any) -> dict[str, str]:
    """By what is compared of a record, the column of the table that holds it as the topic does."""
    missing = [name for name in PLACE if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"the table has no column {', '.join(missing)}, so nobody can tell which records its "
            "rows are",
            hint="an audit reads tables as moldau pipeline run archive writes them",
        )
    wanted = arrow_schema(include_headers=True)
    candidates = {name: name for name in COMPARED}
    if RAW_COLUMN in schema.names:
        candidates["value"] = RAW_COLUMN
    return {
        name: column
        for name, column in candidates.items()
        if column in schema.names and _is_same(wanted.field(name).type, schema.field(column).type)
    }


def _is_same(wanted: Any, found: Any) -> bool:
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(found) or pa.types.is_string(found))
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(found))
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    return bool(pa.types.is_list(found) and pa.types.is_struct(found.value_type))


def table_side(
    spark: "SparkSession",
    table: LakeTable,
    schema: Any,
    snapshot: Snapshot,
    columns: Mapping[str, str],
) -> "DataFrame":
    names = [*PLACE, *dict.fromkeys(columns.values())]
    return hashed(table_rows(spark, table, schema, snapshot.files, names), columns)


def hashed(rows: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
    """The place of each row, and a number for its content, whatever types a table made of it."""
    from pyspark.sql import functions as F  # noqa: N812

    none = F.array().cast("array<struct<key:string,value:binary>>")
    forms = {
        "key": lambda column: column.cast("binary"),
        "value": lambda column: column.cast("binary"),
        "timestamp": lambda column: F.unix_micros(column.cast("timestamp")),
        "timestampType": lambda column: column.cast("int"),
        # No headers, null and an empty list are the same.
        "headers": lambda column: F.transform(
            F.coalesce(column, none),
            lambda each: F.struct(each["key"], each["value"], each["value"].isNull()),
        ),
    }
    plain = rows.select(
        F.col("topic").cast("string").alias("topic"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        *(forms[name](F.col(column)).alias(name) for name, column in columns.items()),
    )
    return plain.select(*PLACE, row_hash(plain, columns).alias("hash"))

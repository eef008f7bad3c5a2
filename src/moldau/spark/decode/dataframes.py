"""Responsible for decoding in Spark: values become structs, and bad rows keep their bytes.

Values go to Python as Arrow, and come back as Arrow. The same functions serve tables, streams and
the tables of foreachBatch.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type

from moldau.client.errors import InvalidArgumentError
from moldau.model import queue_headers
from moldau.spark.decode.decoder import Decoder, Format
from moldau.spark.decode.json_values import infer_json
from moldau.spark.decode.registry import Framing

RAW_COLUMN: Final = "raw"
ERROR_COLUMN: Final = "error"
SAMPLE_ROWS_DEFAULT: Final = 1000
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_DECODED: Final = "__moldau_decoded"
_ORIGIN: Final = {
    queue_headers.DEAD_TOPIC_HEADER: "topic",
    queue_headers.DEAD_PARTITION_HEADER: "partition",
    queue_headers.DEAD_OFFSET_HEADER: "offset",
}


def apply(df: DataFrame, decoder: Decoder) -> DataFrame:
    """`df` with `value` decoded, and the columns `raw` (its bytes) and `error` (null if good).

    Every row is there once. A null value stays null and is no error.
    """
    _check_input(df)
    value = f.col("value")
    if decoder.format is Format.RAW:
        no_error = f.lit(None).cast("string")
        return df.withColumns({"value": value, RAW_COLUMN: value, ERROR_COLUMN: no_error})
    told = df.withColumns({RAW_COLUMN: value, _DECODED: decoding(decoder)(value)})
    columns = {"value": f.col(f"{_DECODED}.value"), ERROR_COLUMN: f.col(f"{_DECODED}.error")}
    return told.withColumns(columns).drop(_DECODED)


def _check_input(df: DataFrame) -> None:
    types = {name.lower(): kind for name, kind in df.dtypes}
    if types.get("value") != "binary":
        found = f"of type {types['value']}" if "value" in types else "not there"
        raise InvalidArgumentError(
            f"what is decoded is the binary column value, which is {found}",
            hint='cast it: .withColumn("value", col("value").cast("binary"))',
        )
    for name in (RAW_COLUMN, ERROR_COLUMN):
        if name in types:
            raise InvalidArgumentError(f"there is a column {name} already: rename it first")


def decoding(decoder: Decoder) -> Any:
    """A function of Spark's from a binary column to a struct of `value` and `error`."""
    fields = [("value", decoder.arrow_type), ("error", pa.string())]

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for column in batches:
            values, errors = decoder.arrays(column.to_pylist())
            yield pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    # So that the optimiser neither doubles the call nor moves a filter in front of it.
    kind = from_arrow_type(pa.struct(fields), prefer_timestamp_ntz=True)
    return f.arrow_udf(decode, returnType=kind).asNondeterministic()


def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The good rows and the bad ones of what `apply` gave; each row is in one of them.

    Each of the two is computed on its own: in foreachBatch, `persist` what `apply` gave first.
    """
    bad = f.col(ERROR_COLUMN).isNotNull()
    return df.where(~bad), df.where(bad)


def dead_letters(df: DataFrame, *, topic: str | Column | None = None, group: str = "") -> DataFrame:
    """Bad rows as `format("moldau")` writes them: key, value, headers, and topic if it is given.

    The value is the raw one. Headers are those of the row (if they were read: includeHeaders), and
    the ones by which queues mark dead messages: why, and where from. `group` is who gave them up.
    """

    def header(name: str, text: Column) -> Column:
        value = f.coalesce(text.cast("string"), f.lit("")).cast("binary")
        return f.struct(f.lit(name).alias("key"), value.alias("value"))

    columns = {name.lower() for name in df.columns}
    missing = {RAW_COLUMN, ERROR_COLUMN} - columns
    if missing:
        raise InvalidArgumentError(
            f"dead letters are made of what decode.apply gave; {', '.join(sorted(missing))} is not "
            "there"
        )
    nothing = f.lit(None)
    told = {
        queue_headers.DEAD_REASON_HEADER: f.col(ERROR_COLUMN),
        queue_headers.DEAD_ATTEMPTS_HEADER: f.lit("1"),
        queue_headers.DEAD_GROUP_HEADER: f.lit(group),
        **{
            name: f.col(column) if column in columns else nothing
            for name, column in _ORIGIN.items()
        },
        queue_headers.DEAD_AT_HEADER: f.unix_millis(f.current_timestamp()),
    }
    headers = f.array(*[header(name, text) for name, text in told.items()])
    if "headers" in columns:
        # One that died before, and was sent again, says so once.
        own = f.filter(
            f.col("headers"), lambda item: ~item["key"].startswith(queue_headers.DEAD_PREFIX)
        )
        headers = f.concat(f.coalesce(own, f.array().cast(_HEADERS_TYPE)), headers)
    key = f.col("key") if "key" in columns else nothing.cast("binary").alias("key")
    chosen = [key, f.col(RAW_COLUMN).alias("value"), headers.alias("headers")]
    if topic is not None:
        # What is a column stays one.
        chosen.append(f.lit(topic).alias("topic"))
    return df.select(*chosen)


def infer(
    df: DataFrame, *, rows_max: int = SAMPLE_ROWS_DEFAULT, framing: str = Framing.NONE
) -> Any:
    """The schema of JSON from the first rows of a table, for `decoder("json", …)`.

    A pyarrow.StructType.
    """
    _check_input(df)
    found = df.where("value IS NOT NULL").select("value").limit(rows_max).collect()
    return infer_json((bytes(row[0]) for row in found), framing=framing)

"""Decoding in DataFrames: values become structs, and bad rows keep their bytes.

The functions work for batch and streaming DataFrames and in foreachBatch.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type

from moldau.client.errors import InvalidArgumentError
from moldau.model import queue_headers
from moldau.spark.decode.decoder import Decoder
from moldau.spark.decode.json_values import infer_json
from moldau.spark.formats import Format, Framing
from moldau.spark.schema import HEADERS_COLUMN

RAW_COLUMN: Final = "raw"
ERROR_COLUMN: Final = "error"
SAMPLE_ROWS_DEFAULT: Final = 1000
_DECODED: Final = "__moldau_decoded"
_ORIGIN: Final = {
    queue_headers.DEAD_TOPIC_HEADER: "topic",
    queue_headers.DEAD_PARTITION_HEADER: "partition",
    queue_headers.DEAD_OFFSET_HEADER: "offset",
}


def apply(df: DataFrame, decoder: Decoder) -> DataFrame:
    """`df` with `value` decoded, and the columns `raw` (its bytes) and `error` (null if good).

    Keeps all rows. A null value stays null and is not an error.
    """
    _check_input(df)
    value = f.col("value")
    if decoder.format is Format.RAW:
        no_error = f.lit(None).cast("string")
        return df.withColumns({"value": value, RAW_COLUMN: value, ERROR_COLUMN: no_error})
    decoded = df.withColumns({RAW_COLUMN: value, _DECODED: decoding(decoder)(value)})
    columns = {"value": f.col(f"{_DECODED}.value"), ERROR_COLUMN: f.col(f"{_DECODED}.error")}
    return decoded.withColumns(columns).drop(_DECODED)


def _check_input(df: DataFrame) -> None:
    types = {name.lower(): kind for name, kind in df.dtypes}
    if types.get("value") != "binary":
        found = f"has type {types['value']}" if "value" in types else "is missing"
        raise InvalidArgumentError(
            f"decoding needs the binary column value, which {found}",
            hint='cast it: .withColumn("value", col("value").cast("binary"))',
        )
    for name in (RAW_COLUMN, ERROR_COLUMN):
        if name in types:
            raise InvalidArgumentError(f"there is already a column {name}: rename it first")


def decoding(decoder: Decoder) -> Any:
    """A Spark UDF from a binary column to a struct of `value` and `error`."""
    fields = [("value", decoder.arrow_type), ("error", pa.string())]

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for column in batches:
            values, errors = decoder.arrays(column.to_pylist())
            yield pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    # Nondeterministic, so that the optimiser neither repeats the call nor moves a filter before it.
    kind = from_arrow_type(pa.struct(fields), prefer_timestamp_ntz=True)
    return f.arrow_udf(decode, returnType=kind).asNondeterministic()


def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The good and the bad rows of the result of `apply`.

    Each DataFrame is computed separately: in foreachBatch, `persist` the result of `apply` first.
    """
    bad = f.col(ERROR_COLUMN).isNotNull()
    return df.where(~bad), df.where(bad)


def dead_letters(df: DataFrame, *, topic: str | Column | None = None, group: str = "") -> DataFrame:
    """Bad rows as dead letters for `format("moldau")`: key, value, headers, and topic if given.

    The value is the raw one. Headers are those of the row (with includeHeaders), and those of dead
    letters of queues: the reason, the origin, and the `group`.
    """

    def header(name: str, text: Column) -> Column:
        value = f.coalesce(text.cast("string"), f.lit("")).cast("binary")
        return f.struct(f.lit(name).alias("key"), value.alias("value"))

    columns = {name.lower() for name in df.columns}
    missing = {RAW_COLUMN, ERROR_COLUMN} - columns
    if missing:
        raise InvalidArgumentError(
            f"dead letters need the result of decode.apply; {', '.join(sorted(missing))} is missing"
        )
    nothing = f.lit(None)
    values = {
        queue_headers.DEAD_REASON_HEADER: f.col(ERROR_COLUMN),
        queue_headers.DEAD_ATTEMPTS_HEADER: f.lit("1"),
        queue_headers.DEAD_GROUP_HEADER: f.lit(group),
        **{
            name: f.col(column) if column in columns else nothing
            for name, column in _ORIGIN.items()
        },
        queue_headers.DEAD_AT_HEADER: f.unix_millis(f.current_timestamp()),
    }
    headers = f.array(*[header(name, text) for name, text in values.items()])
    if "headers" in columns:
        # Replace the headers of an earlier dead letter.
        own = f.filter(
            f.col("headers"), lambda item: ~item["key"].startswith(queue_headers.DEAD_PREFIX)
        )
        headers = f.concat(f.coalesce(own, f.array().cast(HEADERS_COLUMN[1])), headers)
    key = f.col("key") if "key" in columns else nothing.cast("binary").alias("key")
    chosen = [key, f.col(RAW_COLUMN).alias("value"), headers.alias("headers")]
    if topic is not None:
        # `lit` leaves a Column as it is.
        chosen.append(f.lit(topic).alias("topic"))
    return df.select(*chosen)


def infer(
    df: DataFrame, *, rows_max: int = SAMPLE_ROWS_DEFAULT, framing: str = Framing.NONE
) -> Any:
    """The JSON schema of the first rows, for `decoder("json", …)`: a pyarrow.StructType."""
    _check_input(df)
    found = df.where("value IS NOT NULL").select("value").limit(rows_max).collect()
    return infer_json((bytes(row[0]) for row in found), framing=framing)

"""Owns decoding in Spark: a column of values becomes one of structs, and bad rows keep their bytes.

Values go to Python as Arrow, and come back as Arrow. The same functions serve tables, streams and
the tables of foreachBatch.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.model.queue_headers import (
    DEAD_AT_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_GROUP_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_PREFIX,
    DEAD_REASON_HEADER,
    DEAD_TOPIC_HEADER,
)
from moldau.spark.decode.column_types import Struct, ddl_of
from moldau.spark.decode.decoder import Decoder, Format
from moldau.spark.decode.framing import Framing
from moldau.spark.decode.infer import infer_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RAW_COLUMN: Final = "raw"
ERROR_COLUMN: Final = "error"
SAMPLE_ROWS_DEFAULT: Final = 1000
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_DECODED: Final = "__moldau_decoded"


def apply(df: "DataFrame", decoder: Decoder) -> "DataFrame":
    """`df` with `value` decoded, and the columns `raw` (its bytes) and `error` (null if good).

    Every row is there once. A null value stays null and is no error.
    """
    from pyspark.sql import functions as F  # noqa: N812

    _check_input(df)
    others = [F.col(_quoted(name)) for name in df.columns if name.lower() != "value"]
    raw = F.col("value").alias(RAW_COLUMN)
    if decoder.format is Format.RAW:
        error = F.lit(None).cast("string").alias(ERROR_COLUMN)
        return df.select(*_in_place(df, others, F.col("value")), raw, error)
    with_decoded = df.withColumn(_DECODED, decoding(decoder)(F.col("value")))
    value = F.col(f"{_DECODED}.value").alias("value")
    error = F.col(f"{_DECODED}.error").alias(ERROR_COLUMN)
    return with_decoded.select(*_in_place(df, others, value), raw, error)


def _in_place(df: "DataFrame", others: list["Column"], value: "Column") -> list["Column"]:
    place = [name.lower() for name in df.columns].index("value")
    return [*others[:place], value, *others[place:]]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_input(df: "DataFrame") -> None:
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
    from pyspark.sql.functions import arrow_udf

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for column in batches:
            values, errors = decoder.arrays(column.to_pylist())
            yield pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    import pyarrow as pa

    decode.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    kind = f"struct<value: {ddl_of(decoder.type)}, error: string>"
    # So that the optimiser neither doubles the call nor moves a filter in front of it.
    return arrow_udf(decode, returnType=kind).asNondeterministic()


def split(df: "DataFrame") -> tuple["DataFrame", "DataFrame"]:
    """The good rows and the bad ones of what `apply` gave; each row is in one of them.

    Each of the two is computed on its own: in foreachBatch, `persist` what `apply` gave first.
    """
    from pyspark.sql import functions as F  # noqa: N812

    bad = F.col(ERROR_COLUMN).isNotNull()
    return df.where(~bad), df.where(bad)


def dead_letters(
    df: "DataFrame", *, topic: "str | Column | None" = None, group: str = ""
) -> "DataFrame":
    """Bad rows as `format("moldau")` writes them: key, value, headers, and topic if it is given.

    The value is the raw one. Headers are those of the row (if they were read: includeHeaders), and
    the ones by which queues mark dead messages: why, and where from. `group` is who gave them up.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str, text: "Column") -> "Column":
        value = F.coalesce(text.cast("string"), F.lit("")).cast("binary")
        return F.struct(F.lit(name).alias("key"), value.alias("value"))

    columns = {name.lower() for name in df.columns}
    missing = {RAW_COLUMN, ERROR_COLUMN} - columns
    if missing:
        raise InvalidArgumentError(
            f"dead letters are made of what decode.apply gave; {', '.join(sorted(missing))} is not "
            "there"
        )
    nothing = F.lit(None)
    origin = [
        header(name, F.col(column) if column in columns else nothing)
        for name, column in (
            (DEAD_TOPIC_HEADER, "topic"),
            (DEAD_PARTITION_HEADER, "partition"),
            (DEAD_OFFSET_HEADER, "offset"),
        )
    ]
    said = F.array(
        header(DEAD_REASON_HEADER, F.col(ERROR_COLUMN)),
        header(DEAD_ATTEMPTS_HEADER, F.lit("1")),
        header(DEAD_GROUP_HEADER, F.lit(group)),
        *origin,
        header(DEAD_AT_HEADER, F.unix_millis(F.current_timestamp())),
    )
    headers = said
    if "headers" in columns:
        # One that died before, and was sent again, says so once.
        own = F.filter(F.col("headers"), lambda item: ~item["key"].startswith(DEAD_PREFIX))
        headers = F.concat(F.coalesce(own, F.array().cast(_HEADERS_TYPE)), said)
    key = F.col("key") if "key" in columns else nothing.cast("binary").alias("key")
    chosen = [key, F.col(RAW_COLUMN).alias("value"), headers.alias("headers")]
    if topic is not None:
        # What is a column stays one.
        chosen.append(F.lit(topic).alias("topic"))
    return df.select(*chosen)


def infer(
    df: "DataFrame", *, rows_max: int = SAMPLE_ROWS_DEFAULT, framing: str = Framing.NONE
) -> Struct:
    """The schema of JSON from the first rows of a table, for `decoder("json", …)`."""
    _check_input(df)
    found = df.where("value IS NOT NULL").select("value").limit(rows_max).collect()
    values = (None if row[0] is None else bytes(row[0]) for row in found)
    return infer_json(values, framing=framing)

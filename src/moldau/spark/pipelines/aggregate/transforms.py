"""The DataFrame transformations of an aggregate: decoding, late rows, the SQL view and results.

Every record is classified as on time, late or bad. The stream keeps the rows on time; late and bad
rows are found by reading the same offsets again with the same watermark (see `side_rows`). Both use
`classify`, so no record is lost between them.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.settings.aggregate import AggregateSettings
from moldau.spark.pipelines.spark_errors import from_text
from moldau.spark.pipelines.streaming import read_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""In the view their names begin with an underscore, to avoid clashes with fields of values."""
EVENT_TIME: Final = "event_time"
"""The column of the view for an event time that is an expression."""
ON_TIME: Final = 0
LATE: Final = 1
BAD: Final = 2
KEPT: Final = "__moldau_record_"
_ERROR: Final = "__moldau_error"
_TO: Final = "__moldau_to"
_STATUS: Final = "__moldau_status"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_ANSI: Final = "spark.sql.ansi.enabled"

Counts = dict[tuple[int, int], tuple[int, ...]]
"""By batch and task: how many rows are on time, late and bad."""


class Counting:
    """The operations of a Spark accumulator. A task that is retried is counted once."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value: Counts, other: Counts) -> Counts:  # noqa: N802
        return value | other


def flattened(records: "DataFrame", decoder: Decoder, *, with_records: bool = False) -> "DataFrame":
    """Decoded rows: the fields of values, the record's own columns, and the decoding error.

    `with_records`: also the original record, in columns that begin with `KEPT`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = decode.apply(records, decoder)
    struct = decoder.struct
    fields = [F.col("value")]
    taken = {"value"}
    if struct is not None:
        fields = [F.col("value").getField(each.name).alias(each.name) for each in struct]
        taken = {each.name.lower() for each in struct}
    own = [F.col(name).alias(f"_{name}") for name in RECORD_COLUMNS if f"_{name}" not in taken]
    kept = [F.col(name).alias(KEPT + name) for name in (*RECORD_COLUMNS, decode.RAW_COLUMN)]
    return rows.select(
        *fields, *own, F.col(decode.ERROR_COLUMN).alias(_ERROR), *(kept if with_records else ())
    )


def timed(rows: "DataFrame", settings: AggregateSettings) -> tuple["DataFrame", str]:
    """The rows with the event time as a timestamp column, and the name of that column.

    Raises InvalidArgumentError if it is not a timestamp.
    """
    from pyspark.sql import functions as F  # noqa: N812

    types = {name.lower(): (name, kind) for name, kind in rows.dtypes}
    expression = settings.event_time
    name, kind = types.get(expression.strip().strip("`").lower(), ("", ""))
    if kind == "timestamp":
        return rows, name
    if EVENT_TIME in types:
        raise InvalidArgumentError(
            f"--event-time {expression!r} is an expression and needs the column name "
            f"{EVENT_TIME}, but values have a field of that name",
            hint=f"to use the field {EVENT_TIME} as event time, it must be a timestamp",
        )
    conf = rows.sparkSession.conf
    before = conf.get(_ANSI)
    # An invalid time becomes null instead of an error: the row is bad, not the query.
    conf.set(_ANSI, "false")
    try:
        columns = [name for name in rows.columns if name != _ERROR]
        result = _analyzed(
            lambda: rows.withColumn(EVENT_TIME, F.expr(expression)),
            f"--event-time {expression}",
            columns,
        )
        # Forces the analysis while ANSI mode is off.
        kind = dict(result.dtypes)[EVENT_TIME]
    finally:
        conf.set(_ANSI, str(before))
    if kind != "timestamp":
        raise InvalidArgumentError(
            f"--event-time {expression} has type {kind}, and must be a timestamp",
            hint="of milliseconds: timestamp_millis(COLUMN) · of a text: to_timestamp(COLUMN)",
        )
    return result, EVENT_TIME


def _analyzed(make: "Callable[[], DataFrame]", option: str, columns: list[str]) -> "DataFrame":
    """Turns an analysis error of Spark into an InvalidArgumentError that names the option."""
    from pyspark.errors import AnalysisException

    try:
        return make()
    except AnalysisException as error:
        raise InvalidArgumentError(
            f"{option} is invalid: {from_text(str(error))}", hint=f"columns: {', '.join(columns)}"
        ) from None


def on_time(
    rows: "DataFrame", time: str, checkpoint: str, count: Callable[[Counts], None]
) -> "DataFrame":
    """The rows of a stream that are neither late nor bad. Each task calls `count` at its end."""
    from pyspark import TaskContext

    def batch_now() -> int:
        context: Any = TaskContext.get()
        return int(context.getLocalProperty(_BATCH_PROPERTY))

    def watermark() -> int:
        return read_batch(folder_at(checkpoint, {}), batch_now()).watermark_ms

    def add_counts(counts: tuple[int, ...]) -> None:
        context: Any = TaskContext.get()
        count({(batch_now(), context.partitionId()): counts})

    classified = _classified(rows, time, watermark, add_counts)
    return classified.where(f"{_STATUS} = {ON_TIME}").drop(_STATUS, _ERROR)


def _classified(
    rows: "DataFrame",
    time: str,
    watermark: Callable[[], int],
    add_counts: Callable[[tuple[int, ...]], None] = lambda _: None,
) -> "DataFrame":
    """With a column for the result of `classify`. Both functions run in tasks."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    def classify_batches(batches: Iterator[Any]) -> Iterator[Any]:
        watermark_ms = watermark()
        counts = [0, 0, 0]
        for times, errors in batches:
            found = classify(times, errors, watermark_ms)
            for each in found.value_counts().to_pylist():
                counts[each["values"]] += each["counts"]
            yield found
        add_counts(tuple(counts))

    classify_batches.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, pa.Array]],
        "return": Iterator[pa.Array],
    }
    status = F.arrow_udf(classify_batches, returnType="int").asNondeterministic()
    return rows.withColumn(_STATUS, status(F.col(f"`{time}`"), F.col(_ERROR)))


def classify(times: Any, errors: Any, watermark_ms: int) -> Any:
    """ON_TIME, LATE or BAD for Arrow arrays of event times (timestamps) and errors.

    Spark drops a row from a window that ends at or before the watermark, and from a group by the
    time itself if that is at or before it. Its watermark for late rows is never above that of the
    batch. So Spark never drops a row that is on time by this.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    is_late = pc.less_equal(micros, watermark_ms * 1000).cast(pa.int32())
    is_bad = pc.or_(pc.is_valid(errors), pc.is_null(micros))
    return pc.if_else(is_bad, pa.scalar(BAD, pa.int32()), is_late)


def side_rows(
    records: "DataFrame", decoder: Decoder, settings: AggregateSettings, watermark_ms: int
) -> "DataFrame":
    """The late and bad records of a batch, as they are written to their topics."""
    from pyspark.sql import functions as F  # noqa: N812

    found, time = timed(flattened(records, decoder, with_records=True), settings)
    classified = _classified(found, time, lambda: watermark_ms).where(f"{_STATUS} <> {ON_TIME}")
    is_bad = F.col(_STATUS) == BAD
    untimed = F.lit(f"no event time: {settings.event_time} is null")

    def iso(at: "Column") -> "Column":
        utc = F.to_utc_timestamp(at, F.current_timezone())
        return F.date_format(utc, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")

    late = F.format_string(
        "late: the event time %s is not after the watermark %s",
        iso(F.col(f"`{time}`")),
        iso(F.timestamp_millis(F.lit(watermark_ms))),
    )
    rows = classified.select(
        *[F.col(KEPT + name).alias(name) for name in (*RECORD_COLUMNS, decode.RAW_COLUMN)],
        F.when(is_bad, F.coalesce(_ERROR, untimed)).otherwise(late).alias(decode.ERROR_COLUMN),
        F.when(is_bad, settings.dead).otherwise(settings.late).alias(_TO),
    )
    return decode.dead_letters(rows, group=settings.name, topic=F.col(_TO))


def messages(result: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """Results for the sink: the key of --key, and all columns as JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("`" + name.replace("`", "``") + "`") for name in result.columns]
    value = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("value")
    key, topic = settings.key or "NULL", F.lit(settings.to_topic).alias("topic")
    return _analyzed(
        lambda: result.select(F.expr(key).cast("string").alias("key"), value, topic),
        f"--key {key}",
        result.columns,
    )


def queried(spark: "SparkSession", view: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """The result of the SQL over the view. Raises InvalidArgumentError."""
    view.createOrReplaceTempView(settings.view)
    result = _analyzed(lambda: spark.sql(settings.sql), "--sql", view.columns)
    if not result.isStreaming:
        raise InvalidArgumentError(
            f"--sql does not read the view {settings.view}", hint="--view sets its name"
        )
    names = [name.lower() for name in result.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"--sql has two columns named {twice[0]}", hint="rename one of them: AS …"
        )
    return result

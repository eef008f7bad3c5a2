"""Responsible for the tables of an aggregate: from records to the view of the SQL and to verdicts.

Every record gets one verdict: on time, late or bad. The stream keeps those on time; the others are
found again by reading the same offsets once more with the same watermark (see `side_rows`). Both
sides ask `verdicts_of`, so no record is on neither.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.spark_errors import from_text
from moldau.spark.pipelines.streaming import read_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from moldau.spark.pipelines.aggregate.pipeline import AggregateSettings

RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""In the view they begin with an underscore, so that fields of values come first."""
EVENT_TIME: Final = "event_time"
"""The column of the view that an expression for the event time gets."""
ON_TIME: Final = 0
LATE: Final = 1
BAD: Final = 2
KEPT: Final = "__moldau_record_"
_ERROR: Final = "__moldau_error"
_TO: Final = "__moldau_to"
_VERDICT: Final = "__moldau_verdict"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_ANSI: Final = "spark.sql.ansi.enabled"

Counts = dict[tuple[int, int], tuple[int, ...]]
"""By batch and task: how many rows are on time, late and bad."""


class Counting:
    """Of an accumulator of Spark's. A task that runs again says the same again: it counts once."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value: Counts, other: Counts) -> Counts:  # noqa: N802
        return value | other


def flattened(records: "DataFrame", decoder: Decoder, *, with_records: bool = False) -> "DataFrame":
    """Decoded: the fields of values, the record's own columns, and why a value is none.

    `with_records`: also each record as it was, in columns that begin with `KEPT`.
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


def timed(rows: "DataFrame", settings: "AggregateSettings") -> tuple["DataFrame", str]:
    """With the event time as a column of the type timestamp, and the name of that.

    InvalidArgumentError if it is none.
    """
    from pyspark.sql import functions as F  # noqa: N812

    types = {name.lower(): (name, kind) for name, kind in rows.dtypes}
    asked = settings.event_time
    name, kind = types.get(asked.strip().strip("`").lower(), ("", ""))
    if kind == "timestamp":
        return rows, name
    if EVENT_TIME in types:
        raise InvalidArgumentError(
            f"--event-time is the expression {asked!r}, whose values are to be the column "
            f"{EVENT_TIME}: values have a field of that name",
            hint=f"{EVENT_TIME} itself has to be a timestamp to be the event time",
        )
    conf = rows.sparkSession.conf
    before = conf.get(_ANSI)
    # A text that is no time gives null, not an error: it is a row that is bad, not the query.
    conf.set(_ANSI, "false")
    try:
        columns = [name for name in rows.columns if name != _ERROR]
        made = _understood(
            lambda: rows.withColumn(EVENT_TIME, F.expr(asked)), f"--event-time {asked}", columns
        )
        # Analysed here and now, while the setting is as it is.
        kind = dict(made.dtypes)[EVENT_TIME]
    finally:
        conf.set(_ANSI, str(before))
    if kind != "timestamp":
        raise InvalidArgumentError(
            f"--event-time {asked} is of type {kind}, and has to be a timestamp",
            hint="of milliseconds: timestamp_millis(COLUMN) · of a text: to_timestamp(COLUMN)",
        )
    return made, EVENT_TIME


def _understood(make: "Callable[[], DataFrame]", option: str, columns: list[str]) -> "DataFrame":
    """What Spark makes of an option. InvalidArgumentError says what is wrong with it."""
    from pyspark.errors import AnalysisException

    try:
        return make()
    except AnalysisException as error:
        said = f"{option} cannot be used: {from_text(str(error))}"
        raise InvalidArgumentError(said, hint=f"columns are {', '.join(columns)}") from None


def on_time(
    rows: "DataFrame", time: str, checkpoint: str, count: Callable[[Counts], None]
) -> "DataFrame":
    """The rows of a stream that are neither late nor bad. Each task tells `count` at its end."""
    from pyspark import TaskContext

    def batch_now() -> int:
        context: Any = TaskContext.get()
        return int(context.getLocalProperty(_BATCH_PROPERTY))

    def watermark() -> int:
        return read_batch(folder_at(checkpoint, {}), batch_now()).watermark_ms

    def told(counts: tuple[int, ...]) -> None:
        context: Any = TaskContext.get()
        count({(batch_now(), context.partitionId()): counts})

    judged = _judged(rows, time, watermark, told)
    return judged.where(f"{_VERDICT} = {ON_TIME}").drop(_VERDICT, _ERROR)


def _judged(
    rows: "DataFrame",
    time: str,
    watermark: Callable[[], int],
    told: Callable[[tuple[int, ...]], None] = lambda _: None,
) -> "DataFrame":
    """With a verdict for each row. Both functions are called in tasks."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    def judge(batches: Iterator[Any]) -> Iterator[Any]:
        watermark_ms = watermark()
        seen = [0, 0, 0]
        for times, errors in batches:
            verdicts = verdicts_of(times, errors, watermark_ms)
            for each in verdicts.value_counts().to_pylist():
                seen[each["values"]] += each["counts"]
            yield verdicts
        told(tuple(seen))

    judge.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, pa.Array]],
        "return": Iterator[pa.Array],
    }
    verdict = F.arrow_udf(judge, returnType="int").asNondeterministic()
    return rows.withColumn(_VERDICT, verdict(F.col(f"`{time}`"), F.col(_ERROR)))


def verdicts_of(times: Any, errors: Any, watermark_ms: int) -> Any:
    """Arrow arrays of event times (timestamps) and errors to one of verdicts.

    Spark drops a row from a window that ends at or before the watermark, and from a group that is
    the time itself if that is at or before it. Its watermark for late rows is never above that of
    the batch. So no row that is on time by this is ever dropped.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    is_late = pc.less_equal(micros, watermark_ms * 1000).cast(pa.int32())
    is_bad = pc.or_(pc.is_valid(errors), pc.is_null(micros))
    return pc.if_else(is_bad, pa.scalar(BAD, pa.int32()), is_late)


def side_rows(
    records: "DataFrame", decoder: Decoder, settings: "AggregateSettings", watermark_ms: int
) -> "DataFrame":
    """The late and the bad among the records of a batch, as they are written to their topics."""
    from pyspark.sql import functions as F  # noqa: N812

    found, time = timed(flattened(records, decoder, with_records=True), settings)
    judged = _judged(found, time, lambda: watermark_ms).where(f"{_VERDICT} <> {ON_TIME}")
    is_bad = F.col(_VERDICT) == BAD
    untimed = F.lit(f"no event time: {settings.event_time} is null")

    def iso(at: "Column") -> "Column":
        utc = F.to_utc_timestamp(at, F.current_timezone())
        return F.date_format(utc, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")

    late = F.format_string(
        "late: the event time %s is not after the watermark %s",
        iso(F.col(f"`{time}`")),
        iso(F.timestamp_millis(F.lit(watermark_ms))),
    )
    rows = judged.select(
        *[F.col(KEPT + name).alias(name) for name in (*RECORD_COLUMNS, decode.RAW_COLUMN)],
        F.when(is_bad, F.coalesce(_ERROR, untimed)).otherwise(late).alias(decode.ERROR_COLUMN),
        F.when(is_bad, settings.dead).otherwise(settings.late).alias(_TO),
    )
    return decode.dead_letters(rows, group=settings.name, topic=F.col(_TO))


def messages(result: "DataFrame", settings: "AggregateSettings") -> "DataFrame":
    """Results as the sink takes them: the key that was asked for, all columns as JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("`" + name.replace("`", "``") + "`") for name in result.columns]
    value = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("value")
    key, topic = settings.key or "NULL", F.lit(settings.to_topic).alias("topic")
    return _understood(
        lambda: result.select(F.expr(key).cast("string").alias("key"), value, topic),
        f"--key {key}",
        result.columns,
    )


def queried(spark: "SparkSession", view: "DataFrame", settings: "AggregateSettings") -> "DataFrame":
    """The SQL over the view. InvalidArgumentError says what is wrong with it."""
    view.createOrReplaceTempView(settings.view)
    result = _understood(lambda: spark.sql(settings.sql), "--sql", view.columns)
    if not result.isStreaming:
        raise InvalidArgumentError(
            f"--sql does not read the view {settings.view}", hint="its name is set by --view"
        )
    names = [name.lower() for name in result.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"--sql gives two columns the name {twice[0]}", hint="name one of them otherwise: AS …"
        )
    return result

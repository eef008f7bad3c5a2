"""Owns the tables of an aggregate: from records to the view that the SQL is over, and to verdicts.

Every record gets one verdict: on time, late or bad. The stream keeps those on time; the others are
found again by reading the same offsets once more with the same watermark (see `side_rows`). Both
sides use `event_time_of` and `is_late`'s rule, so no record is on neither.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder
from moldau.spark.lake.storage import Folder, folder_at
from moldau.spark.pipelines.aggregate.batches import read_batch
from moldau.spark.pipelines.aggregate.settings import EVENT_TIME, AggregateSettings
from moldau.spark.pipelines.failures import from_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""In the view they begin with an underscore, so that fields of values come first."""
ON_TIME: Final = 0
LATE: Final = 1
BAD: Final = 2
KEPT: Final = "__moldau_record_"
_ERROR: Final = "__moldau_error"
_TO: Final = "__moldau_to"
_VERDICT: Final = "__moldau_verdict"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_ANSI: Final = "spark.sql.ansi.enabled"


class Timed(NamedTuple):
    """Decoded records, and which column has their event time."""

    rows: "DataFrame"
    column: str


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


def timed(rows: "DataFrame", settings: AggregateSettings) -> Timed:
    """With the event time as a column of the type timestamp. InvalidArgumentError if it is none."""
    types = {name.lower(): (name, kind) for name, kind in rows.dtypes}
    wanted = settings.event_time.strip().strip("`")
    if wanted.lower() in types and types[wanted.lower()][1] == "timestamp":
        return Timed(rows, types[wanted.lower()][0])
    if EVENT_TIME in types:
        raise InvalidArgumentError(
            f"--event-time is the expression {settings.event_time!r}, whose values are to be the "
            f"column {EVENT_TIME}: values have a field of that name",
            hint=f"{EVENT_TIME} itself has to be a timestamp to be the event time",
        )
    made = _with_event_time(rows, settings)
    kind = dict(made.dtypes)[EVENT_TIME]
    if kind != "timestamp":
        raise InvalidArgumentError(
            f"--event-time {settings.event_time} is of type {kind}, and has to be a timestamp",
            hint="of milliseconds: timestamp_millis(COLUMN) · of a text: to_timestamp(COLUMN)",
        )
    return Timed(made, EVENT_TIME)


def _with_event_time(rows: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """A text that is no time gives null, not an error: it is a row that is bad, not the query."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    conf = rows.sparkSession.conf
    before = conf.get(_ANSI)
    conf.set(_ANSI, "false")
    try:
        made = rows.withColumn(EVENT_TIME, F.expr(settings.event_time))
        # Analysed here and now, while the setting is as it is.
        made.schema  # noqa: B018
    except AnalysisException as error:
        columns = ", ".join(name for name in rows.columns if name != _ERROR)
        raise InvalidArgumentError(
            f"--event-time {settings.event_time} cannot be used: {from_text(str(error))}",
            hint=f"columns are {columns}",
        ) from None
    finally:
        conf.set(_ANSI, str(before))
    return made


def on_time(found: Timed, checkpoint: Folder, count: Callable[[int, int], None]) -> "DataFrame":
    """The rows of a stream that are neither late nor bad; `count` hears of the others, in tasks."""
    from pyspark.sql import functions as F  # noqa: N812

    verdict = judging(checkpoint.location, count)(F.col(f"`{found.column}`"), F.col(_ERROR))
    judged = found.rows.withColumn(_VERDICT, verdict)
    return judged.where(F.col(_VERDICT) == ON_TIME).drop(_VERDICT, _ERROR)


def judging(checkpoint: str, count: Callable[[int, int], None]) -> Any:
    """A function of Spark's from event time and error to a verdict, by the watermark of the batch.

    `count(verdict, rows)` is called in tasks.
    """
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    def judge(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
        if number is None:
            raise InvalidArgumentError("rows are judged in batches of a stream only")
        watermark = read_batch(folder_at(checkpoint, {}), int(number)).watermark_ms
        for times, errors in batches:
            verdicts = verdicts_of(times, errors, watermark)
            for each in verdicts.value_counts().to_pylist():
                count(each["values"], each["counts"])
            yield verdicts

    judge.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, pa.Array]],
        "return": Iterator[pa.Array],
    }
    return arrow_udf(judge, returnType="int").asNondeterministic()


def verdicts_of(times: Any, errors: Any, watermark_ms: int) -> Any:
    """Arrow arrays of event times (timestamps) and errors to one of verdicts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    is_bad = pc.or_(pc.is_valid(errors), pc.is_null(micros))
    # The rule of `is_late`.
    is_late = pc.fill_null(pc.less_equal(micros, watermark_ms * 1000), False)
    return pc.if_else(
        is_bad,
        pa.scalar(BAD, pa.int32()),
        pc.if_else(is_late, pa.scalar(LATE, pa.int32()), pa.scalar(ON_TIME, pa.int32())),
    )


def side_rows(
    records: "DataFrame", decoder: Decoder, settings: AggregateSettings, watermark_ms: int
) -> "DataFrame":
    """The late and the bad among the records of a batch, as they are written to their topics."""
    from pyspark.sql import functions as F  # noqa: N812

    found = timed(flattened(records, decoder, with_records=True), settings)
    time = F.col(f"`{found.column}`")
    limit = F.timestamp_millis(F.lit(watermark_ms))
    reason = (
        F.when(F.col(_ERROR).isNotNull(), F.col(_ERROR))
        .when(time.isNull(), F.lit(f"no event time: {settings.event_time} is null"))
        .when(
            time <= limit,
            F.concat(
                F.lit("late: the event time "),
                _iso(time),
                F.lit(" is not after the watermark "),
                _iso(limit),
            ),
        )
    )
    is_bad = F.col(_ERROR).isNotNull() | time.isNull()
    topic = F.when(is_bad, F.lit(settings.dead)).otherwise(F.lit(settings.late))
    rows = found.rows.select(
        *[F.col(KEPT + name).alias(name) for name in (*RECORD_COLUMNS, decode.RAW_COLUMN)],
        reason.alias(decode.ERROR_COLUMN),
        topic.alias(_TO),
    ).where(F.col(decode.ERROR_COLUMN).isNotNull())
    return decode.dead_letters(rows, group=settings.name, topic=F.col(_TO))


def _iso(time: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    utc = F.to_utc_timestamp(time, F.current_timezone())
    return F.date_format(utc, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def messages(result: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """Results as the sink takes them: the key that was asked for, all columns as JSON."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("`" + name.replace("`", "``") + "`") for name in result.columns]
    value = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("value")
    if settings.key is None:
        return result.select(F.lit(None).cast("string").alias("key"), value)
    try:
        return result.select(F.expr(settings.key).cast("string").alias("key"), value)
    except AnalysisException as error:
        raise InvalidArgumentError(
            f"--key {settings.key} cannot be used: {from_text(str(error))}",
            hint=f"columns of the result are {', '.join(result.columns)}",
        ) from None


def queried(spark: "SparkSession", view: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """The SQL over the view. InvalidArgumentError says what is wrong with it."""
    from pyspark.errors import AnalysisException

    view.createOrReplaceTempView(settings.view)
    try:
        result = spark.sql(settings.sql)
        names = [name.lower() for name in result.columns]
    except AnalysisException as error:
        raise InvalidArgumentError(
            f"--sql cannot be run: {from_text(str(error))}",
            hint=f"columns of {settings.view} are {', '.join(view.columns)}",
        ) from None
    if not result.isStreaming:
        raise InvalidArgumentError(
            f"--sql does not read the view {settings.view}", hint="its name is set by --view"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"--sql gives two columns the name {twice[0]}", hint="name one of them otherwise: AS …"
        )
    return result

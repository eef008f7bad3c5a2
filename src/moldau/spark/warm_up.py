"""Owns the bit of everything that Spark does while the archive of its classes is made.

Batches and streams, aggregates, windows and joins, JSON and Parquet, a source and a sink in Python:
the classes that pipelines use are then in the archive. It needs no broker.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from moldau.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 100


def _rows() -> Iterator[pa.RecordBatch]:
    values = [b'{"id": %d, "kind": "k%d"}' % (number, number % 3) for number in range(_ROWS)]
    times = pa.array([number * 1_000_000 for number in range(_ROWS)], pa.timestamp("us", "UTC"))
    yield pa.RecordBatch.from_arrays([pa.array(values), times], names=["value", "timestamp"])


class _Reader(DataSourceReader):
    """So many rows of JSON, in Arrow's columns."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class _StreamReader(DataSourceStreamReader):
    """The same, once."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        return {"offset": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        return {"offset": _ROWS}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class _Writer(DataSourceStreamArrowWriter):
    """Counts what it is given."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 (Spark's name)
        pass

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        pass


class WarmUpSource(DataSource):
    """A source and sink in Python, as `moldau` is one."""

    @classmethod
    def name(cls) -> str:
        return "moldau_warm_up"

    def schema(self) -> str:
        return "value BINARY, timestamp TIMESTAMP"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _Writer()


def tables(spark: "SparkSession", folder: Path) -> None:
    """What batches use."""
    rows = spark.read.format("moldau_warm_up").load()
    parsed = rows.selectExpr(
        "from_json(CAST(value AS STRING), 'id LONG, kind STRING') AS v", "timestamp"
    ).selectExpr("v.id", "v.kind", "timestamp", "date_format(timestamp, 'yyyy-MM-dd') AS date")
    parsed.write.partitionBy("date").parquet(str(folder / "table"))
    table = spark.read.parquet(str(folder / "table"))
    table.createOrReplaceTempView("rows")
    spark.sql(
        "SELECT kind, count(*) AS n, max(id), row_number() OVER (ORDER BY kind) FROM rows"
        " WHERE id > 3 GROUP BY kind ORDER BY n DESC"
    ).collect()
    table.alias("a").join(table.alias("b"), "id").dropDuplicates(["id"]).toPandas()
    table.mapInArrow(lambda batches: batches, table.schema).count()


def streams(spark: "SparkSession", folder: Path) -> None:
    """What streams use: state, a watermark, a sink in Python, and a batch at a time."""
    rows = spark.readStream.format("moldau_warm_up").load()
    counts = (
        rows.withWatermark("timestamp", "1 minute")
        .selectExpr("window(timestamp, '10 seconds') AS w", "length(value) AS n")
        .groupBy("w")
        .count()
        .selectExpr("to_json(struct(*)) AS value")
    )
    for number, frame in enumerate((rows, counts)):
        frame.writeStream.format("moldau_warm_up").option(
            "checkpointLocation", str(folder / f"checkpoint-{number}")
        ).trigger(availableNow=True).start().awaitTermination()

    def one_batch(batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / "batches"))

    rows.writeStream.foreachBatch(one_batch).option(
        "checkpointLocation", str(folder / "checkpoint-batches")
    ).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """`python -m moldau.spark.warm_up JAVA_OPTIONS`: ends when Java has ended."""
    spark = session(
        "local[2]",
        "moldau warm-up",
        {"spark.driver.extraJavaOptions": sys.argv[1], "spark.driver.memory": "1g"},
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(WarmUpSource)
    for part in (tables, streams):
        with tempfile.TemporaryDirectory() as folder:
            try:
                part(spark, Path(folder))
            except PySparkException as error:
                # On a busy machine Spark's patience with its workers ends: what was loaded until
                # then, most of it at the start, is worth an archive, too.
                print(f"warming up was cut short: {error}", file=sys.stderr)
    java = spark.sparkContext._gateway.proc
    spark.stop()
    # The end of its input is Java's sign to end; it writes the archive then.
    java.stdin.close()
    sys.exit(java.wait())


if __name__ == "__main__":
    main()

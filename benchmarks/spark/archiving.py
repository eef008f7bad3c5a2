"""A topic into a table of Parquet files, and the same rows from Arrow files by Spark alone.

Both write rows partitioned by date. What is compared is the time that JVM and workers take for it,
from the start of the query to the commit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from moldau.spark.pipelines.spec import Progress
from moldau.spark.schema import arrow_schema, ddl


class ArrowFile(InputPartition):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class ArrowFilesReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> list[InputPartition]:
        return [ArrowFile(str(path)) for path in sorted(Path(self.folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import gc

        import pyarrow as pa

        gc.freeze()
        with pa.memory_map(partition.path) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


class ArrowFiles(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench-arrow-files"

    def schema(self) -> str:
        return ddl(include_headers=True)

    def reader(self, schema: Any) -> DataSourceReader:
        return ArrowFilesReader(self.options["folder"])


class Alone:
    """The context of a pipeline that nobody watches."""

    stopping = False

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def report(self, progress: Progress) -> None:
        """Reports nothing."""

    def dead_letters(self, count: int) -> None:
        """Nobody counts."""

    def watch(self, query: Any) -> None:
        query.awaitTermination()


def write_arrow_files(bootstrap: str, topic: str, folder: Path) -> None:
    """The rows of a topic, a file for each partition."""
    import pyarrow as pa

    from moldau.spark.source.readers import batch_reader

    schema = arrow_schema(include_headers=True)
    reader = batch_reader(
        {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    )
    for number, partition in enumerate(reader.partitions()):
        with pa.ipc.new_file(str(folder / f"{number}.arrow"), schema) as file:
            for batch in reader.read(partition):
                file.write_batch(batch)


def by_spark(spark: Any, source: Path, target: Path) -> Callable[[], None]:
    frame = spark.read.format("bench-arrow-files").option("folder", str(source)).load()
    dated = frame.selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd') date")
    return lambda: dated.write.partitionBy("date").mode("overwrite").parquet(str(target))


def by_archive(
    spark: Any, bootstrap: str, topic: str, home: Path, number: int
) -> Callable[[], None]:
    from moldau.spark.pipelines import archive

    settings = archive.SETTINGS(
        name=f"bench-archive-{topic}-{number}",
        bootstrap=bootstrap,
        home=str(home / f"home-{topic}-{number}"),
        topics=(topic,),
        to=str(home / f"table-{topic}-{number}"),
    )
    Path(settings.home).mkdir()
    return lambda: check(archive.run(settings, Alone(spark)))


def check(outcome: Any) -> None:
    if not outcome.ok or not outcome.rows:
        raise SystemExit(f"the archive failed: {outcome.summary}")


def compared(
    spark: Any,
    costs: Callable[[Any, Callable[[], None]], Any],
    bootstrap: str,
    topic: str,
    rounds: int,
) -> dict[str, list[Any]]:
    """What each way took, round by round."""
    spark.dataSource.register(ArrowFiles)
    took: dict[str, list[Any]] = {"archive": [], "arrow files": []}
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder:
        source = Path(folder) / "arrow"
        source.mkdir()
        write_arrow_files(bootstrap, topic, source)
        for number in range(rounds + 1):
            ours = costs(spark, by_archive(spark, bootstrap, topic, Path(folder), number))
            theirs = costs(spark, by_spark(spark, source, Path(folder) / "parquet"))
            shutil.rmtree(Path(folder) / f"table-{topic}-{number}")
            if number:  # The first round warms up the JVM and the workers.
                took["archive"].append(ours)
                took["arrow files"].append(theirs)
    return took

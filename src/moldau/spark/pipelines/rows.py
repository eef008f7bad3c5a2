"""DataFrames of lake tables and topics. Tasks access data files with pyarrow, without JARs."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import msgspec

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.spark.lake.model import DataFile
from moldau.spark.lake.open import Destination, open_table
from moldau.spark.lake.storage import open_folder
from moldau.spark.lake.table import LakeTable
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

IDENTITY: Final = ("topic", "partition", "offset")
NEEDED: Final = (*IDENTITY, "key", "value", "timestamp")
TASK_BYTES: Final = 64 * 1024 * 1024
"""Input size of a task, unless one file is larger."""
TASKS_MAX: Final = 2000


def existing_table(location: str, format: str, storage: Mapping[str, str]) -> tuple[LakeTable, Any]:
    """A table that an archive wrote, and its pyarrow.Schema.

    Raises NotFoundError if it does not exist, InvalidArgumentError if columns are missing.
    """
    table = open_table(location, format, storage=storage, partition_columns=None)
    schema = table.schema()
    if schema is None:
        raise NotFoundError(
            f"there is no {table.format} table at {table.location}",
            hint="is --format right? · create one: moldau pipeline run archive",
        )
    missing = [name for name in NEEDED if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"the table at {table.location} is not an archive: it has no column "
            f"{', '.join(missing)}",
            hint="only tables written by `moldau pipeline run archive` are supported",
        )
    return table, schema


def table_rows(
    spark: "SparkSession",
    table: LakeTable,
    schema: Any,
    files: Sequence[DataFile],
    columns: Sequence[str],
    *,
    path_column: str | None = None,
) -> "DataFrame":
    """The rows of data files of a table, which need not be committed yet.

    With `path_column` there is a column of that name with the path of each row's file.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    groups = grouped(files)
    layout = table.layout
    names = list(columns)
    fields = [schema.field(name) for name in names]
    if path_column is not None:
        fields.append(pa.field(path_column, pa.string()))

    def read(numbers: Iterable[Any]) -> Iterator[Any]:
        from moldau.spark.lake.parquet_files import read_files

        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            for file in groups[number]:
                for rows in read_files(layout, [file], schema, names):
                    if path_column is not None:
                        rows = rows.append_column(path_column, pa.repeat(file.path, rows.num_rows))
                    yield rows

    # One row for each task: the number of its group of files.
    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    return numbers.mapInArrow(read, from_arrow_schema(pa.schema(fields)))


def write_rows(
    rows: "DataFrame", table: Destination, schema: Any, label: str
) -> tuple[DataFile, ...]:
    """Writes data files, one per task and value of the partition columns; does not commit them."""
    import pyarrow as pa

    layout = table.layout

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        from moldau.spark.lake.parquet_files import write_files

        cast = (batch.cast(schema) for batch in batches)
        files = write_files(layout, schema, cast, label=label)
        yield pa.RecordBatch.from_pydict({"files": [msgspec.json.encode(files).decode()]})

    texts = [row[0] for row in rows.mapInArrow(write, "files string").collect()]
    found = [file for text in texts for file in msgspec.json.decode(text, type=list[DataFile])]
    return tuple(sorted(found, key=lambda file: file.path))


def discard(table: LakeTable, files: Iterable[DataFile]) -> None:
    """Deletes uncommitted files; a later `clean` removes those that cannot be deleted now."""
    folder = open_folder(table.layout)
    for file in files:
        try:
            folder.delete(file.path)
        except OSError as error:
            log.info("cannot delete the uncommitted file %s, --clean will: %s", file.path, error)


def topic_rows(
    spark: "SparkSession", options: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> "DataFrame":
    """The records of the ranges, each partition in one task and in order."""
    named: dict[str, dict[str, Any]] = {"assign": {}, "startingOffsets": {}, "endingOffsets": {}}
    for planned in ranges:
        partition = str(planned.partition)
        named["assign"].setdefault(planned.topic, []).append(planned.partition)
        named["startingOffsets"].setdefault(planned.topic, {})[partition] = planned.start
        named["endingOffsets"].setdefault(planned.topic, {})[partition] = planned.end
    texts = {name: json.dumps(value) for name, value in named.items()}
    return spark.read.format("moldau").options(**options, **texts).load()


def deduplicated(rows: "DataFrame") -> "DataFrame":
    """Each record once, however often it was written."""
    return rows.dropDuplicates(list(IDENTITY))


def newest(rows: "DataFrame", keys: "Sequence[str | Column]") -> "DataFrame":
    """The newest row of each topic and key, and all rows without a key.

    In a partition the highest offset is the newest. If a key is in several partitions, because
    their number has changed, the row with the latest timestamp is the newest of those.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    has_key = reduce(and_, (column.isNotNull() for column in columns))
    kept = rows.where(has_key)
    for group, order in (
        (("topic", "partition"), ("offset",)),
        (("topic",), ("timestamp", "partition")),
    ):
        window = Window.partitionBy(*group, *columns).orderBy(*map(F.desc, order))
        kept = kept.withColumn("_newest", F.row_number().over(window)).where("_newest = 1")
    return kept.drop("_newest").unionByName(rows.where(~has_key))


def row_hash(rows: "DataFrame", columns: Iterable[str]) -> "Column":
    """A 64-bit hash of each row that also covers which columns are null."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = {field.name: field.dataType for field in rows.schema.fields}
    leaves = [leaf for name in columns for leaf in _leaves(F.col(name), kinds[name])]
    return F.xxhash64(*leaves) if leaves else F.lit(0).cast("bigint")


def _leaves(value: "Column", kind: Any) -> list[Any]:
    """The inputs of the hash. Spark's hash skips nulls, so each is hashed as a flag, too."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind.typeName() == "struct":
        fields = [_leaves(value.getField(field.name), field.dataType) for field in kind.fields]
        return [*(leaf for field in fields for leaf in field), value.isNull()]
    # Spark cannot hash maps, since they have no order.
    if "map<" in kind.simpleString():
        value = F.to_json(F.struct(value), {"ignoreNullFields": "false"})
    return [value, value.isNull()]


def grouped(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """The files of each task: small neighbouring files share one."""
    total = sum(file.bytes for file in files)
    most = max(TASK_BYTES, total // TASKS_MAX)
    groups: list[list[DataFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: (sorted(file.partition.items()), file.path)):
        if not groups or size + file.bytes > most:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups

"""Responsible for the rows of a lake's tables in Spark: read from files, and written to new ones.

Files are read and written with pyarrow inside of Spark's tasks, so that neither Iceberg nor Delta
nor an object store needs anything of Java's.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.spark.lake.opening import open_table
from moldau.spark.lake.storage import Folder, open_folder
from moldau.spark.lake.table import DataFile, Destination, LakeTable, Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

IDENTITY: Final = ("topic", "partition", "offset")
NEEDED: Final = (*IDENTITY, "key", "value", "timestamp")
TASK_BYTES: Final = 64 * 1024 * 1024
"""What a task reads, unless one file alone is more."""
TASKS_MAX: Final = 2000
FOOTERS_AT_ONCE: Final = 16


def existing_table(location: str, format: str, storage: Mapping[str, str]) -> tuple[LakeTable, Any]:
    """A table that archives write to, and its pyarrow.Schema.

    Raises NotFoundError if there is none, InvalidArgumentError for one of another layout.
    """
    table = open_table(location, format, storage=storage, partition_columns=None)
    schema = table.schema()
    if schema is None:
        raise NotFoundError(
            f"there is no {table.format} table at {table.location}",
            hint="is it of another --format? · write one: moldau pipeline run archive",
        )
    missing = [name for name in NEEDED if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"the table at {table.location} is of another layout: it has no column "
            f"{', '.join(missing)}",
            hint="only tables that `moldau pipeline run archive` wrote can be used here",
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
    """The rows of some files of a table, also of files that are not committed yet.

    With `path_column` each has the path of its file in a column of that name.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    groups = grouped(files)
    names = list(columns)
    fields = [schema.field(name) for name in names]
    if path_column is not None:
        fields.append(pa.field(path_column, pa.string()))
    wanted = from_arrow_schema(pa.schema(fields))
    reader = _Reader(table.layout, schema, names, groups, path_column)
    # A row for each task, whose number says what it reads.
    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    return numbers.mapInArrow(reader, wanted)


class _Reader:
    """Reads the files of a task. Travels there."""

    def __init__(
        self,
        layout: Layout,
        schema: Any,
        columns: list[str],
        groups: list[list[DataFile]],
        path_column: str | None,
    ) -> None:
        self._layout = layout
        self._schema = schema
        self._columns = columns
        self._groups = groups
        self._path_column = path_column

    def __call__(self, numbers: Iterable[Any]) -> Iterator[Any]:
        from moldau.spark.lake.files import read_files

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file in self._groups[number]:
                    rows = read_files(self._layout, [file], self._schema, self._columns)
                    yield from rows if self._path_column is None else self._with(file, rows)

    def _with(self, file: DataFile, rows: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in rows:
            yield batch.append_column(self._path_column, pa.repeat(file.path, batch.num_rows))


def write_rows(
    rows: "DataFrame", table: Destination, schema: Any, label: str
) -> tuple[DataFile, ...]:
    """A file for each task, and each value of the partition columns. Nobody sees them yet."""
    written = rows.mapInArrow(_Writer(table.layout, schema, label), "file string").collect()
    return tuple(sorted((_file(row[0]) for row in written), key=lambda file: file.path))


class _Writer:
    """Writes the rows of a task; its result is a row for each file. Travels there."""

    def __init__(self, layout: Layout, schema: Any, label: str) -> None:
        self._layout = layout
        self._schema = schema
        self._label = label

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from moldau.spark.lake.files import write_files

        rows = (batch.cast(self._schema) for batch in batches)
        files = write_files(self._layout, self._schema, rows, label=self._label)
        texts = [
            json.dumps([file.path, file.rows, file.bytes, dict(file.partition)]) for file in files
        ]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["file"])


def _file(text: str) -> DataFile:
    path, rows, size, partition = json.loads(text)
    return DataFile(path=path, rows=rows, bytes=size, partition=partition)


def discard(table: LakeTable, files: Iterable[DataFile]) -> None:
    """Remove files that were never committed; best effort: a later `clean` removes the rest."""
    folder = open_folder(table.layout)
    for file in files:
        try:
            folder.delete(file.path)
        except OSError as error:
            log.info("%s was not removed: %s", file.path, error)


def row_hash(rows: "DataFrame", columns: Iterable[str]) -> "Column":
    """A number of 64 bits for each row. Nulls count: without key is not without value."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = {field.name: field.dataType for field in rows.schema.fields}
    said = [leaf for name in columns for leaf in _leaves(F.col(name), kinds[name])]
    return F.xxhash64(*said) if said else F.lit(0).cast("bigint")


def _leaves(value: "Column", kind: Any) -> list[Any]:
    """What is hashed of a column. A hash passes over nulls, also over those in a struct."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind.typeName() == "struct":
        fields = [_leaves(value.getField(field.name), field.dataType) for field in kind.fields]
        return [*(leaf for field in fields for leaf in field), value.isNull()]
    # Maps have no order, and so no hash.
    if "map<" in kind.simpleString():
        value = F.to_json(F.struct(value), {"ignoreNullFields": "false"})
    return [value, value.isNull()]


class OffsetBounds(NamedTuple):
    """The lowest and the highest offset of a file, whichever partition they are of."""

    first: int
    last: int


def offset_bounds(table: LakeTable, files: Sequence[DataFile]) -> dict[str, OffsetBounds | None]:
    """By the path of the file, from its footer; None where that does not say."""
    if not files:
        return {}
    folder = open_folder(table.layout)

    def look(file: DataFile) -> OffsetBounds | None:
        return _bounds_in(folder, file.path)

    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        return dict(zip((file.path for file in files), pool.map(look, files), strict=True))


def _bounds_in(folder: Folder, path: str) -> OffsetBounds | None:
    import pyarrow.parquet as pq

    try:
        with folder.open_input(path) as source:
            footer = pq.ParquetFile(source).metadata
    except FileNotFoundError:
        # Gone: whoever reads it will say so.
        return None
    places = [at for at in range(footer.num_columns) if footer.schema.column(at).path == "offset"]
    if not places:
        return None
    found = [
        footer.row_group(number).column(places[0]).statistics
        for number in range(footer.num_row_groups)
    ]
    if not found or any(each is None or not each.has_min_max for each in found):
        return None
    return OffsetBounds(min(each.min for each in found), max(each.max for each in found))


def grouped(files: Sequence[DataFile], task_bytes: int = TASK_BYTES) -> list[list[DataFile]]:
    """What each task reads: neighbours together, as long as they are small."""
    total = sum(file.bytes for file in files)
    most = max(task_bytes, total // TASKS_MAX)
    groups: list[list[DataFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: (sorted(file.partition.items()), file.path)):
        if not groups or size + file.bytes > most:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups

"""A source whose tasks write Parquet files, and return only their names to Spark.

An archive does not change rows. Passing them through Spark would convert each from Arrow to a Java
row and back, which costs more than all the rest. So Spark plans, limits, retries and checkpoints
the offsets of the source `moldau`; a task reads its offsets, writes them to data files, and returns
one row for each file. The driver commits the files of successful tasks; `clean` removes others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from moldau.spark.decode import ERROR_COLUMN, RAW_COLUMN
from moldau.spark.hints import shows_hints
from moldau.spark.lake.model import DataFile, Layout, TableFormat
from moldau.spark.lake.parquet_files import FileWriter
from moldau.spark.pipelines.archive.change_events import (
    DELETED,
    UpsertSettings,
    changed_rows,
    row_type,
    set_aside,
)
from moldau.spark.schema import arrow_schema
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.readers import StreamReader, read_partition

NAME: Final = "moldau_archive"
FILE: Final = "file"
UNKNOWN: Final = "unknown"
"""Counts of fields that are not in the schema, as JSON."""
RETURNED: Final = pa.schema(
    [
        (FILE, pa.string()),
        ("rows", pa.int64()),
        # Of a bad row.
        *(
            field.with_name(RAW_COLUMN) if field.name == "value" else field
            for field in arrow_schema(include_headers=True)
        ),
        (ERROR_COLUMN, pa.string()),
        (UNKNOWN, pa.string()),
    ]
)
"""What tasks return: one row for each file, each bad row, and the unknown fields."""
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTask:
    """How tasks process the rows of each topic."""

    layouts: Mapping[str, Layout]
    """Of the table of each topic."""
    label: str
    """Prefix of file names."""
    decoder: Any = None
    """None: raw values."""
    keep_raw: bool = False
    changes: UpsertSettings | None = None
    """None: append."""

    def steps(self, format: TableFormat) -> list[Callable[[Any], tuple[Any, Any]]]:
        """Functions from rows to good rows and bad rows, to be applied in order."""
        is_iceberg = format is TableFormat.ICEBERG
        steps: list[Callable[[Any], tuple[Any, Any]]] = []
        if self.decoder is not None:
            keep_raw = self.keep_raw or self.changes is not None or is_iceberg
            steps.append(partial(self.decoder.split, keep_raw=keep_raw))
        if self.changes is not None:
            steps.append(partial(changed_rows, changes=self.changes))
        return [*steps, within_calendar] if is_iceberg else steps

    def unknown(self, rows: Any) -> Counter[str]:
        """Counts of fields that are not in the schema."""
        if self.decoder is None:
            return Counter()
        found = self.decoder.unknown_fields(rows.column("value").to_pylist())
        names = (n for n in found if self.changes is None or self.changes.is_of_row(n))
        return Counter({name: found[name] for name in names})


def table_schema(
    decoder: Any = None, *, keep_raw: bool = False, changes: UpsertSettings | None = None
) -> Any:
    """The columns of an archived table. Raises InvalidArgumentError for missing key fields."""
    schema = arrow_schema(include_headers=True)
    if decoder is not None:
        kind = decoder.arrow_type if changes is None else row_type(decoder.arrow_type, changes)
        schema = schema.set(schema.get_field_index("value"), pa.field("value", kind))
    if keep_raw:
        schema = schema.append(pa.field(RAW_COLUMN, pa.binary()))
    # With upserts there are no partitions: a new version of a row may be of another day.
    return schema if changes is not None else schema.append(pa.field("date", pa.string()))


def source_of(task: ArchiveTask) -> type[DataSource]:
    """The data source that the pipeline registers; it is pickled with its task."""

    class ArchiveSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> Any:
            return from_arrow_schema(RETURNED)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            with shows_hints():
                return ArchiveReader(parse_read_options(self.options, streaming=True), task)

    return ArchiveSource


class ArchiveReader(StreamReader):
    """Plans as the source `moldau` does; its tasks write files."""

    def __init__(self, options: ReadOptions, task: ArchiveTask) -> None:
        super().__init__(options)
        self._task = task

    def __reduce__(self) -> tuple[Any, ...]:
        return ArchiveReader, (self._options, self._task)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return written(read_partition(self._options, partition), self._task)


def written(batches: Iterable[Any], task: ArchiveTask) -> Iterator[Any]:
    """Writes rows to files. Yields bad rows, then the counts of unknown fields, then the files."""
    schema = table_schema(task.decoder, keep_raw=task.keep_raw, changes=task.changes)
    if task.changes is not None:
        schema = schema.append(pa.field(DELETED, pa.bool_()))
    writers: dict[str, FileWriter] = {}
    unknown: Counter[str] = Counter()
    finished = False
    try:
        for topic, rows in (part for batch in batches for part in _by_topic(batch)):
            layout = task.layouts[topic]
            unknown.update(task.unknown(rows))
            for step in task.steps(layout.format):
                rows, bad = step(rows)
                if bad.num_rows:
                    names = [name for name in RETURNED.names if name in bad.schema.names]
                    yield _returned({name: bad.column(name) for name in names})
            if layout.location not in writers:
                writers[layout.location] = FileWriter(layout, schema, label=task.label)
            writer = writers[layout.location]
            if task.changes is not None:
                writer.write(rows)
                continue
            for day, part in by_day(rows):
                writer.write_part((day,), part)
        files = [
            (location, file) for location, writer in writers.items() for file in writer.close()
        ]
        finished = True
    finally:
        if not finished:
            for writer in writers.values():
                writer.abort()
    if unknown:
        yield _returned({UNKNOWN: [msgspec.json.encode(unknown).decode()]})
    if files:
        yield file_rows(files)


def _by_topic(batch: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each topic: several only if small ranges share a task."""
    topics = batch.column("topic").unique().to_pylist()
    for topic in topics:
        is_all = len(topics) == 1
        yield topic, batch if is_all else batch.filter(pc.equal(batch.column("topic"), topic))


def within_calendar(rows: Any) -> tuple[Any, Any]:
    """Rows of the years 1 to 9999, the range of Python's calendar and of pyiceberg; and others."""
    times = rows.column("timestamp").cast(pa.int64())
    is_out = pc.or_(pc.less(times, _FIRST_US), pc.greater(times, _LAST_US))
    return set_aside(rows, pc.if_else(is_out, "a timestamp outside of the years 1 to 9999", None))


def by_day(rows: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each UTC day, by their timestamp."""
    times = rows.column("timestamp").cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    days = times.unique()
    # By numpy, which supports years above 9999: a producer may confuse µs and ms.
    names = [str(day) for day in days.to_numpy(zero_copy_only=False)]
    for day, name in zip(days, names, strict=True):
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(times, day))


def file_rows(files: list[tuple[str, DataFile]]) -> Any:
    """One row for each data file of each table."""
    texts = [msgspec.json.encode(each).decode() for each in files]
    return _returned({FILE: texts, "rows": [file.rows for _, file in files]})


def file_of(text: str) -> tuple[str, DataFile]:
    """The table location, and a data file that a task wrote."""
    return msgspec.json.decode(text, type=tuple[str, DataFile])


def _returned(columns: Mapping[str, Any]) -> Any:
    count = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in RETURNED
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RETURNED)

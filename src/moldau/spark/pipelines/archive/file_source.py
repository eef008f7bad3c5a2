"""Responsible for a source whose tasks write Parquet files, and give Spark only their names.

An archive changes no row. Had Spark the rows, each would go from Python's Arrow into a row of Java
and back again, which costs more than all the rest. So what Spark plans, limits, retries and keeps
in its checkpoint are the offsets of the source `moldau`; a task reads its offsets, writes them to
files that nobody sees yet, and returns a row for each file. The driver commits the files of the
tasks that succeeded. What is left of others is removed by `clean` some day.
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
from moldau.spark.hints import hints_told
from moldau.spark.lake.parquet_files import FileWriter
from moldau.spark.lake.table import DataFile, Layout, TableFormat
from moldau.spark.pipelines.archive.change_events import (
    DELETED,
    Changes,
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
"""How often there were fields that the schema does not name, as JSON."""
RETURNED: Final = pa.schema(
    [
        (FILE, pa.string()),
        ("rows", pa.int64()),
        # Of a row that is not kept.
        *(
            field.with_name(RAW_COLUMN) if field.name == "value" else field
            for field in arrow_schema(include_headers=True)
        ),
        (ERROR_COLUMN, pa.string()),
        (UNKNOWN, pa.string()),
    ]
)
"""What tasks return: rows for files, for rows that are not kept, and for unknown fields."""
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTask:
    """What tasks do with the rows of each topic."""

    layouts: Mapping[str, Layout]
    """Where the table of each topic is."""
    label: str
    """Begins the names of files."""
    decoder: Any = None
    """None: values stay bytes."""
    keep_raw: bool = False
    changes: Changes | None = None
    """None: every record is kept."""

    def steps(self, format: TableFormat) -> list[Callable[[Any], tuple[Any, Any]]]:
        """Each takes rows, and gives those that go on and those that are not kept."""
        is_iceberg = format is TableFormat.ICEBERG
        steps: list[Callable[[Any], tuple[Any, Any]]] = []
        if self.decoder is not None:
            keep_raw = self.keep_raw or self.changes is not None or is_iceberg
            steps.append(partial(self.decoder.split, keep_raw=keep_raw))
        if self.changes is not None:
            steps.append(partial(changed_rows, changes=self.changes))
        return [*steps, within_calendar] if is_iceberg else steps

    def unknown(self, rows: Any) -> Counter[str]:
        """How often there are fields that the schema does not name."""
        if self.decoder is None:
            return Counter()
        found = self.decoder.unknown_fields(rows.column("value").to_pylist())
        told = (n for n in found if self.changes is None or self.changes.is_of_row(n))
        return Counter({name: found[name] for name in told})


def table_schema(
    decoder: Any = None, *, keep_raw: bool = False, changes: Changes | None = None
) -> Any:
    """The columns of an archived table. Raises InvalidArgumentError for keys that are not there."""
    schema = arrow_schema(include_headers=True)
    if decoder is not None:
        kind = decoder.arrow_type if changes is None else row_type(decoder.arrow_type, changes)
        schema = schema.set(schema.get_field_index("value"), pa.field("value", kind))
    if keep_raw:
        schema = schema.append(pa.field(RAW_COLUMN, pa.binary()))
    # A row that is replaced by one of another day would have to move: no partitions.
    return schema if changes is not None else schema.append(pa.field("date", pa.string()))


def source_of(work: ArchiveTask) -> type[DataSource]:
    """Registered by the pipeline itself; nobody else has a use for it. Travels with its work."""

    class ArchiveSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> Any:
            return from_arrow_schema(RETURNED)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            with hints_told():
                return ArchiveReader(parse_read_options(self.options, streaming=True), work)

    return ArchiveSource


class ArchiveReader(StreamReader):
    """Plans as the source `moldau` does; its tasks write files."""

    def __init__(self, options: ReadOptions, work: ArchiveTask) -> None:
        super().__init__(options)
        self._work = work

    def __reduce__(self) -> tuple[Any, ...]:
        return ArchiveReader, (self._options, self._work)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return written(read_partition(self._options, partition), self._work)


def written(batches: Iterable[Any], work: ArchiveTask) -> Iterator[Any]:
    """Write rows to files; first a row for each bad one, at the end a row for each file.

    And, before those, one for all fields that the schema does not name.
    """
    schema = table_schema(work.decoder, keep_raw=work.keep_raw, changes=work.changes)
    if work.changes is not None:
        schema = schema.append(pa.field(DELETED, pa.bool_()))
    writers: dict[str, FileWriter] = {}
    unknown: Counter[str] = Counter()
    finished = False
    try:
        for topic, rows in (part for batch in batches for part in _by_topic(batch)):
            layout = work.layouts[topic]
            unknown.update(work.unknown(rows))
            for step in work.steps(layout.format):
                rows, bad = step(rows)
                if bad.num_rows:
                    there = [name for name in RETURNED.names if name in bad.schema.names]
                    yield _returned({name: bad.column(name) for name in there})
            if layout.location not in writers:
                writers[layout.location] = FileWriter(layout, schema, label=work.label)
            writer = writers[layout.location]
            if work.changes is not None:
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
    """A batch is of one topic, mostly: of two where small ranges share a task."""
    topics = batch.column("topic").unique().to_pylist()
    for topic in topics:
        is_all = len(topics) == 1
        yield topic, batch if is_all else batch.filter(pc.equal(batch.column("topic"), topic))


def within_calendar(rows: Any) -> tuple[Any, Any]:
    """Rows of the years 1 to 9999, and others: Python's calendar, in which pyiceberg reckons."""
    times = rows.column("timestamp").cast(pa.int64())
    is_out = pc.or_(pc.less(times, _FIRST_US), pc.greater(times, _LAST_US))
    return set_aside(rows, pc.if_else(is_out, "a timestamp outside of the years 1 to 9999", None))


def by_day(rows: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each day, UTC, by their timestamp."""
    times = rows.column("timestamp").cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    days = times.unique()
    # By numpy, which has years above 9999: a producer that takes µs for ms must not stop us.
    names = [str(day) for day in days.to_numpy(zero_copy_only=False)]
    for day, name in zip(days, names, strict=True):
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(times, day))


def file_rows(files: list[tuple[str, DataFile]]) -> Any:
    """A row for each file of each table."""
    texts = [msgspec.json.encode(each).decode() for each in files]
    return _returned({FILE: texts, "rows": [file.rows for _, file in files]})


def file_of(text: str) -> tuple[str, DataFile]:
    """A file that a task wrote, and the table's location."""
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

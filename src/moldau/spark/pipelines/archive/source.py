"""Owns a source whose tasks write Parquet files, and give Spark only their names.

An archive changes no row. Had Spark the rows, each would go from Python's Arrow into a row of Java
and back again, which costs more than all the rest. So what Spark plans, limits, retries and keeps
in its checkpoint are the offsets of the source `moldau`; a task reads its offsets, writes them to
files that nobody sees yet, and returns a row for each file. The driver commits the files of the
tasks that succeeded. What is left of others is removed by `clean` some day.
"""

import base64
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from moldau.spark.decode import RAW_COLUMN
from moldau.spark.hints import tells_hints
from moldau.spark.lake.files import FileWriter
from moldau.spark.lake.table import DataFile, Layout, TableFormat
from moldau.spark.pipelines.archive.changes import (
    DELETED,
    Changes,
    changed_rows,
    check_keys,
    row_type,
)
from moldau.spark.schema import HEADERS_COLUMN, arrow_schema, headers_type
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.readers import StreamReader, read_partition

NAME: Final = "moldau_archive"
WORK: Final = "moldau.archive.work"
"""The option that holds what tasks have to know."""
DATE: Final = "date"
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999

BAD_COLUMNS: Final = (
    ("key", "binary"),
    ("raw", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    HEADERS_COLUMN,
    ("error", "string"),
)
FILE: Final = "file"
UNKNOWN: Final = "unknown"
"""How often there were fields that the schema does not name, as JSON."""
DDL: Final = ", ".join(
    f"{name} {kind}"
    for name, kind in ((FILE, "string"), ("rows", "bigint"), *BAD_COLUMNS, (UNKNOWN, "string"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
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

    def to_text(self) -> str:
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_text(text: str) -> "Work":
        found = pickle.loads(base64.b64decode(text))
        if not isinstance(found, Work):
            raise TypeError("this is no work of an archive")
        return found


def table_schema(
    decoder: Any = None, *, keep_raw: bool = False, changes: Changes | None = None
) -> Any:
    """The columns of an archived table. Raises InvalidArgumentError for keys that are not there."""
    schema = arrow_schema(include_headers=True)
    if decoder is not None:
        kind = decoder.arrow_type
        if changes is not None:
            kind = row_type(kind, changes.envelope)
            check_keys(changes, kind)
        schema = schema.set(schema.get_field_index("value"), pa.field("value", kind))
    if keep_raw:
        schema = schema.append(pa.field(RAW_COLUMN, pa.binary()))
    # A row that is replaced by one of another day would have to move: no partitions.
    return schema if changes is not None else schema.append(pa.field(DATE, pa.string()))


class ArchiveSource(DataSource):
    """Registered by the pipeline itself; nobody else has a use for it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return DDL

    @tells_hints
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        options = dict(self.options)
        work = Work.from_text(options.pop(WORK))
        return ArchiveReader(parse_read_options(options, streaming=True), work)


class ArchiveReader(StreamReader):
    """Plans as the source `moldau` does; its tasks write files."""

    def __init__(self, options: ReadOptions, work: Work) -> None:
        super().__init__(options)
        self._work = work

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_work": self._work}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_work"])  # type: ignore[misc]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return written(read_partition(self._options, partition), self._work)


def written(batches: Iterable[Any], work: Work) -> Iterator[Any]:
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
        for batch in batches:
            for topic, rows in _by_topic(batch):
                if work.decoder is not None:
                    names = work.decoder.unknown_fields(rows.column("value").to_pylist())
                    unknown.update(
                        {
                            n: names[n]
                            for n in names
                            if not work.changes or work.changes.is_of_row(n)
                        }
                    )
                    is_needed = work.layouts[topic].format is TableFormat.ICEBERG
                    keep_raw = work.keep_raw or work.changes is not None or is_needed
                    rows, bad = work.decoder.split(rows, keep_raw=keep_raw)
                    if bad.num_rows:
                        yield bad_rows(bad)
                if work.changes is not None:
                    rows, bad = changed_rows(rows, work.changes)
                    if bad.num_rows:
                        yield bad_rows(bad)
                if work.layouts[topic].format is TableFormat.ICEBERG:
                    rows, bad = within_calendar(rows)
                    if bad.num_rows:
                        yield bad_rows(bad)
                location = work.layouts[topic].location
                writer = writers.get(location)
                if writer is None:
                    writer = FileWriter(work.layouts[topic], schema, label=work.label)
                    writers[location] = writer
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
        yield _returned(1, {UNKNOWN: [json.dumps(unknown)]})
    if files:
        yield file_rows(files)


def _by_topic(batch: Any) -> Iterator[tuple[str, Any]]:
    """A batch is of one topic, mostly: of two where small ranges share a task."""
    topics = batch.column("topic").unique().to_pylist()
    if len(topics) == 1:
        yield topics[0], batch
        return
    for topic in topics:
        yield topic, batch.filter(pc.equal(batch.column("topic"), topic))


def within_calendar(rows: Any) -> tuple[Any, Any]:
    """Rows of the years 1 to 9999, and others: Python's calendar, in which pyiceberg reckons."""
    times = rows.column("timestamp").cast(pa.int64())
    is_within = pc.fill_null(
        pc.and_(pc.greater_equal(times, _FIRST_US), pc.less_equal(times, _LAST_US)), True
    )
    if pc.all(is_within).as_py() is not False:
        return rows, rows.slice(0, 0)
    bad = rows.filter(pc.invert(is_within))
    reason = pa.repeat("a timestamp outside of the years 1 to 9999", bad.num_rows)
    if RAW_COLUMN not in bad.schema.names:
        bad = bad.append_column(RAW_COLUMN, bad.column("value"))
    return rows.filter(is_within), bad.drop_columns(["value"]).append_column("error", reason)


def by_day(rows: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each day, UTC, by their timestamp."""
    if not rows.num_rows:
        return
    times = rows.column("timestamp").cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    days = times.unique()
    # By numpy, which has years above 9999: a producer that takes µs for ms must not stop us.
    names = [str(day) for day in days.to_numpy(zero_copy_only=False)]
    if len(names) == 1:
        yield names[0], rows
        return
    for day, name in zip(days, names, strict=True):
        yield name, rows.filter(pc.equal(times, day))


def file_rows(files: list[tuple[str, DataFile]]) -> Any:
    """A row for each file of each table."""
    texts = [msgspec.json.encode(each).decode() for each in files]
    return _returned(len(files), {FILE: texts, "rows": [file.rows for _, file in files]})


def file_of(text: str) -> tuple[str, DataFile]:
    """A file that a task wrote, and the table's location."""
    return msgspec.json.decode(text, type=tuple[str, DataFile])


def bad_rows(rows: Any) -> Any:
    """The columns of rows that could not be decoded."""
    there = rows.schema.names
    return _returned(
        rows.num_rows, {name: rows.column(name) for name, _ in BAD_COLUMNS if name in there}
    )


def _returned(count: int, columns: Mapping[str, Any]) -> Any:
    schema = returned_schema()
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def returned_schema() -> Any:
    """What `DDL` says, as Arrow has it."""
    return pa.schema(
        [
            (FILE, pa.string()),
            ("rows", pa.int64()),
            ("key", pa.binary()),
            ("raw", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("headers", headers_type()),
            ("error", pa.string()),
            (UNKNOWN, pa.string()),
        ]
    )

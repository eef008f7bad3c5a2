"""Responsible for the Parquet files of a table: how tasks write them, and how they are read.

A file per task and per value of the partition columns, below the folders that Hive's layout has
(`date=2026-01-31/…`). A file is whole and on the disk when `close` returns it; what was begun and
not closed is `abort`ed, or left to the table's `clean`.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import reduce
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.spark.lake.storage import open_folder
from moldau.spark.lake.table import (
    NULL_PARTITION,
    DataFile,
    LakeError,
    LakeTable,
    Layout,
    TableFormat,
)

GROUP_ROWS_MAX: Final = 256 * 1024
GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""A row group ends with the first of them: readers skip by it, and hold one in memory."""
OPEN_FILES_MAX: Final = 32
"""Of one task; with more values of the partition columns, the oldest is closed."""

_HEADER_KEYS: Final = "headers.list.element.key"
_DELTAS: Final = ("offset", "timestamp")
"""Numbers that go up in small steps: their differences take next to no room."""
_TEXT_LENGTH_MAX: Final = 32
"""Of a text that is worth its place in statistics."""


class _Open(NamedTuple):
    path: str
    partition: dict[str, str]
    sink: Any
    writer: Any
    held: list[Any]


class FileWriter:
    """Writes the rows of one task. Give it batches with the partition columns in them."""

    def __init__(self, layout: Layout, schema: Any, *, label: str = "part") -> None:
        """`schema` has the partition columns; `label` begins the names of the files."""
        self._layout = layout
        self._label = label
        self._folder = open_folder(layout)
        self._schema = pa.schema(
            [field for field in schema if field.name not in layout.partition_columns]
        )
        self._open: dict[tuple[str, ...], _Open] = {}
        self._done: list[DataFile] = []
        self._paths: list[str] = []
        """Of all files, done or not."""

    def write(self, batch: Any) -> None:
        """A pyarrow.RecordBatch whose columns are those of the schema, in any order."""
        if batch.num_rows:
            for values, rows in _by_partition(batch, self._layout.partition_columns):
                self.write_part(values, rows)

    def write_part(self, values: tuple[str, ...], rows: Any) -> None:
        """Rows that all have these values in the partition columns, which need not be in `rows`."""
        file = self._open.get(values) or self._begun(values)
        if not rows.schema.equals(self._schema):
            rows = completed(rows, self._schema, file.partition)
        file.held.append(rows)
        count = sum(batch.num_rows for batch in file.held)
        if count >= GROUP_ROWS_MAX or sum(batch.nbytes for batch in file.held) >= GROUP_BYTES_MAX:
            self._flush(file)

    def close(self) -> tuple[DataFile, ...]:
        """All files, whole and on the disk; none if no row came."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abort(self) -> None:
        """Remove what was written; it was not committed."""
        for file in self._open.values():
            # What made the task fail may keep a file from being closed, too.
            for opened in (file.writer, file.sink):
                with contextlib.suppress(pa.ArrowException, OSError):
                    opened.close()
        for path in self._paths:
            self._folder.delete(path)

    def _begun(self, values: tuple[str, ...]) -> _Open:
        if len(self._open) >= OPEN_FILES_MAX:
            fullest = max(self._open, key=lambda key: sum(b.num_rows for b in self._open[key].held))
            self._finish(fullest)
        partition = dict(zip(self._layout.partition_columns, values, strict=True))
        folder = "".join(f"{name}={quote(value, safe=' ')}/" for name, value in partition.items())
        path = f"{folder}{self._label}-{uuid.uuid4().hex}.parquet"
        self._paths.append(self._layout.staged_prefix + path)
        sink = self._folder.open_output(self._paths[-1])
        encodings = _encodings(self._schema, self._layout.format)
        writer = pq.ParquetWriter(sink, self._schema, **encodings)
        self._open[values] = _Open(path, partition, sink, writer, [])
        return self._open[values]

    def _flush(self, file: _Open) -> None:
        if file.held:
            table = pa.Table.from_batches(file.held, self._schema)
            file.writer.write_table(table, row_group_size=2 * GROUP_ROWS_MAX)
            file.held.clear()

    def _finish(self, values: tuple[str, ...]) -> None:
        file = self._open[values]
        self._flush(file)
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._folder.sync(self._layout.staged_prefix + file.path)
        footer = file.writer.writer.metadata
        self._done.append(
            DataFile(
                path=file.path,
                rows=footer.num_rows,
                bytes=size,
                partition=file.partition,
                stats=_statistics(footer),
            )
        )
        del self._open[values]


def write_files(
    layout: Layout, schema: Any, batches: Iterable[Any], *, label: str = "part"
) -> tuple[DataFile, ...]:
    """The files of some batches, which have the partition columns. Removes them if one fails."""
    writer = FileWriter(layout, schema, label=label)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def read_files(
    layout: Layout,
    files: Iterable[DataFile],
    schema: Any,
    columns: Sequence[str] | None = None,
) -> Iterator[Any]:
    """Rows as pyarrow.RecordBatch, with the partition columns."""
    folder = open_folder(layout)
    names = list(schema.names if columns is None else columns)
    if strange := [name for name in names if name not in schema.names]:
        raise LakeError(f"the table at {layout.location} has no column {', '.join(strange)}")
    wanted = pa.schema([schema.field(name) for name in names])
    for file in files:
        try:
            source = folder.open_input(file.path)
        except FileNotFoundError:
            raise LakeError(
                f"{file.path} is not in {layout.location} any more",
                hint="files were replaced since the snapshot was taken, or removed by hand: read "
                "again",
            ) from None
        with source:
            parquet = pq.ParquetFile(source)
            _check_columns(parquet.schema_arrow, schema, file.path)
            inner = [name for name in names if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(batch_size=GROUP_ROWS_MAX // 4, columns=inner):
                yield completed(batch, wanted, file.partition)


def _check_columns(found: Any, schema: Any, path: str) -> None:
    """Files are read by the names of columns: after a rename, values would be lost."""
    lost = [field.name for field in found if field.name not in schema.names]
    for field in found:
        if field.name in schema.names and pa.types.is_struct(field.type):
            known = schema.field(field.name).type
            names = {inner.name for inner in known} if pa.types.is_struct(known) else set()
            lost += [f"{field.name}.{each.name}" for each in field.type if each.name not in names]
    if lost:
        raise LakeError(
            f"{path} has the column {', '.join(lost)}, which the table does not know",
            hint="it was renamed or dropped by somebody else: rewrite the table with that program",
        )


def read_table(table: LakeTable, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """All rows of a table as it is now."""
    schema = table.schema()
    if schema is None:
        return iter(())
    return read_files(table.layout, table.snapshot().files, schema, columns)


def completed(batch: Any, wanted: Any, partition: Mapping[str, str]) -> Any:
    """With the columns that are not in the file: the partition's, and those that came later."""
    columns = []
    for field in wanted:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        elif partition.get(field.name, NULL_PARTITION) != NULL_PARTITION:
            value = pa.scalar(partition[field.name]).cast(field.type)
            columns.append(pa.repeat(value, batch.num_rows))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def is_data_path(path: str, partition_columns: Sequence[str]) -> bool:
    """Whether a table writes its files to such a path: below it may be other tables."""
    *folders, name = path.split("/")
    named = [folder.partition("=")[:2] for folder in folders]
    return name.endswith(".parquet") and named == [(name, "=") for name in partition_columns]


def _by_partition(batch: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The rows of each value of the partition columns, which is mostly one."""
    if not names:
        yield (), batch
        return
    keys = [pc.fill_null(batch.column(name).cast(pa.string()), NULL_PARTITION) for name in names]
    found = pa.table(keys, names=list(names)).group_by(list(names)).aggregate([]).to_pylist()
    for row in found:
        values = tuple(row[name] for name in names)
        masks = [pc.equal(key, value) for key, value in zip(keys, values, strict=True)]
        yield values, batch if len(found) == 1 else batch.filter(reduce(pc.and_, masks))


def _encodings(schema: Any, format: TableFormat) -> dict[str, Any]:
    """Statistics where somebody may ask for a range; no dictionary of what hardly repeats."""
    kinds = {field.name: field.type for field in schema}
    deltas = [name for name in _DELTAS if str(kinds.get(name)).startswith(("int64", "timestamp"))]
    return {
        "compression": "zstd",
        "compression_level": 1,
        # pyiceberg warns of each column that has none; it keeps the first bytes of long ones.
        "write_statistics": format is TableFormat.ICEBERG
        or [name for name, kind in kinds.items() if kind not in (pa.binary(), pa.large_binary())],
        "use_dictionary": [n for n, kind in kinds.items() if kind == pa.string()] + [_HEADER_KEYS],
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        "version": "2.6",
        "store_schema": True,
    }


def _statistics(footer: Any) -> dict[str, dict[str, Any]]:
    """Of columns, as Delta has them in its log: by them, engines skip files without a look."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        found = [group.column(at).statistics for group in groups]
        # With a dot it is a field of a struct, or the element of a list.
        if "." in name or not found or any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        if any(each.num_values and not each.has_min_max for each in found):
            continue
        try:
            bounds = [(each.min, each.max) for each in found if each.has_min_max]
        except OverflowError:
            # A year above 9999: Python's calendar has none.
            continue
        if bounds and all(_is_comparable(value) for pair in bounds for value in pair):
            lowest[name] = min(low for low, _ in bounds)
            highest[name] = max(high for _, high in bounds)
    return {"minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _is_comparable(value: object) -> bool:
    """Whether engines agree on how a value is written, and on its order."""
    # No floats: NaN is in no statistics, and above all numbers to some engines.
    if isinstance(value, str):
        return len(value) <= _TEXT_LENGTH_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)

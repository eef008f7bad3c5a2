"""Responsible for the Parquet files of a table: how tasks write them, and how they are read.

A file per task and per value of the partition columns, below the folders that Hive's layout has
(`date=2026-01-31/…`). A file is whole and on the disk when `close` returns it; what was begun and
not closed is `abort`ed, or left to the table's `clean`.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.spark.lake.storage import Folder, open_folder
from moldau.spark.lake.table import DataFile, LakeError, LakeTable, Layout, TableFormat

GROUP_ROWS_MAX: Final = 256 * 1024
GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""A row group ends with the first of them: readers skip by it, and hold one in memory."""
OPEN_FILES_MAX: Final = 32
"""Of one task; with more values of the partition columns, the fullest is closed."""
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

_DICTIONARY: Final = ("topic", "headers.list.element.key")
_DELTAS: Final = ("offset", "timestamp")
"""Numbers that go up in small steps: their differences take next to no room."""


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

    def write(self, batch: Any) -> None:
        """A pyarrow.RecordBatch whose columns are those of the schema, in any order."""
        if not batch.num_rows:
            return
        for values, rows in _by_partition(batch, self._layout.partition_columns):
            self.write_part(values, rows)

    def write_part(self, values: tuple[str, ...], rows: Any) -> None:
        """Rows that all have these values in the partition columns, which need not be in `rows`."""
        partition = dict(zip(self._layout.partition_columns, values, strict=True))
        if not rows.schema.equals(self._schema):
            rows = completed(rows, self._schema, partition)
        self._file(values).held.append(rows)
        self._flush(values, last=False)

    def close(self) -> tuple[DataFile, ...]:
        """All files, whole and on the disk; none if no row came."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abort(self) -> None:
        """Remove what was written; it was not committed."""
        for file in self._open.values():
            # What made the task fail may keep a file from being closed, too.
            with contextlib.suppress(pa.ArrowException, OSError):
                file.writer.close()
            with contextlib.suppress(pa.ArrowException, OSError):
                file.sink.close()
            self._remove(file.path)
        self._open.clear()
        for done in self._done:
            self._remove(done.path)
        self._done.clear()

    def _file(self, values: tuple[str, ...]) -> _Open:
        found = self._open.get(values)
        if found is not None:
            return found
        if len(self._open) >= OPEN_FILES_MAX:
            self._finish(max(self._open, key=lambda key: _rows(self._open[key].held)))
        partition = dict(zip(self._layout.partition_columns, values, strict=True))
        folder = "".join(f"{name}={quote(value, safe=' ')}/" for name, value in partition.items())
        path = f"{folder}{self._label}-{uuid.uuid4().hex}.parquet"
        sink = self._folder.open_output(self._layout.staged_prefix + path)
        encodings = _encodings(self._schema, self._layout.format)
        writer = pq.ParquetWriter(sink, self._schema, **encodings)
        found = self._open[values] = _Open(path, partition, sink, writer, [])
        return found

    def _flush(self, values: tuple[str, ...], *, last: bool) -> None:
        file = self._open[values]
        size = sum(batch.nbytes for batch in file.held)
        if file.held and (last or _rows(file.held) >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX):
            table = pa.Table.from_batches(file.held, self._schema)
            file.writer.write_table(table, row_group_size=2 * GROUP_ROWS_MAX)
            file.held.clear()

    def _finish(self, values: tuple[str, ...]) -> None:
        self._flush(values, last=True)
        file = self._open.pop(values)
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._folder.sync(self._layout.staged_prefix + file.path)
        rows = file.writer.writer.metadata.num_rows
        self._done.append(DataFile(path=file.path, rows=rows, bytes=size, partition=file.partition))

    def _remove(self, path: str) -> None:
        self._folder.delete(self._layout.staged_prefix + path)


def write_files(
    layout: Layout, schema: Any, batches: Iterable[Any], *, label: str = "part"
) -> tuple[DataFile, ...]:
    """The files of some batches, which have the partition columns. Removes them if one fails."""
    writer = FileWriter(layout, schema, label=label)
    finished = False
    try:
        for batch in batches:
            writer.write(batch)
        files = writer.close()
        finished = True
        return files
    finally:
        if not finished:
            writer.abort()


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
        with _opened(folder, file.path) as source:
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


def _opened(folder: Folder, path: str) -> Any:
    try:
        return folder.open_input(path)
    except FileNotFoundError:
        raise LakeError(
            f"{path} is not in {folder.location} any more",
            hint="files were replaced since the snapshot was taken, or removed by hand: read again",
        ) from None


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
    return (
        name.endswith(".parquet")
        and len(folders) == len(partition_columns)
        and all(
            folder.startswith(f"{column}=")
            for folder, column in zip(folders, partition_columns, strict=True)
        )
    )


def _by_partition(batch: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The rows of each value of the partition columns, which is mostly one."""
    if not names:
        yield (), batch
        return
    keys = [pc.fill_null(batch.column(name).cast(pa.string()), NULL_PARTITION) for name in names]
    distinct = [key.unique().to_pylist() for key in keys]
    if all(len(values) == 1 for values in distinct):
        yield tuple(values[0] for values in distinct), batch
        return
    grouped = pa.table(keys, names=list(names)).group_by(list(names)).aggregate([])
    for row in grouped.to_pylist():
        values = tuple(row[name] for name in names)
        mask = pc.equal(keys[0], values[0])
        for key, value in zip(keys[1:], values[1:], strict=True):
            mask = pc.and_(mask, pc.equal(key, value))
        yield values, batch.filter(mask)


def _rows(held: Iterable[Any]) -> int:
    return sum(batch.num_rows for batch in held)


def _encodings(schema: Any, format: TableFormat) -> dict[str, Any]:
    """Statistics where somebody may ask for a range; no dictionary of what hardly repeats."""
    flat = [field.name for field in schema if not _is_bytes(field.type)]
    deltas = {
        field.name: "DELTA_BINARY_PACKED"
        for field in schema
        if field.name in _DELTAS and (pa.types.is_int64(field.type) or _is_time(field.type))
    }
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        # pyiceberg warns of each column that has none; it keeps the first bytes of long ones.
        "write_statistics": True if format is TableFormat.ICEBERG else flat,
        "use_dictionary": sorted({*texts, *_DICTIONARY}),
        "column_encoding": deltas,
        "version": "2.6",
        "store_schema": True,
    }


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind))

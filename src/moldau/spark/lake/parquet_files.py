"""Writes and reads the Parquet data files of a table.

There is one file per task and value of the partition columns, in Hive's folder layout
(`date=2026-01-31/…`). A file is complete and on disk when `close` returns it; `abort`, or later the
table's `clean`, removes incomplete ones.
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

from moldau.spark.lake.model import NULL_PARTITION, DataFile, LakeError, Layout, TableFormat
from moldau.spark.lake.storage import open_folder

GROUP_ROWS_MAX: Final = 256 * 1024
GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limits of a row group: readers skip row groups, and hold one in memory."""
OPEN_FILES_MAX: Final = 32
"""Of one task; beyond that, the file with the most buffered rows is closed."""

_HEADER_KEYS: Final = "headers.list.element.key"
_DELTAS: Final = ("offset", "timestamp")
"""Columns that increase in small steps, so delta encoding is compact."""
_TEXT_LENGTH_MAX: Final = 32
"""Longer texts are left out of statistics."""


class _Open(NamedTuple):
    path: str
    partition: dict[str, str]
    sink: Any
    writer: Any
    buffered: list[Any]


class FileWriter:
    """Writes the rows of one task, which must include the partition columns."""

    def __init__(self, layout: Layout, schema: Any, *, label: str = "part") -> None:
        """`schema` includes the partition columns; `label` is the prefix of file names."""
        self._layout = layout
        self._label = label
        self._folder = open_folder(layout)
        self._schema = pa.schema(
            [field for field in schema if field.name not in layout.partition_columns]
        )
        self._open: dict[tuple[str, ...], _Open] = {}
        self._done: list[DataFile] = []
        self._paths: list[str] = []
        """Of all files, complete or not."""

    def write(self, batch: Any) -> None:
        """Writes a pyarrow.RecordBatch with the columns of the schema, in any order."""
        if batch.num_rows:
            for values, rows in _by_partition(batch, self._layout.partition_columns):
                self.write_part(values, rows)

    def write_part(self, values: tuple[str, ...], rows: Any) -> None:
        """Writes rows of one partition; `rows` need not have the partition columns."""
        file = self._open.get(values) or self._new_file(values)
        if not rows.schema.equals(self._schema):
            rows = completed(rows, self._schema, file.partition)
        file.buffered.append(rows)
        count = sum(batch.num_rows for batch in file.buffered)
        size = sum(batch.nbytes for batch in file.buffered)
        if count >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX:
            self._flush(file)

    def close(self) -> tuple[DataFile, ...]:
        """All files, complete and on disk; none if there were no rows."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abort(self) -> None:
        """Deletes the files, which were not committed."""
        for file in self._open.values():
            # Closing may fail for the same reason as the task.
            for opened in (file.writer, file.sink):
                with contextlib.suppress(pa.ArrowException, OSError):
                    opened.close()
        for path in self._paths:
            self._folder.delete(path)

    def _new_file(self, values: tuple[str, ...]) -> _Open:
        if len(self._open) >= OPEN_FILES_MAX:
            rows = {key: sum(b.num_rows for b in file.buffered) for key, file in self._open.items()}
            self._finish(max(rows, key=lambda key: rows[key]))
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
        if file.buffered:
            table = pa.Table.from_batches(file.buffered, self._schema)
            file.writer.write_table(table, row_group_size=2 * GROUP_ROWS_MAX)
            file.buffered.clear()

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
    """Writes batches, which must include the partition columns. Deletes the files on an error."""
    writer = FileWriter(layout, schema, label=label)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def read_files(
    layout: Layout, files: Iterable[DataFile], schema: Any, columns: Sequence[str]
) -> Iterator[Any]:
    """Rows as pyarrow.RecordBatch, with the partition columns."""
    folder = open_folder(layout)
    if unknown := [name for name in columns if name not in schema.names]:
        raise LakeError(f"the table at {layout.location} has no column {', '.join(unknown)}")
    wanted = pa.schema([schema.field(name) for name in columns])
    for file in files:
        try:
            source = folder.open_input(file.path)
        except FileNotFoundError:
            raise LakeError(
                f"{file.path} was deleted from {layout.location}",
                hint="the snapshot is outdated, or the file was deleted by hand: read again",
            ) from None
        with source:
            parquet = pq.ParquetFile(source)
            _check_columns(parquet.schema_arrow, schema, file.path)
            inner = [name for name in columns if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(batch_size=GROUP_ROWS_MAX // 4, columns=inner):
                yield completed(batch, wanted, file.partition)


def _check_columns(found: Any, schema: Any, path: str) -> None:
    """Files are read by column name: after a rename, values would be lost."""
    lost = [field.name for field in found if field.name not in schema.names]
    for field in found:
        if field.name in schema.names and pa.types.is_struct(field.type):
            known = schema.field(field.name).type
            names = {inner.name for inner in known} if pa.types.is_struct(known) else set()
            lost += [f"{field.name}.{each.name}" for each in field.type if each.name not in names]
    if lost:
        raise LakeError(
            f"{path} has the column {', '.join(lost)}, which is not in the table",
            hint="it was renamed or dropped by another program: rewrite the table with it",
        )


def completed(batch: Any, wanted: Any, partition: Mapping[str, str]) -> Any:
    """Adds the columns that are not in the file: partition columns, and newer ones as null."""
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
    """Whether the path can be a data file of the table: other tables may be below it."""
    *folders, name = path.split("/")
    named = [folder.partition("=")[:2] for folder in folders]
    return name.endswith(".parquet") and named == [(name, "=") for name in partition_columns]


def _by_partition(batch: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The rows of each value of the partition columns; mostly there is only one."""
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
    """Statistics for columns used in range filters; dictionaries only for repetitive columns."""
    kinds = {field.name: field.type for field in schema}
    deltas = [name for name in _DELTAS if str(kinds.get(name)).startswith(("int64", "timestamp"))]
    return {
        "compression": "zstd",
        "compression_level": 1,
        # pyiceberg warns about columns without statistics; it truncates long values itself.
        "write_statistics": format is TableFormat.ICEBERG
        or [name for name, kind in kinds.items() if kind not in (pa.binary(), pa.large_binary())],
        "use_dictionary": [n for n, kind in kinds.items() if kind == pa.string()] + [_HEADER_KEYS],
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        "version": "2.6",
        "store_schema": True,
    }


def _statistics(footer: Any) -> dict[str, dict[str, Any]]:
    """Column statistics for Delta's log, by which engines skip files."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        found = [group.column(at).statistics for group in groups]
        # A dot means a field of a struct, or the element of a list.
        if "." in name or not found or any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        if any(each.num_values and not each.has_min_max for each in found):
            continue
        try:
            bounds = [(each.min, each.max) for each in found if each.has_min_max]
        except OverflowError:
            # A year above 9999, which Python's calendar does not support.
            continue
        if bounds and all(_is_comparable(value) for pair in bounds for value in pair):
            lowest[name] = min(low for low, _ in bounds)
            highest[name] = max(high for _, high in bounds)
    return {"minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _is_comparable(value: object) -> bool:
    """Whether all engines agree on the encoding and order of a value."""
    # No floats: engines treat NaN differently.
    if isinstance(value, str):
        return len(value) <= _TEXT_LENGTH_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)

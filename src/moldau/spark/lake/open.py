"""Opens tables by format, and checks the location of a new table.

Cleaning a table deletes all data files below its location that are in none of its commits. So a new
table must not be created among other files, nor inside another table.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.model import TABLES, LakeError, TableFormat
from moldau.spark.lake.storage import is_local, normal_location, open_folder
from moldau.spark.lake.table import LakeTable

if TYPE_CHECKING:
    from moldau.spark.lake.parquet_export import ParquetExport

Destination: TypeAlias = "LakeTable | ParquetExport"
"""For appending batches."""
_OWN: Final = {
    TableFormat.DELTA: ("_delta_log/",),
    TableFormat.ICEBERG: ("metadata/", "_catalog.sqlite"),
}
"""Leftovers of an interrupted creation."""


def open_table(
    location: str,
    format: TableFormat | str,
    *,
    name: str | None = None,
    storage: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] | None = ("date",),
) -> LakeTable:
    """A table, which need not exist yet: `ensure` creates it.

    With `partition_columns=None` an existing table is opened as it is. `name` is its name in an
    Iceberg catalog, by default the last part of its location. `storage` are options of deltalake or
    pyiceberg for the storage and the catalog. Raises InvalidArgumentError, LakeError.
    """
    path = normal_location(location)
    columns = None if partition_columns is None else tuple(partition_columns)
    try:
        # Import only the packages of this format.
        if format == TableFormat.DELTA:
            from moldau.spark.lake.delta import DeltaLakeTable

            return DeltaLakeTable(path, storage or {}, columns)
        if format == TableFormat.ICEBERG:
            from moldau.spark.lake.iceberg import IcebergTable

            # A name that every catalog accepts.
            plain = re.sub(r"\W", "_", path.rsplit("/", 1)[-1]) or "table"
            return IcebergTable(path, storage or {}, columns, name or plain)
    except ImportError as error:
        raise LakeError(
            f"{format} tables need the package {error.name}",
            hint="install it: pip install 'moldau[spark]'",
        ) from None
    if format == TableFormat.PARQUET:
        raise InvalidArgumentError(
            f"{location} must be a table: plain Parquet files have no commits",
            hint=f"use --format {' or '.join(TABLES)}; only archives write plain files",
        )
    raise InvalidArgumentError(
        f"unknown table format {format!r}", hint=f"--format must be {' or '.join(TableFormat)}"
    )


def open_destination(
    location: str,
    format: TableFormat | str,
    *,
    storage: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] = ("date",),
) -> Destination:
    """A table, or plain Parquet files, for appending."""
    if format != TableFormat.PARQUET:
        return open_table(location, format, storage=storage, partition_columns=partition_columns)
    from moldau.spark.lake.parquet_export import ParquetExport

    return ParquetExport(normal_location(location), storage or {})


def check_location(table: Destination) -> None:
    """Raises InvalidArgumentError if a new table's location is not empty, or in another table."""
    path = Path(table.location)
    if is_local(table.location):
        if path.is_file():
            raise InvalidArgumentError(
                f"{path} is a file, but a table needs a folder", hint="use another folder"
            )
        for folder in (path, *path.parents):
            other = _format_at(folder)
            if other is not None and (folder, other) != (path, table.format):
                raise InvalidArgumentError(
                    f"{path} is {'' if folder == path else 'inside '}the {other} table "
                    f"{folder}, which would delete the new files as orphans",
                    hint=f"use another folder, or --format {other}",
                )
    if table.format is TableFormat.PARQUET or table.schema() is not None:
        return
    for found in open_folder(table.layout).list():
        if not found.path.startswith((".", *_OWN[table.format])):
            raise InvalidArgumentError(
                f"{table.location} is not a {table.format} table and not empty: it contains "
                f"{found.path}",
                hint="use an empty or a new folder",
            )


def _format_at(folder: Path) -> TableFormat | None:
    """The format of a table in a local folder; of Iceberg only with a catalog in the folder."""
    if (folder / "_delta_log").is_dir():
        return TableFormat.DELTA
    return TableFormat.ICEBERG if (folder / "_catalog.sqlite").is_file() else None

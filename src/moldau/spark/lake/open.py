"""Responsible for which class serves which format, and for where a new table may be.

Whoever cleans a table removes every data file below its location that no commit of it names. So a
table must not be begun among somebody else's files, nor inside another table.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import is_local, normal_location, open_folder
from moldau.spark.lake.table import TABLES, Destination, LakeError, LakeTable, TableFormat

_OWN: Final = {
    TableFormat.DELTA: ("_delta_log/",),
    TableFormat.ICEBERG: ("metadata/", "_catalog.sqlite"),
}
"""What a creation that was cut short leaves behind."""


def open_table(
    location: str,
    format: TableFormat | str,
    *,
    name: str | None = None,
    storage: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] | None = ("date",),
) -> LakeTable:
    """A table, whether it is there yet or not: `ensure` creates it.

    Without `partition_columns` a table is opened as it is, and cannot be created. `name` is what a
    catalog calls it (Iceberg), by default the last part of its location. `storage` says how the
    place is reached, in the words of deltalake or pyiceberg, and where Iceberg's catalog is.
    Raises InvalidArgumentError, LakeError.
    """
    place = normal_location(location)
    columns = None if partition_columns is None else tuple(partition_columns)
    try:
        # Only what a format needs is loaded.
        if format == TableFormat.DELTA:
            from moldau.spark.lake.delta import DeltaLakeTable

            return DeltaLakeTable(place, storage or {}, columns)
        if format == TableFormat.ICEBERG:
            from moldau.spark.lake.iceberg import IcebergTable

            # A name that every catalog takes.
            plain = re.sub(r"\W", "_", place.rsplit("/", 1)[-1]) or "table"
            return IcebergTable(place, storage or {}, columns, name or plain)
    except ImportError as error:
        raise LakeError(
            f"{format} tables need the package {error.name}",
            hint="install it: pip install 'moldau[spark]'",
        ) from None
    if format == TableFormat.PARQUET:
        raise InvalidArgumentError(
            f"{location} is to be a table, and plain Parquet files are none: nothing says which "
            "files belong together",
            hint=f"--format is {' or '.join(TABLES)}; only archives write plain files",
        )
    raise InvalidArgumentError(
        f"{format!r} is no format of a table", hint=f"--format is {' or '.join(TableFormat)}"
    )


def open_destination(
    location: str,
    format: TableFormat | str,
    *,
    storage: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] = ("date",),
) -> Destination:
    """A table, or plain Parquet files, for somebody who only appends."""
    if format != TableFormat.PARQUET:
        return open_table(location, format, storage=storage, partition_columns=partition_columns)
    from moldau.spark.lake.parquet_export import ParquetExport

    return ParquetExport(normal_location(location), storage or {})


def check_place(table: Destination) -> None:
    """Raises InvalidArgumentError if the table is yet to be made, and something else is there."""
    place = Path(table.location)
    if is_local(table.location):
        if place.is_file():
            raise InvalidArgumentError(
                f"{place} is a file, and a table is a folder", hint="name another folder"
            )
        for folder in (place, *place.parents):
            other = _format_at(folder)
            if other is not None and (folder, other) != (place, table.format):
                raise InvalidArgumentError(
                    f"{place} is {'' if folder == place else 'inside of '}the {other} table "
                    f"{folder}: what is written to it would be removed as left over",
                    hint=f"name a folder beside it, or its own --format {other}",
                )
    if table.format is TableFormat.PARQUET or table.schema() is not None:
        return
    for found in open_folder(table.layout).list():
        if not found.path.startswith((".", *_OWN[table.format])):
            raise InvalidArgumentError(
                f"{table.location} is no {table.format} table, and not empty: {found.path} is "
                "there",
                hint="name an empty folder, or one that is not there yet",
            )


def _format_at(folder: Path) -> TableFormat | None:
    """Of a table in a local folder; of Iceberg's, only those with a catalog in it."""
    if (folder / "_delta_log").is_dir():
        return TableFormat.DELTA
    return TableFormat.ICEBERG if (folder / "_catalog.sqlite").is_file() else None

"""Responsible for which class serves which format. Loads only what that format needs."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import normal_location
from moldau.spark.lake.table import TABLES, Destination, LakeTable, TableFormat

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


def open_table(
    location: str,
    format: TableFormat | str,
    *,
    name: str | None = None,
    storage: Mapping[str, str] = NO_OPTIONS,
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
        kind = TableFormat(format)
    except ValueError:
        raise InvalidArgumentError(
            f"{format!r} is no format of a table", hint=f"--format is {' or '.join(TableFormat)}"
        ) from None
    if kind is TableFormat.PARQUET:
        raise InvalidArgumentError(
            f"{location} is to be a table, and plain Parquet files are none: nothing says which "
            "files belong together",
            hint=f"--format is {' or '.join(TABLES)}; only archives write plain files",
        )
    if kind is TableFormat.DELTA:
        from moldau.spark.lake.delta import DeltaLakeTable

        return DeltaLakeTable(place, storage=storage, partition_columns=columns)
    from moldau.spark.lake.iceberg import IcebergTable

    return IcebergTable(
        place, name=name or table_name(place), storage=storage, partition_columns=columns
    )


def open_destination(
    location: str,
    format: TableFormat | str,
    *,
    storage: Mapping[str, str] = NO_OPTIONS,
    partition_columns: Sequence[str] = ("date",),
) -> Destination:
    """A table, or plain Parquet files, for somebody who only appends."""
    if format != TableFormat.PARQUET:
        return open_table(location, format, storage=storage, partition_columns=partition_columns)
    from moldau.spark.lake.export import ParquetExport

    return ParquetExport(normal_location(location), storage=storage, partition_columns=("date",))


def table_name(location: str) -> str:
    """A name that every catalog takes."""
    return re.sub(r"\W", "_", location.rstrip("/").rsplit("/", 1)[-1]) or "table"

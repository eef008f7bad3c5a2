"""Owns the way to a table: which class serves which format. Loads only what that format needs."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import normal_location
from moldau.spark.lake.table import LakeTable, TableFormat

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


def open_table(
    location: str,
    format: TableFormat | str,
    *,
    name: str | None = None,
    storage: Mapping[str, str] = NO_OPTIONS,
    partition_columns: Sequence[str] = ("date",),
) -> LakeTable:
    """A table, whether it is there yet or not: `ensure` creates it.

    `name` is what a catalog calls it (Iceberg), by default the last part of its location.
    `storage` says how S3 is reached (endpoint, access_key, secret_key, session_token, region) and
    where Iceberg's catalog is (catalog). Raises InvalidArgumentError, LakeError.
    """
    place = normal_location(location)
    columns = tuple(partition_columns)
    try:
        kind = TableFormat(format)
    except ValueError:
        raise InvalidArgumentError(
            f"{format!r} is no format of a table", hint=f"--format is {' or '.join(TableFormat)}"
        ) from None
    if kind is TableFormat.PARQUET:
        from moldau.spark.lake.parquet import ParquetTable

        return ParquetTable(place, storage=storage, partition_columns=columns)
    if kind is TableFormat.DELTA:
        from moldau.spark.lake.delta import DeltaLakeTable

        return DeltaLakeTable(place, storage=storage, partition_columns=columns)
    from moldau.spark.lake.iceberg import IcebergTable

    return IcebergTable(
        place, name=name or table_name(place), storage=storage, partition_columns=columns
    )


def table_name(location: str) -> str:
    """A name that every catalog takes."""
    return re.sub(r"\W", "_", location.rstrip("/").rsplit("/", 1)[-1]) or "table"

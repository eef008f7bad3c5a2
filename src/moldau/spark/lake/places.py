"""Responsible for where a new table may be: in a place of its own.

Whoever cleans a table removes every data file below its location that no commit of it names. So a
table must not be begun among somebody else's files, nor inside another table.
"""

from pathlib import Path
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import is_local, open_folder
from moldau.spark.lake.table import Destination, TableFormat

_OWN: Final = {
    TableFormat.DELTA: ("_delta_log/",),
    TableFormat.ICEBERG: ("metadata/", "_catalog.sqlite"),
}
"""What a creation that was cut short leaves behind."""


def check_place(table: Destination) -> None:
    """Raises InvalidArgumentError if the table is yet to be made, and something else is there."""
    if is_local(table.location):
        if Path(table.location).exists() and not Path(table.location).is_dir():
            raise InvalidArgumentError(
                f"{table.location} is a file, and a table is a folder", hint="name another folder"
            )
        _check_outer(table)
    if table.format is TableFormat.PARQUET:
        if (other := _format_at(table.location)) is not None:
            raise InvalidArgumentError(
                f"{table.location} is a {other} table: plain files in it would be removed as left "
                "over",
                hint="name another folder",
            )
        return
    if table.schema() is not None:
        return
    own = _OWN[table.format]
    for found in open_folder(table.layout).list():
        if found.path.startswith((".", *own)):
            continue
        raise InvalidArgumentError(
            f"{table.location} is no {table.format} table, and not empty: {found.path} is there",
            hint="name an empty folder, or one that is not there yet"
            if (other := _format_at(table.location)) is None
            else f"it is a table of --format {other}; a new one needs another folder",
        )


def _check_outer(table: Destination) -> None:
    for outer in Path(table.location).parents:
        if (found := _format_at(str(outer))) is not None:
            raise InvalidArgumentError(
                f"{table.location} is inside of the {found} table {outer}",
                hint="name a folder beside it",
            )


def _format_at(location: str) -> TableFormat | None:
    """Of a table in a local folder; of Iceberg's, only those with a catalog in it."""
    if not is_local(location):
        return None
    folder = Path(location)
    if (folder / "_delta_log").is_dir():
        return TableFormat.DELTA
    return TableFormat.ICEBERG if (folder / "_catalog.sqlite").is_file() else None

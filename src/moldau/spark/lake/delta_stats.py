"""Responsible for the statistics of Delta's files: by them, engines skip files without a look.

They stand in the footers of the Parquet files already; Delta wants them in its log, as JSON.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow.parquet as pq

from moldau.spark.lake.storage import open_folder
from moldau.spark.lake.table import Layout

_TEXT_LENGTH_MAX: Final = 32
_READERS_MAX: Final = 16


def delta_stats(layout: Layout, paths: Sequence[str]) -> list[str]:
    """Of each file, which must be there: raises FileNotFoundError."""
    if not paths:
        return []
    folder = open_folder(layout)

    def read(path: str) -> str:
        with folder.open_input(path) as file:
            return json.dumps(_stats(pq.read_metadata(file)))

    with ThreadPoolExecutor(min(_READERS_MAX, len(paths))) as readers:
        return list(readers.map(read, paths))


def _stats(footer: Any) -> dict[str, Any]:
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if "." in name:
            # A field of a struct or the element of a list.
            continue
        found = [
            footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)
        ]
        if not found or any(each is None for each in found):
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
        if bounds and all(_is_known(value) for pair in bounds for value in pair):
            lowest[name] = _plain(min(low for low, _ in bounds))
            highest[name] = _plain(max(high for _, high in bounds))
    return {
        "numRecords": footer.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _is_known(value: object) -> bool:
    """Whether engines agree on how a value is written, and on its order."""
    # No floats: NaN is in no statistics, and above all numbers to some engines.
    if isinstance(value, str):
        return len(value) <= _TEXT_LENGTH_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value

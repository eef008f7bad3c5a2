"""Owns the command line of the pipeline `compact`."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.options import Duration
from moldau.cli.pipeline.kind_options import STORAGE, TABLE_FORMAT, once_each

if TYPE_CHECKING:
    _SizeParam = click.ParamType[int]
else:
    _SizeParam = click.ParamType

SUMMARY: Final = "Merge small files of a lake's table and drop rows that are there twice."

EXAMPLES: Final = (
    "moldau pipeline run compact --table /lake/orders",
    "moldau pipeline run compact --table s3://lake/orders --format delta --date 2026-11-14",
    "moldau pipeline run compact --table /lake/users --latest-per-key --drop-tombstones",
)

CONTINUOUS: Final = False

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Size(_SizeParam):
    """Bytes: `134217728`, `128M`, `1G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no size; write 128M or 1G", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    click.option(
        "--table",
        required=True,
        metavar="LOCATION",
        help="The table: a folder, or s3://bucket/prefix.",
    ),
    TABLE_FORMAT,
    STORAGE,
    click.option(
        "--date",
        "dates",
        multiple=True,
        callback=once_each,
        metavar="YYYY-MM-DD",
        help="Only this partition; may be repeated. [default: all]",
    ),
    click.option(
        "--file-size", "file_bytes", type=Size(), metavar="SIZE", help="Of files. [default: 128M]"
    ),
    click.option(
        "--latest-per-key",
        is_flag=True,
        help="Keep only the newest row of each key of a topic, of all that is compacted.",
    ),
    click.option(
        "--drop-tombstones",
        is_flag=True,
        help="With --latest-per-key: drop that one, too, if it has no value.",
    ),
    click.option(
        "--clean",
        "clean_seconds",
        type=Duration(),
        metavar="AGE",
        help="Afterwards remove files older than that which no commit names, as 7d.",
    ),
)

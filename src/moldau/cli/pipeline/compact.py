"""The command line of the pipeline `compact`."""

import re
from typing import Any, Final

import click

from moldau.cli.options import Duration, ParamType
from moldau.cli.pipeline.kind_options import (
    STORAGE,
    TABLE_FORMAT,
    Option,
    many,
    once_each,
    switch,
    text,
)

SUMMARY: Final = "Merge small files of a table, and drop duplicate rows."

EXAMPLES: Final = (
    "moldau pipeline run compact --table /lake/orders",
    "moldau pipeline run compact --table s3://lake/orders --format delta --date 2026-11-14",
    "moldau pipeline run compact --table /lake/users --latest-per-key --drop-tombstones",
)

CONTINUOUS: Final = False

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Size(ParamType[int]):
    """Bytes: `134217728`, `128M`, `1G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a valid size; write 128M or 1G", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


OPTIONS: Final[tuple[Option, ...]] = (
    text("--table", "LOCATION", "The table: a folder, or s3://bucket/prefix.", required=True),
    TABLE_FORMAT,
    STORAGE,
    many(
        "--date", "dates", "YYYY-MM-DD", "Only this partition. [default: all]", callback=once_each
    ),
    text("--file-size", "SIZE", "Target size of files. [default: 128M]", "file_bytes", type=Size()),
    switch("--latest-per-key", "Keep only the newest row of each key, per topic."),
    switch("--drop-tombstones", "With --latest-per-key: also drop tombstones."),
    text(
        "--clean",
        "AGE",
        "Afterwards delete files older than this that no commit refers to, as 7d.",
        "clean_seconds",
        type=Duration(),
    ),
)

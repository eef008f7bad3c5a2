"""The settings of a compaction, and their validation. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

from moldau.spark.pipelines.settings.flag import Flag, Storage, TableFormatText
from moldau.spark.pipelines.spec import PipelineSettings

FILE_BYTES_DEFAULT: Final = 128 * 1024 * 1024
FILE_BYTES_MIN: Final = 64 * 1024
CLEAN_SECONDS_MIN: Final = 24 * 3600.0
"""Newer files may belong to a batch that is being written, and clocks may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings(PipelineSettings):
    """The settings of a compaction of one table that `archive` wrote."""

    kind = "compact"
    summary = "Merge small files of a table, and drop duplicate rows."
    examples = (
        "moldau pipeline run compact --table /lake/orders",
        "moldau pipeline run compact --table s3://lake/orders --format delta --date 2026-11-14",
        "moldau pipeline run compact --table /lake/users --latest-per-key --drop-tombstones",
    )
    can_run_continuously = False
    needs_brokers = False

    table: Annotated[str, Flag("The table: a folder, or s3://bucket/prefix.", "LOCATION")]
    table_format: TableFormatText = "delta"
    storage: Storage = field(default_factory=dict)
    dates: Annotated[
        tuple[str, ...], Flag("Only this partition. [default: all]", "YYYY-MM-DD", "--date")
    ] = ()
    file_bytes: Annotated[
        int, Flag("Target size of files. [default: 128M]", "SIZE", "--file-size")
    ] = FILE_BYTES_DEFAULT
    latest_per_key: Annotated[bool, Flag("Keep only the newest row of each key, per topic.")] = (
        False
    )
    drop_tombstones: Annotated[bool, Flag("With --latest-per-key: also drop tombstones.")] = False
    clean_seconds: Annotated[
        float | None,
        Flag(
            "Afterwards delete files older than this that no commit refers to, as 7d.",
            "AGE",
            "--clean",
        ),
    ] = None

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        yield not self.table, "a compaction needs a table", "name it: --table LOCATION"
        error = f"--file-size must be at least {FILE_BYTES_MIN} bytes"
        yield self.file_bytes < FILE_BYTES_MIN, error, ""
        is_partial = bool(self.dates) or not self.latest_per_key
        error = (
            "--drop-tombstones needs --latest-per-key, and excludes --date: otherwise rows that a "
            "tombstone deletes would come back"
        )
        yield self.drop_tombstones and is_partial, error, ""
        is_recent = self.clean_seconds is not None and self.clean_seconds < CLEAN_SECONDS_MIN
        error = (
            "--clean must be at least 1d: newer files may belong to a batch that is being written"
        )
        yield is_recent, error, ""

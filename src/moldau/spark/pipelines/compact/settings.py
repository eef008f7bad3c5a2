"""Owns what a compaction is told: which table, how large files become, and what may go."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import Settings

FILE_BYTES_DEFAULT: Final = 128 * 1024 * 1024
FILE_BYTES_MIN: Final = 64 * 1024
ATTEMPTS_DEFAULT: Final = 5
CLEAN_SECONDS_MIN: Final = 24 * 3600.0
"""Younger files may be those of a batch that is being written, and clocks may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings(Settings):
    """One table that `archive` wrote."""

    kind: ClassVar[str] = "compact"

    table: str
    """Its location: a folder, or s3://…"""
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    """Only these partitions; none is all."""
    file_bytes: int = FILE_BYTES_DEFAULT
    """About so large files become."""
    latest_per_key: bool = False
    """Of each key of a topic only the newest row stays."""
    drop_tombstones: bool = False
    """Not even that, if it has no value."""
    clean_seconds: float | None = None
    """Remove files that no commit names, and that are older than that."""
    attempts_max: int = ATTEMPTS_DEFAULT
    """How often to begin anew because others changed the same files."""

    def check(self) -> None:
        """Raises InvalidArgumentError for what contradicts itself."""
        if not self.table:
            raise InvalidArgumentError("a compaction needs a table", hint="name it: --table PLACE")
        for date in self.dates:
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
                raise InvalidArgumentError(f"--date is written as 2026-01-31, not {date!r}")
        if self.file_bytes < FILE_BYTES_MIN:
            raise InvalidArgumentError(f"--file-size is at least {FILE_BYTES_MIN} bytes")
        if self.drop_tombstones and not self.latest_per_key:
            raise InvalidArgumentError(
                "--drop-tombstones goes with --latest-per-key: without it, what a tombstone "
                "deletes would come back",
            )
        if self.drop_tombstones and self.dates:
            raise InvalidArgumentError(
                "--drop-tombstones looks at all dates: of those that --date leaves out, what a "
                "tombstone deletes would come back",
                hint="leave out --date, or --drop-tombstones",
            )
        if self.clean_seconds is not None and self.clean_seconds < CLEAN_SECONDS_MIN:
            raise InvalidArgumentError(
                "--clean is at least 1d: younger files may be those of a batch that is being "
                "written"
            )
        if self.attempts_max < 1:
            raise InvalidArgumentError("there must be at least one attempt")

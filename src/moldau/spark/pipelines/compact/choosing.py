"""Owns which files of a table are rewritten, and what is known of that without reading them. Pure,
but for the plan, which opens the table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import DataFile
from moldau.spark.pipelines.compact.settings import CompactSettings
from moldau.spark.pipelines.spec import Plan, Step

Part = tuple[tuple[str, str], ...]
"""The values of the partition columns."""
_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is rewritten of one partition of the table."""

    part: Part
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def part_of(file: DataFile) -> Part:
    return tuple(sorted(file.partition.items()))


def part_name(part: Part) -> str:
    return "/".join(f"{name}={value}" for name, value in part) or "the table"


def by_part(files: Sequence[DataFile], dates: Collection[str]) -> dict[Part, list[DataFile]]:
    """The files that may be looked at; with `dates`, only of those."""
    found: dict[Part, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (part_of(file), file.path)):
        if not dates or file.partition.get("date") in dates:
            found.setdefault(part_of(file), []).append(file)
    return found


def check_dates(files: Sequence[DataFile], dates: Collection[str]) -> None:
    """Raises InvalidArgumentError for a date of which the table has nothing."""
    there = {file.partition.get("date") for file in files}
    missing = sorted(set(dates) - {date for date in there if date is not None})
    if missing:
        raise InvalidArgumentError(
            f"the table has nothing of --date {', '.join(missing)}",
            hint="leave --date out to compact all there is",
        )


def small_ones(files: Sequence[DataFile], file_bytes: int) -> list[DataFile]:
    """Those that are worth merging: less than half as large as they should be, at least two."""
    small = [file for file in files if file.bytes < file_bytes // 2]
    return small if len(small) > 1 else []


def choose(
    parts: Mapping[Part, Sequence[DataFile]], doubled: Collection[Part], file_bytes: int
) -> list[Chosen]:
    """Small files; all files of a partition that holds rows twice."""
    chosen = []
    for part, files in parts.items():
        wanted = list(files) if part in doubled else small_ones(files, file_bytes)
        if wanted:
            chosen.append(Chosen(part=part, files=tuple(wanted)))
    return chosen


def file_count(size: float, file_bytes: int) -> int:
    """Files of about the wanted size that so many bytes make."""
    return max(1, round(size / file_bytes))


def plan_of(settings: CompactSettings) -> Plan:
    """Without reading rows: duplicates and old versions are found by a run."""
    from moldau.spark.pipelines.tables import existing_table

    settings.check()
    table, _ = existing_table(settings.table, settings.table_format, settings.storage)
    files = table.snapshot().files
    check_dates(files, settings.dates)
    parts = by_part(files, settings.dates)
    doubled = parts if settings.latest_per_key else ()
    chosen = choose(parts, doubled, settings.file_bytes)
    steps = [
        Step(
            what=f"{part_name(each.part)}: merge {len(each.files)} files into "
            f"{file_count(each.bytes, settings.file_bytes)}",
            rows=each.rows,
            bytes=each.bytes,
        )
        for each in chosen[:_LISTED_MAX]
    ]
    if chosen[_LISTED_MAX:]:
        rest = chosen[_LISTED_MAX:]
        steps.append(
            Step(
                what=f"the same in {len(rest)} partitions more",
                rows=sum(each.rows for each in rest),
                bytes=sum(each.bytes for each in rest),
            )
        )
    looked_at = [file for found in parts.values() for file in found]
    steps.append(
        Step(
            what="look for rows that are there twice"
            + (", and for older versions of keys" if settings.latest_per_key else ""),
            rows=sum(file.rows for file in looked_at),
            bytes=sum(file.bytes for file in looked_at),
        )
    )
    if settings.clean_seconds is not None:
        steps.append(Step(what="remove old files that no commit names"))
    return Plan(
        reads=(f"table {table.location}",),
        writes=(f"table {table.location}",),
        steps=tuple(steps),
        warnings=() if files else ("the table is empty",),
    )

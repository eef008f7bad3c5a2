"""Owns how the work of an audit is shared out to tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from moldau.spark.lake.table import DataFile
from moldau.spark.pipelines.audit.tally import BUCKET_OFFSETS, BucketKey
from moldau.spark.source.planning import OffsetRange, shared_out, split_ranges

TASKS_PER_CORE: Final = 2
TASK_OFFSETS_MIN: Final = 20_000
TASK_OFFSETS_MAX: Final = 5_000_000
TASK_ROWS_MIN: Final = 50_000


def topic_tasks(ranges: Sequence[OffsetRange], *, cores: int) -> list[tuple[OffsetRange, ...]]:
    """Ranges of topics, in about two tasks per core, or more if they would be too long."""
    split = split_ranges(
        ranges, partitions_min=TASKS_PER_CORE * cores, records_max=TASK_OFFSETS_MAX
    )
    return shared_out(split, offsets_min=TASK_OFFSETS_MIN)


def file_tasks(files: Sequence[DataFile], *, cores: int) -> list[tuple[DataFile, ...]]:
    """Files in the table's order: those that follow each other share buckets."""
    rows = sum(file.rows for file in files)
    most = max(TASK_ROWS_MIN, min(TASK_OFFSETS_MAX, -(-rows // (TASKS_PER_CORE * cores))))
    result: list[tuple[DataFile, ...]] = []
    held: list[DataFile] = []
    for file in files:
        held.append(file)
        if sum(each.rows for each in held) >= most:
            result.append(tuple(held))
            held = []
    return [*result, tuple(held)] if held else result


def narrowed(ranges: Iterable[OffsetRange], chosen: Iterable[BucketKey]) -> list[OffsetRange]:
    """Of ranges of topics, what lies in the chosen buckets; neighbours together."""
    numbers: dict[tuple[str, int], list[int]] = {}
    for key in sorted(chosen):
        if not key.is_expired:
            numbers.setdefault((key.topic, key.partition), []).append(key.number)
    result: list[OffsetRange] = []
    for planned in ranges:
        last: OffsetRange | None = None
        for number in numbers.get((planned.topic, planned.partition), ()):
            start = max(planned.start, number * BUCKET_OFFSETS)
            end = min(planned.end, (number + 1) * BUCKET_OFFSETS)
            if start >= end:
                continue
            if last is not None and last.end == start:
                last = replace(last, end=end)
                result[-1] = last
            else:
                last = replace(planned, start=start, end=end)
                result.append(last)
    return result

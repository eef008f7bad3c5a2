"""How an audit's work is shared out."""

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.spark.lake.table import DataFile
from moldau.spark.pipelines.audit.planning import (
    TASK_ROWS_MIN,
    file_tasks,
    narrowed,
    topic_tasks,
)
from moldau.spark.pipelines.audit.tally import BUCKET_OFFSETS, BucketKey
from moldau.spark.source.planning import OffsetRange


def wide(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic="t", partition=partition, start=start, end=end)


def test_every_offset_is_read_once() -> None:
    tasks = topic_tasks([wide(0, 1_000_000), wide(0, 10, 1), wide(5, 5, 2)], cores=2)
    ranges = [each for task in tasks for each in task]
    assert sum(each.size for each in ranges) == 1_000_010
    assert len(tasks) >= 4


def test_small_files_share_a_task_and_none_is_left_out() -> None:
    files = [DataFile(path=str(n), rows=TASK_ROWS_MIN // 4, bytes=1) for n in range(10)]
    tasks = file_tasks(files, cores=2)
    assert [file for task in tasks for file in task] == files
    assert [len(task) for task in tasks] == [4, 4, 2]
    assert file_tasks([], cores=2) == []


def test_only_buckets_that_differ_are_read_again() -> None:
    chosen = [
        BucketKey("t", 0, False, 1),
        BucketKey("t", 0, False, 2),
        BucketKey("t", 0, False, 4),
        BucketKey("t", 0, True, 0),
        BucketKey("t", 7, False, 0),
    ]
    end = 4 * BUCKET_OFFSETS + 5
    found = narrowed([wide(10, end), wide(0, 5, 1)], chosen)
    assert [(each.start, each.end) for each in found] == [
        (BUCKET_OFFSETS, 3 * BUCKET_OFFSETS),
        (4 * BUCKET_OFFSETS, end),
    ]

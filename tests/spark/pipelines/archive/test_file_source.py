"""What a task of an archive does, without Spark around it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of archives")

import pyarrow as pa
from lake_world import read_table

from moldau.spark import decode
from moldau.spark.lake import Writing, open_table
from moldau.spark.pipelines.archive.file_source import (
    RETURNED,
    ArchiveTask,
    by_day,
    file_of,
    table_schema,
    written,
)
from moldau.spark.schema import arrow_schema

pytestmark = pytest.mark.spark

DAY = 24 * 3600 * 1_000_000


def rows(first: int, end: int, *, topic: str = "orders", value: bytes = b'{"id": 1}') -> Any:
    """A record every six hours from the first of January 2026 on."""
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": None,
                "value": value,
                "topic": topic,
                "partition": 0,
                "offset": at,
                "timestamp": start + at * DAY // 4,
                "timestampType": 0,
                "headers": [],
            }
            for at in range(first, end)
        ],
        schema=arrow_schema(include_headers=True),
    )


def work_for(location: str, *topics: str, decoder: Any = None) -> ArchiveTask:
    table = open_table(location, "delta")
    table.ensure(table_schema(decoder))
    return ArchiveTask(layouts=dict.fromkeys(topics, table.layout), label="keep", decoder=decoder)


def test_a_day_ends_at_midnight_in_utc() -> None:
    days = [(day, part.column("offset").to_pylist()) for day, part in by_day(rows(0, 9))]
    assert days == [
        ("2026-01-01", [0, 1, 2, 3]),
        ("2026-01-02", [4, 5, 6, 7]),
        ("2026-01-03", [8]),
    ]


def test_years_that_no_calendar_of_python_has_are_days_too(tmp_path: Path) -> None:
    # Microseconds taken for milliseconds, and a record without a time.
    far = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000_000
    times = pa.array([far, -1000, far], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = rows(0, 3)
    at = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(at, batch.schema.field(at), times)
    days = [(day, part.column("offset").to_pylist()) for day, part in by_day(batch)]
    assert days == [("57971-02-25", [0, 2]), ("1969-12-31", [1])]
    (returned,) = written([batch], work_for(str(tmp_path), "orders"))
    files = [file_of(text)[1] for text in returned.column("file").to_pylist()]
    table = open_table(str(tmp_path), "delta")
    table.append(files, Writing("q", 0))
    assert sum(each.num_rows for each in read_table(table)) == 3


def test_a_task_returns_its_files_and_they_are_invisible_before_the_commit(tmp_path: Path) -> None:
    work = work_for(str(tmp_path), "orders", "clicks")
    batches = [rows(0, 5), rows(0, 2, topic="clicks"), rows(5, 6)]
    returned = list(written(batches, work))
    texts = [text for batch in returned for text in batch.column("file").to_pylist()]
    files = [file_of(text) for text in texts]
    assert {place for place, _ in files} == {str(tmp_path)}
    assert [file.rows for _, file in files] == [6, 2]
    assert [batch.column("rows").to_pylist() for batch in returned] == [[6, 2]]
    table = open_table(str(tmp_path), "delta")
    assert table.snapshot().rows == 0
    table.append([file for _, file in files], Writing("q", 0))
    assert table.snapshot().rows == 8


def test_rows_that_cannot_be_decoded_are_returned_with_the_reason(tmp_path: Path) -> None:
    decoder = decode.decoder("json", pa.struct([pa.field("id", pa.int64(), nullable=False)]))
    work = work_for(str(tmp_path), "orders", decoder=decoder)
    returned = list(written([rows(0, 2), rows(2, 3, value=b"nonsense")], work))
    assert all(batch.schema.equals(RETURNED) for batch in returned)
    bad, files = returned
    assert bad.column("offset").to_pylist() == [2]
    assert bad.column("raw").to_pylist() == [b"nonsense"]
    assert bad.column("error").to_pylist()[0]
    assert bad.column("file").to_pylist() == [None]
    _, file = file_of(files.column("file").to_pylist()[0])
    table = open_table(str(tmp_path), "delta")
    table.append([file], Writing("q", 0))
    (back,) = read_table(table, ["offset", "value"])
    assert back.to_pylist() == [
        {"offset": 0, "value": {"id": 1}},
        {"offset": 1, "value": {"id": 1}},
    ]


def test_a_task_that_fails_removes_what_it_wrote(tmp_path: Path) -> None:
    work = work_for(str(tmp_path), "orders")

    def broken() -> Iterator[Any]:
        yield rows(0, 3)
        raise OSError("the broker is away")

    with pytest.raises(OSError, match="away"):
        list(written(broken(), work))
    assert not list(tmp_path.rglob("*.staged"))


def test_a_task_without_rows_returns_nothing(tmp_path: Path) -> None:
    assert list(written([], work_for(str(tmp_path), "orders"))) == []

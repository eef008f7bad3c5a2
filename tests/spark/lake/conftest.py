"""Rows, and what is in a table, for the tests of lakes."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from lake_world import use_on_disk_once

from harness.kinds import PURE, kind_of
from moldau.spark.lake import LakeTable


@pytest.fixture
def schema() -> Any:
    """Of an archived table."""
    import pyarrow as pa

    from moldau.spark.schema import arrow_schema

    return arrow_schema(include_headers=True).append(pa.field("date", pa.string()))


@pytest.fixture
def rows(schema: Any) -> Callable[..., Any]:
    """`rows(0, 10)`: the offsets from 0 to 9, of two days in turn."""
    import pyarrow as pa

    def made(first: int, end: int) -> Any:
        return pa.RecordBatch.from_pylist(
            [
                {
                    "key": b"k%d" % at,
                    "value": b"v%d" % at,
                    "topic": "orders",
                    "partition": 0,
                    "offset": at,
                    "timestamp": datetime(2026, 1, 1 + at % 2, tzinfo=UTC),
                    "timestampType": 0,
                    "headers": [{"key": "h", "value": b"%d" % at}],
                    "date": f"2026-01-0{1 + at % 2}",
                }
                for at in range(first, end)
            ],
            schema=schema,
        )

    return made


def offsets(table: LakeTable) -> list[int]:
    """What is in a table, as its own readers see it."""
    from lake_world import read_table

    found = [batch.column("offset").to_pylist() for batch in read_table(table)]
    return sorted(offset for part in found for offset in part)


@pytest.fixture(name="offsets")
def offsets_fixture() -> Callable[[LakeTable], list[int]]:
    return offsets


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_used(request: pytest.FixtureRequest) -> None:
    if kind_of(request.path) != PURE:
        use_on_disk_once()

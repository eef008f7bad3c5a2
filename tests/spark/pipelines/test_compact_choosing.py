"""Which files of a table are rewritten, and into how many."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.model import DataFile
from moldau.spark.pipelines.compact import by_part, choose, file_count
from moldau.spark.pipelines.settings.compact import CompactSettings

MIB = 1024 * 1024


def a_file(date: str, size: int, name: str) -> DataFile:
    return DataFile(path=f"{date}/{name}", rows=10, bytes=size, partition={"date": date})


FILES = (
    a_file("2026-01-01", 1 * MIB, "a"),
    a_file("2026-01-01", 100 * MIB, "b"),
    a_file("2026-01-01", 2 * MIB, "c"),
    a_file("2026-01-02", 1 * MIB, "d"),
    a_file("2026-01-03", 90 * MIB, "e"),
    a_file("2026-01-03", 90 * MIB, "f"),
)


def names(chosen: Any) -> list[list[str]]:
    return [[file.path[-1] for file in files] for files in chosen.values()]


def test_small_files_are_merged_and_large_ones_left_alone() -> None:
    assert names(choose(by_part(FILES, ()), (), 100 * MIB)) == [["a", "c"]]


def test_all_files_of_a_partition_that_holds_rows_twice_are_rewritten() -> None:
    parts = by_part(FILES, ())
    doubled = ["date=2026-01-01", "date=2026-01-02"]
    assert names(choose(parts, doubled, 100 * MIB)) == [["a", "b", "c"], ["d"]]


def test_dates_narrow_what_is_looked_at() -> None:
    assert list(by_part(FILES, ("2026-01-03",))) == ["date=2026-01-03"]
    with pytest.raises(InvalidArgumentError, match="no data for --date 2026-02-01"):
        by_part(FILES, ("2026-01-03", "2026-02-01"))


def test_what_was_compacted_is_not_compacted_again() -> None:
    for size in (1, 60, 128, 190, 200, 1000, 12345):
        count = file_count(size * MIB, 128 * MIB)
        made = [a_file("2026-01-01", size * MIB // count, str(n)) for n in range(count)]
        assert choose(by_part(made, ()), (), 128 * MIB) == {}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"table": ""}, "needs a table"),
        ({"file_bytes": 10}, "--file-size must be at least"),
        ({"drop_tombstones": True}, "needs --latest-per-key"),
        (
            {"drop_tombstones": True, "latest_per_key": True, "dates": ("2026-01-31",)},
            "would come back",
        ),
        ({"clean_seconds": 60.0}, "--clean must be at least 1d"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(values: dict[str, Any], said: str) -> None:
    given = {"table": "/lake/orders", **values}
    settings = CompactSettings(name="c", bootstrap="b:1", home="/nowhere", **given)
    with pytest.raises(InvalidArgumentError, match=said):
        settings.check()

"""Tables of plain Parquet: killed at every step, and as plain readers see them."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from moldau.spark.lake import LakeError, Writing, open_table
from moldau.spark.lake.files import write_files
from moldau.spark.lake.parquet import ParquetTable
from moldau.spark.lake.parquet_log import STRIDE
from moldau.spark.lake.storage import Disk, LocalStore

pytestmark = pytest.mark.inprocess


class Killed(BaseException):
    """No error: nothing that the code under test does may follow, not even its clean-up."""


class DyingDisk(Disk):
    """Dies before its n-th step, or right after it; then does nothing any more."""

    def __init__(self, steps: int, *, after: bool) -> None:
        self.left = steps
        self.after = after
        self.is_dead = False

    def _step(self, do: Callable[[], None]) -> None:
        if self.is_dead:
            raise Killed
        self.left -= 1
        if self.left < 0:
            self.is_dead = True
            if self.after:
                do()
            raise Killed
        do()

    def write(self, path: Path, data: bytes) -> None:
        self._step(lambda: Disk.write(self, path, data))

    def sync(self, path: Path) -> None:
        self._step(lambda: None)

    def link(self, source: Path, target: Path) -> None:
        self._step(lambda: Disk.link(self, source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._step(lambda: Disk.rename(self, source, target))

    def unlink(self, path: Path) -> None:
        self._step(lambda: Disk.unlink(self, path))

    def make_folder(self, path: Path) -> None:
        self._step(lambda: Disk.make_folder(self, path))


def plain(location: Path) -> list[int]:
    """As somebody reads the folder who knows nothing of us."""
    found = ds.dataset(location, partitioning="hive").to_table(columns=["offset"])
    return sorted(found["offset"].to_pylist())


def table_on(location: Path, disk: Disk | None = None) -> ParquetTable:
    store = LocalStore(str(location), disk) if disk else None
    return ParquetTable(str(location), storage={}, partition_columns=("date",), store=store)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_of_an_append_the_batch_is_there_once_after_all(
    tmp_path: Path, schema: Any, rows: Any, offsets: Any, after: bool
) -> None:
    steps = 0
    while True:
        place = tmp_path / str(steps)
        whole = table_on(place)
        whole.ensure(schema)
        whole.append(write_files(whole.layout, schema, [rows(0, 4)]), Writing("q", 0))
        files = write_files(whole.layout, schema, [rows(4, 10)])
        disk = DyingDisk(steps, after=after)
        with contextlib.suppress(Killed):
            table_on(place, disk).append(files, Writing("q", 1))
        # Nothing half is seen by those who read the table, nothing uncommitted by anybody.
        is_committed = table_on(place).last_batch("q") == 1
        assert offsets(table_on(place)) == list(range(10 if is_committed else 4))
        seen = plain(place)
        assert set(seen) <= set(range(10 if is_committed else 4))
        assert len(seen) == len(set(seen))
        # Spark plays the batch again: tasks write their files once more.
        again = table_on(place)
        done = again.append(write_files(again.layout, schema, [rows(4, 10)]), Writing("q", 1))
        assert done is not is_committed
        assert offsets(table_on(place)) == list(range(10))
        assert plain(place) == list(range(10))
        if not disk.is_dead:
            break
        steps += 1
    assert steps > 8


def test_killed_at_any_step_of_a_replace_it_is_done_as_a_whole_or_not_at_all(
    tmp_path: Path, schema: Any, rows: Any, offsets: Any
) -> None:
    steps = 0
    while True:
        place = tmp_path / str(steps)
        whole = table_on(place)
        whole.ensure(schema)
        whole.append(write_files(whole.layout, schema, [rows(0, 6)]), Writing("q", 0))
        old = whole.snapshot().files
        new = write_files(whole.layout, schema, [rows(20, 26)])
        disk = DyingDisk(steps, after=False)
        with contextlib.suppress(Killed):
            table_on(place, disk).replace(old, new, Writing("compact", 0))
        found = offsets(table_on(place))
        assert found in (list(range(6)), list(range(20, 26)))
        again = table_on(place)
        if again.last_batch("compact") is None:
            redone = write_files(again.layout, schema, [rows(20, 26)])
            assert again.replace(old, redone, Writing("compact", 0))
        else:
            assert not again.replace(old, new, Writing("compact", 0))
        assert offsets(table_on(place)) == list(range(20, 26))
        assert plain(place) == list(range(20, 26))
        if not disk.is_dead:
            break
        steps += 1
    assert steps > 8


def test_plain_readers_do_not_see_files_that_are_not_committed(
    tmp_path: Path, schema: Any, rows: Any
) -> None:
    table = open_table(str(tmp_path), "parquet")
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 3)]), Writing("q", 0))
    write_files(table.layout, schema, [rows(3, 6)])
    assert plain(tmp_path) == [0, 1, 2]
    pandas = pytest.importorskip("pandas")
    assert sorted(pandas.read_parquet(tmp_path)["offset"]) == [0, 1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_an_old_table_is_opened_by_a_checkpoint_and_what_came_after(
    tmp_path: Path, schema: Any, rows: Any, offsets: Any
) -> None:
    table = open_table(str(tmp_path), "parquet")
    table.ensure(schema)
    for batch in range(STRIDE + 3):
        table.append((), Writing("q", batch))
    table.append(write_files(table.layout, schema, [rows(0, 3)]), Writing("q", STRIDE + 3))
    log = tmp_path / "_moldau" / "log"
    # Were they read, they would be missed.
    for version in range(STRIDE):
        (log / f"{version:020}.json").unlink()
    again = open_table(str(tmp_path), "parquet")
    assert again.last_batch("q") == STRIDE + 3
    assert offsets(again) == [0, 1, 2]
    assert again.schema().equals(table.schema())


def test_a_damaged_entry_of_the_log_is_an_error_that_names_it(tmp_path: Path, schema: Any) -> None:
    open_table(str(tmp_path), "parquet").ensure(schema)
    entry = tmp_path / "_moldau" / "log" / f"{0:020}.json"
    entry.write_bytes(entry.read_bytes()[:-20])
    with pytest.raises(LakeError, match=entry.name):
        open_table(str(tmp_path), "parquet").snapshot()


def test_clean_removes_what_no_commit_names_once_it_is_old(
    tmp_path: Path, schema: Any, rows: Any, offsets: Any
) -> None:
    table = table_on(tmp_path)
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 4)]), Writing("q", 0))
    write_files(table.layout, schema, [rows(4, 8)])
    assert table.clean() == 0
    assert table.clean(orphan_seconds_min=0) == 2
    assert offsets(table_on(tmp_path)) == [0, 1, 2, 3]
    assert not list(tmp_path.rglob("*.staged"))


def test_files_are_written_as_readers_want_them(tmp_path: Path, schema: Any, rows: Any) -> None:
    table = open_table(str(tmp_path), "parquet")
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 4), rows(4, 9)]), Writing("q", 0))
    files = table.snapshot().files
    assert [file.partition["date"] for file in files] == ["2026-01-01", "2026-01-02"]
    for file in files:
        footer = pq.ParquetFile(tmp_path / file.path).metadata
        assert file.bytes == (tmp_path / file.path).stat().st_size
        assert footer.num_rows == file.rows
        # Batches are joined, and the date stands in the folder's name.
        assert footer.num_row_groups == 1
        names = [footer.schema.column(at).path for at in range(footer.num_columns)]
        assert "date" not in names
        column = footer.row_group(0).column(names.index("offset"))
        assert column.compression == "ZSTD"
        assert column.statistics.has_min_max
        topic = footer.row_group(0).column(names.index("topic"))
        assert topic.has_dictionary_page

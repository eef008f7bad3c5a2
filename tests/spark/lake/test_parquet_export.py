"""Plain Parquet files: each row once, however often a batch is played."""

import uuid
from pathlib import Path
from typing import Any

import pytest

ds = pytest.importorskip("pyarrow.dataset", reason="the extra `spark` is not installed")

from moldau.client.errors import InvalidArgumentError  # noqa: E402
from moldau.spark.lake import Writing, open_table  # noqa: E402
from moldau.spark.lake.model import marked  # noqa: E402
from moldau.spark.lake.open import open_destination  # noqa: E402
from moldau.spark.lake.parquet_export import ParquetExport  # noqa: E402
from moldau.spark.lake.parquet_files import write_files  # noqa: E402
from moldau.spark.lake.storage import Folder  # noqa: E402

pytestmark = pytest.mark.inprocess


class Killed(BaseException):
    """Nothing that the code under test does may follow."""


def opened(place: Path) -> ParquetExport:
    found = open_destination(str(place), "parquet")
    assert isinstance(found, ParquetExport)
    return found


def rows_seen(place: Path) -> list[int]:
    """As any reader of Parquet folders sees them."""
    found = ds.dataset(str(place), format="parquet", partitioning="hive").to_table()
    return sorted(found["offset"].to_pylist()) if found.num_rows else []


@pytest.mark.safety
def test_killed_at_any_move_a_batch_is_there_once_when_it_is_played_again(
    tmp_path: Path, schema: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Folder.move
    for steps in range(3):
        place = tmp_path / str(steps)
        first = opened(place)
        first.ensure(schema)
        first.append(write_files(first.layout, schema, [rows(0, 4)]), Writing("q", 0))
        left = [steps]

        def dying(folder: Folder, source: str, target: str, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            move(folder, source, target)

        files = write_files(first.layout, schema, [rows(4, 8)])
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "move", dying)
            if steps < len(files):
                with pytest.raises(Killed):
                    first.append(files, Writing("q", 1))
            else:
                first.append(files, Writing("q", 1))
        again = opened(place)
        again.append(write_files(again.layout, schema, [rows(4, 8)]), Writing("q", 1))
        again.append(write_files(again.layout, schema, [rows(8, 10)]), Writing("q", 2))
        assert rows_seen(place) == list(range(10))
        assert not [path for path in (place / "_staged").rglob("*") if path.is_file()]


def test_files_of_two_queries_in_one_folder_leave_each_other_alone(
    tmp_path: Path, schema: Any, rows: Any
) -> None:
    for number, query in enumerate(("a", "b")):
        export = opened(tmp_path)
        files = write_files(export.layout, schema, [rows(number, number + 1)], label=query)
        export.append(files, Writing(query, 0))
    assert rows_seen(tmp_path) == [0, 1]


def test_who_wrote_the_files_is_known_by_their_names(
    tmp_path: Path, schema: Any, rows: Any
) -> None:
    export = opened(tmp_path)
    files = write_files(export.layout, schema, [rows(0, 1)], label="orders-eu")
    export.append(files, Writing(str(uuid.uuid4()), 0))
    assert opened(tmp_path).mark("writer.orders-eu") == marked("orders-eu")
    assert opened(tmp_path).mark("writer.orders") is None


def test_plain_files_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_table(str(tmp_path), "parquet")
    assert "--format delta or iceberg" in refused.value.hint

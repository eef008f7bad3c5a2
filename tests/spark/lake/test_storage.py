"""Places: their spelling, and files that are there as a whole or not at all."""

from pathlib import Path

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import folder_at, normal_location

pytestmark = pytest.mark.inprocess


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path), {})
    assert folder.read("deep/a.json") is None
    for data in (b"a", b"longer"):
        folder.write("deep/a.json", data)
        assert folder.read("deep/a.json") == data
    folder.write("top", b"")
    assert sorted(found.path for found in folder.list()) == ["deep/a.json", "top"]


def test_a_file_is_moved_into_a_folder_that_is_made_for_it(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path / "table"), {})
    folder.write("staged/a", b"a")
    folder.move("staged/a", "day=1/a")
    assert folder.read("day=1/a") == b"a"
    assert folder.read("staged/a") is None
    folder.delete("day=1/a")
    folder.delete("day=1/a")
    assert list(folder.list()) == []


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert list(folder_at(str(tmp_path / "nowhere"), {}).list()) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("s3a://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("gcs://bucket/t", "gs://bucket/t"),
        (
            "abfss://box@account.dfs.core.windows.net/t",
            "abfss://box@account.dfs.core.windows.net/t",
        ),
        ("hdfs://name:8020/lake/t", "hdfs://name:8020/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("/lake/t", "/lake/t"),
        ("/lake/a:b", "/lake/a:b"),
    ],
)
def test_locations_have_one_spelling(given: str, found: str) -> None:
    assert normal_location(given) == found


@pytest.mark.parametrize(
    "given", ["s3://bucket", "s3:///prefix", "ftp://name/t", "dbfs:/t", "gs:t", ""]
)
def test_a_place_that_cannot_hold_a_table_is_refused_with_the_option(given: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        normal_location(given)
    assert "--to" in refused.value.hint

"""Stores: what is created by one only, and where tables can be."""

import threading
from pathlib import Path

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import LocalStore, normal_location, open_store

pytestmark = pytest.mark.inprocess


def test_of_many_that_create_a_file_one_succeeds_and_its_bytes_stay(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    created: list[int] = []

    def create(number: int) -> None:
        store = LocalStore(str(tmp_path))
        barrier.wait()
        if store.create("log/1.json", b"%d" % number):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert LocalStore(str(tmp_path)).read("log/1.json") == b"%d" % created[0]
    assert [found.path for found in LocalStore(str(tmp_path)).list("")] == ["log/1.json"]


def test_a_move_of_what_is_gone_says_so_and_changes_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("staged/a", b"a")
    assert store.move("staged/a", "day=1/a")
    assert not store.move("staged/a", "day=1/a")
    assert store.read("day=1/a") == b"a"
    assert store.read("staged/a") is None


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("s3a://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("file:///lake/t", "/lake/t"),
        ("/lake/t", "/lake/t"),
        ("/lake/a:b", "/lake/a:b"),
    ],
)
def test_locations_have_one_spelling(given: str, found: str) -> None:
    assert normal_location(given) == found


@pytest.mark.parametrize(
    "given", ["s3://bucket", "s3:///prefix", "hdfs://name/t", "dbfs:/t", "gs:t", ""]
)
def test_a_place_that_cannot_hold_a_table_is_refused_with_the_option(given: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        normal_location(given)
    assert "--to" in refused.value.hint


def test_an_option_of_s3_for_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="endpoint"):
        open_store(str(tmp_path), {"endpoint": "http://localhost:1"})

"""A new table is in a place of its own: cleaning one removes the files that it does not know."""

import pytest

pytestmark = pytest.mark.inprocess

pa = pytest.importorskip("pyarrow", reason="the extra moldau[spark] is not installed")
pytest.importorskip("deltalake", reason="the extra moldau[spark] is not installed")
pytest.importorskip("pyiceberg", reason="the extra moldau[spark] is not installed")

from moldau.client.errors import InvalidArgumentError  # noqa: E402
from moldau.spark.lake import open_table  # noqa: E402
from moldau.spark.lake.model import TABLES  # noqa: E402
from moldau.spark.lake.open import check_location, open_destination  # noqa: E402

SCHEMA = pa.schema(
    [("id", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("date", pa.string())]
)
FORMATS = list(TABLES)


def made(folder, kind):
    table = open_table(str(folder), kind)
    check_location(table)
    table.ensure(SCHEMA)
    return table


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_made_in_a_new_or_empty_folder_and_opened_again(tmp_path, kind):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        made(tmp_path / name, kind)
        check_location(open_table(str(tmp_path / name), kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_not_begun_among_files_of_others(tmp_path, kind):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.parquet").write_bytes(b"mine")
    with pytest.raises(InvalidArgumentError, match=r"not empty: it contains mine/rows\.parquet"):
        check_location(open_table(str(tmp_path), kind))


@pytest.mark.parametrize("there", FORMATS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_folder_is_one_table_at_the_most(tmp_path, there, kind):
    if there is kind:
        return
    made(tmp_path / "lake", there)
    with pytest.raises(InvalidArgumentError) as raised:
        check_location(open_table(str(tmp_path / "lake"), kind))
    assert f"--format {there}" in raised.value.hint


@pytest.mark.parametrize("outer", FORMATS)
def test_a_table_is_not_made_inside_of_another(tmp_path, outer):
    made(tmp_path / "lake", outer)
    with pytest.raises(InvalidArgumentError, match=f"inside the {outer} table"):
        check_location(open_table(str(tmp_path / "lake" / "orders"), "delta"))


def test_the_leftovers_of_an_interrupted_creation_are_not_an_obstacle(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "0.json.tmp").write_bytes(b"")
    made(tmp_path, "delta")


def test_a_file_is_no_place_for_a_table(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="is a file"):
        check_location(open_table(str(tmp_path / "file"), "delta"))


def test_plain_files_are_not_written_into_a_table(tmp_path):
    made(tmp_path, "delta")
    with pytest.raises(InvalidArgumentError, match="is the delta table"):
        check_location(open_destination(str(tmp_path), "parquet"))

"""A checkpoint goes with one table, and with the offsets that it began with."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake import LakeTable, open_table
from moldau.spark.pipelines.archive.remembered import FILE, recall, remember
from moldau.spark.pipelines.archive.settings import ArchiveSettings
from moldau.spark.pipelines.archive.starts import _widened
from moldau.spark.pipelines.home import CheckpointError
from moldau.spark.source.cluster import TopicView

pytestmark = pytest.mark.inprocess

START = json.dumps({"orders": {"0": 7}})
SCHEMA = pa.schema([("offset", pa.int64()), ("date", pa.string())])


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
    return made(tmp_path)


def made(tmp_path: Path, **values: Any) -> ArchiveSettings:
    given = {"topics": ("orders",), "to": str(tmp_path / "lake"), **values}
    return ArchiveSettings(
        name="keep", bootstrap="localhost:9092", home=str(tmp_path / "home"), **given
    )


def tables(settings: ArchiveSettings) -> dict[str, LakeTable]:
    return {
        place: open_table(place, settings.table_format) for place in settings.locations().values()
    }


def test_a_start_that_was_remembered_holds(settings: ArchiveSettings) -> None:
    assert recall(settings, tables(settings)) is None
    remember(settings, START)
    known = recall(settings, tables(settings))
    assert known is not None
    assert json.loads(known.start) == {"orders": {"0": 7}}


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"to": "elsewhere"}, "--to"),
        ({"table_format": "iceberg"}, "--format"),
        ({"decode": "json"}, "--decode"),
        ({"topics": ("clicks",)}, "--topic"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_with_the_option(
    tmp_path: Path, settings: ArchiveSettings, values: dict[str, Any], option: str
) -> None:
    remember(settings, START)
    if "to" in values:
        values = {"to": str(tmp_path / values["to"])}
    other = made(tmp_path, **values)
    with pytest.raises(InvalidArgumentError, match=option) as refused:
        recall(other, tables(other))
    assert "moldau pipeline reset keep" in refused.value.hint


def test_a_topic_more_is_fine(tmp_path: Path, settings: ArchiveSettings) -> None:
    remember(settings, START)
    wider = made(tmp_path, topics=("orders", "clicks"))
    assert recall(wider, tables(wider)) is not None
    views = {"orders": TopicView(1, (0, 1)), "clicks": TopicView(2, (0,))}
    # What is new is read from its first record on.
    assert _widened(json.loads(START), views) == {"orders": {"0": 7, "1": -2}, "clicks": {"0": -2}}


def test_a_table_that_is_gone_is_not_begun_in_the_middle(settings: ArchiveSettings) -> None:
    remember(settings, START)
    commits = Path(settings.checkpoint.location, "commits")
    commits.mkdir()
    (commits / "0").write_text("v1")
    with pytest.raises(InvalidArgumentError, match="is gone"):
        recall(settings, tables(settings))
    opened = tables(settings)
    for table in opened.values():
        table.ensure(SCHEMA)
    assert recall(settings, opened) is not None


def test_a_damaged_file_is_an_error_that_names_it(settings: ArchiveSettings) -> None:
    remember(settings, START)
    settings.checkpoint.write(FILE, b"{")
    with pytest.raises(CheckpointError, match=FILE):
        recall(settings, tables(settings))

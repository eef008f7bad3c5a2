"""What the driver does with a batch, without Spark."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of archives")

from moldau.spark.lake import LakeTable, Writing, open_table
from moldau.spark.lake.parquet_files import write_files
from moldau.spark.pipelines.archive.committer import Committer
from moldau.spark.pipelines.archive.file_source import FILE, file_rows, table_schema
from moldau.spark.pipelines.settings.archive import ArchiveSettings

pytestmark = pytest.mark.spark

NOBODY: Any = None
"""Asked only about dead letters and changes, which there are none of."""


class Returned:
    """As much of a DataFrame as is asked for; counts how often its tasks ran."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.runs = 0

    def select(self, *names: str) -> "Returned":
        return self

    def collect(self) -> list[dict[str, str]]:
        self.runs += 1
        return [{FILE: text} for text in self._texts]


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
    made = ArchiveSettings(
        name="keep",
        bootstrap="localhost:9092",
        home=str(tmp_path / "home"),
        topics=("orders",),
        to=str(tmp_path / "lake"),
    )
    made.checkpoint.write("metadata", json.dumps({"id": "the-query"}).encode())
    return made


@pytest.fixture
def table(settings: ArchiveSettings) -> LakeTable:
    found = open_table(settings.to, "delta")
    found.ensure(table_schema())
    return found


def returned(table: LakeTable, count: int) -> Returned:
    import pyarrow as pa

    rows = pa.RecordBatch.from_pylist(
        [{"offset": at, "date": "2026-01-01"} for at in range(count)], schema=table_schema()
    )
    files = write_files(table.layout, table_schema(), [rows])
    texts = file_rows([(table.location, file) for file in files]).column(FILE).to_pylist()
    return Returned(texts)


def test_a_batch_is_one_commit_of_the_checkpoints_query(
    settings: ArchiveSettings, table: LakeTable
) -> None:
    committer = Committer(settings, {table.location: table}, NOBODY)
    committer(returned(table, 3), 0)
    committer(returned(table, 2), 1)
    assert (committer.rows, committer.files, committer.commits) == (5, 2, 2)
    assert table.last_batch("the-query") == 1


def test_the_first_batch_after_a_start_is_not_read_again_if_the_table_has_it(
    settings: ArchiveSettings, table: LakeTable
) -> None:
    Committer(settings, {table.location: table}, NOBODY)(returned(table, 3), 0)
    again = returned(table, 3)
    restarted = Committer(settings, {table.location: table}, NOBODY)
    restarted(again, 0)
    assert (again.runs, restarted.rows) == (0, 0)
    assert table.snapshot().rows == 3


def test_nothing_is_committed_if_dead_letters_cannot_be_sent(
    settings: ArchiveSettings, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(Returned):
        def persist(self) -> "Kept":
            return self

        def unpersist(self) -> None: ...

        def filter(self, condition: str) -> "Kept":
            return self

    def failing(committer: Committer, bad: Any, writing: Writing) -> None:
        raise OSError("no broker")

    monkeypatch.setattr(Committer, "_send_dead_letters", failing)
    decoding = replace(settings, decode="json")
    found = returned(table, 3)
    with pytest.raises(OSError, match="no broker"):
        Committer(decoding, {table.location: table}, NOBODY)(Kept(found._texts), 0)
    assert table.last_batch("the-query") is None

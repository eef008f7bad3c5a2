"""Plain Parquet files: an export for readers without support for a table format.

There are no commits. Tasks write below `_staged/`, which readers of Parquet folders ignore; the
driver then moves the files of a batch one by one. File names carry the query and the batch: when
Spark repeats a batch after a crash, its moved files are deleted first. So each row is there once
when a batch is done, but readers may see a part of a batch before.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from moldau.spark.lake import schema_evolution
from moldau.spark.lake.model import WRITER, DataFile, Layout, TableFormat, Writing, marked
from moldau.spark.lake.storage import open_folder

STAGED: Final = "_staged/"


class ParquetExport:
    """A folder of Parquet files."""

    format: Final = TableFormat.PARQUET
    partition_columns: Final = ("date",)

    def __init__(self, location: str, storage: Mapping[str, str]) -> None:
        self.location: Final = location
        self.layout: Final = Layout(
            location, self.format, dict(storage), self.partition_columns, staged_prefix=STAGED
        )
        self._folder = open_folder(self.layout)
        self._begun: set[str] = set()
        """Queries without leftover files of an earlier run."""

    def schema(self) -> None:
        """Not stored: each file has its own."""

    def ensure(self, schema: Any) -> None:
        schema_evolution.with_partitions_last(schema, self.partition_columns)

    def last_batch(self, query: str) -> None:
        """Unknown: only Spark's checkpoint has it."""

    def mark(self, name: str) -> int | None:
        """Only the mark of a pipeline's name, which is the prefix of its file names."""
        writer = name.removeprefix(WRITER)
        is_ours = re.compile(
            rf"{re.escape(writer)}-[0-9a-f-]{{36}}-\d{{10}}-\w+\.parquet"
        ).fullmatch
        names = (found.path.rpartition("/")[2] for found in self._folder.list())
        return marked(writer) if any(map(is_ours, names)) else None

    def append(self, files: Sequence[DataFile], writing: Writing) -> bool:
        if writing.query not in self._begun:
            self._remove_leftovers(files, writing)
            self._begun.add(writing.query)
        for file in files:
            self._folder.move(STAGED + file.path, _with_mark(file.path, writing))
        return True

    def _remove_leftovers(self, files: Sequence[DataFile], writing: Writing) -> None:
        """Deletes files of this batch from before a crash, moved or not."""
        wanted = {STAGED + file.path for file in files}
        labels = {_label(file.path) for file in files}
        mark = f"-{_mark(writing)}-"
        for found in list(self._folder.list()):
            is_staged = found.path.startswith(STAGED) and _label(found.path) in labels
            if (is_staged and found.path not in wanted) or mark in found.path:
                self._folder.delete(found.path)


def _mark(writing: Writing) -> str:
    return f"{writing.query}-{writing.batch:010}"


def _label(path: str) -> str:
    """The prefix of a file name: the name of the pipeline that wrote it."""
    return path.rpartition("/")[2].rpartition("-")[0]


def _with_mark(path: str, writing: Writing) -> str:
    """`date=2026-01-31/clicks-<query>-0000000007-<random>.parquet`."""
    head, _, tail = path.rpartition("-")
    return f"{head}-{_mark(writing)}-{tail}"

"""A checkpoint goes with one table, with what was asked, and with the offsets that it began at."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of pipelines")

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError, TimedOutError
from moldau.spark.decode import spark_json
from moldau.spark.lake import LakeTable, Writing, open_table
from moldau.spark.lake.parquet_files import write_files
from moldau.spark.lake.storage import Folder, folder_at
from moldau.spark.pipelines.archive.pipeline import make_decoder
from moldau.spark.pipelines.home import CheckpointError
from moldau.spark.pipelines.settings.aggregate import AggregateSettings
from moldau.spark.pipelines.settings.archive import ArchiveSettings
from moldau.spark.pipelines.settings.stream import StreamSettings
from moldau.spark.pipelines.spark_errors import WORKER_TIMED_OUT, PipelineError
from moldau.spark.pipelines.streaming import (
    STARTS_MAX,
    decoder_of,
    load_state,
    ranges_of,
    read_batch,
    run_query,
    save_state,
)

pytestmark = pytest.mark.inprocess

START = {"orders": {"0": 7}}
SCHEMA = pa.schema([("offset", pa.int64()), ("date", pa.string())])


def archive(tmp_path: Path, **values: Any) -> ArchiveSettings:
    given = {"topics": ("orders",), "to": str(tmp_path / "lake"), **values}
    return ArchiveSettings(
        **{"name": "keep", "bootstrap": "localhost:9092", "home": str(tmp_path / "home"), **given}
    )


def aggregate(tmp_path: Path, **values: Any) -> AggregateSettings:
    given = {"topics": ("orders",), "to_topic": "sums", "sql": "SELECT 1", **values}
    return AggregateSettings(
        name="keep", bootstrap="localhost:9092", home=str(tmp_path / "home"), **given
    )


def tables(settings: ArchiveSettings) -> dict[str, LakeTable]:
    return {
        place: open_table(place, settings.table_format) for place in settings.locations().values()
    }


def begun(checkpoint: Folder, batch: int, **offsets: int) -> None:
    """As Spark writes it before a batch; the first says where it begins."""
    about = json.dumps({"batchWatermarkMs": batch * 7, "batchTimestampMs": 1, "conf": {}})
    ends: dict[str, Any] = {"events": {name.removeprefix("p"): at for name, at in offsets.items()}}
    if not batch:
        ends["@start"] = dict.fromkeys((f"events/{name}" for name in ends["events"]), 4)
    checkpoint.write(f"offsets/{batch}", f"v1\n{about}\n{json.dumps(ends)}".encode())


def test_what_was_remembered_holds(tmp_path: Path) -> None:
    settings = archive(tmp_path)
    assert load_state(settings, tables(settings)) is None
    save_state(settings, tables(settings), START, "`a`: int")
    known = load_state(settings, tables(settings))
    assert known is not None
    assert (known.start, known.schema) == (START, "`a`: int")
    # A topic more is fine, and so is a table more.
    wider = archive(tmp_path, topics=("orders", "clicks"))
    assert load_state(wider, tables(wider)) == known


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"to": "elsewhere"}, "--to .*lake"),
        ({}, {"table_format": "iceberg"}, "--format delta"),
        ({}, {"decode": "json"}, "--decode raw"),
        ({}, {"topics": ("clicks",)}, "--topic orders"),
        ({"decode": "json"}, {"keep_raw": True}, "no --keep-raw"),
        ({"mode": "upsert"}, {"keys": ("value.id",)}, "--key key"),
        ({"sql": "SELECT 1"}, {"sql": "SELECT 2"}, "--sql SELECT 1"),
        ({"registry": "http://me:pw@r"}, {"registry": "http://r"}, r"--registry http://me:\*+@r"),
        ({"sql": "SELECT 1"}, {"to_topic": "others"}, "--to sums"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_with_the_option(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    made = aggregate if "sql" in before else archive
    settings: Any = made(tmp_path, **before)
    if "to" in now:
        now = {"to": str(tmp_path / now["to"])}
    other: Any = replace(settings, **now)
    opened = [{} if made is aggregate else tables(each) for each in (settings, other)]
    save_state(settings, opened[0], START)
    # Before the first batch nothing was made with what was asked; of other topics nothing was said.
    assert (load_state(other, opened[1]) is None) == ("topics" in now)
    begun(settings.checkpoint, 0, p0=10)
    with pytest.raises(InvalidArgumentError, match=f"was created with {said}") as refused:
        load_state(other, opened[1])
    assert "moldau pipeline reset keep" in refused.value.hint


def test_how_values_are_read_may_change_when_no_batch_waits(tmp_path: Path) -> None:
    settings: StreamSettings = aggregate(tmp_path, schema="id int")
    other = aggregate(tmp_path, schema="id bigint", watermark="1 hour")
    save_state(settings, (), START)
    assert load_state(other, {}) is not None
    begun(settings.checkpoint, 0, p0=10)
    with pytest.raises(InvalidArgumentError, match="--schema id int, and its last batch"):
        load_state(other, {})
    settings.checkpoint.write("commits/0", b"v1")
    assert load_state(other, {}) is not None


def test_a_schema_grows_when_no_batch_waits(tmp_path: Path) -> None:
    soon = {"kafka.request.timeout.ms": "100"}
    settings = archive(tmp_path, decode="json", bootstrap="localhost:1", options=soon)
    home = folder_at(settings.home, {})
    known = spark_json(pa.struct([("id", pa.int64())]))
    home.write("archive-schema.ddl", known.encode())
    # Nobody is asked for newer records: there is no broker.
    begun(settings.checkpoint, 0, p0=10)
    decoder, schema = make_decoder(settings)
    assert (str(decoder.struct), schema) == ("struct<id: int64>", known)
    settings.checkpoint.write("commits/0", b"v1")
    with pytest.raises(TimedOutError):
        make_decoder(settings)


def test_a_table_that_is_gone_is_not_begun_in_the_middle(tmp_path: Path) -> None:
    settings = archive(tmp_path)
    save_state(settings, tables(settings), START)
    settings.checkpoint.write("commits/0", b"v1")
    settings.checkpoint.write("offsets/0", b"v1")
    with pytest.raises(InvalidArgumentError, match="was deleted"):
        load_state(settings, tables(settings))
    opened = tables(settings)
    for table in opened.values():
        table.ensure(SCHEMA)
    assert load_state(settings, opened) is not None


def test_a_table_that_was_written_needs_the_checkpoint_of_then(tmp_path: Path) -> None:
    settings = archive(tmp_path)
    ((place, table),) = tables(settings).items()
    table.ensure(SCHEMA)
    row = pa.RecordBatch.from_pylist([{"offset": 0, "date": "2026-01-01"}], schema=SCHEMA)
    files = write_files(table.layout, SCHEMA, [row])
    table.append(files, Writing("q", 0, settings.marks(place)))
    with pytest.raises(InvalidArgumentError, match="its checkpoint is not in"):
        load_state(settings, {place: table})
    # What is left of a checkpoint without any batch is worth no more than none.
    save_state(settings, [place], START)
    with pytest.raises(InvalidArgumentError, match="its checkpoint is not in"):
        load_state(settings, {place: table})
    other = replace(settings, name="other", home=str(tmp_path / "other"))
    with pytest.raises(InvalidArgumentError, match="another archive writes topic orders"):
        load_state(other, {place: table})


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    settings = archive(tmp_path)
    save_state(settings, tables(settings), START)
    settings.checkpoint.write("archive.json", b"{")
    with pytest.raises(CheckpointError, match=r"archive\.json"):
        load_state(settings, tables(settings))


def test_values_are_decoded_as_asked(tmp_path: Path) -> None:
    known = spark_json(pa.struct([("a", pa.int32())]))
    assert str(decoder_of(aggregate(tmp_path), known).struct) == "struct<a: int32>"
    assert decoder_of(aggregate(tmp_path, decode="raw")).struct is None
    with pytest.raises(InvalidArgumentError, match="cannot decode values") as caught:
        decoder_of(aggregate(tmp_path, decode="avro"))
    assert "--schema" in caught.value.hint


def test_a_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    checkpoint = folder_at(str(tmp_path), {})
    begun(checkpoint, 0, p0=10, p1=5)
    begun(checkpoint, 1, p0=10, p1=8, p2=3)
    found = [
        [(each.partition, each.start, each.end) for each in ranges_of(checkpoint, batch)]
        for batch in (0, 1)
    ]
    assert found == [[(0, 4, 10), (1, 4, 5)], [(1, 5, 8), (2, 0, 3)]]
    assert read_batch(checkpoint, 1).watermark_ms == 7


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}", "v1\n{}\n{}", "v1\nno\n{}", "v1\n{}"])
def test_a_log_of_another_form_is_an_error_not_a_guess(tmp_path: Path, text: str) -> None:
    checkpoint = folder_at(str(tmp_path), {})
    checkpoint.write("offsets/3", text.encode())
    with pytest.raises(CheckpointError, match="batch 3"):
        read_batch(checkpoint, 3)
    with pytest.raises(CheckpointError, match="batch 4"):
        read_batch(checkpoint, 4)


class Watching:
    """Fails so many times with what Spark says, then ends."""

    stopping = False

    def __init__(self, failures: int, text: str) -> None:
        self.failures = failures
        self.text = text

    def watch(self, query: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise PipelineError(self.text)


@pytest.mark.parametrize(
    ("failures", "text", "starts"),
    [
        (2, f"query failed: {WORKER_TIMED_OUT}.", 3),
        (STARTS_MAX, f"query failed: {WORKER_TIMED_OUT}.", STARTS_MAX),
        (1, "the disk is full", 1),
    ],
)
def test_a_query_is_begun_again_only_if_python_did_not_start_in_time(
    failures: int, text: str, starts: int
) -> None:
    begun: list[int] = []
    context: Any = Watching(failures, text)
    if failures < starts:
        run_query(lambda: begun.append(1), context)
    else:
        with pytest.raises(PipelineError):
            run_query(lambda: begun.append(1), context)
    assert len(begun) == starts

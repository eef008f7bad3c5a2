"""What tasks of an audit do, without Spark: tables of every format give the same sums."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.inprocess

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.client.errors import ClientError  # noqa: E402
from moldau.spark.lake import LakeTable, Writing, open_table  # noqa: E402
from moldau.spark.lake.files import write_files  # noqa: E402
from moldau.spark.lake.schemas import to_text  # noqa: E402
from moldau.spark.pipelines.audit.rows import comparable_columns, place_rows  # noqa: E402
from moldau.spark.pipelines.audit.tally import BucketKey, Tallies, suspects, tally_rows  # noqa: E402
from moldau.spark.pipelines.audit.tasks import (  # noqa: E402
    Common,
    LakeWork,
    Seen,
    chosen_rows,
    tallies_of,
)
from moldau.spark.schema import arrow_schema  # noqa: E402

SCHEMA = arrow_schema(include_headers=True)
COUNT = 50
COMMON = Common(
    places={("orders", 0): (0, COUNT), ("orders", 1): (0, COUNT)},
    topics=frozenset({"orders"}),
    columns=("key", "value", "timestamp", "timestampType", "headers"),
)


def rows(partition: int, offsets: range = range(COUNT), *, topic: str = "orders") -> Any:
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k%d" % at if at % 5 else None,
                "value": b"v%d" % at if at % 7 else None,
                "topic": topic,
                "partition": partition,
                "offset": at,
                "timestamp": 1_700_000_000_000_000 + 1000 * at,
                "timestampType": 0,
                "headers": [{"key": "h", "value": b"%d" % at}] * (at % 3) or None,
            }
            for at in offsets
        ],
        schema=SCHEMA,
    )


def wanted(*batches: Any) -> Tallies:
    """As the topic would be summed up."""
    result: Tallies = {}
    for batch in batches:
        for found in place_rows(batch, COMMON.columns):
            result |= tally_rows(*found, log_start=0)
    return result


def table_with(location: Path, format: str, *batches: Any) -> LakeTable:
    table = open_table(str(location), format)
    dated = [batch.append_column("date", pa.array(["d"] * batch.num_rows)) for batch in batches]
    table.ensure(dated[0].schema)
    files = write_files(table.layout, dated[0].schema, dated)
    assert table.append(files, Writing("archive", 0))
    return table


def work_of(table: LakeTable) -> LakeWork:
    files = table.snapshot().files
    return LakeWork(layout=table.layout, files=files, schema=to_text(table.schema()))


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_every_format_gives_the_sums_of_the_topic_and_shows_no_drift(
    tmp_path: Path, format: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(format, "pyarrow"))
    table = table_with(tmp_path / "lake", format, rows(0), rows(1), rows(0, topic="others"))
    assert comparable_columns(table.schema()) == COMMON.columns
    tallies, seen = tallies_of(work_of(table), COMMON)
    assert suspects(wanted(rows(0), rows(1)), tallies) == set()
    assert seen.drifts == []
    assert seen.after_cut == 0


def test_rows_behind_the_cut_are_counted_apart(tmp_path: Path) -> None:
    table = table_with(tmp_path / "lake", "parquet", rows(0))
    common = replace(COMMON, places={("orders", 0): (10, 40)})
    tallies, seen = tallies_of(work_of(table), common)
    assert {key.is_expired: tally.rows for key, tally in tallies.items()} == {True: 10, False: 30}
    assert seen.after_cut == 10


def test_rows_behind_the_end_of_the_topic_are_not_passed_over(tmp_path: Path) -> None:
    table = table_with(tmp_path / "lake", "parquet", rows(0))
    # The cut is at 30; the topic ended at 40 when the table had been looked at.
    common = replace(COMMON, places={("orders", 0): (0, 30)}, ends={("orders", 0): 40})
    tallies, seen = tallies_of(work_of(table), common)
    assert [(tally.rows, tally.last) for tally in tallies.values()] == [(40, COUNT - 1)]
    assert seen.after_cut == 10


def test_only_rows_of_chosen_buckets_are_handed_on(tmp_path: Path) -> None:
    table = table_with(tmp_path / "lake", "parquet", rows(0), rows(1))
    chosen = BucketKey("orders", 1, False, 0)
    common = replace(COMMON, chosen=frozenset({chosen}), numbers=(0,))
    found = pa.Table.from_batches(list(chosen_rows(work_of(table), common)))
    assert set(found.column("partition").to_pylist()) == {1}
    assert sorted(found.column("offset").to_pylist()) == list(range(COUNT))
    # The statistics of the file say that it holds no such bucket.
    nowhere = replace(common, chosen=frozenset({chosen._replace(number=3)}), numbers=(3,))
    assert list(chosen_rows(work_of(table), nowhere)) == []


def test_a_decoded_value_is_not_compared_and_an_absent_column_is_null() -> None:
    decoded = SCHEMA.set(1, pa.field("value", pa.struct([("n", pa.int64())]))).remove(7)
    assert comparable_columns(decoded) == ("key", "timestamp", "timestampType")
    batch = rows(0, range(3))
    (bare,) = place_rows(batch.drop_columns(["headers"]), ("headers",))
    (empty,) = place_rows(
        batch.set_column(7, SCHEMA.field("headers"), pa.nulls(3, SCHEMA.field("headers").type)),
        ("headers",),
    )
    assert bare.digests.tolist() == empty.digests.tolist()


@pytest.mark.parametrize("name", ["topic", "partition", "offset"])
def test_a_table_without_places_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match=f"no column {name}"):
        list(place_rows(rows(0, range(1)).drop_columns([name]), ()))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    table = table_with(tmp_path / "lake", "parquet", rows(0))
    work = work_of(table)
    (file,) = work.files
    (tmp_path / "lake" / file.path).unlink()
    with pytest.raises(ClientError, match="is not there"):
        list(work.rows(COMMON, Seen()))

"""Replays from a table of a lake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lake_world import Row, append, archive_schema
from pipeline_context import PlainContext

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.wire.client import KafkaClient
from moldau.spark.pipelines import replay
from moldau.spark.pipelines.replay.selection import Selection, Span
from moldau.spark.pipelines.replay.sources import TableSource
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.source.planning import OffsetRange
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of tables")

T0 = 1_700_000_000_000
New = Callable[..., ReplaySettings]


def row(offset: int, partition: int = 0) -> Row:
    return Row(
        "orders",
        partition,
        offset,
        b"k%d" % (offset % 3),
        None if offset == 4 else b"v%d-%d" % (partition, offset),
        T0 + offset * 1000,
        (("n", b"%d" % offset),) if offset % 2 else (),
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Three commits, not in the order of offsets, some of it twice."""
    from moldau.spark.lake.open import open_table

    made = open_table(str(tmp_path / "lake"), "delta")
    append(made, [row(n, p) for n in range(20, 40) for p in (1, 0)])
    append(made, [row(n, p) for n in range(20) for p in (0, 1)])
    append(made, [row(n) for n in range(10, 30)])
    return made


@pytest.fixture
def new(tmp_path: Path) -> New:
    def made(**values: Any) -> ReplaySettings:
        given = {"table": str(tmp_path / "lake"), "target": "again", "bootstrap": "b:1", **values}
        return ReplaySettings(name="r", home=str(tmp_path / "home"), **given)

    return made


def test_offsets_that_a_table_holds_are_found_by_what_is_selected(
    spark: Any, table: Any, new: New
) -> None:
    source = TableSource(new())

    def found(**selected: Any) -> tuple[list[tuple[int, int, int]], int]:
        ranges, partitions = source.ranges(Selection(**selected), PlainContext(spark))
        return [(each.partition, each.start, each.end) for each in ranges], partitions

    assert found() == ([(0, 0, 40), (1, 0, 40)], 2)
    assert found(from_ms=T0 + 5000, to_ms=T0 + 7000) == ([(0, 5, 7), (1, 5, 7)], 2)
    assert found(keys=frozenset([b"k1"]), spans={(None, 1): Span(2, 9)}) == ([(1, 2, 9)], 2)
    assert found(from_ms=T0 + 10**9) == ([], 1)


def test_only_files_that_may_hold_an_offset_are_read(table: Any, new: New) -> None:
    source = TableSource(new())

    def files(start: int, end: int) -> int:
        return len(
            source._files_with([OffsetRange(topic="orders", partition=0, start=start, end=end)])
        )

    assert [files(0, 10), files(0, 20), files(0, 40), files(35, 40), files(50, 60)] == [
        1,
        2,
        3,
        1,
        0,
    ]


def test_tables_that_cannot_be_replayed_are_refused(new: New, tmp_path: Path) -> None:
    import pyarrow as pa

    from moldau.spark.lake.open import open_table

    with pytest.raises(NotFoundError, match="there is no delta table"):
        replay.plan(new())
    decoded = pa.schema(
        [
            pa.field("value", pa.struct([("price", pa.int64())])) if each.name == "value" else each
            for each in archive_schema()
        ]
    )
    open_table(str(tmp_path / "lake"), "delta").ensure(decoded)
    with pytest.raises(InvalidArgumentError, match="has only decoded values"):
        replay.plan(new())


def test_a_table_is_sent_to_a_topic_in_order_and_once(
    spark: Any,
    broker: Broker,
    client: KafkaClient,
    table: Any,
    new: New,
    new_name: Callable[[str], str],
) -> None:
    target = new_name("from-lake")
    settings = new(target=target, bootstrap=broker.bootstrap, create=True, batch_rows=50)
    _, read, send = replay.plan(settings).steps
    assert (read.what, read.rows, send.rows) == ("read 3 files of version 3", 100, None)
    stopped = replay.run(settings, PlainContext(spark, batches_max=1))
    assert "stopped after 1 of 2 batches" in stopped.summary
    # A table may be compacted meanwhile, or written to: what was begun stays the same.
    append(table, [row(n) for n in range(40, 50)])
    outcome = replay.run(settings, PlainContext(spark))
    assert outcome.rows == 80
    rows = (
        spark.read.format("moldau")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .options(subscribe=target, includeHeaders="true", isolation="read_committed")
        .load()
        .orderBy("partition", "offset")
        .collect()
    )
    assert [
        (
            each.partition,
            bytes(each.key),
            None if each.value is None else bytes(each.value),
            round(each.timestamp.timestamp() * 1000),
            tuple((header.key, bytes(header.value)) for header in each.headers or ()),
        )
        for each in rows
    ] == [
        (p, wanted.key, wanted.value, wanted.time_ms, wanted.headers)
        for p in (0, 1)
        for wanted in (row(n, p) for n in range(40))
    ]

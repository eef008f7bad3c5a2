"""Archives by a real Spark, with a real broker."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of archives")

from lake_world import read_table
from pipeline_context import PlainContext

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.lake import LakeTable, open_table
from moldau.spark.lake.delta import DeltaLakeTable
from moldau.spark.pipelines import archive, audit
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.settings.archive import ArchiveSettings
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

New = Callable[..., ArchiveSettings]


@pytest.fixture
def new(broker: Broker, topic: str, tmp_path: Path) -> New:
    def made(**values: Any) -> ArchiveSettings:
        given = {"topics": (topic,), "to": str(tmp_path / "lake"), "name": topic, **values}
        return ArchiveSettings(
            bootstrap=broker.bootstrap, home=str(tmp_path / "home" / given["name"]), **given
        )

    return made


def places(table: LakeTable) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    found = [batch.to_pylist() for batch in read_table(table, ["partition", "offset"])]
    return sorted((row["partition"], row["offset"]) for part in found for row in part)


@pytest.mark.safety
def test_a_topic_is_archived_as_it_is_and_goes_on_where_it_was(
    spark: Any, new: New, topic: str, fill: Callable[..., None], client: KafkaClient
) -> None:
    fill(topic, 0, count=5)
    fill(topic, 1, count=3)
    settings = new()
    planned = archive.plan(settings)
    assert planned.steps[0].rows == 8
    assert planned.writes == (settings.to,)
    outcome = archive.run(settings, PlainContext(spark))
    assert (outcome.rows, outcome.details["commits"]) == (8, 1)
    fill(topic, 1, count=4)
    assert archive.plan(settings).steps[0].rows == 4
    assert archive.run(settings, PlainContext(spark)).rows == 4
    table = open_table(settings.to, "delta")
    assert places(table) == [(0, at) for at in range(5)] + [(1, at) for at in range(7)]


def test_an_iceberg_table_gets_the_same_rows(
    spark: Any, new: New, topic: str, fill: Callable[..., None]
) -> None:
    fill(topic, 0, count=4)
    settings = new(table_format="iceberg")
    assert archive.run(settings, PlainContext(spark)).rows == 4
    table = open_table(settings.to, "iceberg")
    assert places(table) == [(0, at) for at in range(4)]


def test_plain_files_are_read_by_who_knows_nothing_of_us(
    spark: Any, new: New, topic: str, fill: Callable[..., None]
) -> None:
    settings = new(table_format="parquet")
    for first in (0, 3):
        fill(topic, 0, count=3)
        assert archive.run(settings, PlainContext(spark)).rows == 3
        rows = spark.read.parquet(settings.to).orderBy("offset").collect()
        assert [row["offset"] for row in rows] == list(range(first + 3))
    assert [bytes(row["value"]) for row in rows] == [b"v%d" % (at % 3) for at in range(6)]
    assert {str(row["date"]) for row in rows} == {"2023-11-14"}


@pytest.mark.safety
@pytest.mark.parametrize("is_after", [False, True])
def test_a_driver_that_fails_around_the_commit_archives_each_record_once(
    spark: Any,
    new: New,
    topic: str,
    fill: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    is_after: bool,
) -> None:
    fill(topic, 0, count=6)
    settings = new()
    append = DeltaLakeTable.append
    failures = 1

    def failing(table: DeltaLakeTable, files: Any, writing: Any) -> bool:
        nonlocal failures
        if not failures:
            return append(table, files, writing)
        failures -= 1
        if is_after:
            append(table, files, writing)
        raise RuntimeError("killed")

    monkeypatch.setattr(DeltaLakeTable, "append", failing)
    with pytest.raises(Exception, match="killed"):
        archive.run(settings, PlainContext(spark))
    # The batch is played again with the offsets that it had, whatever came since.
    fill(topic, 0, count=2)
    archive.run(settings, PlainContext(spark))
    assert places(open_table(settings.to, "delta")) == [(0, at) for at in range(8)]


def test_values_are_decoded_and_bad_ones_go_to_the_dead_letter_topic(
    spark: Any, new: New, topic: str, client: KafkaClient, table: Callable[..., Any]
) -> None:
    values = [b'{"id": 1, "name": "a"}', b"nonsense", b'{"id": 2, "name": "b"}']
    records = [
        Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", value, []) for value in values
    ]
    client.produce(topic, 0, build_batch(records))
    settings = new(decode="json", schema="id bigint, name string", table_per_topic=True)
    context = PlainContext(spark)
    outcome = archive.run(settings, context)
    assert (outcome.rows, outcome.dead_letters, context.dead) == (2, 1, 1)
    kept = open_table(settings.locations()[topic], "delta")
    found = [row["value"] for batch in read_table(kept, ["value"]) for row in batch.to_pylist()]
    assert found == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    (dead,) = table(
        subscribe=f"{topic}.dlq", includeHeaders="true", isolation="read_committed"
    ).collect()
    assert bytes(dead["value"]) == b"nonsense"
    headers = {header["key"]: bytes(header["value"]).decode() for header in dead["headers"]}
    assert topic in headers.values()
    # Nobody else writes the same topic to the table.
    raw = new(name=f"{topic}-raw", table_per_topic=True)
    with pytest.raises(InvalidArgumentError, match="another archive writes") as refused:
        archive.run(raw, PlainContext(spark))
    assert "--to" in refused.value.hint


@pytest.mark.safety
def test_fields_that_come_later_are_reported_kept_as_bytes_and_added_at_the_next_start(
    spark: Any, new: New, topic: str, client: KafkaClient, broker: Broker
) -> None:
    def send(*values: bytes) -> None:
        records = [
            Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", value, []) for value in values
        ]
        client.produce(topic, 0, build_batch(records))

    send(b'{"id": 1}')
    plain = new(decode="json", name=f"{topic}-plain", to=new().to + "-plain")
    raw = new(decode="json", keep_raw=True)
    for settings in (plain, raw):
        assert archive.run(settings, PlainContext(spark)).details["unknown_fields"] == {}
    schema = Path(plain.home) / "archive-schema.ddl"
    before = schema.read_text()
    # As if they had come while it ran: the schema was made before.
    grown = b'{"id": 2, "note": "new", "who": {"name": "a"}}'
    send(grown, grown)
    outcome = archive.run(new(decode="json", keep_raw=True, schema=before), PlainContext(spark))
    assert outcome.details["unknown_fields"] == {"note": 2, "who": 2}
    assert "note, who" in outcome.summary
    rows = [row for batch in read_table(open_table(raw.to, "delta")) for row in batch.to_pylist()]
    assert sorted(row["raw"] for row in rows) == [b'{"id": 1}', grown, grown]
    assert {tuple(row["value"]) for row in rows} == {("id",)}
    audited = audit.SETTINGS(
        name="check", bootstrap=broker.bootstrap, home="", topics=(topic,), table=raw.to
    )
    found = audit.run(audited, PlainContext(spark))
    assert found.ok
    assert "value" in found.details["compared"]
    # Whoever starts anew learns of the fields.
    assert archive.run(plain, PlainContext(spark)).details["unknown_fields"] == {}
    kept = open_table(plain.to, "delta")
    values = [row["value"] for batch in read_table(kept, ["value"]) for row in batch.to_pylist()]
    assert sorted(values, key=lambda value: value["id"])[-1] == {
        "id": 2,
        "note": "new",
        "who": {"name": "a"},
    }
    blind = audit.run(replace(audited, table=plain.to), PlainContext(spark))
    assert not blind.ok
    assert "NOT COMPARED: value" in blind.summary


@pytest.mark.safety
def test_a_checkpoint_that_was_lost_does_not_write_all_records_again(
    spark: Any, new: New, topic: str, fill: Callable[..., None]
) -> None:
    fill(topic, 0, count=2)
    settings = new()
    archive.run(settings, PlainContext(spark))
    settings.checkpoint.delete_all()
    with pytest.raises(InvalidArgumentError, match="its checkpoint is not in") as refused:
        archive.run(settings, PlainContext(spark))
    assert "reset" in refused.value.hint
    # Who says where to begin knows what that means.
    Home(settings.home).reset({topic: {"0": 1, "1": 0}})
    assert archive.plan(settings).steps[0].rows == 1


def test_an_unknown_topic_is_an_error_before_anything_is_begun(
    spark: Any, new: New, tmp_path: Path
) -> None:
    settings = new(topics=("nobody-made-it",))
    with pytest.raises(NotFoundError, match="nobody-made-it"):
        archive.plan(settings)
    with pytest.raises(NotFoundError, match="nobody-made-it"):
        archive.run(settings, PlainContext(spark))
    assert not (tmp_path / "lake").exists()
    assert list(settings.checkpoint.list()) == []

"""Tables that keep the newest row of each key, from topics of a real broker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of archives")

from lake_world import read_table
from pipeline_context import PlainContext

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.lake import LakeTable, open_table
from moldau.spark.lake.model import Writing
from moldau.spark.lake.parquet_files import write_files
from moldau.spark.pipelines import archive, audit
from moldau.spark.pipelines.archive import committer
from moldau.spark.pipelines.settings.archive import ArchiveSettings
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

Send = Callable[..., None]


@pytest.fixture
def send(client: KafkaClient, topic: str) -> Send:
    def sent(*pairs: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
        time = TimestampMs(1_700_000_000_000)
        records = [Record(Offset(0), time, key, value, []) for key, value in pairs]
        client.produce(topic, partition, build_batch(records))

    return sent


@pytest.fixture
def new(broker: Broker, topic: str, tmp_path: Path) -> Callable[..., ArchiveSettings]:
    def made(**values: Any) -> ArchiveSettings:
        return ArchiveSettings(
            name="customers",
            bootstrap=broker.bootstrap,
            home=str(tmp_path / "home"),
            topics=(topic,),
            to=str(tmp_path / "lake"),
            mode="upsert",
            **values,
        )

    return made


def opened(settings: ArchiveSettings) -> LakeTable:
    return open_table(settings.to, settings.table_format, partition_columns=None)


def values_in(settings: ArchiveSettings) -> dict[Any, Any]:
    rows = [row for batch in read_table(opened(settings)) for row in batch.to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.safety
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_newest_value_of_each_key_stays_and_a_tombstone_deletes(
    spark: Any, new: Any, send: Send, format: str
) -> None:
    settings = new(table_format=format)
    send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    send((b"c", b"1"), partition=1)
    archive.run(settings, PlainContext(spark))
    assert values_in(settings) == {b"a": b"2", b"b": b"1", b"c": b"1"}
    send((b"b", None), (b"a", b"3"), (b"d", None), (None, b"nobody's"))
    outcome = archive.run(settings, PlainContext(spark))
    assert outcome.dead_letters == 1
    assert values_in(settings) == {b"a": b"3", b"c": b"1"}
    send((b"b", b"again"))
    archive.run(settings, PlainContext(spark))
    assert values_in(settings) == {b"a": b"3", b"b": b"again", b"c": b"1"}
    # Files without one of the keys are left alone, and nothing lies about.
    table = opened(settings)
    named = {file.path for file in table.snapshot().files}
    assert len(named) == 2
    found = table.schema()
    assert found is not None
    assert "date" not in found.names
    if format != "delta":
        return
    audited = audit.SETTINGS(
        name="check",
        bootstrap=settings.bootstrap,
        home="",
        topics=settings.topics,
        table=settings.to,
        table_format=format,
    )
    assert audit.run(audited, PlainContext(spark)).ok
    # What was sent since is not in the table, and that is seen.
    send((b"a", b"4"), (b"b", None), (b"e", b"1"))
    late = audit.run(audited, PlainContext(spark)).details["totals"]
    assert (late["missing"], late["extra"], late["duplicated"]) == (2, 2, 0)


@pytest.mark.safety
def test_a_driver_that_fails_around_the_commit_changes_each_row_once(
    spark: Any, new: Any, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moldau.spark.lake.delta import DeltaLakeTable

    settings = new()
    replace = DeltaLakeTable.replace
    is_after = False

    def failing(table: Any, *arguments: Any, **options: Any) -> bool:
        if is_after:
            replace(table, *arguments, **options)
        raise RuntimeError("killed")

    send((b"a", b"1"), (b"b", b"1"))
    for is_after in (False, True):
        with monkeypatch.context() as patched:
            patched.setattr(DeltaLakeTable, "replace", failing)
            with pytest.raises(Exception, match="killed"):
                archive.run(settings, PlainContext(spark))
        send((b"a", b"2"), (b"b", None), (b"c", b"%d" % is_after))
    archive.run(settings, PlainContext(spark))
    assert values_in(settings) == {b"a": b"2", b"c": b"1"}
    # The table was made, and got each of the two batches once.
    assert opened(settings).snapshot().version == 2


@pytest.mark.safety
def test_rows_stay_where_the_answer_to_a_commit_is_lost(
    spark: Any, new: Any, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moldau.spark.lake.delta import DeltaLakeTable

    settings = new()
    commit = DeltaLakeTable._commit

    def unanswered(table: Any, *arguments: Any, **options: Any) -> None:
        commit(table, *arguments, **options)
        raise OSError("already exists")

    monkeypatch.setattr(DeltaLakeTable, "_commit", unanswered)
    send((b"a", b"1"), (b"b", b"1"))
    archive.run(settings, PlainContext(spark))
    assert values_in(settings) == {b"a": b"1", b"b": b"1"}


@pytest.mark.safety
def test_another_writer_that_is_faster_makes_it_merge_again(
    spark: Any, new: Any, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = new()
    send((b"a", b"1"), (b"b", b"1"))
    archive.run(settings, PlainContext(spark))
    merged = committer.Upsert._merged
    attempts: list[int] = []

    def slow(self: Any, *arguments: Any) -> Any:
        found = merged(self, *arguments)
        attempts.append(1)
        if len(attempts) == 1:
            table = opened(settings)
            rows = list(read_table(table))
            files = write_files(table.layout, table.schema(), rows)
            table.replace(table.snapshot().files, files, Writing("other", 0))
        return found

    monkeypatch.setattr(committer.Upsert, "_merged", slow)
    send((b"a", b"2"))
    archive.run(settings, PlainContext(spark))
    assert len(attempts) == 2
    assert values_in(settings) == {b"a": b"2", b"b": b"1"}
    monkeypatch.setattr(committer, "ATTEMPTS_MAX", 0)
    send((b"a", b"3"))
    with pytest.raises(Exception, match="gave up after"):
        archive.run(settings, PlainContext(spark))


def test_events_of_debezium_become_the_rows_of_their_table(
    spark: Any, new: Any, send: Send
) -> None:
    def event(op: str, before: Any, after: Any) -> bytes:
        return json.dumps({"op": op, "before": before, "after": after, "ts_ms": 1}).encode()

    one, two = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}
    better = {"id": 1, "name": "Ada L."}
    send((b"1", event("c", None, one)), (b"2", event("c", None, two)))
    send((b"1", event("u", one, better)), (b"2", event("d", two, None)), (b"2", None))
    # The schema is inferred, also of rows before a change, which the first events do not have.
    settings = new(decode="json", envelope="debezium", keys=("value.id",))
    outcome = archive.run(settings, PlainContext(spark))
    assert (outcome.dead_letters, outcome.details["unknown_fields"]) == (0, {})
    assert list(values_in(settings).values()) == [better]
    send((b"1", event("u", better, one)))
    archive.run(settings, PlainContext(spark))
    assert list(values_in(settings).values()) == [one]

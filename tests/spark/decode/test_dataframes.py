"""In Spark: every row comes back, bad ones with their bytes; tables, streams, foreachBatch."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Headers, Record, build_batch
from moldau.spark import decode

pytestmark = pytest.mark.spark

SCHEMA = "id bigint NOT NULL, at timestamp, tags array<string>"
VALUES = [
    b'{"id": 1, "at": "2026-01-01T00:00:00Z", "tags": ["a"]}',
    b"poison",
    None,
    b'{"id": "2"}',
    b'{"id": 3}',
]


@pytest.fixture
def filled(client: KafkaClient, topic: str) -> str:
    """A topic with good, bad and deleted rows; one died before."""
    headers: Headers = [("moldau-dead-reason", b"old"), ("own", b"kept")]
    now = TimestampMs(int(time.time() * 1000))
    records = [Record(Offset(0), now, b"k", value, headers) for value in VALUES]
    client.produce(topic, 1, build_batch(records))
    return topic


def test_bad_rows_of_a_table_become_dead_letters(filled: str, table: Callable[..., Any]) -> None:
    rows = decode.apply(
        table(subscribe=filled, includeHeaders="true"), decode.decoder("json", SCHEMA)
    ).persist()
    found = {row.offset: row for row in rows.collect()}
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert [found[at].value and found[at].value.id for at in range(5)] == [1, None, None, None, 3]
    assert found[0].value.at.timestamp() == 1767225600
    assert [found[at].error is None for at in range(5)] == [True, False, True, False, True]
    assert [found[at].raw for at in range(5)] == VALUES
    assert rows.columns.index("value") == 1

    good, bad = decode.split(rows)
    assert (good.count(), bad.count()) == (3, 2)
    letters = decode.dead_letters(bad, topic="dead", group="g").collect()
    assert sorted(bytes(row.value) for row in letters) == [b"poison", b'{"id": "2"}']
    said = {header.key: bytes(header.value) for header in letters[0].headers}
    assert said["own"] == b"kept"
    assert [header.key for header in letters[0].headers].count("moldau-dead-reason") == 1
    assert said["moldau-dead-reason"].startswith(b"not JSON")
    assert said["moldau-dead-topic"] == filled.encode()
    assert said["moldau-dead-partition"] == b"1"
    assert said["moldau-dead-offset"] == b"1"
    assert said["moldau-dead-group"] == b"g"
    assert {row.topic for row in letters} == {"dead"}
    rows.unpersist()


def test_a_stream_is_decoded_in_its_tasks_and_in_foreach_batch(
    spark: Any, filled: str, stream: Callable[..., Any], tmp_path: Path
) -> None:
    decoder = decode.decoder("json", SCHEMA)
    seen: list[Any] = []

    def keep(frame: Any, batch: int) -> None:
        again = decode.apply(frame.select("raw").withColumnRenamed("raw", "value"), decoder)
        for each in (frame, again):
            good, bad = decode.split(each)
            seen.append((good.count(), bad.count()))

    query = (
        decode.apply(stream(subscribe=filled), decoder)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == [(3, 2), (3, 2)]


def test_the_schema_may_be_inferred_or_a_struct_type(
    spark: Any, filled: str, table: Callable[..., Any]
) -> None:
    clean = table(subscribe=filled).where("offset IN (0, 1, 2, 4)")
    inferred = decode.infer(clean)
    assert str(inferred) == "struct<id: int64, at: string, tags: list<element: string>>"
    assert decode.decoder("json", inferred).ddl == "struct<id:bigint,at:string,tags:array<string>>"
    from pyspark.sql.types import LongType, StructField, StructType

    given = decode.decoder("json", StructType([StructField("id", LongType(), False)]))
    assert decode.apply(clean, given).schema["value"].dataType.simpleString() == "struct<id:bigint>"


def test_raw_values_stay_as_they_are(filled: str, table: Callable[..., Any]) -> None:
    rows = decode.apply(table(subscribe=filled), decode.RAW)
    assert rows.schema["value"].dataType.simpleString() == "binary"
    assert rows.schema["error"].dataType.simpleString() == "string"


def test_a_table_that_cannot_be_decoded_says_why(table: Callable[..., Any], topic: str) -> None:
    decoder = decode.decoder("json", SCHEMA)
    rows = table(subscribe=topic)
    with pytest.raises(InvalidArgumentError, match="is missing"):
        decode.apply(rows.drop("value"), decoder)
    with pytest.raises(InvalidArgumentError, match="has type string"):
        decode.apply(rows.withColumn("value", rows.topic), decoder)
    with pytest.raises(InvalidArgumentError, match="already a column raw"):
        decode.apply(rows.withColumn("raw", rows.value), decoder)
    with pytest.raises(InvalidArgumentError, match="error, raw"):
        decode.dead_letters(rows)

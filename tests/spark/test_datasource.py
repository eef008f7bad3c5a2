"""`format("moldau")` in Spark: found by itself, with the Kafka connector's columns."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch

pytestmark = pytest.mark.spark

Fill = Callable[..., None]
Table = Callable[..., Any]


def test_the_columns_are_those_that_spark_expects(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from moldau.spark.schema import arrow_schema, ddl

    for include_headers in (True, False):
        schema = StructType.fromDDL(ddl(include_headers=include_headers))
        wanted = to_arrow_schema(schema, timezone="UTC")
        assert wanted.equals(arrow_schema(include_headers=include_headers))


def test_a_topic_is_a_table(table: Table, topic: str, client: KafkaClient) -> None:
    record = Record(
        Offset(0), TimestampMs(1_700_000_000_123), b"k", None, [("h", b"1"), ("h", None)]
    )
    plain = Record(Offset(0), TimestampMs(1_700_000_000_456), None, b"v", [])
    client.produce(topic, 1, build_batch([record, plain]))
    rows = table(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {
            "key": b"k",
            "value": None,
            "topic": topic,
            "partition": 1,
            "offset": 0,
            "timestamp": rows[0].timestamp,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {
            "key": None,
            "value": b"v",
            "topic": topic,
            "partition": 1,
            "offset": 1,
            "timestamp": rows[1].timestamp,
            "timestampType": 0,
            "headers": None,
        },
    ]
    assert rows[1].timestamp.timestamp() == 1_700_000_000.456


def test_a_part_of_a_topic_is_read_in_several_tasks(table: Table, topic: str, fill: Fill) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=1000)
    frame = table(
        subscribe=topic,
        startingOffsets=f'{{"{topic}": {{"0": 100, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": -1, "1": 500}}}}',
        minPartitions="4",
    )
    assert frame.rdd.getNumPartitions() == 4
    found = frame.selectExpr("partition", "offset").collect()
    wanted = [(0, offset) for offset in range(100, 1000)] + [(1, offset) for offset in range(500)]
    assert sorted(tuple(row) for row in found) == wanted


def test_a_few_rows_of_every_partition_are_read_in_one_task(
    table: Table, topic: str, fill: Fill
) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=10)
    frame = table(subscribe=topic)
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == 20
    assert table(subscribe=topic, minPartitions="2").rdd.getNumPartitions() == 2


def test_an_empty_topic_has_no_rows(table: Table, topic: str) -> None:
    assert table(subscribe=topic).count() == 0


def test_filters_save_reading_where_spark_allows_it(
    spark: Any, table: Table, topic: str, fill: Fill
) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=1000)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = table(subscribe=topic, maxRecordsPerPartition="100").where(
            "partition = 1 and offset >= 850 and timestamp >= timestamp_millis(1700000000900)"
        )
        # One task of a hundred offsets is left of twenty.
        assert frame.rdd.getNumPartitions() == 1
        assert sorted(row.offset for row in frame.collect()) == list(range(900, 1000))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "unknown topic no-such-topic: see option subscribe"),
        ({"subscribe": "a", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({}, "exactly one of the options subscribe"),
    ],
)
def test_what_is_wrong_is_said_by_the_name_of_its_option(
    table: Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        table(**options).count()


def test_columns_cannot_be_chosen_by_a_schema(spark: Any, broker: Any, topic: str) -> None:
    frame = (
        spark.read.format("moldau")
        .schema("a string")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
        .load()
    )
    with pytest.raises(Exception, match=r"remove \.schema"):
        frame.count()

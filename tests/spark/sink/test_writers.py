"""Streams and tables written to topics by a real Spark."""

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.client.wire.transactions import TransactionClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.spark

Fill = Callable[..., None]
Stream = Callable[..., Any]
Table = Callable[..., Any]


@pytest.fixture
def target(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    name = new_name("spark-target")
    # Times are kept, and they are old ones.
    client.create_topic(name, partitions=3, configs={"retention.ms": "-1"})
    return name


def started(frame: Any, broker: Broker, checkpoint: Path, **options: str) -> Any:
    return (
        frame.writeStream.format("moldau")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )


def run(frame: Any, broker: Broker, checkpoint: Path, **options: str) -> Any:
    query = started(frame, broker, checkpoint, **options)
    assert query.awaitTermination(wait_seconds_max())
    return query


def save(frame: Any, broker: Broker, *, kind: str = "moldau", **options: Any) -> None:
    frame.write.format(kind).mode("append").option(
        "kafka.bootstrap.servers", broker.bootstrap
    ).options(**options).save()


def test_a_stream_goes_from_topic_to_topic_once_and_so_does_a_batch_played_again(
    broker: Broker,
    stream: Stream,
    table: Table,
    topic: str,
    target: str,
    fill: Fill,
    tmp_path: Path,
) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=300)
    frame = stream(subscribe=topic, maxOffsetsPerTrigger="400").select("key", "value", "timestamp")
    run(frame, broker, tmp_path, topic=target, writeTimestamp="true")
    # As if the driver had died after the sink's commit and before Spark's.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    fill(topic, 0, count=10, first=300)
    run(frame, broker, tmp_path, topic=target, writeTimestamp="true")
    rows = table(subscribe=target, isolation="read_committed").collect()
    wanted = [b"v%d" % n for n in range(300)] * 2 + [b"v%d" % n for n in range(300, 310)]
    assert sorted(row.value for row in rows) == sorted(wanted)
    assert all(row.partition == partition_of(row.key, 3) for row in rows)
    # Times are kept.
    assert all(
        row.timestamp.timestamp() * 1000 == pytest.approx(1_700_000_000_000 + int(row.key[1:]))
        for row in rows
    )
    with KafkaClient(broker.bootstrap) as client:
        assert TransactionClient(client).open_names("moldau-spark-") == []


@pytest.mark.safety
def test_a_broker_lost_in_the_middle_of_a_batch_costs_nothing(spark: Any, tmp_path: Path) -> None:
    now = TimestampMs(time.time_ns() // 1_000_000)
    record = Record(Offset(0), now, None, b"x" * 100, [])
    with (
        Broker(port=free_ports(1)[0]) as broker,
        KafkaClient(broker.bootstrap) as client,
    ):
        for name in ("in", "out"):
            client.create_topic(name, partitions=1)
        for _ in range(3):
            client.produce("in", 0, build_batch([record] * 100))
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "in"}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        frame = spark.readStream.format("moldau").options(**options).load()
        query = started(frame.selectExpr("string(offset) value"), broker, tmp_path, topic="out")
        # Something of the second batch is stored, and the rest of it has to wait.
        wait_until(
            lambda: client.list_offset("out", 0) > 101 or not query.isActive,
            "the second batch is begun",
        )
        broker.kill()
        broker.start()
        assert query.awaitTermination(wait_seconds_max())
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "out"}
        options["isolation"] = "read_committed"
        rows = spark.read.format("moldau").options(**options).load().select("value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(300))


def test_columns_say_where_and_how_a_row_is_written(
    spark: Any, broker: Broker, table: Table, target: str
) -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
    rows = [
        ("k", "one", [("h", b"1"), ("h", None)], target, 2, noon),
        (None, None, None, target, 0, None),
        ("k", "three", [], target, None, noon),
    ]
    schema = (
        "key string, value string, headers array<struct<key:string,value:binary>>, topic string, "
        "partition int, timestamp timestamp"
    )
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    save(spark.createDataFrame(rows, schema).coalesce(1), broker, writeTimestamp="true")
    found = {row.value: row for row in table(subscribe=target, includeHeaders="true").collect()}
    one, two, three = found[b"one"], found[None], found[b"three"]
    assert (one.key, one.partition) == (b"k", 2)
    assert [(header.key, header.value) for header in one.headers] == [("h", b"1"), ("h", None)]
    assert one.timestamp.astimezone(datetime.UTC) == noon
    assert (two.key, two.partition) == (None, 0)
    assert two.timestamp.astimezone(datetime.UTC) >= before
    assert three.partition == partition_of(b"k", 3)


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_a_table_is_written_whole(
    spark: Any, broker: Broker, table: Table, target: str, exactly_once: str
) -> None:
    frame = spark.range(5000).selectExpr("cast(id as string) key", "repeat('x', 300) value")
    save(
        frame,
        broker,
        **{
            "topic": target,
            "exactlyOnce": exactly_once,
            "kafka.compression.type": "lz4",
            "kafka.batch.size": "20000",
            "kafka.buffer.memory": "200000",
        },
    )
    rows = table(subscribe=target, isolation="read_committed").select("key", "partition").collect()
    assert sorted(int(row.key) for row in rows) == list(range(5000))
    assert all(row.partition == partition_of(row.key, 3) for row in rows)


def test_a_table_that_fails_half_way_leaves_nothing_to_those_who_read_committed(
    spark: Any, broker: Broker, table: Table, target: str
) -> None:
    frame = spark.range(0, 20_000, 1, 1).selectExpr(
        "if(id = 19999, raise_error('on purpose'), repeat('x', 200)) value"
    )
    with pytest.raises(Exception, match="on purpose"):
        save(frame, broker, **{"topic": target, "exactlyOnce": "true", "kafka.batch.size": "2000"})
    assert table(subscribe=target, isolation="read_committed").count() == 0
    with KafkaClient(broker.bootstrap) as client:
        assert TransactionClient(client).open_names("moldau-spark-batch") == []


@pytest.mark.parametrize(
    ("column", "option", "message"),
    [
        # Seen by the driver, seen by a task, seen by a coordinator.
        ("id value", {}, "column value has type bigint"),
        (
            "'v' value",
            {"topic": "no where"},
            "'no where' is not a valid topic name: see option topic",
        ),
        (
            "'v' value",
            {"kafka.transaction.timeout.ms": "2000000000", "exactlyOnce": "true"},
            "exceeds the brokers' maximum",
        ),
    ],
)
def test_what_is_wrong_is_said_by_the_name_of_the_column_or_option(
    spark: Any, broker: Broker, target: str, column: str, option: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        save(spark.range(1).selectExpr(column), broker, **{"topic": target, **option})


def test_a_topic_is_not_overwritten(spark: Any, broker: Broker, target: str) -> None:
    frame = spark.range(1).selectExpr("'v' value")
    writer = frame.write.format("moldau").mode("overwrite").option("topic", target)
    with pytest.raises(Exception, match=r"(cannot be overwritten|overwrite|truncate)"):
        writer.option("kafka.bootstrap.servers", broker.bootstrap).save()


# -- tables that have a version

STEPS = [
    "task:begin:after",
    "driver:append Decision:after",
    "driver:commit 0:after",
]


@pytest.fixture
def crashing(spark: Any) -> Iterator[str]:
    """The name of a format that ends at a step."""
    from pyspark import cloudpickle

    from faults import spark_query

    # The workers of the session that all tests share cannot import what is not installed.
    cloudpickle.register_pickle_by_value(spark_query)
    spark.dataSource.register(spark_query.CrashingSource)
    yield "moldau-crashing"
    cloudpickle.unregister_pickle_by_value(spark_query)


def numbers(table: Callable[..., Any], target: str) -> list[int]:
    rows = table(subscribe=target, isolation="read_committed").select("value").collect()
    return sorted(int(row.value) for row in rows)


@pytest.mark.safety
def test_a_version_is_written_once_wherever_the_driver_ends(
    spark: Any, broker: Broker, table: Callable[..., Any], target: str, crashing: str
) -> None:
    for version, step in enumerate(STEPS):
        frame = spark.range(version * 10, version * 10 + 10, 1, 2).selectExpr("string(id) value")
        asked: Any = {"topic": target, "txnAppId": f"a/{target}-x", "txnVersion": version}
        crash = {"crashAt": f"{step}:{version}", "crashHow": "fail"}
        with pytest.raises(Exception, match="CrashedError"):
            save(frame, broker, kind=crashing, **asked, **crash)
        save(frame, broker, **asked)
    # What was written, and what is older, is passed over.
    save(frame, broker, **asked)
    save(frame, broker, **(asked | {"txnVersion": 0}))
    assert numbers(table, target) == list(range(10 * len(STEPS)))
    with KafkaClient(broker.bootstrap) as client:
        assert TransactionClient(client).open_names("moldau-spark-app") == []


@pytest.mark.safety
def test_foreach_batch_writes_each_row_once_though_its_batch_is_played_again(
    broker: Broker,
    stream: Callable[..., Any],
    table: Callable[..., Any],
    topic: str,
    target: str,
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    fill(topic, 0, count=20)
    calls = []

    def write(frame: Any, number: int) -> None:
        calls.append(number)
        # What the page recommends as a part of the application's id is known here.
        assert frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows = frame.selectExpr("substr(string(value), 2) value")
        save(rows, broker, topic=target, txnAppId=target, txnVersion=number)
        if len(calls) == 1:
            raise RuntimeError("ended between the write and Spark's own note of it")

    def started() -> Any:
        writer = stream(subscribe=topic).writeStream.foreachBatch(write)
        checkpointed = writer.option("checkpointLocation", str(tmp_path))
        return checkpointed.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="ended between"):
        started().awaitTermination(wait_seconds_max())
    assert started().awaitTermination(wait_seconds_max())
    assert calls == [0, 0]
    assert numbers(table, target) == list(range(20))

"""Code for Spark's Kafka connector, with one word changed; and the same in SQL.

What is run are the cases of Spark's "Structured Streaming + Kafka Integration Guide" for Python:
the same calls, options and columns. The one thing to add is `.mode("append")`: Spark lets no source
in Python take the default mode of `save()`.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

STRINGS = ("CAST(key AS STRING)", "CAST(value AS STRING)")
BATCHES = {
    "one topic, from the earliest to the latest": """
        df = spark \\
          .read \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribe", "topic1") \\
          .load()
    """,
    "several topics, by offsets": """
        df = spark \\
          .read \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribe", "topic1,topic2") \\
          .option("startingOffsets", \'\'\'{"topic1":{"0":1,"1":-2},"topic2":{"0":-2}}\'\'\') \\
          .option("endingOffsets", \'\'\'{"topic1":{"0":2,"1":-1},"topic2":{"0":-1}}\'\'\') \\
          .load()
    """,
    "a pattern": """
        df = spark \\
          .read \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribePattern", "topic.*") \\
          .option("startingOffsets", "earliest") \\
          .option("endingOffsets", "latest") \\
          .load()
    """,
}
WANTED = {
    "one topic, from the earliest to the latest": ["topic1 a", "topic1 b", "topic1 c", "topic1 d"],
    "several topics, by offsets": ["topic1 b", "topic1 d", "topic2 e"],
    "a pattern": ["topic1 a", "topic1 b", "topic1 c", "topic1 d", "topic2 e"],
}
STREAMS = {
    "one": """
        df = spark \\
          .readStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribe", "topic1") \\
          .load()
    """,
    "headers": """
        df = spark \\
          .readStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribe", "topic1") \\
          .option("includeHeaders", "true") \\
          .load()
        df = df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers")
    """,
    "several": """
        df = spark \\
          .readStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribe", "topic1,topic2") \\
          .load()
    """,
    "pattern": """
        df = spark \\
          .readStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("subscribePattern", "topic.*") \\
          .load()
    """,
}
WRITES = {
    "to the topic of an option": """
        df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") \\
          .write \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("topic", "made1") \\
          .save()
    """,
    "to the topic of a column": """
        df.selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
          .write \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .save()
    """,
}
STREAM_WRITES = {
    "to the topic of an option": """
        ds = df \\
          .selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") \\
          .writeStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .option("topic", "made3") \\
          .start()
    """,
    "to the topic of a column": """
        ds = df \\
          .selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
          .writeStream \\
          .format("kafka") \\
          .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
          .start()
    """,
}


class World:
    """Topics `topic1` with two partitions and `topic2` with one, under names of this test."""

    def __init__(self, spark: Any, broker: Broker, client: KafkaClient, prefix: str) -> None:
        self.spark, self.broker, self.client, self.prefix = spark, broker, client, prefix
        client.create_topic(f"{prefix}topic1", partitions=2)
        client.create_topic(f"{prefix}topic2", partitions=1)

    def put(self, topic: str, partition: int, *values: bytes) -> None:
        now = TimestampMs(time.time_ns() // 1_000_000)
        records = [Record(Offset(0), now, b"k", value, [("h", value)]) for value in values]
        self.client.produce(self.prefix + topic, partition, build_batch(records))

    def fill(self) -> None:
        self.put("topic1", 0, b"a", b"b", b"c")
        self.put("topic1", 1, b"d")
        self.put("topic2", 0, b"e")

    def run(self, code: str, **names: Any) -> dict[str, Any]:
        """The code with one word changed, beside addresses and names of topics."""
        code = code.replace("host1:port1,host2:port2", self.broker.bootstrap)
        for name in ("topic1", "topic2", "topic.*", "made1", "made3"):
            code = code.replace(name, self.prefix + name)
        assert code.count('format("kafka")') == 1
        names = {"spark": self.spark, **names}
        lines = [line[8:] for line in code.splitlines()]
        exec("\n".join(lines).replace('format("kafka")', 'format("moldau")'), names)
        return names

    def rows(self, topic: str) -> list[str]:
        frame = self.spark.read.format("moldau").options(**self.options(topic)).load()
        return sorted(f"{row[0]} {row[1]}" for row in frame.selectExpr(*STRINGS).collect())

    def options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.prefix + topic,
        }


@pytest.fixture
def world(
    spark: Any, broker: Broker, client: KafkaClient, new_name: Callable[[str], str], tmp_path: Path
) -> Iterator[World]:
    # The guide leaves it to the settings where checkpoints are.
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    yield World(spark, broker, client, new_name("ported") + "-")
    for query in spark.streams.active:
        query.stop()
    spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_batches_are_read(world: World) -> None:
    world.fill()
    for name, code in BATCHES.items():
        frame = world.run(code)["df"]
        found = [f"{row.topic} {bytes(row.value).decode()}" for row in frame.collect()]
        assert sorted(found) == [world.prefix + each for each in WANTED[name]], name


def test_columns_are_those_of_the_connector_by_name_order_and_type(world: World) -> None:
    options = world.options("topic1") | {"includeHeaders": "true"}
    frame = world.spark.read.format("moldau").options(**options).load()
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert all(field.nullable for field in frame.schema)


def test_streams_are_read_from_the_latest_record_on(world: World) -> None:
    world.fill()
    queries = {
        name: world.run(code)["df"].writeStream.format("memory").queryName(f"ported_{name}").start()
        for name, code in STREAMS.items()
    }
    for query in queries.values():
        query.processAllAvailable()
    world.put("topic1", 1, b"new")
    world.put("topic2", 0, b"other")
    found = {}
    for name, query in queries.items():
        query.processAllAvailable()
        rows = world.spark.table(f"ported_{name}").selectExpr("CAST(value AS STRING)").collect()
        found[name] = sorted(row.value for row in rows)
    both = ["new", "other"]
    assert found == {"one": ["new"], "headers": ["new"], "several": both, "pattern": both}
    (row,) = world.spark.table("ported_headers").collect()
    assert [tuple(header) for header in row.headers] == [("h", b"new")]


def test_batches_are_written_to_topics_that_are_created(world: World) -> None:
    frame = world.spark.createDataFrame(
        [("k", "v", world.prefix + "made2")], "key string, value string, topic string"
    )
    for code in WRITES.values():
        with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*ErrorIfExists"):
            world.run(code, df=frame)
        world.run(code.replace(".save()", '.mode("append").save()'), df=frame)
    assert world.rows("made1") == ["k v"]
    assert world.rows("made2") == ["k v"]


def test_streams_are_written_to_topics_that_are_created(world: World) -> None:
    world.fill()
    options = world.options("topic1") | {"startingOffsets": "earliest"}
    frame = world.spark.readStream.format("moldau").options(**options).load()
    frame = frame.drop("topic").selectExpr("*", f"'{world.prefix}made4' AS topic")
    for code in STREAM_WRITES.values():
        world.run(code, df=frame)["ds"].processAllAvailable()
    wanted = ["k a", "k b", "k c", "k d"]
    assert world.rows("made3") == wanted
    assert world.rows("made4") == wanted


# -- SQL


def sql_options(world: World, **more: str) -> str:
    given = {"kafka.bootstrap.servers": world.broker.bootstrap, **more}
    return "OPTIONS (" + ", ".join(f"`{name}` '{value}'" for name, value in given.items()) + ")"


def test_views_of_sql_read_and_write_topics(world: World) -> None:
    world.fill()
    sql = world.spark.sql
    read = sql_options(world, subscribe=f"{world.prefix}topic1")
    write = sql_options(world, topic=f"{world.prefix}made5")
    sql(f"CREATE OR REPLACE TEMPORARY VIEW ported_in USING moldau {read}")
    assert sql("SELECT count(*) FROM ported_in WHERE topic LIKE '%topic1'").first()[0] == 4
    sql(
        "CREATE OR REPLACE TEMPORARY VIEW ported_out (key string, value string) "
        f"USING moldau {write}"
    )
    sql("INSERT INTO ported_out SELECT CAST(key AS STRING), upper(value) FROM ported_in")
    sql("INSERT INTO ported_out VALUES ('k', 'E')")
    assert world.rows("made5") == ["k A", "k B", "k C", "k D", "k E"]
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        sql("INSERT OVERWRITE ported_out VALUES ('k', 'F')")


def test_a_table_of_the_catalog_is_refused_at_once_with_what_to_make_instead(
    world: World,
) -> None:
    read = sql_options(world, subscribe=f"{world.prefix}topic1")
    with pytest.raises(
        Exception, match=r"CREATE TABLE … USING moldau is not supported(.|\n)*create a vi"
    ):
        world.spark.sql(f"CREATE TABLE ported_table USING moldau {read}")
    # With columns Spark does not ask before it makes the table.
    write = sql_options(world, topic=f"{world.prefix}topic1")
    world.spark.sql(f"CREATE TABLE ported_table (value string) USING moldau {write}")
    try:
        with pytest.raises(
            Exception, match=r"servers is missing(.|\n)*create a view instead: CREATE TEMP"
        ):
            world.spark.sql("INSERT INTO ported_table VALUES ('v')")
    finally:
        world.spark.sql("DROP TABLE ported_table")

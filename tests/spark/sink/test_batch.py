"""Tables that have a version, written by a real Spark: once, wherever a driver ends.

`make spark-faults` ends it at more steps, and for good.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.client.kafka.client import KafkaClient
from moldau.client.kafka.transactions import TransactionClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark
STEPS = [
    "task:begin:after",
    "driver:append Decision:after",
    "driver:commit 0:after",
]


@pytest.fixture
def target(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    name = new_name("spark-target")
    client.create_topic(name, partitions=2)
    return name


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


def save(frame: Any, broker: Broker, *, kind: str = "moldau", **options: Any) -> None:
    frame.write.format(kind).mode("append").option(
        "kafka.bootstrap.servers", broker.bootstrap
    ).options(**options).save()


def numbers(table: Callable[..., Any], target: str) -> list[int]:
    rows = table(subscribe=target, isolation="read_committed").select("value").collect()
    return sorted(int(row.value) for row in rows)


@pytest.mark.safety
def test_a_version_is_written_once_wherever_the_driver_ends(
    spark: Any, broker: Broker, table: Callable[..., Any], target: str, crashing: str
) -> None:
    for version, step in enumerate(STEPS):
        frame = spark.range(version * 10, version * 10 + 10, 1, 2).selectExpr("string(id) value")
        asked = {"topic": target, "txnAppId": f"a/{target}-x", "txnVersion": version}
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

"""A driver that ends at any step of a commit, in a real Spark: each input is in the output once.

Here the process only stops doing what it did, at two steps; `make spark-faults` kills it at all.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark
STEPS = [
    # Not decided, and half of it ended.
    "driver:append Decision:before",
    "driver:commit 0:after",
]


def committed(bootstrap: str, topic: str, partitions: int) -> Counter[str]:
    """As one reads who reads committed: with another client than the one that wrote."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers-of-spark-sinks",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: Counter[str] = Counter()
    ended = 0
    while ended < partitions:
        message = consumer.poll(wait_seconds_max())
        assert message is not None
        if message.error():
            ended += 1
        else:
            found[(message.value() or b"").decode()] += 1
    consumer.close()
    return found


@pytest.mark.safety
def test_each_input_is_written_once_wherever_the_driver_ends(
    spark: Any,
    broker: Broker,
    topic: str,
    fill: Callable[..., None],
    client: KafkaClient,
    tmp_path: Path,
) -> None:
    from pyspark import cloudpickle

    from faults import spark_query

    # The workers of the session that all tests share cannot import what is not installed.
    cloudpickle.register_pickle_by_value(spark_query)
    target = f"{topic}-target"
    client.create_topic(target, partitions=2)
    count = 15 * (len(STEPS) + 1)
    for partition in (0, 1):
        fill(topic, partition, count=count)
    asked = ["--bootstrap", broker.bootstrap, "--source", topic, "--target", target]
    asked += ["--checkpoint", str(tmp_path), "--how", "fail", "--batch", "30"]
    try:
        for batch, step in enumerate(STEPS):
            options = spark_query.arguments([*asked, "--crash", f"{step}:{batch}"])
            query = spark_query.start(spark, options)
            with pytest.raises(Exception, match="CrashedError"):
                query.awaitTermination(wait_seconds_max())
        query = spark_query.start(spark, spark_query.arguments(asked))
        assert query.awaitTermination(wait_seconds_max())
    finally:
        cloudpickle.unregister_pickle_by_value(spark_query)
    wanted = Counter(f"{partition}:{offset}" for partition in (0, 1) for offset in range(count))
    assert committed(broker.bootstrap, target, 2) == wanted

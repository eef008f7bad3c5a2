"""One Spark session for all tests of a process: starting one takes longer than most tests."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import moldau.spark
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.spark.java import JavaError
from moldau.testing.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip(f"the extra `spark` is not installed: there is no {' and no '.join(_MISSING)}")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Without the extra, no file of this folder is even imported."""
    return _Skipped.from_parent(parent, path=module_path) if _MISSING else None


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """local[2], two shuffle partitions, no web interface; ended with the test session."""
    config = {
        "spark.driver.memory": "1g",
        # It lives for minutes: to compile it well takes longer than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    try:
        session = moldau.spark.session("local[2]", "moldau tests", config)
    except JavaError as error:
        pytest.skip(f"{error}: no tests of Spark")
    from pyspark.logger import PySparkLogger

    # Spark makes it with the first error of a query, and keeps it.
    PySparkLogger.getLogger("SQLQueryContextLogger")
    # What goes wrong on purpose need not fill the output.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def broker(moldau_session_broker: Broker) -> Broker:
    """The broker that the tests of Spark share; each uses topics of its own."""
    return moldau_session_broker


@pytest.fixture
def client(broker: Broker) -> Iterator[KafkaClient]:
    with KafkaClient(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    """A fresh topic with two partitions, which keeps the old records that `fill` writes."""
    name = new_name("spark")
    client.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    return name


Fill = Callable[..., None]


@pytest.fixture
def fill(client: KafkaClient) -> Fill:
    """Writes `count` records to a partition: keys k0, k1, …, values v0, v1, …, a ms apart."""

    def write(
        topic: str, partition: int = 0, *, count: int, first: int = 0, codec: Codec = Codec.NONE
    ) -> None:
        records = [
            Record(
                Offset(0),
                TimestampMs(1_700_000_000_000 + number),
                b"k%d" % number,
                b"v%d" % number,
                [],
            )
            for number in range(first, first + count)
        ]
        client.produce(topic, partition, build_batch(records, codec=codec))

    return write


@pytest.fixture
def table(spark: "SparkSession", broker: Broker) -> Callable[..., "DataFrame"]:
    """A topic as a table: `table(subscribe="orders", …)`, options as keywords."""

    def read(**options: Any) -> "DataFrame":
        return (
            spark.read.format("moldau")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .options(**options)
            .load()
        )

    return read


@pytest.fixture
def stream(spark: "SparkSession", broker: Broker) -> Callable[..., "DataFrame"]:
    """A topic as a stream, read from the earliest record unless options say otherwise."""

    def read(**options: Any) -> "DataFrame":
        return (
            spark.readStream.format("moldau")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("startingOffsets", "earliest")
            .options(**options)
            .load()
        )

    return read

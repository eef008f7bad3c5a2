"""Source and sink of Spark with TLS and SASL: every process of a job is let in, or told why not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from secure_front import SecureFront, identity, server_context

from moldau.client.errors import ClientError
from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark

CA = identity("tests' authority")
SERVER = identity("server", hosts=("127.0.0.1",), signer=CA)
PASSWORD = "never-shown-4711"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[SecureFront]:
    """Before a broker that sends all clients to it."""
    front = SecureFront(server_context(SERVER, tmp_path), {"ann": PASSWORD})
    try:
        with Broker(settings={"KAFKA__ADVERTISED": front.bootstrap}) as broker:
            front.target = ("127.0.0.1", broker.port)
            yield front
    finally:
        front.close()


def options_for(front: SecureFront, authorities: Path, password: str = PASSWORD) -> dict[str, str]:
    authorities.write_text(CA.pem)
    return {
        "kafka.bootstrap.servers": front.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authorities),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        f'required username="ann" password="{password}";',
    }


def test_topics_are_written_and_read(spark: Any, front: SecureFront, tmp_path: Path) -> None:
    secured = options_for(front, tmp_path / "ca.pem")
    frame = spark.range(0, 100, 1, 2).selectExpr("string(id) key", "string(id) value")
    frame.write.format("moldau").mode("append").options(**secured).option("topic", "in").save()
    source = {"subscribe": "in", "startingOffsets": "earliest", "groupId": "watched"}
    query = (
        spark.readStream.format("moldau")
        .options(**secured, **source)
        .load()
        .writeStream.format("moldau")
        .options(**secured, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.format("moldau").options(
        **secured, subscribe="out", isolation="read_committed"
    )
    assert sorted(int(row.value) for row in found.load().collect()) == list(range(100))
    assert set(front.logins) == {"SCRAM-SHA-512 ann"}


def test_a_wrong_password_is_reported_and_never_shown(
    spark: Any, front: SecureFront, tmp_path: Path
) -> None:
    secured = options_for(front, tmp_path / "ca.pem", "wrong-4712")
    for ask in (
        lambda: spark.read.format("moldau").options(**secured, subscribe="in").load().count(),
        lambda: (
            spark.range(1)
            .selectExpr("'v' value")
            .write.format("moldau")
            .mode("append")
            .options(**secured, topic="in")
            .save()
        ),
    ):
        with pytest.raises(Exception, match="rejected user ann") as caught:
            ask()
        assert "kafka.sasl.jaas.config" in str(caught.value)
        assert "wrong-4712" not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_front_lets_librdkafka_in_as_well(
    front: SecureFront, tmp_path: Path, mechanism: str
) -> None:
    """So what it checks is what brokers check."""
    authorities = tmp_path / "ca.pem"
    authorities.write_text(CA.pem)
    consumer = Consumer(
        {
            "bootstrap.servers": front.bootstrap,
            "group.id": "g",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authorities),
            "sasl.mechanism": mechanism,
            "sasl.username": "ann",
            "sasl.password": PASSWORD,
        }
    )
    found = consumer.list_topics(timeout=wait_seconds_max())
    consumer.close()
    assert [str(broker) for broker in found.brokers.values()] == [f"{front.bootstrap}/1"]
    assert set(front.logins) == {f"{mechanism} ann"}


def test_no_client_connects_by_plain_text(front: SecureFront) -> None:
    """So the tests above show what they say."""
    with KafkaClient(front.bootstrap, timeout=5) as client, pytest.raises(ClientError):
        client.cluster_id()

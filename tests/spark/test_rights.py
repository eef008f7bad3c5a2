"""A query on a secured cluster, by a user who has the rights that the page names, and no others."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from secured_cluster import SecuredCluster, secured_cluster

from moldau.client.librdkafka_security import security_of
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark" / "sink.md"
SOURCE, GROUP, SINK, DECISIONS = (
    *("orders", "orders-by-customer", "loud-orders"),
    "__moldau_spark_decisions",
)
PASSWORD = "planted-password-of-etl"
ROWS = 50


def rights() -> list[str]:
    """The commands of the page."""
    section = PAGE.read_text().split("## Rights\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", section, flags=re.M | re.S)
    return str(block).strip().splitlines()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        cluster.run("topic", "create", SOURCE, SINK, "--partitions", "1")
        cluster.add_user("etl", PASSWORD)
        for line in rights():
            cluster.paste(line)
        yield cluster


@pytest.fixture
def options(secured: SecuredCluster) -> dict[str, str]:
    login = {f"kafka.{name}": value for name, value in secured.login("etl", PASSWORD).items()}
    return {**login, "kafka.bootstrap.servers": secured.bootstrap}


def write_orders(secured: SecuredCluster, first: int) -> None:
    login = security_of(secured.login("root", "planted-password-of-root"))
    records = [
        Record(Offset(0), TimestampMs(1), None, b"v%d" % number, [])
        for number in range(first, first + ROWS)
    ]
    timeout = wait_seconds_max()
    with KafkaClient(secured.bootstrap, timeout=timeout, security=login) as client:
        client.produce(SOURCE, 0, build_batch(records))


def run_query(spark: Any, options: dict[str, str], checkpoint: Path) -> None:
    query = (
        spark.readStream.format("moldau")
        .options(**options, subscribe=SOURCE, startingOffsets="earliest", groupId=GROUP)
        .load()
        .selectExpr("key", "upper(CAST(value AS STRING)) AS value")
        .writeStream.format("moldau")
        .options(**options, topic=SINK, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.safety
def test_the_query_of_the_page_writes_each_row_once_though_a_leader_is_killed(
    spark: Any, secured: SecuredCluster, options: dict[str, str], tmp_path: Path
) -> None:
    write_orders(secured, 0)
    run_query(spark, options, tmp_path / "checkpoint")
    leader = secured.cluster.leader(SOURCE, 0)
    leader.kill()
    write_orders(secured, ROWS)
    run_query(spark, options, tmp_path / "checkpoint")
    leader.start()
    login = {f"kafka.{k}": v for k, v in secured.login("root", "planted-password-of-root").items()}
    found = (
        spark.read.format("moldau")
        .options(**{**options, **login}, subscribe=SINK, isolation="read_committed")
        .load()
    )
    values = [bytes(row.value).decode() for row in found.collect()]
    assert values == [f"V{number}" for number in range(2 * ROWS)]


def read_orders(spark: Any, options: dict[str, str], folder: Path) -> None:
    spark.read.format("moldau").options(**options, subscribe=SOURCE).load().count()


def write_version(spark: Any, options: dict[str, str], folder: Path) -> None:
    (
        spark.range(1)
        .selectExpr("'v' AS value")
        .write.format("moldau")
        .mode("append")
        .options(**options, topic=SINK, txnAppId=f"app-{folder.name}", txnVersion="1")
        .save()
    )


REFUSALS: dict[str, tuple[Callable[[Any, dict[str, str], Path], None], str]] = {
    SOURCE: (read_orders, f"cannot read topic {SOURCE}: TOPIC_AUTHORIZATION_FAILED"),
    GROUP: (run_query, f"cannot commit offsets for group {GROUP}: GROUP_AUTHORIZATION_FAILED"),
    SINK: (write_version, f"cannot add partitions of {SINK} to the transaction"),
    "moldau-spark-": (write_version, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    DECISIONS: (write_version, DECISIONS),
}
"""What fails without a right on the resource, and what the error says."""


def test_without_any_one_of_the_rights_it_is_refused(
    spark: Any, secured: SecuredCluster, options: dict[str, str], tmp_path: Path
) -> None:
    lines = rights()
    assert len(lines) == len(REFUSALS)
    for line in lines:
        words = shlex.split(line, comments=True)
        resource = next(name for name in REFUSALS if name in words)
        attempt, reason = REFUSALS[resource]
        deleted = [word for word in words[3:] if word != "--prefix"]
        secured.run("acl", "delete", *deleted, "-y")
        with pytest.raises(Exception, match=re.escape(reason)) as caught:
            attempt(spark, options, tmp_path / resource)
        assert "moldau acl add --help" in str(caught.value)
        assert PASSWORD not in str(caught.value)
        secured.paste(line)
    write_version(spark, options, tmp_path / "allowed")

"""A leader dies under load: what was acknowledged is read, in its order."""

import asyncio
import threading

import pytest

from moldau import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

PARTITIONS = 3

pytestmark = pytest.mark.system


@pytest.mark.safety
def test_every_acknowledged_message_is_read_though_a_leader_is_killed(
    moldau_cluster: Cluster,
) -> None:
    Admin(moldau_cluster.bootstrap).create_topic(
        "orders", partitions=PARTITIONS, replication_factor=3
    )
    acknowledged: list[list[str]] = [[] for _ in range(PARTITIONS)]
    # A dict keeps the order of the first time: a group that loses its coordinator may read again.
    found: list[dict[str, None]] = [{} for _ in range(PARTITIONS)]
    over = threading.Event()
    killed = threading.Event()

    def produce() -> None:
        with Producer(moldau_cluster.bootstrap, linger_ms=1) as producer:
            number = 0
            enough = 0
            while enough < 200:
                at = number % PARTITIONS
                text = f"{at} {number}"
                producer.send("orders", text, partition=at).result(wait_seconds_max())
                acknowledged[at].append(text)
                number += 1
                # Well beyond the moment in which the leader dies.
                enough += killed.is_set()
        over.set()

    def consume() -> None:
        with Consumer(moldau_cluster.bootstrap, group_id="billing") as consumer:
            consumer.subscribe("orders")

            def is_all_read() -> bool:
                for message in consumer.poll(0.1):
                    found[message.partition].setdefault(message.text)
                return over.is_set() and sum(map(len, found)) >= sum(map(len, acknowledged))

            wait_until(is_all_read, "all that was acknowledged is read")

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(map(len, found)) >= 100, "messages flow")
    moldau_cluster.leader("orders", 0).kill()
    killed.set()
    for thread in threads:
        thread.join(wait_seconds_max())
    assert over.is_set()
    assert [list(texts) for texts in found] == acknowledged

    asyncio.run(read_again_without_a_leader(moldau_cluster, acknowledged))


async def read_again_without_a_leader(cluster: Cluster, acknowledged: list[list[str]]) -> None:
    """The same for coroutines, with one broker of three still gone."""
    async with AsyncProducer(cluster.bootstrap) as producer:
        receipts = await asyncio.gather(
            *(await producer.send_many("orders", [("k", f"late {n}") for n in range(50)]))
        )
    at = receipts[0].partition
    acknowledged[at] += [f"late {n}" for n in range(50)]
    async with AsyncConsumer(cluster.bootstrap, group_id="archive") as consumer:
        await consumer.subscribe("orders")
        found: list[list[str]] = [[] for _ in range(PARTITIONS)]
        async for message in consumer:
            found[message.partition].append(message.text)
            if sum(map(len, found)) == sum(map(len, acknowledged)):
                break
    assert found == acknowledged

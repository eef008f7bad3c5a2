"""The clients of brokers, as any broker of a cluster shows them."""

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from http_client import ask
from moldau import Producer, QueueClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until
from raw_client import RawClient, batch

pytestmark = pytest.mark.system


def connections(address: str, broker: int) -> list[dict[str, Any]]:
    reply = ask(address, "GET", f"/api/v1/brokers/{broker}/connections")
    assert reply.status == 200, reply.body
    assert (reply.body["broker"], reply.body["is_cut"]) == (broker, False)
    assert reply.body["count"] == len(reply.body["connections"])
    return list(reply.body["connections"])


def test_each_broker_shows_the_clients_of_all() -> None:
    with Cluster(brokers=2) as cluster:
        here, there = cluster.brokers
        addresses = [here.http_address, there.http_address]
        assert ask(here.http_address, "POST", "/api/v1/topics", {"name": "t"}).status == 201
        with Producer(there.bootstrap) as producer:
            producer.send("t", b"x" * 1000, partition=0).result(wait_seconds_max())
        consumer = Consumer(
            {"bootstrap.servers": here.bootstrap, "client.id": "reader", "group.id": "g"}
        )
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            assert consumer.poll(wait_seconds_max()) is not None

            def readers(address: str) -> list[dict[str, Any]]:
                return [
                    one
                    for broker in (1, 2)
                    for one in connections(address, broker)
                    if one["client_id"] == "reader"
                ]

            for address in addresses:
                wait_until(lambda at=address: len(readers(at)) >= 2, "the consumer is shown")
                found = readers(address)
                assert {one["protocol"] for one in found} == {"kafka"}
                assert {one["user"] for one in found} == {""}
                assert all(one["software"].startswith("confluent-kafka") for one in found), found
                assert all(one["version"] for one in found)
                assert all(one["requests"] > 0 for one in found)
                assert all(one["bytes_in"] > 0 for one in found)
                assert max(one["bytes_out"] for one in found) > 1000
        finally:
            consumer.close()
        with QueueClient(here.grpc_address) as client:
            client.create_topic("jobs")
            (called,) = [
                one for one in connections(there.http_address, 1) if one["protocol"] == "grpc"
            ]
            assert called["software"].startswith("grpc-python")
            assert called["bytes_in"] is None
        own = [one for one in connections(here.http_address, 1) if one["protocol"] == "http"]
        assert own[-1]["requests"] == 1
        assert ask(here.http_address, "GET", "/api/v1/brokers/9/connections").status == 404
        assert ask(here.http_address, "GET", "/api/v1/brokers/x/connections").status == 404


def test_what_fails_is_counted() -> None:
    with Cluster(brokers=1) as cluster, RawClient(*address(cluster)) as client:
        http = cluster.brokers[1].http_address

        def errors() -> list[int]:
            return [one["errors"] for one in connections(http, 1) if one["protocol"] == "kafka"]

        before = sum(errors())
        client.produce("none", batch([b"x"]))
        client.fetch("none", 0)
        assert sum(errors()) - before == 2


def address(cluster: Cluster) -> tuple[str, int]:
    return cluster.brokers[1].host, cluster.brokers[1].port

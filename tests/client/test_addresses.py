"""Broker addresses: one parser for the command line and for all clients."""

import pytest

from moldau.client.addresses import split_brokers
from moldau.client.config import bootstrap_list
from moldau.client.errors import ClientError
from moldau.client.queue.resolver import grpc_seeds


def test_broker_lists_are_split() -> None:
    assert split_brokers("a:1, b:2,") == [("a", 1), ("b", 2)]
    assert split_brokers("[::1]:9093,[::1]") == [("::1", 9093), ("::1", 9092)]
    assert split_brokers("host") == [("host", 9092)]


@pytest.mark.parametrize("brokers", ["", ",", "a:b", "a:0", "a:70000", ":", ":b", ":0", "a:-1"])
def test_what_is_no_broker_list_is_refused(brokers: str) -> None:
    with pytest.raises(ClientError):
        split_brokers(brokers)


def test_a_port_alone_is_one_of_localhost_for_every_client() -> None:
    assert split_brokers(":9093,a:1, :9094") == [("localhost", 9093), ("a", 1), ("localhost", 9094)]
    # librdkafka would reject :PORT.
    assert bootstrap_list(":9093, a:1") == "localhost:9093,a:1"
    assert bootstrap_list([":9093", "a:1"]) == "localhost:9093,a:1"
    assert grpc_seeds([":8001", "[::1]:8002", "http://:8080"]) == ["localhost:8001", "[::1]:8002"]

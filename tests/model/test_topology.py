"""What is counted from a topology."""

import pytest

from http_cluster import partition, topic, topology
from moldau.model.topology import Endpoint


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"replicas": (1, 2, 3), "in_sync": (3, 1, 2)}, False),
        ({"replicas": (1, 2, 3), "in_sync": (1, 2)}, True),
        ({"replicas": (1, 2, 3), "in_sync": (1, 2), "adding": (3,)}, False),
        ({"replicas": (1, 2, 3), "in_sync": (1, 3), "adding": (3,)}, True),
        ({"replicas": (1, 2, 3), "in_sync": (1, 2), "removing": (3,)}, True),
    ],
)
def test_a_partition_lacks_a_replica_that_is_not_in_sync_unless_it_is_only_coming(fields, lacks):
    found = partition(0, **fields)
    assert found.is_under_replicated is lacks
    assert topology(topic("t", found, partition(1))).under_replicated == lacks


def test_partitions_without_a_leader_are_counted():
    shown = topology(topic("t", partition(0), partition(1, -1)), topic("u", partition(0, -1)))
    assert shown.leaderless == 2
    assert topology().leaderless == 0


def test_endpoints_are_shown_as_they_are_typed():
    assert str(Endpoint("h", 1)) == "h:1"
    assert str(Endpoint("::1", 1)) == "[::1]:1"

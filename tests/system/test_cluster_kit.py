"""The kit's cluster starts, changes and ends as its words say, and leaves nothing behind."""

import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.broker import BrokerFailedError
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


def test_a_cluster_grows_stands_still_and_restarts_on_its_ports(tmp_path: Path) -> None:
    with Cluster(brokers=2, data_dir=tmp_path) as cluster:
        addresses = [broker.address for broker in cluster.brokers]
        pids = [broker.pid for broker in cluster.brokers]
        assert cluster.bootstrap == ",".join(addresses)
        third = cluster.add()
        cluster.wait_ready()
        assert {entry["id"] for entry in cluster.topology()["brokers"]} == {1, 2, 3}
        admin = AdminClient({"bootstrap.servers": third.address})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(wait_seconds_max())
        cluster.wait_ready()
        leader = cluster.leader("t", 0)
        assert sorted([leader.number, *(b.number for b in cluster.followers("t", 0))]) == [1, 2, 3]
        leader.pause()
        leader.resume()
        assert leader.restart().address == leader.bootstrap
        cluster.wait_ready()
        assert [broker.address for broker in cluster.brokers][:2] == addresses
        with pytest.raises(LookupError):
            cluster.partition("t", 1)
    assert not any(broker.is_running for broker in cluster.brokers)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert (tmp_path / "broker1").is_dir()


def test_what_never_comes_is_reported_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.testing.waiting.wait_seconds_max", lambda: 0.2)
    cluster = Cluster(brokers=1, data_dir=tmp_path)
    monkeypatch.setattr(type(cluster.brokers[1]), "is_running", True)
    with pytest.raises(BrokerFailedError, match=r"until t/0 has a leader(.|\n)*refused"):
        cluster.leader("t", 0)

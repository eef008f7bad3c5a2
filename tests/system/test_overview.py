"""A real cluster whose broker dies: any other says so, names the new leaders, and its return."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


class Watcher:
    """Follows the overview of one broker."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._response = connection.getresponse()
        assert self._response.status == 200
        assert self._block() == ["retry: 1000"]
        self.events: list[Any] = []
        """The oldest first."""

    def _block(self) -> list[str]:
        lines = []
        while line := self._response.readline().decode().rstrip("\n"):
            lines.append(line)
        return lines

    def next(self) -> Any:
        _, data = self._block()
        found = json.loads(data.removeprefix("data: "))
        self.events += reversed(found["events"])
        return found

    def until(self, state: str) -> Any:
        """The first overview with this health. Every 2 s there is one."""
        for _ in range(int(wait_seconds_max() / 2) + 1):
            found = self.next()
            if found["health"]["state"] == state:
                return found
        raise AssertionError(f"never {state}: {found['health']}, {self.texts()}")

    def until_said(self, kind: str) -> None:
        for _ in range(int(wait_seconds_max() / 2) + 1):
            if any(each["kind"] == kind for each in self.events):
                return
            self.next()
        raise AssertionError(f"no event {kind}: {self.texts()}")

    def texts(self) -> list[str]:
        return [each["text"] for each in self.events]


@contextmanager
def watching(broker: ClusterBroker) -> Iterator[Watcher]:
    connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
    try:
        connection.request("GET", "/api/v1/overview/stream")
        yield Watcher(connection)
    finally:
        connection.close()


def test_a_broker_that_dies_is_said_with_the_new_leaders_and_its_return() -> None:
    with Cluster(3) as cluster:
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("orders", partitions=6, replication_factor=3)
        dead = cluster.leader("orders", 0)
        led = [number for number in range(6) if cluster.leader("orders", number) is dead]
        other = next(each for each in cluster.brokers if each is not dead)
        with watching(other) as watcher:
            healthy = watcher.until("healthy")
            assert healthy["health"]["problems"] == []
            watcher.events.clear()
            dead.kill()
            broken = watcher.next()
            while broken["health"]["state"] == "healthy":
                broken = watcher.next()
            assert f"broker {dead.number} is not alive" in broken["health"]["sentence"]
            first = broken["health"]["problems"][0]
            assert (first["broker"], "moldau broker start" in first["remedy"]) == (
                dead.number,
                True,
            )
            shown = {broker["id"]: broker for broker in broken["brokers"]}
            assert shown[dead.number]["alive"] is False
            assert shown[dead.number]["silent"] is True
            assert shown[dead.number]["leaders"] is None
            watcher.until_said("leader_elected")
            settled = watcher.until("degraded")
            while settled["counts"]["leaderless"]:
                settled = watcher.next()
            assert settled["counts"]["under_replicated"] == 6
            assert {each["partition"] for each in settled["under_replicated"]} == {*range(6)}
            kinds = [each["kind"] for each in watcher.events]
            assert kinds.index("broker_lost") < kinds.index("leader_elected")
            elected = [each for each in watcher.events if each["kind"] == "leader_elected"]
            assert all(each["topic"] == "orders" for each in elected)
            assert all(each["broker"] != dead.number for each in elected)
            said = " ".join(each["text"] for each in elected)
            assert all(str(number) in said for number in led), said
            watcher.events.clear()
            dead.start()
            watcher.until_said("broker_back")
            watcher.until_said("in_sync")
            well = watcher.until("healthy")
            assert "all 3 brokers respond" in well["health"]["sentence"]
            assert well["under_replicated"] == well["leaderless"] == []
            texts = watcher.texts()
            back = texts.index(f"broker {dead.number} is alive again")
            assert back < texts.index("all replicas are in sync again")


def test_every_broker_shows_the_rates_and_quantiles_of_all() -> None:
    with Cluster(3) as cluster:
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("orders", partitions=3, replication_factor=3)
        followed = cluster.brokers[1]
        with watching(followed) as watcher:
            first = watcher.next()
            assert first["history"]["at_ms"][-1] == first["at_ms"]
            while True:
                body = {"records": [{"value": "v" * 100} for _ in range(20)]}
                cluster.brokers[2].ask("/api/v1/topics/orders/records", body)
                found = watcher.next()
                assert found["history"] is None
                if found["rates"]["records_in"]:
                    break
            assert found["rates"]["bytes_in"] > found["rates"]["records_in"]
            assert found["latency"]["commit_p99_ms"] >= found["latency"]["commit_p50_ms"] > 0
            assert all(not each["silent"] and each["version"] for each in found["brokers"])
            assert sum(each["leaders"] for each in found["brokers"]) == 3
            assert sum(each["replicas"] for each in found["brokers"]) == 9
            assert [each["id"] for each in found["brokers"] if each["is_controller"]] == [
                found["controller"]
            ]
            assert sum(each["log_bytes"] for each in found["brokers"]) > 0

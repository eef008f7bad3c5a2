"""A cluster of `moldau cluster start`, whose supervisor lets clients play with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moldau_command import run_moldau

from http_client import ask
from moldau.supervisor.state import ClusterState, need_state
from moldau.testing.waiting import wait_until

_FREE = ("--kafka-port", "0", "--raft-port", "0", "--http-port", "0")
_SMALL = ("--set", "group.offsets_partitions=3", "--set", "queue.state_partitions=3")


class SupervisedCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def state(self) -> ClusterState:
        return need_state(self.directory)

    def http(self, broker: int) -> str:
        return self.state.member(broker).http

    def kafka(self, broker: int) -> str:
        return self.state.member(broker).kafka

    def get(self, broker: int, path: str) -> Any:
        reply = ask(self.http(broker), "GET", path)
        assert reply.status == 200, reply.body
        return reply.body

    def play(self, broker: int, path: str, body: dict[str, Any]) -> Any:
        """Asks this broker; returns the board after it."""
        reply = ask(self.http(broker), "POST", f"/api/v1/play/{path}", body)
        assert reply.status == 200, reply.body
        return reply.body

    def states(self, broker: int) -> dict[int, str]:
        return {each["id"]: each["state"] for each in self.get(broker, "/api/v1/play")["brokers"]}

    def live(self, broker: int) -> dict[int, Any]:
        """The brokers as this one sees them."""
        return {each["id"]: each for each in self.get(broker, "/api/v1/overview")["brokers"]}

    def health(self, broker: int) -> str:
        """What it says of the cluster; empty: it does not answer."""
        try:
            reply = ask(self.http(broker), "GET", "/api/v1/overview")
        except OSError:
            return ""
        return str(reply.body["health"]["state"]) if reply.status == 200 else ""

    def until_well(self) -> None:
        for member in self.state.brokers:
            self._await_health(member.id)

    def _await_health(self, broker: int) -> None:
        wait_until(lambda: self.health(broker) == "healthy", f"broker {broker} says: all is well")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()


@contextmanager
def supervised_cluster(
    directory: Path, *settings: str, count: int = 3
) -> Iterator[SupervisedCluster]:
    """`settings`: as for --set."""
    place = ("--data-dir", str(directory))
    more = [word for setting in settings for word in ("--set", setting)]
    try:
        run_moldau("cluster", "start", "-n", str(count), "-d", *_FREE, *_SMALL, *more, *place)
        yield SupervisedCluster(directory)
    finally:
        run_moldau("cluster", "stop", *place)

"""A cluster of real broker processes for tests, which can be killed, paused and added.

with Cluster(brokers=3) as cluster:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.leader("orders", 0).kill()
"""

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from moldau.coordination.coordinator_service import java_hash
from moldau.testing.broker import Broker, BrokerFailedError
from moldau.testing.ports import free_ports
from moldau.testing.waiting import WaitTimeoutError, wait_seconds_max, wait_until

T = TypeVar("T")

_NO_LEADER: Final = -1
_TOPOLOGY: Final = "/api/v1/topology"
_TURN_SECONDS_MAX: Final = 5.0
"""Timeout of a request to one broker that is retried, or sent to another one."""
NOT_YET: Final = (OSError, LookupError, BrokerFailedError)
"""Raised while a broker does not respond yet, or a topic does not exist yet."""


class ClusterBroker(Broker):
    """One member. It keeps its ports over restarts."""

    def __init__(
        self, *, number: int, data_dir: Path, settings: Mapping[str, str], join: str | None
    ) -> None:
        super().__init__(data_dir=data_dir, settings=dict(settings), port=free_ports(1)[0])
        self.number = number
        self.rack: str | None = None
        self._join = join

    def arguments(self) -> list[str]:
        found = super().arguments()
        found[found.index("--id") + 1] = str(self.number)
        if self._join is not None:
            found.remove("--bootstrap")
            found += ["--join-addr", self._join]
        return found

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds_max: float | None = None,
    ) -> Any:
        """Send a request to its HTTP API, as its local administrator.

        Raises OSError while it does not respond.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.http_address}{path}",
            data=data,
            headers={"Content-Type": "application/json", **self._authorization()},
        )
        with urllib.request.urlopen(request, timeout=seconds_max or wait_seconds_max()) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _authorization(self) -> dict[str, str]:
        token = self.data_dir / "admin.token"
        return {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}


class Brokers:
    """The members by number: `cluster.brokers[1]` is the one that bootstrapped the cluster."""

    def __init__(self) -> None:
        self._members: dict[int, ClusterBroker] = {}

    def __getitem__(self, number: int) -> ClusterBroker:
        return self._members[number]

    def __iter__(self) -> Iterator[ClusterBroker]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def put(self, broker: ClusterBroker) -> None:
        self._members[broker.number] = broker


class Cluster:
    """Brokers on free loopback ports, numbered from 1; the first bootstraps, the others join.

    `settings` are configuration keys in the form of environment variables without their prefix,
    for all brokers: ``Cluster(settings={"LOG__FLUSH": "never"})``. Leaving the context ends the
    processes, and deletes the directories unless `data_dir` is given.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | str | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError("a cluster needs at least one broker")
        self._is_temporary_dir = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="moldau-cluster-"))
        self.settings = {
            "TOPIC__REPLICATION_FACTOR": str(min(3, brokers)),
            **(settings or {}),
        }
        self.brokers = Brokers()
        for _ in range(brokers):
            self._new()

    def _new(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        number = len(self.brokers) + 1
        # Ignored once the broker is a member.
        join = None if number == 1 else self.brokers[1].http_address
        broker = ClusterBroker(
            number=number,
            data_dir=self.data_dir / f"broker{number}",
            settings={**self.settings, **(settings or {})},
            join=join,
        )
        self.brokers.put(broker)
        return broker

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> Self:
        """Start every broker that is not running, and wait until all serve."""
        first = self.brokers[1]
        if not first.is_running and not first.data_dir.exists():
            first.start()
        started = [broker for broker in self.brokers if not broker.is_running]
        for broker in started:
            broker.launch()
        for broker in started:
            broker.wait_ready()
        return self.wait_ready()

    def add(self, *, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """Start another broker, which joins through a running member."""
        broker = self._new(settings)
        member = next((b for b in self.brokers if b.is_running and b is not broker), None)
        if member is not None:
            broker._join = member.http_address
        return broker.start()

    def topology(self) -> dict[str, Any]:
        """The topology, from the first broker that responds."""
        if not any(broker.is_running for broker in self.brokers):
            raise BrokerFailedError("no broker is running")
        return self._wait(self._read_topology, "a broker returns the topology")

    def _read_topology(self) -> dict[str, Any]:
        error: OSError | None = None
        for broker in self.brokers:
            if broker.is_running:
                try:
                    found: dict[str, Any] = broker.ask(_TOPOLOGY, seconds_max=_TURN_SECONDS_MAX)
                except OSError as caught:
                    error = caught
                else:
                    return found
        raise BrokerFailedError(f"no broker returns the topology: {error}")

    def partition(self, topic: str, partition: int) -> dict[str, Any]:
        """One partition of the topology; raises LookupError if it does not exist."""
        for entry in self.topology()["topics"]:
            if entry["name"] == topic:
                for found in entry["partitions"]:
                    if found["partition"] == partition:
                        return dict(found)
        raise LookupError(f"{topic}/{partition} does not exist")

    def leader(self, topic: str, partition: int) -> ClusterBroker:
        """The leader of a partition; waits while there is none."""

        def leading() -> ClusterBroker | None:
            number = self.partition(topic, partition)["leader"]
            is_led = number != _NO_LEADER and self.brokers[number].is_running
            return self.brokers[number] if is_led else None

        return self._wait(leading, f"{topic}/{partition} has a leader")

    def coordinator(self, topic: str, name: str) -> ClusterBroker:
        """The coordinator of a group or a transactional id; `topic` is the internal topic."""
        topics = {known["name"]: known for known in self.topology()["topics"]}
        return self.leader(topic, java_hash(name) % len(topics[topic]["partitions"]))

    def followers(self, topic: str, partition: int) -> list[ClusterBroker]:
        leader = self.leader(topic, partition)
        replicas = self.partition(topic, partition)["replicas"]
        return [self.brokers[number] for number in replicas if number != leader.number]

    def wait_ready(self) -> Self:
        """Wait until all running brokers see each other alive and all partitions are in sync."""
        self._wait(self._is_healthy, "the cluster is healthy")
        return self

    def _wait(self, holds: Callable[[], T | None], what: str) -> T:
        try:
            found = wait_until(holds, what, describe=self._describe, ignoring=NOT_YET)
        except WaitTimeoutError as error:
            raise BrokerFailedError(str(error)) from None
        assert found is not None
        return found

    def _is_healthy(self) -> bool:
        running = {broker.number for broker in self.brokers if broker.is_running}
        for broker in self.brokers:
            if broker.number in running:
                topology = broker.ask(_TOPOLOGY, seconds_max=_TURN_SECONDS_MAX)
                alive = {entry["id"] for entry in topology["brokers"] if entry["alive"]}
                if topology["controller"] == _NO_LEADER or not running <= alive:
                    return False
                for topic in topology["topics"]:
                    for partition in topic["partitions"]:
                        expected = running & set(partition["replicas"])
                        if partition["leader"] == _NO_LEADER or expected - set(
                            partition["in_sync"]
                        ):
                            return False
        return True

    def _describe(self) -> str:
        try:
            topology = json.dumps(self._read_topology())
        except BrokerFailedError as error:
            topology = str(error)
        logs = [f"--- broker {broker.number}\n{broker.output[-2000:]}" for broker in self.brokers]
        return "\n".join([topology, *logs])

    def stop(self) -> None:
        """Send SIGTERM to all; paused ones are resumed first."""
        for broker in self.brokers:
            if broker.is_running:
                broker.resume()
                broker.stop()

    def kill(self) -> None:
        for broker in self.brokers:
            if broker.is_running:
                broker.send_kill()
        for broker in self.brokers:
            broker.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes, and delete the temporary directories."""
        self.kill()
        if self._is_temporary_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

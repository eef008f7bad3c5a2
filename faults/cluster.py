"""What the harness knows of a cluster: who leads, who is in sync, by asking the brokers.

Answers come over HTTP from each broker that runs, past every cut. Brokers may contradict each other
for a while; of what they say about a leader, the latest epoch counts.
"""

import http.client
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from faults.network import Network
from faults.nodes import Node, NodeError
from faults.secured import Secured

NO_LEADER: Final = -1
_ANSWER_SECONDS_MAX: Final = 5.0
_LEADER_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Who leads a partition, and since which epoch."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Cluster:
    """The brokers of a run, looked at from outside."""

    def __init__(
        self,
        nodes: Sequence[Node],
        network: Network,
        topic: str,
        security: Secured | None = None,
    ) -> None:
        self._nodes = nodes
        self._network = network
        self._topic = topic
        self._security = security

    def ask(
        self, node: Node, path: str, body: dict[str, Any] | None = None, *, method: str = ""
    ) -> tuple[int, Any]:
        """Status and JSON of one answer. Raises OSError if there is none."""
        connection = http.client.HTTPConnection("broker", timeout=_ANSWER_SECONDS_MAX)
        connection.sock = self._network.connect(node.http)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"Host": node.http, "Content-Type": "application/json"}
            if self._security is not None:
                host = node.http.rpartition(":")[0]
                connection.sock = self._security.wrap(connection.sock, host)
                headers["Authorization"] = f"Bearer {node.admin_token}"
            connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"broker {node.number}: {error!r}") from error
        finally:
            connection.close()

    def _awake(self) -> list[Node]:
        return [node for node in self._nodes if node.alive() and node.state() != "T"]

    def topology(self, node: Node) -> dict[str, Any]:
        status, reported = self.ask(node, "/api/v1/topology")
        if status != http.client.OK:
            raise OSError(f"broker {node.number} returned no topology: {status} {reported}")
        found: dict[str, Any] = reported
        return found

    def topologies(self) -> dict[int, dict[str, Any]]:
        """What each broker says that runs and answers."""
        found = {}
        for node in self._awake():
            try:
                found[node.number] = self.topology(node)
            except OSError:
                continue
        return found

    def leads(self, topic: str | None = None) -> dict[int, Lead]:
        """Each partition of the topic as the latest epoch has it."""
        found: dict[int, Lead] = {}
        for topology in self.topologies().values():
            for partition, lead in _leads(topology, topic or self._topic).items():
                known = found.get(partition)
                # Among equals, one that names the leader.
                order = (lead.epoch, lead.leader != NO_LEADER, len(lead.in_sync))
                if known is None or order > (
                    known.epoch,
                    known.leader != NO_LEADER,
                    len(known.in_sync),
                ):
                    found[partition] = lead
        return found

    def epochs(self) -> dict[int, int]:
        return {partition: lead.epoch for partition, lead in self.leads().items()}

    def node(self, number: int) -> Node:
        return self._nodes[number - 1]

    def leader(self, partition: int = 0) -> Node:
        """The one that leads it; waits while nobody does."""
        deadline = time.monotonic() + _LEADER_SECONDS_MAX
        while time.monotonic() < deadline:
            lead = self.leads().get(partition)
            if lead is not None and lead.leader != NO_LEADER:
                node = self.node(lead.leader)
                if node.alive():
                    return node
            time.sleep(0.1)
        raise NodeError(f"no leader of partition {partition}: {self.leads()}")

    def claims(self, node: Node, partition: int) -> bool:
        """Whether a broker says that it leads a partition itself."""
        try:
            lead = _leads(self.topology(node), self._topic).get(partition)
        except OSError:
            return False
        return lead is not None and lead.leader == node.number

    def led_by(self, node: Node) -> list[int]:
        """The partitions that a broker leads."""
        return sorted(p for p, lead in self.leads().items() if lead.leader == node.number)

    def follower(self) -> Node:
        """One that leads no partition of the topic, and not the cluster if there is a choice."""
        leads = self.leads()
        leaders = {lead.leader for lead in leads.values()}
        held = {number for lead in leads.values() for number in lead.replicas}
        free = [node for node in self._awake() if node.number in held - leaders]
        if not free:
            raise NodeError(f"every broker leads something: {leads}")
        controller = self.controller()
        return min(free, key=lambda node: node.number == controller)

    def controller(self) -> int:
        """The leader of the metadata, as most brokers say; -1 if there is none."""
        reported = [int(topology["controller"]) for topology in self.topologies().values()]
        return max(reported, key=reported.count, default=NO_LEADER)

    def is_whole(self) -> bool:
        """Whether all that run see each other, and their replicas of the topic are in sync."""
        running = {node.number for node in self._awake()}
        reported = self.topologies()
        if set(reported) != running or not running:
            return False
        for topology in reported.values():
            alive = {entry["id"] for entry in topology["brokers"] if entry["alive"]}
            if topology["controller"] == NO_LEADER or not running <= alive:
                return False
            for lead in _leads(topology, self._topic).values():
                held = running & set(lead.replicas)
                if lead.leader == NO_LEADER or held - set(lead.in_sync):
                    return False
        return True

    def is_balanced(self) -> bool:
        """Whether every partition is led by the first of its replicas: nobody will hand over."""
        leads = self.leads()
        return bool(leads) and all(lead.leader == lead.replicas[0] for lead in leads.values())

    def is_settled(self) -> bool:
        """Whether nobody says that a partition of the topic is to get or lose a replica."""
        reported = self.topologies()
        return bool(reported) and not any(
            partition["adding"] or partition["removing"]
            for topology in reported.values()
            for topic in topology["topics"]
            if topic["name"] == self._topic
            for partition in topic["partitions"]
        )

    def replicas(self) -> dict[int, list[Path]]:
        """The data directories of all that run and shall hold a partition, by partition."""
        running = {node.number: node for node in self._awake()}
        return {
            partition: [running[n].data_dir for n in lead.replicas if n in running]
            for partition, lead in self.leads().items()
        }

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self._nodes if node not in nodes]


def _leads(topology: dict[str, Any], topic: str) -> dict[int, Lead]:
    entries: Iterable[dict[str, Any]] = topology["topics"]
    for entry in entries:
        if entry["name"] == topic:
            return {
                int(partition["partition"]): Lead(
                    leader=int(partition["leader"]),
                    epoch=int(partition["leader_epoch"]),
                    replicas=tuple(partition["replicas"]),
                    in_sync=tuple(partition["in_sync"]),
                )
                for partition in entry["partitions"]
            }
    return {}

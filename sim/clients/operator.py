"""An operator: brokers that join, leave, stay after all, and lose their disks.

One thing at a time: of three copies one at most is ever missing. A disk is lost only when every
partition has all its replicas in sync and the metadata has three voters.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from moldau.client import http
from moldau.client.cluster_client import TOPOLOGY_PATH
from moldau.model.topology import Endpoint, Topology
from sim.cluster import HTTP_PORT, Cluster
from sim.machine import ask_http
from sim.node import Node
from sim.process import ClientProcess
from sim.rot import Rot, flip, flip_snapshot
from sim.scene import Scene

BROKERS_MAX: Final = 6
FINISH_SECONDS: Final = 150.0
"""So long after all is healed, what was begun has come to its end."""
_LOOK_SECONDS: Final = 0.5
_COPIES: Final = 3
_DOUBT_SECONDS: Final = 40.0
"""So long an order may be on its way when nobody has answered it."""


class Operator:
    """Acts on machines by hand, and on the cluster over HTTP."""

    def __init__(self, cluster: Cluster, scene: Scene, process: ClientProcess) -> None:
        self._cluster = cluster
        self._scene = scene
        self._rng: random.Random = process.rng
        self._numbers: dict[Node, int] = {node: i for i, node in enumerate(cluster.nodes, 1)}
        self._rotten: set[tuple[str, int]] = set()
        self._rots: list[Rot] = []

    async def run(self) -> None:
        deeds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._join,
            self._leave,
            self._leave,
            self._wipe,
            self._rot,
            self._rot,
            self._rot_metadata,
            self._lose_log,
        )
        while not self._scene.is_over:
            await self._scene.pause(self._rng, 2.0)
            if not self._scene.is_over:
                await self._rng.choice(deeds)()
        await self._until(lambda: self._rot_left() is None, lambda: f"{self._rot_left()} is rotten")

    # ---- deeds

    async def _join(self) -> None:
        if len(self._cluster.nodes) < BROKERS_MAX:
            await self._add()

    async def _add(self) -> None:
        node = self._cluster.add_node(is_named=self._rng.random() < 0.5)
        await self._until(lambda: node.is_ready, lambda: f"{node.name} did not join")
        if node.process is not None and node.process.info is not None:
            self._numbers[node] = node.process.info.broker_id
            self._scene.count("brokers joined")

    async def _leave(self) -> None:
        """Drained, and perhaps kept."""
        nodes = self._cluster.nodes
        if len(nodes) <= _COPIES:
            return
        node = self._rng.choice(nodes)
        left = await self._order("leave", node)
        if left is False:
            return
        is_sure = left is True
        if self._rng.random() < 0.3:
            is_sure = False
            await self._scene.pause(self._rng, self._rng.choice((0.05, 1.0)))
            await self._order("keep", node)
        if not await self._is_removed(node, is_sure=is_sure):
            self._scene.count("brokers kept")
            return
        process = node.process
        # A paused or partitioned broker learns of it later.
        await self._until(
            lambda: node.process is None or node.process is not process,
            lambda: f"{node.name} was removed, and goes on",
        )
        self._cluster.retire(node)
        self._scene.count("brokers left")

    async def _wipe(self) -> None:
        """Its disk is lost: another broker takes its place, and its number is removed."""
        nodes = self._cluster.nodes
        if self._rot_left() is not None or not await self._is_whole():
            return
        if self._scene.is_over:
            return
        is_bootstrap_broker = nodes[0].number == 1 and self._rng.random() < 0.8
        node = nodes[0] if is_bootstrap_broker else self._rng.choice(nodes)
        self._cluster.wipe(node)
        await self._scene.pause(self._rng, self._rng.choice((0.1, 3.0)))
        if node.number == 1:
            # Others have an address to join, and would; this one has none.
            self._cluster.start_without_disk(node)
            await self._scene.pause(self._rng, 1.0)
            node.kill()
        if len(self._cluster.nodes) < BROKERS_MAX:
            await self._add()
        while await self._order("leave", node) is not True:
            if self._has_waited():
                self._scene.violation(f"{node.name} lost its disk, and cannot be removed")
                return
            await self._scene.pause(self._rng, 1.0)
        await self._is_removed(node, is_sure=True)
        self._scene.count("disks lost")

    async def _rot(self) -> None:
        """In one replica of a partition; each partition once."""
        topology = await self._whole()
        if topology is None or self._rot_left() is not None:
            return
        places = [
            (topic, each)
            for topic in topology.topics
            for each in topic.partitions
            if (topic.id, each.partition) not in self._rotten
        ]
        if not places:
            return
        topic, partition = self._rng.choice(places)
        nodes = [n for n in self._cluster.nodes if self._numbers.get(n) in partition.replicas]
        if not nodes:
            return
        node = self._rng.choice(nodes)
        folder = f"topics/{topic.name}/{topic.id}/{partition.partition}"
        rot = self._cluster.rot(node, lambda: flip(node, folder, self._rng))
        if rot is None:
            return
        self._rotten.add((topic.id, partition.partition))
        self._rots.append(rot)
        self._scene.count("bits flipped")
        while self._rot_left() is not None and not self._scene.is_over:
            await self._scene.pause(self._rng, _LOOK_SECONDS)

    async def _lose_log(self) -> None:
        """Of one partition, on one broker; and its leader is away when that broker comes back."""
        topology = await self._whole()
        if topology is None or self._rot_left() is not None or not topology.topics:
            return
        topic = self._rng.choice(topology.topics)
        partition = self._rng.choice(topic.partitions)
        nodes = {self._numbers.get(node): node for node in self._cluster.nodes}
        leader = nodes.get(partition.leader)
        others = [nodes[each] for each in partition.replicas if each in nodes]
        if leader is None or leader not in others or len(others) < _COPIES:
            return
        others.remove(leader)
        node = self._rng.choice(others)
        self._cluster.lose_log(node, f"topics/{topic.name}/{topic.id}/{partition.partition}")
        if self._rng.random() < 0.7:
            self._cluster.restart(leader, 1.0 + 4.0 * self._rng.random())
        self._scene.count("logs lost")

    async def _rot_metadata(self) -> None:
        """In the newest snapshot of a broker: it may not go on without it. Then it is restored."""
        if await self._whole() is None or self._rot_left() is not None:
            return
        node = self._rng.choice(self._cluster.nodes)
        failures = node.failures
        self._cluster.rotten.add(node)
        rot = self._cluster.rot(node, lambda: flip_snapshot(node, self._rng))
        await self._until(
            lambda: node.is_ready or node.failures > failures,
            lambda: f"{node.name} neither starts with rotten metadata nor refuses to",
        )
        if node.failures > failures:
            self._scene.count("rotten metadata refused")
        if rot is not None:
            rot.mend()
        self._cluster.rotten.discard(node)

    def _rot_left(self) -> str | None:
        self._rots = [rot for rot in self._rots if rot.is_there]
        return f"{self._rots[0].path} of {self._rots[0].node.name}" if self._rots else None

    # ---- what the cluster says

    async def _ask(
        self, node: Node, method: str, path: str, body: bytes = b""
    ) -> http.HttpResponse | None:
        """None: no answer."""
        process = node.process
        try:
            async with asyncio.timeout(6.0):
                answer = await ask_http(Endpoint(node.address, HTTP_PORT), method, path, body)
        except (OSError, EOFError, TimeoutError):
            return None
        if answer.status >= 300:
            self._scene.count(f"operator got {answer.status}")
            if answer.status == 500 and node.process is process:
                self._scene.violation(f"{node.name}: {method} {path}: {answer.body.decode()}")
        return answer

    async def _order(self, what: str, node: Node) -> bool | None:
        """Sent to any broker; False: it was rejected. None: unknown, it may still be done."""
        asked = self._rng.choice(self._cluster.nodes)
        body = msgspec.json.encode({"broker": self._numbers[node]})
        answer = await self._ask(asked, "POST", f"/api/v1/cluster/{what}", body)
        if answer is None or answer.status >= 500:
            return None
        return answer.status < 300

    async def _topology(self) -> Topology | None:
        """As the controller sees it, at its word."""
        for node in self._rng.sample(self._cluster.nodes, len(self._cluster.nodes)):
            answer = await self._ask(node, "GET", TOPOLOGY_PATH)
            if answer is not None and answer.status < 300:
                found = msgspec.json.decode(answer.body, type=Topology)
                if found.controller == found.answered_by:
                    return found
        return None

    async def _whole(self) -> Topology | None:
        """The cluster, if every partition has three replicas and all are in sync."""
        topology = await self._topology()
        if topology is None or not all(broker.alive for broker in topology.brokers):
            return None
        if any(broker.state != "active" for broker in topology.brokers):
            return None
        for topic in topology.topics:
            for each in topic.partitions:
                if len(each.replicas) < _COPIES or set(each.replicas) != set(each.in_sync):
                    return None
                if each.adding or each.removing:
                    return None
        return topology

    async def _is_whole(self) -> bool:
        topology = await self._whole()
        if topology is None:
            return False
        controller = [n for n in self._cluster.nodes if self._numbers.get(n) == topology.controller]
        voters = controller[0].metadata_voters() if controller else ()
        return len(voters) >= _COPIES and set(voters) <= {broker.id for broker in topology.brokers}

    async def _is_removed(self, node: Node, *, is_sure: bool) -> bool:
        """Wait until a broker is gone; or, unless that `is_sure`, until it stays."""
        number = self._numbers[node]
        active_until = self._scene.scheduler.now + _DOUBT_SECONDS
        while not self._scene.found:
            topology = await self._topology()
            if topology is not None:
                state = next((each.state for each in topology.brokers if each.id == number), None)
                if state is None:
                    return True
                if state != "active":
                    active_until = self._scene.scheduler.now + _DOUBT_SECONDS
                elif not is_sure and self._scene.scheduler.now > active_until:
                    return False
            if self._has_waited():
                self._scene.violation(f"{node.name} was not removed")
            await self._scene.pause(self._rng, _LOOK_SECONDS)
        return False

    # ---- waiting

    def _has_waited(self) -> bool:
        return self._scene.scheduler.now > self._scene.healed_at + FINISH_SECONDS

    async def _until(self, is_done: Callable[[], bool], failure: Callable[[], str]) -> None:
        while not is_done() and not self._scene.found:
            if self._has_waited():
                self._scene.violation(failure())
            await self._scene.pause(self._rng, _LOOK_SECONDS)

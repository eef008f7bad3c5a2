"""Somebody who knows the cluster over HTTP alone: what is acknowledged there is read there."""

import asyncio
import json
import random
from typing import Any, Final

from moldau.model.topology import Endpoint
from sim.cluster import HTTP_PORT, Cluster
from sim.machine import ask_http
from sim.process import ClientProcess
from sim.scene import Scene

PARTITIONS: Final = 2
TOPIC: Final = "web"
_UNAVAILABLE: Final = 503


class Web:
    """Writes to any broker, which hands the records over to who leads."""

    def __init__(self, cluster: Cluster, scene: Scene, process: ClientProcess) -> None:
        self._cluster = cluster
        self._scene = scene
        self._rng: random.Random = process.rng
        self._sent = 0
        self._acked: dict[tuple[int, int], str] = {}

    async def run(self) -> None:
        if not await self._create():
            return
        while not self._scene.is_over:
            deed = self._rng.choice((self._write, self._write, self._read, self._tail))
            await deed()
            await self._scene.pause(self._rng, 0.2)
        for partition in range(PARTITIONS):
            await self._read_all(partition)

    async def _create(self) -> bool:
        wanted = {
            "name": TOPIC,
            "partitions": PARTITIONS,
            "replication_factor": self._cluster.plan.replication,
        }
        while not self._scene.is_over:
            status, _ = await self._ask("POST", "/api/v1/topics", wanted)
            if status in (200, 201, 409):
                return True
            await self._scene.pause(self._rng, 0.5)
        return False

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and content; 0: no answer."""
        node = self._rng.choice(self._cluster.nodes)
        process = node.process
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(20.0):
                answer = await ask_http(Endpoint(node.address, HTTP_PORT), method, path, data)
        except (OSError, EOFError, TimeoutError):
            return 0, None
        if answer.status >= 500 and answer.status != _UNAVAILABLE and node.process is process:
            self._scene.violation(f"{node.name}: {method} {path}: {answer.status} {answer.body!r}")
        return answer.status, json.loads(answer.body) if answer.is_json else None

    async def _write(self) -> None:
        records = []
        for _ in range(self._rng.randint(1, 4)):
            self._sent += 1
            record: dict[str, Any] = {"value": f"w{self._sent}"}
            if self._rng.random() < 0.5:
                record["key"] = f"k{self._rng.randrange(9)}"
            elif self._rng.random() < 0.5:
                record["partition"] = self._rng.randrange(PARTITIONS)
            records.append(record)
        acks = self._rng.choice(("all", "all", "leader"))
        body = {"records": records, "acks": acks, "timeout_ms": self._rng.choice((200, 5000))}
        status, reported = await self._ask("POST", f"/api/v1/topics/{TOPIC}/records", body)
        if reported is None or acks != "all":
            return
        for record, stored in zip(records, reported.get("records") or (), strict=False):
            if stored["error"] is None and stored["offset"] is not None:
                self._took((stored["partition"], stored["offset"]), record["value"])
        self._scene.count("web acked", len(records) if status == 200 else 0)

    def _took(self, place: tuple[int, int], value: str) -> None:
        known = self._acked.setdefault(place, value)
        if known != value:
            self._scene.violation(f"web{place} was acknowledged for {known} and {value}")

    async def _read(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        offset = self._rng.choice(("earliest", "latest", str(self._rng.randrange(50))))
        asked = self._rng.choice(
            (f"offset={offset}", "time=1", f"offset={offset}&contains=w1", "key=k1&limit=3")
        )
        path = f"/api/v1/topics/{TOPIC}/records?partition={partition}&{asked}"
        status, reported = await self._ask("GET", path)
        if status == 200:
            self._compare(partition, reported["records"])

    def _compare(self, partition: int, records: list[dict[str, Any]]) -> None:
        for record in records:
            acked = self._acked.get((partition, record["offset"]))
            if acked is not None and acked != record["value"]:
                self._scene.violation(
                    f"web/{partition} at {record['offset']}: {record['value']} instead of {acked}"
                )

    async def _tail(self) -> None:
        """For a moment, until the reader disconnects."""
        node = self._rng.choice(self._cluster.nodes)
        path = f"/api/v1/topics/{TOPIC}/tail?partition={self._rng.randrange(PARTITIONS)}"
        try:
            async with asyncio.timeout(2.0):
                await ask_http(Endpoint(node.address, HTTP_PORT), "GET", path, b"")
        except (OSError, EOFError, TimeoutError):
            return

    async def _read_all(self, partition: int) -> None:
        """Everything that was acknowledged is there."""
        left = {offset for index, offset in self._acked if index == partition}
        at = 0
        while left:
            path = f"/api/v1/topics/{TOPIC}/records?partition={partition}&offset={at}&limit=1000"
            status, reported = await self._ask("GET", path)
            if status != 200:
                if status == 400:
                    self._scene.violation(f"web/{partition} at {at}: {reported}")
                await self._scene.pause(self._rng, 1.0)
                continue
            self._compare(partition, reported["records"])
            left -= {record["offset"] for record in reported["records"]}
            at = reported["next_offset"]
            if left and at >= reported["end_offset"]:
                lost = sorted(left)[0]
                value = self._acked[partition, lost]
                self._scene.violation(f"web/{partition} at {lost}: {value} is lost")
                return

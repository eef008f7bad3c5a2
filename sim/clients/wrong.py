"""An admin's mistakes: requests that a broker has to refuse, with the right code."""

import asyncio
import json
import struct
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.model.topology import Endpoint
from moldau.records.record import Record, build_batch
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from sim.clients.session import RETRIABLE, Session
from sim.clients.wire import Kafka, Lost
from sim.clients.wrong_cases import LOAD, cases
from sim.cluster import HTTP_PORT
from sim.machine import ask_http
from sim.scene import Scene

E = ErrorCode
_HEAD: Final = struct.Struct(">ihhih")
_AT_A_TIME: Final = 8
_PLACE: Final = ["10.9.9.9", 9]
_JOINS: Final[tuple[dict[str, Any], ...]] = (
    {"broker_id": -7},
    {"broker_id": 1},
    {"incarnation": ""},
    {"incarnation": "x" * 300},
    {"kafka": ["", 9]},
    {"raft": ["10.9.9.9", 0]},
    {"rack": "x" * 300},
    {"feature_level_max": -1},
    {"cluster_id": "another"},
)
"""Of brokers that cannot be taken in."""


class Wrong:
    """One mistake at a time."""

    def __init__(self, scene: Scene, kafka: Kafka) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = kafka.rng

    async def do(self) -> None:
        """Raises Lost."""
        chance = self._rng.random()
        if chance < 0.65:
            await self._refused()
            await self._orders()
        elif chance < 0.85:
            await self._bad_batch()
        else:
            await self._noise()

    async def _refused(self) -> None:
        session = await Session.begin(self._kafka)
        for request, code_of, expected in self._rng.sample(cases(), _AT_A_TIME):
            first = {20: 6, 43: 1, 1: 7, 45: 1}.get(request.API_KEY, 0)
            code = ErrorCode(code_of(await session.ask(request, first=first)))
            if code not in expected | RETRIABLE:
                self._scene.violation(f"{request} was answered with {code.name}")
            self._scene.count("mistakes")

    async def _orders(self) -> None:
        """About brokers, over HTTP: none of it may be accepted."""
        join = {
            "incarnation": "nobody",
            "process": "p",
            "kafka": _PLACE,
            "raft": _PLACE,
            "http": _PLACE,
        }
        orders: list[tuple[str, Any]] = [("join", {**join, **wrong}) for wrong in _JOINS]
        orders += [
            ("leave", {"broker": 777}),
            ("keep", {"broker": 777}),
            ("leave", {}),
            ("keep", []),
        ]
        host, _ = self._rng.choice(self._kafka.known)
        for path, body in self._rng.sample(orders, 4):
            data = json.dumps(body).encode()
            try:
                async with asyncio.timeout(20.0):
                    answer = await ask_http(
                        Endpoint(host, HTTP_PORT), "POST", f"/api/v1/cluster/{path}", data
                    )
            except (OSError, EOFError, TimeoutError) as error:
                raise Lost(str(error)) from None
            if not 400 <= answer.status < 500 and answer.status != 503:
                self._scene.violation(f"{path} {body}: {answer.status} {answer.body!r}")

    async def _bad_batch(self) -> None:
        """To the topic that others write to: nothing of it may ever be read."""
        good = build_batch([Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", b"bad", [])])
        torn = bytearray(good)
        torn[self._rng.randrange(21, len(torn))] ^= 1 << self._rng.randrange(8)
        huge = build_batch(
            [Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", bytes(1_100_000), [])]
        )
        data, acks, expected = self._rng.choice(
            (
                (bytes(torn), -1, {E.CORRUPT_MESSAGE, E.INVALID_RECORD}),
                (good[:-1], 1, {E.CORRUPT_MESSAGE, E.INVALID_RECORD}),
                (b"", 1, {E.INVALID_RECORD, E.CORRUPT_MESSAGE}),
                (huge, -1, {E.MESSAGE_TOO_LARGE}),
                (good, 5, {E.INVALID_REQUIRED_ACKS}),
            )
        )
        session = await Session.with_leader(self._kafka, (LOAD, 0))
        topic = ProduceTopic(
            name=LOAD,
            topic_id=self._kafka.topic_ids[LOAD],
            partitions=[ProducePartition(index=0, records=data)],
        )
        answer = await session.ask(ProduceRequest(acks=acks, timeout_ms=1000, topics=[topic]))
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        gone = {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID}
        if code not in expected | RETRIABLE | gone:
            self._scene.violation(f"a bad batch, acks {acks}, was answered with {code.name}")

    async def _noise(self) -> None:
        """On a connection of its own, which the broker closes; it stays up."""
        known = self._kafka.known
        frames = (
            struct.pack(">i", -5) + bytes(20),
            struct.pack(">i", 2_000_000_000) + bytes(20),
            _HEAD.pack(10, 999, 0, 1, -1),
            _HEAD.pack(10, 3, 99, 1, -1),
            _HEAD.pack(12, 0, 7, 1, -1) + b"\xff\xff",
            _HEAD.pack(30, 1, 12, 1, -1) + self._rng.randbytes(20),
            self._rng.randbytes(50),
            struct.pack(">i", 100),
        )
        host, port = self._rng.choice(known)
        try:
            async with asyncio.timeout(5.0):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(self._rng.choice(frames))
                    await reader.read(100)
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise Lost(str(error)) from None

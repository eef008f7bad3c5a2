"""Members of consumer groups over bare wire messages: many in one process, none in the way."""

from __future__ import annotations

import asyncio
import struct
import time
from abc import ABC, abstractmethod
from typing import TypeVar

from moldau.model.errors import ErrorCode
from moldau.wire.framing import frame_request, read_response_header
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatOwnedTopic,
)
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from moldau.wire.registry import RESPONSES
from moldau.wire.schema import Request, Response

R = TypeVar("R", bound=Response)

HEARTBEAT_S = 0.5


class Wire:
    """One connection; a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: Request, version: int, kind: type[R]) -> R:
        self._number += 1
        for chunk in frame_request(request, version, self._number, "bench"):
            if not isinstance(chunk, bytes | bytearray | memoryview):
                raise TypeError("a request holds no slice of a file")
            self._writer.write(chunk)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        body = memoryview(await self._reader.readexactly(size))
        _, start = read_response_header(body, request.API_KEY, version)
        response = RESPONSES[request.API_KEY].decode(body[start:], version)
        if not isinstance(response, kind):
            raise TypeError(f"answered with {type(response).__name__}")
        return response


class Member(ABC):
    """What all members tell: in which epoch they are, and when that or their share changed."""

    def __init__(self, port: int, group: str, topic: str, number: int) -> None:
        self.port = port
        self.group = group
        self.topic = topic
        self.name = f"member-{number}"
        self.epoch = 0
        self.share = 0
        self.joined_at: float | None = None
        self.changed_at = 0.0

    @abstractmethod
    async def live(self) -> None:
        """Until it is cancelled."""

    def moved(self, epoch: int, share: int) -> None:
        if (epoch, share) != (self.epoch, self.share):
            self.changed_at = time.perf_counter()
        if self.joined_at is None:
            self.joined_at = time.perf_counter()
        self.epoch, self.share = epoch, share


class Assigned(Member):
    """Of the next-generation protocol."""

    async def live(self) -> None:
        wire = await Wire.open(self.port)
        owned: dict[bytes, list[int]] = {}
        tells = True
        while True:
            joins = self.epoch == 0
            mine = [HeartbeatOwnedTopic(topic_id=t, partitions=p) for t, p in owned.items()]
            answer = await wire.ask(
                ConsumerGroupHeartbeatRequest(
                    group_id=self.group,
                    member_id=self.name,
                    member_epoch=self.epoch,
                    rebalance_timeout_ms=60_000 if joins else -1,
                    subscribed_topic_names=[self.topic] if joins else None,
                    topic_partitions=mine if tells else None,
                ),
                1,
                ConsumerGroupHeartbeatResponse,
            )
            if answer.error_code:
                raise RuntimeError(f"{self.name}: {ErrorCode(answer.error_code).name}")
            tells = False
            if answer.assignment is not None:
                given = {t.topic_id: t.partitions for t in answer.assignment.topic_partitions}
                tells = given != owned
                owned = given
            self.moved(answer.member_epoch, sum(map(len, owned.values())))
            if not tells:
                await asyncio.sleep(answer.heartbeat_interval_ms / 1000)


class Classic(Member):
    """Of the classic protocol; the leader gives every member the same bytes."""

    async def live(self) -> None:
        wire = await Wire.open(self.port)
        member_id = ""
        topic = self.topic.encode()
        subscription = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">i", -1)
        while True:
            joined = await wire.ask(
                JoinGroupRequest(
                    group_id=self.group,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=60_000,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
                ),
                5,
                JoinGroupResponse,
            )
            member_id = joined.member_id or member_id
            if joined.error_code:
                continue
            plan = [
                SyncGroupRequestAssignment(member_id=one.member_id, assignment=b"x" * 40)
                for one in joined.members
            ]
            synced = await wire.ask(
                SyncGroupRequest(
                    group_id=self.group,
                    generation_id=joined.generation_id,
                    member_id=member_id,
                    assignments=plan,
                ),
                3,
                SyncGroupResponse,
            )
            if synced.error_code:
                continue
            self.moved(joined.generation_id, 1)
            await self._stay(wire, member_id)

    async def _stay(self, wire: Wire, member_id: str) -> None:
        """Until the group rebalances."""
        error = 0
        while not error:
            await asyncio.sleep(HEARTBEAT_S)
            request = HeartbeatRequest(
                group_id=self.group, generation_id=self.epoch, member_id=member_id
            )
            error = (await wire.ask(request, 3, HeartbeatResponse)).error_code

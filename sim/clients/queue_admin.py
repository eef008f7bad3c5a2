"""Who looks after the groups: looks at them, waits until they have nothing left, and reads
their dead letters."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from moldau.proto.v1 import queue_pb2 as pb
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from sim.clients.queue_wire import QueueWire, Refused
from sim.clients.queue_worker import GROUP, ORDERED_GROUP, TOPIC, Board
from sim.clients.reader import LATEST, list_offset
from sim.clients.wire import Lost
from sim.machine import SimClock
from sim.process import ClientProcess
from sim.scene import Scene

_PASSING: Final = frozenset(
    {
        "",
        "UNAVAILABLE",
        "NOT_LEADER",
        "TIMED_OUT",
        "BUSY",
        "UNKNOWN_GROUP",
        "UNKNOWN_CONSUMER",
        "UNKNOWN_TOPIC",
    }
)
_PAUSE_SECONDS: Final = 0.5
_LATER_TOPIC: Final = "later"
"""Of messages that are due after the run: they are put into delay buckets."""
_HOUR_MS: Final = 3_600_000


def _connect(group: str, topics: list[str], **named: Any) -> pb.ConnectRequest:
    return pb.ConnectRequest(group=group, topics=topics, mode=pb.QUEUE, **named)


class QueueAdmin:
    """Looks around while there is work; then waits until all of it is done."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        board: Board,
        *,
        has_queue: bool,
        has_ordered: bool,
    ) -> None:
        self._scene = scene
        self._board = board
        self._name = process.name
        self._rng: random.Random = process.rng
        self._wire = QueueWire(board.seeds, process.rng)
        self._kafka = scene.kafka(process)
        self._has_queue = has_queue
        self._has_ordered = has_ordered
        self._visits = 0
        self._clock = SimClock(process.loop)
        self._has_later = False
        """The group is known."""

    async def run(self) -> None:
        looks: list[Callable[[], Awaitable[None]]] = [
            self._stats,
            self._peek,
            self._list,
            self._wire.refresh,
            self._visit,
            self._send_later,
            self._mistakes,
        ]
        while not self._scene.is_over:
            try:
                await self._rng.choice(looks)()
            except Refused as error:
                self._check(error)
            await self._scene.pause(self._rng, _PAUSE_SECONDS)
        while self._board.senders:
            await self._scene.pause(self._rng, _PAUSE_SECONDS)
        if self._has_queue:
            await self._again(self._drain)
        if self._has_ordered:
            await self._again(self._drain_ordered)
        self._board.is_drained = True
        if self._has_queue:
            await self._again(self._read_dead)
        self._wire.drop()

    async def _again(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Until it is done."""
        while True:
            try:
                if await work():
                    return
            except Refused as error:
                self._check(error)
            except Lost:
                pass
            await self._scene.pause(self._rng, _PAUSE_SECONDS)

    def _check(self, error: Refused) -> None:
        if error.reason not in _PASSING:
            self._scene.violation(f"{self._name} was refused: {error}")

    # ---- looking

    async def _stats(self) -> None:
        await self._wire.call_any("Stats", pb.StatsRequest(group=GROUP))

    async def _peek(self) -> None:
        request = pb.PeekRequest(group=GROUP, topic=TOPIC, max_messages=20)
        await self._wire.call_any("Peek", request)

    async def _list(self) -> None:
        await self._wire.call_any("ListGroups", pb.ListGroupsRequest(topic=TOPIC))

    async def _send_later(self) -> None:
        """Hours ahead, or so soon that a delay bucket is recalled."""
        made = pb.CreateTopicRequest(topic=_LATER_TOPIC, partitions=1)
        if not self._has_later:
            try:
                await self._wire.call_any("CreateTopic", made)
            except Refused as error:
                if error.reason != "TOPIC_EXISTS":
                    raise
            self._has_later = True
        for _ in range(5):
            ahead_ms = self._rng.choice((_HOUR_MS // 60, 2 * _HOUR_MS, 50 * _HOUR_MS))
            message = pb.OutgoingMessage(
                value=b"later",
                deliver_at_ms=self._clock.wall_ms() + ahead_ms + self._rng.randrange(5000),
            )
            await self._wire.call_any("Send", pb.SendRequest(topic=_LATER_TOPIC, message=message))

    async def _mistakes(self) -> None:
        """None of it may be accepted; why it is refused does not matter here."""
        settings = [
            pb.QueueSettings(visibility_ms=-1),
            pb.QueueSettings(visibility_ms=2_000_000_000),
            pb.QueueSettings(attempts_max=-4),
            pb.QueueSettings(backoff_ms=2_000_000_000),
            pb.QueueSettings(dead_letter_topic=TOPIC),
            pb.QueueSettings(dead_letter_topic="__consumer_offsets"),
            pb.QueueSettings(dead_letter_topic="a b"),
        ]
        wrong: list[tuple[str, Any]] = [
            ("Connect", _connect("wrong", [TOPIC], settings=each)) for each in settings
        ]
        wrong += [
            ("Connect", _connect("", [TOPIC])),
            ("Connect", _connect("x" * 300, [TOPIC])),
            ("Connect", _connect("wrong", [])),
            ("Connect", _connect("wrong", ["nobody"])),
            ("Connect", _connect("wrong", ["__consumer_offsets"])),
            ("Connect", _connect("wrong", [f"t{number}" for number in range(101)])),
            ("DeleteGroup", pb.DeleteGroupRequest(group="nobody")),
            ("Stats", pb.StatsRequest(group="nobody")),
            ("Peek", pb.PeekRequest(group=GROUP, topic="nobody", max_messages=1)),
            ("Poll", pb.PollRequest(group=GROUP, consumer_id="nobody", max_messages=-1)),
            ("Ack", pb.AckRequest(group=GROUP, consumer_id="nobody", tokens=[b"x"])),
            ("CreateTopic", pb.CreateTopicRequest(topic="a b", partitions=1)),
            ("CreateTopic", pb.CreateTopicRequest(topic="w", partitions=-7)),
        ]
        for method, request in self._rng.sample(wrong, 5):
            try:
                answer = await self._wire.call_any(method, request)
            except Refused:
                self._scene.count("queue mistakes")
                continue
            if method != "Ack" or answer.done:
                self._scene.violation(f"{self._name}: {method} {request} was accepted: {answer}")

    async def _visit(self) -> None:
        """A group that comes, takes a little, and is forgotten."""
        self._visits += 1
        group = f"visit-{self._visits % 3}"
        joined = pb.ConnectRequest(
            group=group,
            topics=[TOPIC, _LATER_TOPIC] if self._has_later else [TOPIC],
            mode=pb.QUEUE,
            start=self._rng.choice((pb.EARLIEST, pb.LATEST)),
        )
        connected = await self._wire.call_any("Connect", joined)
        whose: dict[str, Any] = {"group": group, "consumer_id": connected.consumer_id}
        try:
            for place in connected.assignment.partitions[-3:]:
                if place.leader_address:
                    await self._taste(place.leader_address, whose)
        finally:
            await self._wire.call_any("Disconnect", pb.DisconnectRequest(**whose))
        if self._rng.random() < 0.7:
            await self._wire.call_any("DeleteGroup", pb.DeleteGroupRequest(group=group))

    async def _taste(self, address: str, whose: dict[str, Any]) -> None:
        polled = pb.PollRequest(**whose, max_messages=3, wait_ms=300, visibility_ms=1000)
        reply = await self._wire.call(address, "Poll", polled)
        tokens = [message.token for message in reply.messages]
        if tokens:
            await self._wire.call(address, "Ack", pb.AckRequest(**whose, tokens=tokens[:1]))
            # An invalid token, or the token of another group, is rejected by itself.
            strange = [tokens[0][:-1], tokens[0][:-4] + b"\x7f\xff\xff\xff", b"x"]
            reply = await self._wire.call(address, "Ack", pb.AckRequest(**whose, tokens=strange))
            if reply.done:
                self._scene.violation(f"{self._name}: an invalid token was accepted: {strange}")
        if len(tokens) > 1:
            nacked = pb.NackRequest(**whose, tokens=tokens[1:2], delay_ms=100)
            await self._wire.call(address, "Nack", nacked)

    # ---- the end

    async def _drain(self) -> bool:
        """Whether nothing is open."""
        found: dict[int, pb.PartitionStats] = {}
        for address in self._board.seeds():
            reply = await self._wire.call(address, "Stats", pb.StatsRequest(group=GROUP))
            found |= {each.partition: each for each in reply.partitions if each.is_here}
        still = [s for s in found.values() if s.ready or s.leased or s.delayed or s.dead]
        if len(found) < self._board.partitions or still:
            return False
        for stats in found.values():
            place = f"{TOPIC}/{stats.partition}"
            self._scene.add("x-drained", tp=place, end=stats.end, floor=stats.floor)
        return True

    async def _drain_ordered(self) -> bool:
        """Whether the group is at the ends of all partitions."""
        for index in range(self._board.partitions):
            end = await list_offset(self._kafka, (TOPIC, index), LATEST)
            if end is None:
                return False
            if end and await self._committed(index) != end:
                return False
            self._scene.add("x-ordered-drained", tp=f"{TOPIC}/{index}", end=end)
        return True

    async def _committed(self, index: int) -> int:
        """-1: nothing yet, or nobody can say."""
        request = OffsetFetchRequest(
            group_id=ORDERED_GROUP,
            topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[index])],
        )
        answer = await self._kafka.ask_coordinator(0, ORDERED_GROUP, request, version=7)
        if answer.error_code or not answer.topics:
            self._kafka.forget_coordinator(0, ORDERED_GROUP)
            return -1
        return int(answer.topics[0].partitions[0].committed_offset)

    async def _read_dead(self) -> bool:
        """All dead letters, each partition where it is led."""
        await self._wire.refresh_newest()
        topic = f"{GROUP}.dead"
        known = self._wire.view.topics.get(topic)
        if known is None:
            return True
        letters: list[pb.Message] = []
        for index in sorted(known):
            address = self._wire.view.leader_address(topic, index)
            if address is None:
                return False
            letters += await asyncio.wait_for(self._read(address, topic, index), 30.0)
        for letter in letters:
            reported = {each.key: each.value.decode() for each in letter.headers}
            self._scene.count("dead letters")
            self._scene.add(
                "x-dead",
                tp=f"{reported['moldau-dead-topic']}/{reported['moldau-dead-partition']}",
                o=int(reported["moldau-dead-offset"]),
                a=int(reported["moldau-dead-attempts"]),
                why=reported["moldau-dead-reason"],
                v=letter.value.decode(),
            )
        return True

    async def _read(self, address: str, topic: str, index: int) -> list[pb.Message]:
        request = pb.ReadFromRequest(topic=topic, partition=index, offset=0)
        stream = await self._wire.stream(address, "ReadFrom")
        found: list[pb.Message] = []
        try:
            await stream.write(request)
            stream.end()
            while (reply := await stream.read()) is not None:
                found += reply.messages
        finally:
            stream.close()
        return found

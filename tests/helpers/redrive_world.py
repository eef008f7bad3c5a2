"""Owns a dead-letter topic over partitions in memory, and redrives from it as a leader does."""

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace
from queue_world import QueueWorld

from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.ids import PartitionIndex
from moldau.model.queue_headers import (
    DEAD_GROUP_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_TOPIC_HEADER,
)
from moldau.queues.admin_messages import RedriveOrder, RedriveReport
from moldau.queues.dead_letter_scan import DeadLetterScan
from moldau.queues.redrive import RedriveRun
from moldau.records.record import Headers

READER = QueueGroup(
    name="g.redrive",
    topics=("g.dead",),
    settings=QueueSettings(dead_letter_topic="x", attempts_max=1_000),
)


def dead(offset: int, *, group: str = "g", topic: str = "t", **more: bytes) -> Headers:
    headers: Headers = [
        (DEAD_GROUP_HEADER, group.encode()),
        (DEAD_TOPIC_HEADER, topic.encode()),
        (DEAD_PARTITION_HEADER, b"0"),
        (DEAD_OFFSET_HEADER, str(offset).encode()),
        ("color", b"red"),
    ]
    return headers + [(name.replace("_", "-"), value) for name, value in more.items()]


class RedriveWorld:
    """The dead-letter topic of `g` with one partition, and its queue `t`."""

    def __init__(self, world: QueueWorld) -> None:
        self.world = world
        self.member = 0
        world.groups["g.redrive"] = READER

    @classmethod
    async def make(cls, letters: int = 0) -> "RedriveWorld":
        world = await QueueWorld.make()
        await world.create("g.dead", 1)
        made = cls(world)
        for number in range(letters):
            await made.bury(str(number).encode(), dead(number))
        return made

    async def bury(self, value: bytes, headers: Headers, key: bytes | None = None) -> None:
        await self.world.send(value, headers=headers, topic="g.dead", key=key)

    @property
    def queue(self) -> Any:
        return self.world.host.find(READER, self.world.topics["g.dead"], PartitionIndex(0))

    async def redrive(
        self, offsets: Sequence[int] | None = None, *, is_crashing: bool = False, **more: Any
    ) -> RedriveReport:
        order = RedriveOrder(
            group="g",
            topic="t",
            dead_topic="g.dead",
            dead_topic_id=b"",
            partitions=[],
            target="t",
            validate_only=False,
            count_max=1_000,
            seconds_max=5.0,
        )
        order = replace(order, **more)
        self.member += 1
        run = RedriveRun(
            order,
            None if order.target is None else self.world.topics[order.target],
            member=f"redrive-{self.member}",
            clock=self.world.clock,
            appends=cast(Any, _Crashing(self) if is_crashing else self.world.appends),
        )
        world = self.world
        queue = None if order.validate_only else self.queue
        scan = DeadLetterScan(
            world.loop, world.replicas["g.dead", 0], world.limits, queue or self.queue
        )
        await run.partition(0, None if offsets is None else list(offsets), scan, queue)
        return run.report

    @property
    def sent(self) -> list[bytes | None]:
        return [record.value for record in self.world.stored("t")]


class _Crashing:
    """The broker goes after it has sent, and before it settles."""

    def __init__(self, made: RedriveWorld) -> None:
        self._made = made

    async def append(self, *arguments: Any, **named: Any) -> Any:
        found = await self._made.world.appends.append(*arguments, **named)
        await self._made.world.change_leader()
        return found

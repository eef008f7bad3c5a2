"""A process that is a member of a group again and again: it comes, goes and crashes."""

import asyncio
import random
from collections.abc import Sequence

from sim.clients.classic_member import ClassicMember
from sim.clients.consumer_member import ConsumerMember
from sim.clients.group_book import GroupBook
from sim.clients.group_member import GroupMember
from sim.clients.wire import Lost
from sim.process import ClientProcess
from sim.scene import Scene


class GroupSeat:
    """`kinds`: by which protocols, "classic" and "consumer"; one is drawn each time."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        book: GroupBook,
        *,
        kinds: Sequence[str],
        is_cooperative: bool,
        topics: Sequence[str],
    ) -> None:
        self._scene = scene
        self._process = process
        self._book = book
        self._kinds = list(kinds)
        self._is_cooperative = is_cooperative
        self._topics = list(topics)
        self._rng: random.Random = process.rng
        self._instance_id = process.name if self._rng.random() < 0.4 else None
        self._count = 0

    async def run(self) -> None:
        rng = self._rng
        await self._away(2.0)
        while not self._book.is_drained:
            member = self._member()
            task = asyncio.get_running_loop().create_task(member.run())
            await self._live(task, rng.choice((3.0, 10.0, 40.0)) * (0.2 + rng.random()))
            if task.done():
                task.result()
            task.cancel()
            await asyncio.wait([task])
            if self._book.is_drained or rng.random() < 0.6:
                await self._leave(member)
            else:
                self._scene.count("crashes")
            member.die()
            await self._away(rng.choice((0.2, 3.0, 12.0)))
            await member.commit_as_zombie()
            member.die()

    def _member(self) -> GroupMember:
        self._count += 1
        kind = self._rng.choice(self._kinds)
        made = ClassicMember if kind == "classic" else ConsumerMember
        member = made(
            self._scene,
            self._process,
            self._book,
            number=self._count,
            instance_id=self._instance_id,
            topics=self._topics,
        )
        if isinstance(member, ClassicMember) and self._is_cooperative:
            member.be_cooperative()
        return member

    async def _live(self, task: "asyncio.Task[None]", seconds: float) -> None:
        """For so long; in the end, until there is nothing left to do."""
        end = self._scene.scheduler.now + seconds
        while not task.done() and not self._book.is_drained:
            if self._scene.scheduler.now >= end and not self._scene.is_over:
                return
            await asyncio.wait([task], timeout=0.3)

    async def _away(self, seconds: float) -> None:
        end = self._scene.scheduler.now + seconds * self._rng.random()
        while self._scene.scheduler.now < end and not self._scene.is_over:
            await asyncio.sleep(0.1)

    async def _leave(self, member: GroupMember) -> None:
        """At last it tells the group, unless nobody hears it."""
        await member.finish_commits()
        if self._rng.random() < 0.5:
            await member.commit()
        is_last = self._book.is_drained
        for _ in range(20 if is_last else 2):
            try:
                if (
                    isinstance(member, ConsumerMember)
                    and self._instance_id is not None
                    and not is_last
                ):
                    await member.go_away()
                else:
                    await member.leave()
            except Lost:
                await self._scene.pause(self._rng, 0.3)
            else:
                self._scene.count("leaves")
                return

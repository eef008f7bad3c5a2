"""Who saves offsets in transactions, slowly, where old offsets are soon removed.

What a transaction saved lives as long as any other offset: that the one before grew old while the
transaction was open must not take it along.
"""

from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from sim.clients.transactional import Application, Instance
from sim.clients.transactor import GROUPS, Aborting, Ended, Transactor
from sim.clients.wire import COORDINATOR_GONE, Kafka, Lost, Place
from sim.knobs import RETENTION_MS
from sim.process import ClientProcess
from sim.scene import Scene

_STABLE_VERSION: Final = 7
_HELD_SECONDS: Final = RETENTION_MS / 1000 / 2
_SURE_SECONDS: Final = RETENTION_MS / 1000 - 0.5
"""The clocks of brokers, which judge the age, need not agree."""


class Saver(Application):
    """Each instance has a group of its own, so that it knows who saved last."""

    def __init__(self, scene: Scene, process: ClientProcess, place: Place) -> None:
        super().__init__(scene, process, process.name, pause_seconds=_HELD_SECONDS)
        self.place = place

    def instance(self, name: str, kafka: Kafka, transactor: Transactor) -> Instance:
        return _Saves(self, name, kafka, transactor)


class _Saves(Instance):
    def __init__(self, saver: Saver, name: str, kafka: Kafka, transactor: Transactor) -> None:
        super().__init__(saver, name, kafka, transactor)
        self._place = saver.place
        self._group = f"saved-{name}"

    async def turn(self) -> None:
        self._transactions += 1
        offset = self._transactions
        is_whole = False
        asked = self.scene.scheduler.now
        try:
            await self.transactor.commit_offsets(self._group, {self._place: offset})
            is_whole = True
            if self.rng.random() < 0.5:
                await self.scene.pause(self.rng, _HELD_SECONDS)
        except Aborting:
            pass
        except Ended:
            return
        if await self.end(is_whole=is_whole) == "commit":
            await self._check(offset, asked + _SURE_SECONDS)

    async def _check(self, saved: int, until: float) -> None:
        """That it is there, as long as it cannot have grown old."""
        while (found := await self._fetch()) is None:
            await self.scene.pause(self.rng, 0.1)
        if found != saved and self.scene.scheduler.now < until:
            self.scene.violation(f"{self.name} saved {saved}, and {found} is there")
        self.scene.count("offsets saved")

    async def _fetch(self) -> int | None:
        """None: nobody could say."""
        topic, index = self._place
        request = OffsetFetchRequest(
            group_id=self._group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[index])],
            require_stable=True,
        )
        try:
            answer = await self.kafka.ask_coordinator(
                GROUPS, self._group, request, version=_STABLE_VERSION
            )
        except Lost:
            return None
        reported = answer.topics[0].partitions[0] if answer.topics else None
        code = answer.error_code or (reported.error_code if reported is not None else 0)
        if code in COORDINATOR_GONE:
            self.kafka.forget_coordinator(GROUPS, self._group)
        elif code not in (ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT):
            self.scene.violation(f"{self.name} fetched its offset: {ErrorCode(code).name}")
        return reported.committed_offset if reported is not None and not code else None

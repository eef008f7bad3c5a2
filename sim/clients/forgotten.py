"""What nobody comes back for: offsets and transactional ids, kept for their time.

After that they are gone: nobody would ever ask for their removal.

Only in worlds where that time is a minute (knobs.py).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from sim.clients.group_member import GROUPS, committed_offsets
from sim.clients.logs import TOPIC
from sim.clients.transactor import TRANSACTIONS
from sim.clients.wire import COORDINATOR_GONE, Kafka, Lost
from sim.cluster import Cluster
from sim.process import ClientProcess
from sim.scene import Scene
from sim.workload import Workload

_KEPT_SECONDS: Final = 60.0
_SHORT_SECONDS: Final = 4.0
_LATE_SECONDS: Final = 120.0
_OFFSET: Final = 7


class _Thing:
    """One that was made, and is to be forgotten."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.made_at: float | None = None
        """None: nobody knows whether it was."""


class Owner:
    """Makes things and leaves them alone."""

    def __init__(self, scene: Scene, process: ClientProcess) -> None:
        self._scene = scene
        self._kafka: Kafka = scene.kafka(process)
        self._rng: random.Random = process.rng
        self._groups = [_Thing("old-usual", _KEPT_SECONDS), _Thing("old-short", _SHORT_SECONDS)]
        self._ids = [_Thing(f"old-{number}", _KEPT_SECONDS) for number in range(3)]

    async def make(self) -> None:
        for thing in self._groups:
            await self._until(thing, self._commit)
        for thing in self._ids:
            await self._until(thing, self._init)

    async def _until(self, thing: _Thing, make: Callable[[_Thing], Awaitable[bool]]) -> None:
        for _ in range(20):
            try:
                if await make(thing):
                    thing.made_at = self._scene.scheduler.now
                    return
            except Lost:
                pass
            await self._scene.pause(self._rng, 0.3)

    async def _commit(self, thing: _Thing) -> bool:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=_OFFSET, committed_metadata="m"
        )
        is_short = thing.seconds == _SHORT_SECONDS
        request = OffsetCommitRequest(
            group_id=thing.name,
            member_id="",
            retention_time_ms=int(_SHORT_SECONDS * 1000) if is_short else -1,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        answer = await self._kafka.ask_coordinator(GROUPS, thing.name, request, version=3)
        return self._is_done(GROUPS, thing, answer.topics[0].partitions[0].error_code)

    async def _init(self, thing: _Thing) -> bool:
        request = InitProducerIdRequest(transactional_id=thing.name, transaction_timeout_ms=5_000)
        answer = await self._kafka.ask_coordinator(TRANSACTIONS, thing.name, request, version=4)
        return self._is_done(TRANSACTIONS, thing, answer.error_code)

    def _is_done(self, kind: int, thing: _Thing, code: int) -> bool:
        if code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(kind, thing.name)
        return not code

    # ---- what is left of it

    async def wait(self) -> None:
        """Until all is gone, which it must not be before its time."""
        for kind, things, look in (
            (GROUPS, self._groups, self._has_offset),
            (TRANSACTIONS, self._ids, self._has_id),
        ):
            for thing in things:
                await self._wait_for(kind, thing, look)
        self._scene.count("forgotten")

    async def _wait_for(
        self, kind: int, thing: _Thing, look: Callable[[_Thing], Awaitable[bool]]
    ) -> None:
        made_at = thing.made_at
        while made_at is not None and not self._scene.found:
            there: bool | None = None
            try:
                there = await look(thing)
            except Lost:
                self._kafka.forget_coordinator(kind, thing.name)
            age = self._scene.scheduler.now - made_at
            if there is False:
                if age < thing.seconds - 1.0:
                    self._scene.violation(f"{thing.name} is forgotten after {age:.1f} s")
                return
            if there and age > thing.seconds + _LATE_SECONDS:
                self._scene.violation(f"{thing.name} is not forgotten after {age:.1f} s")
            await asyncio.sleep(2.0)

    async def _has_offset(self, thing: _Thing) -> bool:
        """Raises Lost if nobody could say."""
        code, reported = await committed_offsets(self._kafka, thing.name, [(TOPIC, 0)])
        if code is not ErrorCode.NONE:
            raise Lost(code.name)
        if reported[TOPIC, 0] not in (-1, _OFFSET):
            self._scene.violation(f"{thing.name} has {reported[TOPIC, 0]}")
        return reported[TOPIC, 0] == _OFFSET

    async def _has_id(self, thing: _Thing) -> bool:
        request = DescribeTransactionsRequest(transactional_ids=[thing.name])
        answer = await self._kafka.ask_coordinator(TRANSACTIONS, thing.name, request)
        code = ErrorCode(answer.transaction_states[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
            raise Lost(code.name)
        return code is ErrorCode.NONE


class Forgotten(Workload):
    """Times come from wall clocks: they have to be right."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._owner: tuple[Owner, ClientProcess] | None = None

    def begin(self) -> None:
        if "forgets" in self.plan.knobs and "skew" not in self.plan.faults:
            process = self.scene.process("owner")
            self._owner = Owner(self.scene, process), process
            process.run(self._owner[0].make())

    def stages(self) -> Iterator[Callable[[], None]]:
        if self._owner is not None:
            yield self._wait

    def _wait(self) -> None:
        assert self._owner is not None
        owner, process = self._owner
        process.run(owner.wait())

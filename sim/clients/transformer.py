"""Applications that transform one topic into another, each record once, and the verdict."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from faults.checker import Verdict, check
from faults.once import output_name
from moldau.model.errors import ErrorCode
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
)
from sim.clients.reader import COMMITTED, LATEST, RETRIABLE, list_offset, values_of
from sim.clients.transactional import Application, Instance
from sim.clients.transactor import GROUPS, Aborting, Ended, Transactor
from sim.clients.wire import COORDINATOR_GONE, Kafka, Lost, Place
from sim.process import ClientProcess
from sim.scene import Scene

GROUP: Final = "transformers"
_STABLE_FROM: Final = 7
_GROUPS_FROM: Final = 8
_BY_ID_FROM: Final = 10
_RECORDS_MAX: Final = 40


async def fetch_committed(
    scene: Scene, kafka: Kafka, place: Place, position: int, rng: random.Random
) -> tuple[list[tuple[int, str]], int] | None:
    """What is there from that position on, and where to go on; None: nobody could say."""
    topic, index = place
    partition = FetchPartition(
        partition=index, fetch_offset=position, partition_max_bytes=rng.choice((500, 1 << 16))
    )
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        isolation_level=COMMITTED,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=kafka.topic_ids.get(topic, bytes(16)),
                partitions=[partition],
            )
        ],
    )
    try:
        answer = await kafka.ask(await kafka.leader(place), request)
    except Lost:
        kafka.forget_leader(place)
        return None
    if answer.error_code or not answer.topics:
        kafka.forget_leader(place)
        return None
    reported = answer.topics[0].partitions[0]
    if reported.error_code:
        if reported.error_code not in RETRIABLE:
            code = ErrorCode(reported.error_code).name
            scene.violation(f"{kafka.name} fetched {place} at {position}: {code}")
        kafka.forget_leader(place)
        return None
    return values_of(reported, position, isolation=COMMITTED)


class Transformer(Application):
    """Writes the name of each input to the partition of the same number, once."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        inputs: Sequence[Place],
        output: str,
        *,
        pause_seconds: float,
    ) -> None:
        super().__init__(scene, process, process.name, pause_seconds=pause_seconds)
        self.inputs = list(inputs)
        self.output = output

    def instance(self, name: str, kafka: Kafka, transactor: Transactor) -> "_Transforms":
        return _Transforms(self, name, kafka, transactor)

    async def finish(self) -> None:
        """Nobody writes to the input any more: transform what is left of it."""
        while True:
            instance = self.begin_instance()
            assert isinstance(instance, _Transforms)
            await instance.begin()
            while instance.transactor.is_ready and not await instance.is_through():
                await instance.turn()
            if instance.transactor.is_ready:
                return


class _Transforms(Instance):
    def __init__(
        self, application: Transformer, name: str, kafka: Kafka, transactor: Transactor
    ) -> None:
        super().__init__(application, name, kafka, transactor)
        self._inputs = application.inputs
        self._output = application.output
        self._positions: dict[Place, int] = {}

    async def begin(self) -> None:
        await super().begin()
        await self._go_back()

    async def is_through(self) -> bool:
        for place in self._inputs:
            stable = await list_offset(self.kafka, place, LATEST, COMMITTED)
            end = await list_offset(self.kafka, place, LATEST)
            if end is None or stable != end or self._positions[place] < end:
                return False
        return True

    async def turn(self) -> None:
        outputs: dict[Place, list[str]] = {}
        positions = dict(self._positions)
        for place in self._inputs:
            found = await fetch_committed(self.scene, self.kafka, place, positions[place], self.rng)
            if found is None:
                continue
            records, positions[place] = found
            if len(records) > _RECORDS_MAX:
                records = records[:_RECORDS_MAX]
                positions[place] = records[-1][0] + 1
            if records:
                index = place[1]
                outputs[self._output, index] = [output_name(index, at) for at, _ in records]
        if not outputs:
            self._positions = positions
            await self.scene.pause(self.rng, 0.1)
            return
        is_whole = False
        try:
            await self.transactor.write(outputs)
            await self.transactor.commit_offsets(GROUP, positions)
            is_whole = True
        except Aborting:
            pass
        except Ended:
            return
        outcome = await self.end(is_whole=is_whole)
        if outcome == "commit":
            self.scene.count("transformed", sum(map(len, outputs.values())))
            self._positions = positions
        elif outcome == "abort":
            await self._go_back()

    async def _go_back(self) -> None:
        """To what the group has committed."""
        while not await self._fetch_offsets():
            await self.scene.pause(self.rng, 0.2)

    async def _fetch_offsets(self) -> bool:
        kafka = self.kafka
        version = self.rng.randint(1, 10)
        topic = self._inputs[0][0]
        indexes = [index for _, index in self._inputs]
        try:
            if version >= _BY_ID_FROM and topic not in kafka.topic_ids:
                await kafka.refresh([topic])
            request = self._offsets_request(version, topic, indexes)
            answer = await kafka.ask_coordinator(GROUPS, GROUP, request, version=version)
        except Lost:
            return False
        reported = answer.groups[0] if version >= _GROUPS_FROM else answer
        partitions = reported.topics[0].partitions if reported.topics else []
        codes = {reported.error_code, *(each.error_code for each in partitions)} - {0}
        for code in codes:
            if code in COORDINATOR_GONE:
                kafka.forget_coordinator(GROUPS, GROUP)
            elif code not in (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_ID):
                name = ErrorCode(code).name
                self.scene.violation(f"{self.name} fetched offsets of {GROUP}: {name}")
        if codes or not partitions:
            return False
        self._positions = {
            (topic, each.partition_index): max(0, each.committed_offset) for each in partitions
        }
        return True

    def _offsets_request(self, version: int, topic: str, indexes: list[int]) -> OffsetFetchRequest:
        is_stable = version >= _STABLE_FROM and self.rng.random() < 0.7
        if version < _GROUPS_FROM:
            topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)]
            return OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=is_stable)
        wanted = OffsetFetchRequestGroupTopic(
            name=topic,
            topic_id=self.kafka.topic_ids.get(topic, bytes(16)),
            partition_indexes=indexes,
        )
        group = OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])
        return OffsetFetchRequest(groups=[group], require_stable=is_stable)


def judge_once(
    inputs: Iterable[Mapping[str, Any]], outputs: Iterable[Mapping[str, Any]], output: str
) -> Verdict:
    """As faults/once.py, for an input that holds markers and what was aborted, too."""
    return check([*_sends(inputs, output), *outputs])


def _sends(inputs: Iterable[Mapping[str, Any]], output: str) -> Iterator[dict[str, Any]]:
    ends: dict[int, int] = {}
    found: set[tuple[int, int]] = set()
    for event in inputs:
        if event["op"] not in ("end", "poll"):
            continue
        partition = int(event["tp"].rpartition("/")[2])
        if event["op"] == "end":
            ends[partition] = int(event["end"])
        else:
            found.update((partition, offset) for offset, _ in event["r"])
    for partition, end in ends.items():
        for offset in range(end):
            name = output_name(partition, offset).rpartition(":")[0]
            is_there = (partition, offset) in found
            yield {"op": "send", "p": name, "n": offset, "tp": f"{output}/{partition}"}
            yield {"op": "ack" if is_there else "fail", "p": name, "n": offset, "o": -1}
    yield {"op": "txn", "t": "all", "outcome": "unknown"}

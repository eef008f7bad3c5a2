"""Readers of whole partitions, which follow their ends all the time, and bounds."""

import asyncio
import random
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.records.batch import HEADER_BYTES, read_header
from moldau.records.control import read_end_marker
from moldau.records.record import Record, read_records
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponsePartition,
    FetchTopic,
)
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from sim.clients.producer import NAME
from sim.clients.wire import LEADER_GONE, Kafka, Lost, Place
from sim.history import History
from sim.process import ClientProcess
from sim.scene import Scene

EARLIEST: Final = -2
LATEST: Final = -1
RETRIABLE: Final = LEADER_GONE | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
COMMITTED: Final = 1
_ISOLATION_FROM: Final = 2


async def list_offset(kafka: Kafka, place: Place, timestamp: int, isolation: int = 0) -> int | None:
    """None: nobody could say."""
    topic, index = place
    asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    version = kafka.version_of(request)
    if isolation:
        version = max(version, _ISOLATION_FROM)
    try:
        answer = await kafka.ask(await kafka.leader(place), request, version=version)
    except Lost:
        kafka.forget_leader(place)
        return None
    reported = answer.topics[0].partitions[0]
    if reported.error_code:
        kafka.forget_leader(place)
        return None
    return int(reported.offset)


def name_of(record: Record) -> str:
    """What a producer called it."""
    if record.value is not None:
        return record.value.decode()
    return (dict(record.headers).get(NAME) or b"").decode()


def values_of(
    reported: FetchResponsePartition, position: int, *, isolation: int
) -> tuple[list[tuple[int, str]], int]:
    """Offsets and values from `position` on, and where to go on, as a consumer takes them apart."""
    data = bytes(reported.records or b"")  # type: ignore[arg-type]
    aborted = sorted(
        (entry.first_offset, entry.producer_id) for entry in reported.aborted_transactions or ()
    )
    open_aborted: set[int] = set()
    found: list[tuple[int, str]] = []
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        if len(data) - at < header.size:
            break
        batch = data[at : at + header.size]
        at += header.size
        if isolation == COMMITTED:
            while aborted and aborted[0][0] <= header.last_offset:
                open_aborted.add(aborted.pop(0)[1])
        if header.is_control:
            marker = read_end_marker(batch)
            if marker is not None and not marker.is_commit:
                open_aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_aborted):
            found.extend(
                (record.offset, name_of(record))
                for record in read_records(batch)
                if record.offset >= position
            )
        position = max(position, header.next_offset)
    return found, position


class Reader:
    """Reads one partition from its beginning, and goes on until it has all of it."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        place: Place,
        *,
        isolation: int = 0,
        history: History | None = None,
        wait_seconds: float = 0.5,
    ) -> None:
        self._scene = scene
        self._history = scene.history if history is None else history
        self._name = process.name
        self._kafka: Kafka = scene.kafka(process)
        self._rng: random.Random = process.rng
        self._place = place
        self._isolation = isolation
        self._position = 0
        self._wait_ms = int(wait_seconds * 1000)

    @property
    def _tp(self) -> str:
        return f"{self._place[0]}/{self._place[1]}"

    async def run(self) -> None:
        self._history.add("assign", c=self._name)
        while not self._scene.is_over:
            await self._fetch()
            if self._rng.random() < 0.1:
                await self._look()

    async def finish(self) -> None:
        """Everybody has stopped writing: read what there is, to the end."""
        while True:
            asked = self._history.now()
            end = await list_offset(self._kafka, self._place, LATEST, self._isolation)
            start = await list_offset(self._kafka, self._place, EARLIEST)
            # What is decided is marked later, and until then it ends there for one who reads that.
            whole = await list_offset(self._kafka, self._place, LATEST)
            if end is not None and start is not None and whole == end:
                break
            await self._scene.pause(self._rng, 0.3)
        while self._position < end:
            await self._fetch()
        self._history.add("end", tp=self._tp, start=start, end=end, c=self._name, asked=asked)

    async def _look(self) -> None:
        asked = self._history.now()
        start = await list_offset(self._kafka, self._place, EARLIEST)
        end = await list_offset(self._kafka, self._place, LATEST, self._isolation)
        if start is not None and end is not None:
            self._history.add("bounds", tp=self._tp, start=start, end=end, asked=asked)

    async def _fetch(self) -> None:
        kafka, (topic, index) = self._kafka, self._place
        try:
            leader = await kafka.leader(self._place)
            epoch = kafka.leaders[self._place][1] if self._rng.random() < 0.7 else -1
            request = FetchRequest(
                max_wait_ms=self._wait_ms,
                min_bytes=1,
                isolation_level=self._isolation,
                topics=[
                    FetchTopic(
                        topic=topic,
                        topic_id=kafka.topic_ids.get(topic, bytes(16)),
                        partitions=[
                            FetchPartition(
                                partition=index,
                                current_leader_epoch=epoch,
                                fetch_offset=self._position,
                                partition_max_bytes=1 << 20,
                            )
                        ],
                    )
                ],
            )
            answer = await kafka.ask(leader, request)
        except (Lost, KeyError):
            kafka.forget_leader(self._place)
            await self._scene.pause(self._rng, 0.2)
            return
        if answer.error_code or not answer.topics:
            kafka.forget_leader(self._place)
            await asyncio.sleep(0.2)
            return
        reported = answer.topics[0].partitions[0]
        code = ErrorCode(reported.error_code)
        if code in RETRIABLE:
            kafka.forget_leader(self._place)
            await self._scene.pause(self._rng, 0.2)
            if self._rng.random() < 0.3:
                # Perhaps of one who leads since a moment, and has yet to learn what it leads.
                await self._look()
            return
        if code is not ErrorCode.NONE:
            self._scene.violation(
                f"{self._name} fetched {self._tp} at {self._position}: {code.name}"
            )
            await asyncio.sleep(1.0)
            return
        found, self._position = values_of(reported, self._position, isolation=self._isolation)
        if found:
            self._history.add("poll", c=self._name, tp=self._tp, r=found)
        elif reported.high_watermark <= self._position:
            await self._scene.pause(self._rng, 0.05)

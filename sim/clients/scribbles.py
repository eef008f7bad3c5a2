"""An admin's records: written with all kinds of acks, read, and deleted."""

from typing import Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from sim.clients.own_topics import OwnTopic
from sim.clients.reader import values_of
from sim.clients.session import RETRIABLE, Session
from sim.clients.wire import Kafka
from sim.scene import Scene

_EARLIEST: Final = -2
_WALL_MS: Final = 1_700_000_000_000
_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""A broker that lags behind may not know a topic, or a partition of it."""


class Scribbles:
    """Nothing of it is missed if it is lost: it is written for the broker's sake."""

    def __init__(self, scene: Scene, kafka: Kafka) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = kafka.rng

    async def do(self, topic: OwnTopic) -> None:
        """Raises Lost."""
        index = self._rng.randrange(topic.partitions)
        session = await Session.with_leader(self._kafka, (topic.name, index))
        if self._rng.random() < 0.8:
            await self._write(session, topic, index)
        if self._rng.random() < 0.3:
            await self._trim(session, topic, index)
        if self._rng.random() < 0.5:
            await self._read(session, topic, index)

    def _batch(self) -> bytes:
        now = TimestampMs(_WALL_MS + int(self._scene.scheduler.now * 1000))
        records = [
            Record(
                Offset(number),
                now,
                f"k{self._rng.randrange(5)}".encode(),
                None if self._rng.random() < 0.1 else bytes(self._rng.randint(1, 300)),
                [("h", b"1")] if self._rng.random() < 0.2 else [],
            )
            for number in range(self._rng.randint(1, 5))
        ]
        return build_batch(records, codec=self._rng.choice((Codec.NONE, Codec.GZIP, Codec.ZSTD)))

    async def _write(self, session: Session, topic: OwnTopic, index: int) -> None:
        acks = self._rng.choice((0, 1, 1, -1))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=self._rng.choice((100, 3000)),
            topics=[
                ProduceTopic(
                    name=topic.name,
                    topic_id=self._kafka.topic_ids.get(topic.name, topic.topic_id),
                    partitions=[ProducePartition(index=index, records=self._batch())],
                )
            ],
        )
        if acks == 0:
            session.send(request)
            return
        answer = await session.ask(request)
        self._expect(answer.topics[0].partitions[0].error_code, f"write to {topic.name}", _GONE)

    async def _read(self, session: Session, topic: OwnTopic, index: int) -> None:
        at = self._rng.choice((0, self._rng.randint(0, 300)))
        request = FetchRequest(
            max_wait_ms=self._rng.choice((0, 200)),
            min_bytes=self._rng.choice((0, 1, 10_000)),
            max_bytes=self._rng.choice((1, 500, 1 << 20)),
            isolation_level=self._rng.randint(0, 1),
            session_id=0,
            session_epoch=self._rng.choice((0, -1)),
            topics=[
                FetchTopic(
                    topic=topic.name,
                    topic_id=self._kafka.topic_ids.get(topic.name, topic.topic_id),
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=at,
                            partition_max_bytes=self._rng.choice((1, 1000, 1 << 20)),
                        )
                    ],
                )
            ],
            rack_id="r",
        )
        answer = await session.ask(request)
        if answer.error_code or not answer.topics:
            self._expect(answer.error_code, f"read {topic.name}", _GONE)
            return
        reported = answer.topics[0].partitions[0]
        allowed = _GONE | {ErrorCode.OFFSET_OUT_OF_RANGE}
        if self._expect(reported.error_code, f"read {topic.name} at {at}", allowed):
            values_of(reported, at, isolation=0)

    async def _trim(self, session: Session, topic: OwnTopic, index: int) -> None:
        offset = self._rng.choice((-1, self._rng.randint(0, 50)))
        asked = DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[asked])], timeout_ms=3000
        )
        reported = (await session.ask(request)).topics[0].partitions[0]
        allowed = _GONE | {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.POLICY_VIOLATION}
        if not self._expect(reported.error_code, f"delete records of {topic.name}", allowed):
            return
        if reported.low_watermark < offset:
            self._scene.violation(f"{topic.name}/{index} begins at {reported.low_watermark}")
        topic.starts[index] = max(topic.starts.get(index, 0), reported.low_watermark)

    async def find_wrong(self, topic: OwnTopic) -> str | None:
        """Records that were deleted stay so. Raises Lost."""
        for index, start in topic.starts.items():
            session = await Session.with_leader(self._kafka, (topic.name, index))
            asked = ListOffsetsPartition(partition_index=index, timestamp=_EARLIEST)
            listed = ListOffsetsTopic(name=topic.name, partitions=[asked])
            answer = await session.ask(ListOffsetsRequest(topics=[listed]))
            reported = answer.topics[0].partitions[0]
            if reported.error_code:
                return f"{topic.name}/{index}: {ErrorCode(reported.error_code).name}"
            if reported.offset < start:
                return f"{topic.name}/{index} begins at {reported.offset}, and was cut at {start}"
        return None

    def _expect(self, number: int, what: str, also: frozenset[ErrorCode]) -> bool:
        """Whether it was done."""
        code = ErrorCode(number)
        if code not in RETRIABLE | also | {ErrorCode.NONE}:
            self._scene.violation(f"{self._kafka.name}: {what}: {code.name}")
        return code is ErrorCode.NONE

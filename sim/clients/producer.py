"""Producers: idempotent ones, whose every send is acked in the end, once and in order."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from sim.clients.wire import LEADER_GONE, Kafka, Lost, Place
from sim.history import History
from sim.process import ClientProcess
from sim.scene import Scene
from sim.scheduler import WALL_MS

IN_FLIGHT_MAX: Final = 5
_RECORDS_MAX: Final = 5
RETRIED: Final = LEADER_GONE | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
NAME: Final = "name"
"""The header that tells what a record without a value is called."""
_CODECS: Final = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@dataclass
class _Batch:
    numbers: list[int]
    sequence: int
    data: bytes


class Producer:
    """Writes to one partition or some, several batches at a time."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        places: Sequence[Place],
        *,
        pause_seconds: float,
        keys: int = 0,
        history: History | None = None,
    ) -> None:
        """With `keys`, each record has one of so many, and some remove theirs."""
        self._scene = scene
        self._name = process.name
        self._kafka: Kafka = scene.kafka(process)
        self._rng: random.Random = process.rng
        self._places = list(places)
        self._pause_seconds = pause_seconds
        self._keys = keys
        self._history = scene.history if history is None else history
        self._sent = 0
        self._sequences: dict[Place, int] = {}
        self._id = (ProducerId(-1), ProducerEpoch(-1))

    async def run(self) -> None:
        if not await self._begin():
            return
        while not self._scene.is_over:
            await asyncio.gather(*map(self._write_some, self._next_places()))
            await self._scene.pause(self._rng, self._pause_seconds)

    def _next_places(self) -> list[Place]:
        """One, or some at a time: their answers share connections, and must not overtake."""
        most = len(self._places) if self._rng.random() < 0.3 else 1
        return self._rng.sample(self._places, self._rng.randint(1, most))

    async def _write_some(self, place: Place) -> None:
        count = self._rng.randint(1, IN_FLIGHT_MAX)
        await self._write(place, [self._batch(place) for _ in range(count)])

    async def _begin(self) -> bool:
        while not self._scene.is_over:
            try:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
                answer = await self._kafka.ask_any(request)
                if not answer.error_code:
                    self._id = (
                        ProducerId(answer.producer_id),
                        ProducerEpoch(answer.producer_epoch),
                    )
                    return True
            except Lost:
                pass
            await self._scene.pause(self._rng, 0.3)
        return False

    def _batch(self, place: Place) -> _Batch:
        numbers = []
        records: list[Record] = []
        for _ in range(self._rng.randint(1, _RECORDS_MAX)):
            number, self._sent = self._sent, self._sent + 1
            records.append(self._record(place, number, len(records)))
            numbers.append(number)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(records)
        data = build_batch(
            records,
            codec=self._rng.choice(_CODECS),
            producer_id=self._id[0],
            producer_epoch=self._id[1],
            base_sequence=sequence,
        )
        return _Batch(numbers, sequence, data)

    def _record(self, place: Place, number: int, position: int) -> Record:
        sent = {"p": self._name, "n": number, "tp": f"{place[0]}/{place[1]}"}
        key: bytes | None = None
        value: bytes | None = f"{self._name}:{number}".encode()
        headers: list[tuple[str, bytes | None]] = []
        if self._keys:
            name = f"k{self._rng.randrange(self._keys)}"
            key, sent["k"] = name.encode(), name
            if self._rng.random() < 0.2:
                value, headers, sent["z"] = None, [(NAME, value)], True
        self._history.add("send", **sent)
        time = TimestampMs(WALL_MS + int(self._scene.scheduler.now * 1000))
        return Record(Offset(position), time, key, value, headers)

    async def _write(self, place: Place, batches: list[_Batch]) -> None:
        """Until all are acked: what is not is sent again, in the same order."""
        while batches:
            left = await self._try(place, batches)
            if left and len(left) == len(batches):
                await self._scene.pause(self._rng, 0.2)
            batches = left

    async def _try(self, place: Place, batches: list[_Batch]) -> list[_Batch]:
        """Those that have to be sent again."""
        kafka = self._kafka
        try:
            leader = await kafka.leader(place)
            connection = await kafka.connection(kafka.brokers[leader])
        except (Lost, KeyError):
            kafka.forget_leader(place)
            return batches
        asked = [self._request(place, batch) for batch in batches]
        version = kafka.version_of(asked[0])
        futures = [connection.send(request, version, self._name) for request in asked]
        _, pending = await asyncio.wait(futures, timeout=15.0)
        if pending:
            connection.close()
            await asyncio.wait(pending)
        left: list[_Batch] = []
        for batch, future in zip(batches, futures, strict=True):
            if future.exception() is not None:
                left.append(batch)
                continue
            answer = future.result().topics[0].partitions[0]
            code = ErrorCode(answer.error_code)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acked(batch, answer.base_offset if code is ErrorCode.NONE else -1)
            elif code in RETRIED or (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and left):
                left.append(batch)
            else:
                self._scene.violation(
                    f"{self._name} wrote sequence {batch.sequence} to {place}: {code.name}"
                )
                left.append(batch)
        if left:
            kafka.forget_leader(place)
            self._scene.count("retries")
        return left

    def _request(self, place: Place, batch: _Batch) -> ProduceRequest:
        topic, index = place
        partition = ProducePartition(index=index, records=batch.data)
        return ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topics=[
                ProduceTopic(
                    name=topic,
                    topic_id=self._kafka.topic_ids.get(topic, bytes(16)),
                    partitions=[partition],
                )
            ],
        )

    def _acked(self, batch: _Batch, offset: int) -> None:
        self._scene.count("acked", len(batch.numbers))
        for place, number in enumerate(batch.numbers):
            at = offset + place if offset >= 0 else -1
            self._history.add("ack", p=self._name, n=number, o=at)

"""Owns how single records become batches for the leaders of their partitions, for doors whose
clients build no batches: which partition, how much in one batch, and what became of each."""

import asyncio
from collections.abc import Iterable
from typing import Final

from moldau.api.broker import Broker
from moldau.api.lookup import check_partition
from moldau.data.append_forwarding import AppendResult
from moldau.metadata.image import Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch

_RECORD_BYTES_EXTRA: Final = 40
_HEADER_BYTES_EXTRA: Final = 10
_BATCH_BYTES_EXTRA: Final = 61


class RecordProducer:
    """Stores records in any partition, whoever leads it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = 0

    async def store(
        self,
        topic: Topic,
        records: list[Record],
        places: list[int],
        *,
        acks: int,
        timeout_seconds: float,
    ) -> dict[int, AppendResult]:
        """What became of the records of each partition; `places` are theirs, one by one."""
        if len(records) == 1:
            by_partition = {places[0]: records}
        else:
            by_partition = {}
            for record, partition in zip(records, places, strict=True):
                by_partition.setdefault(partition, []).append(record)
        bytes_max = self._batch_bytes_max(topic)
        # Built for all before anything is sent: a request that is wrong stores nothing.
        batches = {
            partition: build_batches(theirs, bytes_max)
            for partition, theirs in by_partition.items()
        }
        append = self._broker.appends.append
        if len(batches) == 1:
            ((partition, data),) = batches.items()
            return {
                partition: await append(
                    topic, partition, data, acks=acks, timeout_seconds=timeout_seconds
                )
            }
        answers = await asyncio.gather(
            *(
                append(topic, partition, data, acks=acks, timeout_seconds=timeout_seconds)
                for partition, data in batches.items()
            )
        )
        return dict(zip(batches, answers, strict=True))

    def places(self, topic: Topic, asked: Iterable[tuple[int | None, bytes | None]]) -> list[int]:
        """Partitions for records, each with the one it asks for and its key. Raises RefusedError.

        As Kafka's producers do: by the key, and without one all together, each time another.
        """
        count = len(topic.partitions)
        unkeyed = self._next_partition(topic)
        places = []
        for partition, key in asked:
            if partition is None:
                places.append(unkeyed if key is None or count == 1 else partition_of(key, count))
                continue
            check_partition(topic, partition)
            places.append(partition)
        return places

    def _next_partition(self, topic: Topic) -> int:
        """One that is led here if there is any: that spares a way."""
        self._turn += 1
        get, count = self._broker.partitions.get, len(topic.partitions)
        for step in range(count):
            index = (self._turn + step) % count
            hosted = get(topic.name, index)
            if hosted is not None and hosted.replica.is_leader:
                return index
        return self._turn % count

    def _batch_bytes_max(self, topic: Topic) -> int:
        hosted = self._broker.partitions.get(topic.name, 0)
        if hosted is not None:
            return hosted.config.message_bytes_max
        for entry in self._broker.configs.describe_topic(topic):
            if entry.name == "max.message.bytes":
                return int(entry.value)
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "max.message.bytes is not set")


def offsets_of(places: list[int], answers: dict[int, AppendResult]) -> list[int]:
    """Of each record; -1 for those that were not stored, or of which it is not known."""
    if len(answers) == 1:
        ((_, found),) = answers.items()
        if found.error is not ErrorCode.NONE:
            return [-1] * len(places)
        return list(range(found.base_offset, found.base_offset + len(places)))
    following = {partition: found.base_offset for partition, found in answers.items()}
    offsets = []
    for partition in places:
        if answers[partition].error is ErrorCode.NONE:
            offsets.append(following[partition])
            following[partition] += 1
        else:
            offsets.append(-1)
    return offsets


def build_batches(records: list[Record], bytes_max: int) -> bytes:
    """As few batches as fit the topic's bound. A record that is too large makes one of its own,
    which the leader refuses."""
    sizes = [_bytes_of(record) for record in records]
    if sum(sizes) <= bytes_max - _BATCH_BYTES_EXTRA:
        return build_batch(records)
    data = bytearray()
    batch: list[Record] = []
    room = 0
    for record, size in zip(records, sizes, strict=True):
        if size > room and batch:
            data += build_batch(batch)
            batch = []
        if not batch:
            room = bytes_max - _BATCH_BYTES_EXTRA
        batch.append(record)
        room -= size
    data += build_batch(batch)
    return bytes(data)


def _bytes_of(record: Record) -> int:
    """At most."""
    _, _, key, value, headers = record
    size = _RECORD_BYTES_EXTRA + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_BYTES_EXTRA + 4 * len(name) + len(content or b"")
    return size

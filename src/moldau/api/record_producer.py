"""Stores single records of HTTP and gRPC clients: partitions, batches, and results per record."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from moldau.api.broker import Broker
from moldau.api.lookup import check_partition
from moldau.api.quotas import charged
from moldau.data.append_forwarding import AppendResult
from moldau.metadata.image import Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.records.compression import Codec
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch

_RECORD_BYTES_EXTRA: Final = 40
_HEADER_BYTES_EXTRA: Final = 10
_BATCH_BYTES_EXTRA: Final = 61
_INLINE_BYTES_MAX: Final = 64 * 1024
"""More is compressed in a thread, so that the event loop is not blocked."""
# One thread: compressing leaves the other cores to the rest of the broker.
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="compress")


class RecordProducer:
    """Stores records in any partition, on whichever broker its leader is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = 0

    async def store(
        self,
        topic: Topic,
        records: list[Record],
        partitions: list[int],
        *,
        acks: int,
        timeout_seconds: float,
        codec: Codec = Codec.NONE,
    ) -> dict[int, AppendResult]:
        """The result of each partition; `partitions` has the partition of each record."""
        if records and partitions.count(partitions[0]) == len(records):
            by_partition = {partitions[0]: records}
        else:
            by_partition = {}
            for record, partition in zip(records, partitions, strict=True):
                by_partition.setdefault(partition, []).append(record)
        bytes_max = self._batch_bytes_max(topic)
        # All are built before any is sent: an invalid request stores nothing.
        batches = {
            partition: await _build(theirs, bytes_max, codec)
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
        results = await asyncio.gather(
            *(
                charged(append(topic, partition, data, acks=acks, timeout_seconds=timeout_seconds))
                for partition, data in batches.items()
            )
        )
        return dict(zip(batches, results, strict=True))

    def partitions_for(
        self, topic: Topic, requested: Iterable[tuple[int | None, bytes | None]]
    ) -> list[int]:
        """The partition of each record, given its requested partition and its key.

        As Kafka's producers do: by key; records without a key go together to one partition, and the
        next call uses another. Raises RefusedError.
        """
        count = len(topic.partitions)
        unkeyed = self._next_partition(topic)
        checked: int | None = None
        partitions = []
        for partition, key in requested:
            if partition is None:
                partitions.append(
                    unkeyed if key is None or count == 1 else partition_of(key, count)
                )
                continue
            if partition != checked:
                check_partition(topic, partition)
                checked = partition
            partitions.append(partition)
        return partitions

    def _next_partition(self, topic: Topic) -> int:
        """Round robin; prefers partitions led by this broker, which saves an RPC."""
        self._turn += 1
        is_leader, count = self._broker.replicas.is_leader, len(topic.partitions)
        for step in range(count):
            index = (self._turn + step) % count
            if is_leader(topic.name, index):
                return index
        return self._turn % count

    def _batch_bytes_max(self, topic: Topic) -> int:
        known = self._broker.replicas.message_bytes_max(topic.name)
        if known is not None:
            return known
        for entry in self._broker.configs.describe_topic(topic):
            if entry.name == "max.message.bytes":
                return int(entry.value)
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "max.message.bytes is not set")


def offsets_of(partitions: list[int], results: dict[int, AppendResult]) -> list[int]:
    """The offset of each record; -1 if it was not stored, or it is unknown."""
    if len(results) == 1:
        ((_, found),) = results.items()
        if found.error is not ErrorCode.NONE:
            return [-1] * len(partitions)
        return list(range(found.base_offset, found.base_offset + len(partitions)))
    following = {partition: found.base_offset for partition, found in results.items()}
    offsets = []
    for partition in partitions:
        if results[partition].error is ErrorCode.NONE:
            offsets.append(following[partition])
            following[partition] += 1
        else:
            offsets.append(-1)
    return offsets


async def _build(records: list[Record], bytes_max: int, codec: Codec) -> bytes:
    if codec is Codec.NONE or sum(map(_bytes_of, records)) <= _INLINE_BYTES_MAX:
        return build_batches(records, bytes_max, codec)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, build_batches, records, bytes_max, codec)


def build_batches(records: list[Record], bytes_max: int, codec: Codec = Codec.NONE) -> bytes:
    """As few batches as the size limit allows, before they are compressed. A record that is too
    large gets its own batch; the leader rejects it unless compression makes it small enough."""
    sizes = [_bytes_of(record) for record in records]
    if sum(sizes) <= bytes_max - _BATCH_BYTES_EXTRA:
        return build_batch(records, codec=codec)
    data = bytearray()
    batch: list[Record] = []
    room = 0
    for record, size in zip(records, sizes, strict=True):
        if size > room and batch:
            data += build_batch(batch, codec=codec)
            batch = []
        if not batch:
            room = bytes_max - _BATCH_BYTES_EXTRA
        batch.append(record)
        room -= size
    data += build_batch(batch, codec=codec)
    return bytes(data)


def _bytes_of(record: Record) -> int:
    """An upper bound."""
    _, _, key, value, headers = record
    size = _RECORD_BYTES_EXTRA + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_BYTES_EXTRA + 4 * len(name) + len(content or b"")
    return size

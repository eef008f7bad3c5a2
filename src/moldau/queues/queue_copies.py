"""Copies the state of work queues for backups: out of the ledgers, and into those of a new cluster.

A copy is what a leader would load: which messages are settled, waiting or dead. Leases are not
restored, since no worker of the new cluster has them: their messages are delivered again at once,
and keep their count of attempts.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.leases.ledger import Stored
from moldau.leases.records import decode
from moldau.leases.state import Leased, Open, QueueId, QueueRecord, QueueState, Waiting
from moldau.metadata.commands import DefineQueueGroup
from moldau.metadata.image import QUEUE_STATE_TOPIC, Topic
from moldau.metadata.queue_groups import QueueSettings
from moldau.model.backup import QueueStateCopy
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs
from moldau.queues.ledgers import LedgerRefusedError, Ledgers


class QueueCopies:
    def __init__(self, metadata: MetadataStore, ledgers: Ledgers, partitions: Partitions) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._partitions = partitions

    async def read(self, group: str, topic: Topic) -> list[QueueStateCopy]:
        """Of all partitions that have a state. Raises RefusedError."""
        if self._metadata.image.topic(QUEUE_STATE_TOPIC) is None:
            return []
        found = []
        for partition in topic.partitions:
            queue = QueueId(group, topic.topic_id, partition.index)
            if stored := await self._ledgers.stored(queue):
                found.append(QueueStateCopy(partition=partition.index, records=tuple(stored)))
        return found

    async def write(self, group: str, topic: Topic, copied: QueueStateCopy, end: int) -> None:
        """Store the state of a queue that has none; `end` is that of the restored partition.

        On the leader of the partition, and as its own, of this epoch: a state of an earlier epoch
        is cut at the end that the log had when the leader was elected, which may have been empty
        then. Succeeds if the same state is there already. Raises RefusedError.
        """
        queue = QueueId(group, topic.topic_id, PartitionIndex(copied.partition))
        epoch = self._partitions.lead(topic.name, copied.partition).replica.group.core.epoch
        record = snapshot_of(queue, copied.records, Offset(end), epoch)
        try:
            await self._ledgers.write(queue, (record,))
        except LedgerRefusedError:
            stored = await self._ledgers.stored(queue)
            if [replace(each, epoch=epoch) for each in _decoded(stored)] != [record]:
                raise RefusedError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    f"queue {group} has a state on {topic.name}-{copied.partition} already",
                ) from None

    async def define(self, name: str, topics: Sequence[str], settings: QueueSettings) -> None:
        """Create the group, after its state. Raises RefusedError."""
        await self._metadata.submit(
            DefineQueueGroup(
                name=name,
                topics=topics,
                visibility_ms=settings.visibility_ms,
                attempts_max=settings.attempts_max,
                backoff_ms=settings.backoff_ms,
                backoff_ms_max=settings.backoff_ms_max,
                dead_letter_topic=settings.dead_letter_topic,
                starts_at_end=settings.starts_at_end,
            )
        )


def snapshot_of(
    queue: QueueId, records: Sequence[Stored], end: Offset, epoch: Epoch
) -> QueueRecord:
    """The state that `records` lead to, as the first record of another queue.

    What it says beyond `end` is left out: those messages are not in the backup.
    """
    state = QueueState()
    for record in _decoded(records):
        if not state.apply(record):
            raise RefusedError(
                ErrorCode.CORRUPT_MESSAGE, f"a record of the state of {queue.group} is missing"
            )
    if not state.exists:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, f"the state of {queue.group} is missing")
    opened = [(offset, _released(state.open[offset])) for offset in sorted(state.open)]
    buckets = sorted(
        (replace(bucket, end=min(bucket.end, end)) for bucket in state.buckets.values()),
        key=lambda bucket: bucket.key,
    )
    return QueueRecord(
        queue=queue,
        sequence=1,
        epoch=epoch,
        next=min(state.next, end),
        opened=tuple((offset, entry) for offset, entry in opened if offset < end),
        is_snapshot=True,
        buckets=tuple(bucket for bucket in buckets if not bucket.is_empty),
    )


def _released(entry: Open) -> Open:
    return Waiting(entry.attempts, TimestampMs(0)) if isinstance(entry, Leased) else entry


def _decoded(records: Sequence[Stored]) -> list[QueueRecord]:
    """Raises RefusedError."""
    try:
        found = [decode(key, value) for key, value in records]
    except CorruptionError as error:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return [record for record in found if isinstance(record, QueueRecord)]

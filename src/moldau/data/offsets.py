"""Offsets of a partition by timestamp or leader epoch, and its producers."""

from typing import NamedTuple

from moldau.data.fetch import check_epoch
from moldau.data.partitions import Partitions
from moldau.log.read_failure import disk_reads
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, NO_TIMESTAMP, Epoch, Offset, TimestampMs
from moldau.replica.replica import Replica

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
_NOT_GIVEN = -1


class FoundOffset(NamedTuple):
    """An offset with the timestamp and epoch of its record, if there is one."""

    offset: int
    timestamp: int
    epoch: int


class DescribedProducer(NamedTuple):
    """The state of one producer in a partition."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    """First offset of its open transaction; -1: none."""


NOT_FOUND = FoundOffset(-1, NO_TIMESTAMP, NO_EPOCH)


class OffsetService:
    """Queries on partitions that this broker leads."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        leader_epoch: int = _NOT_GIVEN,
        *,
        reads_committed: bool = False,
    ) -> FoundOffset:
        """The offset for a timestamp, or for a special one like LATEST. Raises RefusedError.

        With `reads_committed`, only below the last stable offset.
        """
        hosted = self._partitions.lead(topic, partition)
        try:
            with disk_reads():
                return _find(hosted.replica, timestamp, leader_epoch, reads_committed)
        except CorruptionError as error:
            self._partitions.take_offline(hosted, error)
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    def producers(self, topic: str, partition: int) -> list[DescribedProducer]:
        """All known producers. Raises RefusedError."""
        replica = self._partitions.lead(topic, partition).replica
        described = []
        for producer, state in replica.producers:
            last = state.batches[-1] if state.batches else None
            described.append(
                DescribedProducer(
                    producer,
                    state.epoch,
                    last.last_sequence if last is not None else -1,
                    last.timestamp if last is not None else state.seen_at,
                    state.coordinator_epoch,
                    state.first,
                )
            )
        return described

    def epoch_end(
        self, topic: str, partition: int, epoch: int, leader_epoch: int = _NOT_GIVEN
    ) -> tuple[Epoch, Offset]:
        """The last epoch not above `epoch` and its end; (-1, -1) for a future epoch."""
        replica = self._partitions.lead(topic, partition).replica
        if leader_epoch != _NOT_GIVEN:
            check_epoch(replica, leader_epoch)
        if epoch > replica.epoch:
            return NO_EPOCH, Offset(-1)
        if epoch == replica.epoch:
            # The end may be above the high watermark: a client that knows an offset of an acks=1
            # reply must not see that as a truncation.
            return replica.epoch, replica.log.end_offset
        return replica.log.epoch_end(Epoch(epoch))


def _find(
    replica: Replica, timestamp: int, leader_epoch: int, reads_committed: bool
) -> FoundOffset:
    if leader_epoch != _NOT_GIVEN:
        check_epoch(replica, leader_epoch)
    if not replica.is_ready:
        raise RefusedError(ErrorCode.OFFSET_NOT_AVAILABLE, "the leader was just elected; retry")
    log = replica.log
    end = replica.last_stable_offset if reads_committed else replica.high_watermark
    if timestamp == LATEST:
        return FoundOffset(end, NO_TIMESTAMP, replica.epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.start_offset
        return FoundOffset(start, NO_TIMESTAMP, log.epoch_at(start))
    if timestamp == LATEST_TIERED:
        # There is no tiered storage.
        return NOT_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = log.find_max_timestamp(end)
    elif timestamp < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{timestamp} is not a valid timestamp")
    else:
        found = log.find_time(TimestampMs(timestamp), end)
    return NOT_FOUND if found is None else FoundOffset(*found)

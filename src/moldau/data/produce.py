"""Validates the batches of producers and proposes them to the replica.

This is the hot path of the broker. It reads headers and no records, except for compacted topics
(every record needs a key) and topics with their own compression type.
"""

from typing import Final

from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition, Partitions
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError, StorageError
from moldau.model.limits import DECOMPRESSED_BYTES_MAX, MESSAGE_BYTES_MAX
from moldau.records.batch import (
    TRANSACTIONAL_BIT,
    BatchFormatError,
    BatchHeader,
    check_batches,
    read_header,
)
from moldau.records.record import has_null_key, recompress
from moldau.replica.raft_replica import Proposal
from moldau.replica.replica import LAG_MS_MAX
from moldau.replica.verification_guards import VerificationGuard

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
_RATIO_MAX: Final = 64
"""What real data may gain by compression, beyond what a batch may have anyway."""
_OPENED_BYTES: Final = 2 * MESSAGE_BYTES_MAX
"""Always allowed: takes a few milliseconds."""

_CHECKED_RECORDS_MAX: Final = 100_000
"""In a batch for a compacted topic, each record of which is looked at on the event loop. A few
compressed kilobytes can hold millions. Producers divide a batch that is refused as too large."""


def decompressed_bytes_max(batch_bytes: int, message_bytes_max: int) -> int:
    """What one batch of a request may become on the event loop.

    Four kilobytes of zstd can hold the 128 MB of the general limit, which would take a quarter of a
    second, and a request has room for hundreds of them. Producers fill a batch up to the topic's
    limit before they compress it, so twice that is enough for small ones.
    """
    wanted = max(2 * message_bytes_max, _RATIO_MAX * batch_bytes, _OPENED_BYTES)
    return min(wanted, DECOMPRESSED_BYTES_MAX)


class ProduceService:
    def __init__(self, partitions: Partitions, disk: DiskGuard, clock: Clock) -> None:
        self._partitions = partitions
        self._disk = disk
        self._clock = clock

    def append(
        self,
        topic: str,
        partition: int,
        data: memoryview,
        acks: int,
        *,
        is_single: bool = True,
        is_transactional: bool = False,
        guard: VerificationGuard | None = None,
    ) -> Proposal:
        """Appends the batches of one partition. Raises RefusedError; nothing is appended then.

        `is_single`: refuse more than one batch, as Kafka does. A request has room for a million,
        which would take seconds.
        `is_transactional`: the request has a transactional id; `guard`: see Replica.propose.
        """
        hosted = self._partitions.get(topic, partition)
        if hosted is None:
            hosted = self._partitions.find(topic, partition)
        headers = check_batches(
            data, bytes_max=hosted.config.message_bytes_max, is_single=is_single
        )
        try:
            proposal = self._propose(
                hosted, data, headers, acks, is_transactional=is_transactional, guard=guard
            )
        except RefusedError as error:
            if headers[0].producer_id >= 0 and error.code.is_unavailable:
                hosted.replica.sequence_gaps.note(headers[0], error.code, self._clock.monotonic())
            raise
        traffic = hosted.traffic
        traffic.written_bytes += len(data)
        for header in headers:
            traffic.written_records += header.record_count
        return proposal

    def _propose(
        self,
        hosted: HostedPartition,
        data: memoryview,
        headers: list[BatchHeader],
        acks: int,
        *,
        is_transactional: bool,
        guard: VerificationGuard | None,
    ) -> Proposal:
        config = hosted.config
        if self._disk.is_full:
            self._disk.check()
        if acks == ACKS_ALL and config.insync_replicas_min > 1:
            hosted.replica.check_leadership()
            in_sync = len(hosted.replica.in_sync(LAG_MS_MAX))
            if in_sync < config.insync_replicas_min:
                raise RefusedError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{in_sync} {'replica is' if in_sync == 1 else 'replicas are'} in sync, "
                    f"min.insync.replicas is {config.insync_replicas_min}",
                )
        if headers[0].attributes & TRANSACTIONAL_BIT and not is_transactional:
            raise RefusedError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "transactional batch in a request without a transactional id",
            )
        writable: bytearray | memoryview = data
        if not hosted.is_plain:
            writable, headers = self._apply_topic_settings(hosted, data, headers)
        try:
            return hosted.replica.propose(
                writable, headers, append_time=hosted.stamps_append_time, guard=guard
            )
        except StorageError as error:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    def _apply_topic_settings(
        self, hosted: HostedPartition, data: memoryview, headers: list[BatchHeader]
    ) -> tuple[bytearray | memoryview, list[BatchHeader]]:
        """Checks and rewrites that the topic's settings require."""
        refuse_internal(hosted)
        refuse_restoring(hosted)
        if hosted.bounds_timestamps:
            self._check_timestamps(hosted, headers)
        position = 0
        rewritten = bytearray()
        codec = hosted.codec
        for header in headers:
            batch = data[position : position + header.size]
            position += header.size
            if hosted.is_compacted and header.record_count > _CHECKED_RECORDS_MAX:
                raise RefusedError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"batch of {header.record_count} records; a compacted topic accepts up to "
                    f"{_CHECKED_RECORDS_MAX}",
                )
            opened_max = decompressed_bytes_max(header.size, hosted.config.message_bytes_max)
            try:
                if hosted.is_compacted and has_null_key(batch, bytes_max=opened_max):
                    raise RefusedError(
                        ErrorCode.INVALID_RECORD, "records of a compacted topic must have a key"
                    )
                if codec is not None:
                    rewritten += recompress(batch, codec, bytes_max=opened_max)
            except BatchFormatError as error:
                raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if codec is None:
            return data, headers
        headers = []
        position = 0
        bytes_max = hosted.config.message_bytes_max
        while position < len(rewritten):
            header = read_header(rewritten, position)
            if header.size > bytes_max:
                raise RefusedError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"batch of {header.size} bytes after recompression; "
                    f"the topic accepts up to {bytes_max} (max.message.bytes)",
                )
            headers.append(header)
            position += header.size
        return rewritten, headers

    def _check_timestamps(self, hosted: HostedPartition, headers: list[BatchHeader]) -> None:
        now = self._clock.wall_ms()
        earliest = now - hosted.config.timestamp_before_max_ms
        latest = now + hosted.config.timestamp_after_max_ms
        for header in headers:
            if header.base_timestamp < earliest or header.max_timestamp > latest:
                raise RefusedError(
                    ErrorCode.INVALID_TIMESTAMP,
                    "the timestamp of a record is too far from the broker's time "
                    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                )


def refuse_internal(hosted: HostedPartition) -> None:
    if hosted.internal:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{hosted.replica.partition.topic} is an internal topic; clients cannot write to it",
        )


def refuse_restoring(hosted: HostedPartition) -> None:
    if hosted.config.restoring:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"{hosted.replica.partition.topic} is being restored from a backup; producers can "
            "write to it when that is done (moldau backup restore)",
        )

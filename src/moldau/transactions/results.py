"""Owns what the coordinator gives back: effects, and the typed result of each kind of request."""

from msgspec import Struct

from moldau.model.errors import ErrorCode
from moldau.model.ids import (
    NO_TIMESTAMP,
    Epoch,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.transactions.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class ProducerResult(Struct, frozen=True, kw_only=True):
    """Of InitProducer and EndTransaction: what the producer goes on with."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class NeedsProducerId(Struct, frozen=True, kw_only=True):
    """The request is to be handed in again with a `new_producer_id`."""


class PartitionsResult(Struct, frozen=True, kw_only=True):
    """Of AddPartitions and VerifyPartitions: an error per partition."""

    errors: dict[TopicPartition, ErrorCode]
    is_stored: bool = False
    """It was written for this very request, so this coordinator is no stale one."""


Result = ProducerResult | NeedsProducerId | PartitionsResult


class Reply(Struct, frozen=True, kw_only=True):
    """Answer that request."""

    request_id: int
    result: Result


class Persist(Struct, frozen=True, kw_only=True):
    """Append these records to `__transaction_state` as one batch; a None value is a tombstone.

    When they are committed, hand in Persisted(token); when it is certain that they never will be,
    PersistFailed(token, error). An append whose outcome is unknown is neither.
    """

    token: int
    transactional_id: str
    records: tuple[tuple[bytes, bytes | None], ...]


class WriteMarkers(Struct, frozen=True, kw_only=True):
    """Write the end of a transaction into these partitions.

    Each comes back once, in MarkersWritten or MarkersFailed; what failed is asked for again.
    """

    token: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: Epoch
    client_version: int
    partitions: tuple[TopicPartition, ...]


Effect = Reply | Persist | WriteMarkers


class DescribedTransaction(Struct, frozen=True, kw_only=True):
    """An unknown id is TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str
    error: ErrorCode
    state: str = ""
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    started_at: TimestampMs = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()


class ListedTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: ProducerId
    state: str

"""Output of the transaction coordinator: effects, and a typed result per kind of request."""

from msgspec import Struct

from moldau.model.coordinator_events import Persist, Reply
from moldau.model.errors import ErrorCode
from moldau.model.ids import (
    NO_TIMESTAMP,
    Epoch,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class ProducerResult(Struct, frozen=True, kw_only=True):
    """Result of InitProducer and EndTransaction: the producer's id and epoch from now on."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class NeedsProducerId(Struct, frozen=True, kw_only=True):
    """Submit the request again, with a `new_producer_id`."""


class PartitionsResult(Struct, frozen=True, kw_only=True):
    """Result of AddPartitions and VerifyPartitions: an error per partition."""

    errors: dict[TopicPartition, ErrorCode]
    is_stored: bool = False
    """A write for this request was committed, which proves leadership."""


Result = ProducerResult | NeedsProducerId | PartitionsResult


class WriteMarkers(Struct, frozen=True, kw_only=True):
    """Write the end markers of a transaction to these partitions.

    Each partition is reported once, in MarkersWritten or MarkersFailed; failed ones are retried.
    """

    token: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: Epoch
    client_version: int
    partitions: tuple[TopicPartition, ...]


Effect = Reply[Result] | Persist | WriteMarkers


class DescribedTransaction(Struct, frozen=True, kw_only=True):
    """An unknown id is TRANSACTIONAL_ID_NOT_FOUND."""

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

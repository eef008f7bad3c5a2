"""Input events of the transaction coordinator.

A `request_id` identifies a request until its Reply; it is opaque here and must not be reused before
that. Every event with a `request_id` gets exactly one Reply, now or later.
"""

from msgspec import Struct

from moldau.model.coordinator_events import CoordinatorEvent
from moldau.model.ids import ProducerEpoch, ProducerId, TopicPartition
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class InitProducer(Struct, frozen=True, kw_only=True):
    """InitProducerId with a transactional id.

    A producer that continues after an error sends its id and epoch (KIP-360). `new_producer_id` is
    an unused producer id; it is needed only on the second try, after NeedsProducerId.
    """

    request_id: int
    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    new_producer_id: ProducerId = NO_PRODUCER_ID


class AddPartitions(Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn, AddOffsetsToTxn, or sent by a partition leader (transactions V2).

    The caller has checked that the partitions exist. `client_version` is 2 in the last case.
    """

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: frozenset[TopicPartition]
    client_version: int = 0


class VerifyPartitions(Struct, frozen=True, kw_only=True):
    """A partition leader verifies that a producer's transaction includes the partition."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: frozenset[TopicPartition]


class EndTransaction(Struct, frozen=True, kw_only=True):
    """EndTxn; `client_version` is 2 from version 5 on. `new_producer_id` as in InitProducer."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    client_version: int = 0
    new_producer_id: ProducerId = NO_PRODUCER_ID


class MarkersWritten(Struct, frozen=True, kw_only=True):
    """These partitions of a WriteMarkers have a committed marker, or were deleted."""

    token: int
    partitions: frozenset[TopicPartition]


class MarkersFailed(Struct, frozen=True, kw_only=True):
    """Markers for these partitions of a WriteMarkers failed, or their outcome is unknown."""

    token: int
    partitions: frozenset[TopicPartition]


Request = InitProducer | AddPartitions | VerifyPartitions | EndTransaction
Event = Request | MarkersWritten | MarkersFailed | CoordinatorEvent

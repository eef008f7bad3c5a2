"""Owns the events of the transaction coordinator: everything that can happen to it.

A `request_id` is the shell's name for a request that waits for a Reply. It is opaque here, and must
not be reused while its reply is due. Every event with one gets exactly one Reply, perhaps later.
"""

from msgspec import Struct

from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId, TopicPartition
from moldau.transactions.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class InitProducer(Struct, frozen=True, kw_only=True):
    """InitProducerId with a transactional id.

    A producer that continues names the id and epoch it had (KIP-360). `new_producer_id` is a
    producer id that nobody has; it need only be there on the second try, after NeedsProducerId.
    """

    request_id: int
    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    new_producer_id: ProducerId = NO_PRODUCER_ID


class AddPartitions(Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn, AddOffsetsToTxn, or a partition's leader for a client that asked nobody.

    The shell has checked that the partitions exist. `client_version` is 2 in the last case.
    """

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: frozenset[TopicPartition]
    client_version: int = 0


class VerifyPartitions(Struct, frozen=True, kw_only=True):
    """A partition's leader asks whether a producer's transaction includes it."""

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
    """Of that WriteMarkers, these partitions have the marker, committed; or exist no more."""

    token: int
    partitions: frozenset[TopicPartition]


class MarkersFailed(Struct, frozen=True, kw_only=True):
    """Of that WriteMarkers, these partitions could not be told now, or nobody knows."""

    token: int
    partitions: frozenset[TopicPartition]


class Tick(Struct, frozen=True, kw_only=True):
    """Time has passed. Due at `next_deadline()`; earlier or later does no harm."""


class Persisted(Struct, frozen=True, kw_only=True):
    """The records of that Persist are committed."""

    token: int


class PersistFailed(Struct, frozen=True, kw_only=True):
    """The records of that Persist are not in the log and never will be."""

    token: int
    error: ErrorCode


Request = InitProducer | AddPartitions | VerifyPartitions | EndTransaction
Event = Request | MarkersWritten | MarkersFailed | Tick | Persisted | PersistFailed

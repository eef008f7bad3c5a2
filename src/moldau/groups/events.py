"""Input events of the group coordinator.

A `request_id` identifies a request until its Reply; it is opaque here and must not be reused before
that. Every event with a `request_id` gets exactly one Reply, now or later.
"""

from collections.abc import Mapping

from msgspec import Struct

from moldau.model.coordinator_events import CoordinatorEvent
from moldau.model.ids import (
    NO_EPOCH,
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)

NO_MEMBER_ID = ""
NO_GENERATION = -1


class Join(Struct, frozen=True, kw_only=True):
    """JoinGroup. `protocols`: (name, subscription), most wanted first."""

    request_id: int
    group_id: str
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Before v1 the request has none: the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id_required: bool = False
    """True from v4 on: a new dynamic member first gets an id and then joins with it (KIP-394)."""
    can_skip_assignment: bool = False
    """True from v9 on."""


class Sync(Struct, frozen=True, kw_only=True):
    """SyncGroup; the leader sends `assignments` (member id, bytes)."""

    request_id: int
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Heartbeat(Struct, frozen=True, kw_only=True):
    request_id: int
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(Struct, frozen=True, kw_only=True):
    """An empty member id with an instance id removes the member that has that instance id."""

    member_id: str
    instance_id: str | None = None


class Leave(Struct, frozen=True, kw_only=True):
    """LeaveGroup; one member before v3, any number after."""

    request_id: int
    group_id: str
    members: tuple[LeavingMember, ...]


class ConsumerHeartbeat(Struct, frozen=True, kw_only=True):
    """ConsumerGroupHeartbeat. None: unchanged since the member's last heartbeat."""

    request_id: int
    group_id: str
    member_id: str
    member_epoch: int
    """0 to join, -1 to leave, -2 for a static member that will be back."""
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Mapping[TopicId, frozenset[int]] | None = None
    makes_member_id: bool = False
    """True from v1 on: the client generates its member id."""
    session_timeout_ms: int | None = None
    """None: as set before, or the broker's default."""


class OffsetToCommit(Struct, frozen=True, kw_only=True):
    partition: TopicPartition
    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""


class CommitOffsets(Struct, frozen=True, kw_only=True):
    """OffsetCommit. The caller has checked that the topics exist."""

    request_id: int
    group_id: str
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None
    offsets: tuple[OffsetToCommit, ...] = ()
    retention_ms: int = -1
    """Versions 2 to 4 may set a retention; -1 is the broker's."""


class CommitTransactionOffsets(Struct, frozen=True, kw_only=True):
    """TxnOffsetCommit: the offsets count once the producer's transaction is committed.

    The caller has checked that the topics exist, and that the transaction includes the offsets of
    this group; `guard` is the value of `transaction_guard()` before that check.
    """

    request_id: int
    group_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    guard: int
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None
    offsets: tuple[OffsetToCommit, ...] = ()


class TransactionEnding(Struct, frozen=True, kw_only=True):
    """The end marker of a producer's transaction is about to be appended. No reply.

    Offsets appended after the marker would stay pending forever, so they are rejected from now on.
    """

    producer_id: ProducerId
    next_epoch_min: int
    """From this epoch on, offsets belong to a later transaction."""


class TransactionEnded(Struct, frozen=True, kw_only=True):
    """The end marker of a producer's transaction is committed. No reply."""

    producer_id: ProducerId
    is_commit: bool


class DeleteGroups(Struct, frozen=True, kw_only=True):
    request_id: int
    group_ids: tuple[str, ...]


class DeleteOffsets(Struct, frozen=True, kw_only=True):
    """OffsetDelete: some partitions of one group."""

    request_id: int
    group_id: str
    partitions: tuple[TopicPartition, ...]


class ResetOffsets(Struct, frozen=True, kw_only=True):
    """Sets offsets for an administrator: in a group without members, or after their removal.

    Rejected if others are committed than the `expected` ones, which the new ones were made from.
    """

    request_id: int
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    removes_members: bool = False
    expected: tuple[tuple[TopicPartition, Offset], ...] = ()


class TopicsDeleted(Struct, frozen=True, kw_only=True):
    """Topics were deleted; their offsets are removed. No reply."""

    topics: frozenset[str] = frozenset()


GroupRequest = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | ConsumerHeartbeat
    | CommitOffsets
    | CommitTransactionOffsets
    | DeleteOffsets
    | ResetOffsets
)
"""Requests to one group."""
Event = (
    GroupRequest
    | DeleteGroups
    | TransactionEnding
    | TransactionEnded
    | TopicsDeleted
    | CoordinatorEvent
)

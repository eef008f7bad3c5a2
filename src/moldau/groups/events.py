"""Owns the events of the group coordinator: everything that can happen to it.

A `request_id` is the shell's name for a request that waits for a Reply. It is opaque here, and must
not be reused while its reply is due. Every event with one gets exactly one Reply, perhaps later.
"""

from dataclasses import dataclass, field

from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, Epoch, Offset, TopicPartition

NO_MEMBER_ID = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols`: (name, subscription), most wanted first."""

    request_id: int
    group_id: str
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Before v1 the request has none: pass the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id_required: bool = False
    """True from v4 on: a new dynamic member is given its id first and joins with it (KIP-394)."""
    can_skip_assignment: bool = False
    """True from v9 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup; the leader brings `assignments` (member id, bytes)."""

    request_id: int
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    request_id: int
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """An empty member id with an instance id removes whoever holds that instance."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """LeaveGroup; one member before v3, any number after."""

    request_id: int
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    partition: TopicPartition
    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """OffsetCommit. The shell has checked that the topics exist."""

    request_id: int
    group_id: str
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None
    offsets: tuple[OffsetToCommit, ...] = ()
    retention_ms: int = -1
    """Versions 2 to 4 may ask for a retention of their own; -1 is the broker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroups:
    request_id: int
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """OffsetDelete: some partitions of one group."""

    request_id: int
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """Topics are gone: their offsets go too. No reply."""

    topics: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. Due at `next_deadline()`; earlier or later does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """The records of that Persist are committed."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistFailed:
    """The records of that Persist are not in the log and never will be."""

    token: int
    error: ErrorCode


Event = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | DeleteGroups
    | DeleteOffsets
    | TopicsDeleted
    | Tick
    | Persisted
    | PersistFailed
)

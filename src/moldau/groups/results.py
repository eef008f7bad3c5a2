"""Output of the group coordinator: effects, and a typed result for each kind of request."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from moldau.model.coordinator_events import Persist, Reply
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, Epoch, Offset, TimestampMs, TopicId, TopicPartition

NO_OFFSET = Offset(-1)


class GroupState(StrEnum):
    """Values as DescribeGroups and ListGroups spell them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroupState(StrEnum):
    """States of consumer-protocol groups; ListGroups returns both kinds."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class JoinedMember(Struct, frozen=True, kw_only=True):
    """A member as listed in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    subscription: bytes


class JoinResult(Struct, frozen=True, kw_only=True):
    """`members` is filled for the leader only. With MEMBER_ID_REQUIRED, `member_id` is the new id.

    Before v7 `protocol_name` None is sent as an empty string.
    """

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncResult(Struct, frozen=True, kw_only=True):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatResult(Struct, frozen=True, kw_only=True):
    error: ErrorCode


class LeftMember(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveResult(Struct, frozen=True, kw_only=True):
    """Before v3 the response is `error`, or else the error of the one member."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


class CommitResult(Struct, frozen=True, kw_only=True):
    """An error per partition of the request, in its order."""

    errors: tuple[tuple[TopicPartition, ErrorCode], ...]


class ConsumerHeartbeatResult(Struct, frozen=True, kw_only=True):
    """`assignment` None: unchanged."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[TopicId, frozenset[int]] | None = None


class DeleteGroupsResult(Struct, frozen=True, kw_only=True):
    """An error per group of the request, in its order."""

    errors: tuple[tuple[str, ErrorCode], ...]


class DeleteOffsetsResult(Struct, frozen=True, kw_only=True):
    """`error` is about the group; if there is one, `errors` is empty."""

    error: ErrorCode
    errors: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


class ResetResult(Struct, frozen=True, kw_only=True):
    """All offsets are set, or none is; `replaced` are those that were committed until then."""

    error: ErrorCode
    replaced: dict[TopicPartition, Offset] = {}


Result = (
    JoinResult
    | SyncResult
    | HeartbeatResult
    | LeaveResult
    | ConsumerHeartbeatResult
    | CommitResult
    | DeleteGroupsResult
    | DeleteOffsetsResult
    | ResetResult
)


Effect = Reply[Result] | Persist


class CommittedOffset(Struct, frozen=True, kw_only=True):
    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""
    commit_timestamp: TimestampMs
    expire_timestamp: TimestampMs | None = None


class FetchOffsetsResult(Struct, frozen=True, kw_only=True):
    """Partitions without an offset are absent; clients get -1, epoch -1 and metadata ''."""

    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset]
    unstable: frozenset[TopicPartition] = frozenset()
    """Partitions with a pending offset of an open transaction; a client may want to wait."""


class DescribedMember(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class DescribedGroup(Struct, frozen=True, kw_only=True):
    """An unknown group is GROUP_ID_NOT_FOUND and Dead; before v6 it is sent as NONE and Dead."""

    error: ErrorCode
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class DescribedConsumer(Struct, frozen=True, kw_only=True):
    """A member of a consumer-protocol group, with its current and target assignment."""

    member_id: str
    instance_id: str | None
    rack: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[TopicId, frozenset[int]]
    target: Mapping[TopicId, frozenset[int]]
    revoking: Mapping[TopicId, frozenset[int]] = {}
    """Partitions that it still has and must revoke."""
    assignor: str | None = None
    is_classic: bool = False
    """It uses the classic protocol in a consumer-protocol group."""


class DescribedConsumerGroup(Struct, frozen=True, kw_only=True):
    """An unknown or classic group is GROUP_ID_NOT_FOUND and Dead."""

    error: ErrorCode
    message: str | None = None
    state: ConsumerGroupState = ConsumerGroupState.DEAD
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


class ListedGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupState
    group_type: GroupType = GroupType.CLASSIC

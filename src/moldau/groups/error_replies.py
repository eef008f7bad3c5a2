"""Replies to requests rejected up front: still loading, closed, or an invalid group id."""

from typing import assert_never

from moldau.groups.events import (
    CommitOffsets,
    CommitTransactionOffsets,
    ConsumerHeartbeat,
    DeleteGroups,
    DeleteOffsets,
    Event,
    Heartbeat,
    Join,
    Leave,
    ResetOffsets,
    Sync,
    TopicsDeleted,
    TransactionEnded,
    TransactionEnding,
)
from moldau.groups.results import (
    CommitResult,
    ConsumerHeartbeatResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    Effect,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    ResetResult,
    Result,
    SyncResult,
)
from moldau.model.coordinator_events import Persisted, PersistFailed, Reply, Tick
from moldau.model.errors import ErrorCode


def error_replies(event: Event, error: ErrorCode) -> list[Effect]:
    """The reply with this error to a request; nothing for other events."""
    loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    result: Result
    match event:
        case Join():
            result = JoinResult(error=error, member_id=event.member_id)
        case Sync():
            # This code makes a member rejoin; on others it would start from scratch.
            result = SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS if loading else error)
        case Heartbeat():
            # Its session restarts when loading is done.
            result = HeartbeatResult(error=ErrorCode.NONE if loading else error)
        case Leave():
            result = LeaveResult(error=error)
        case ConsumerHeartbeat():
            result = ConsumerHeartbeatResult(error=error)
        case CommitOffsets() | CommitTransactionOffsets():
            result = CommitResult(errors=tuple((o.partition, error) for o in event.offsets))
        case DeleteGroups():
            result = DeleteGroupsResult(errors=tuple((one, error) for one in event.group_ids))
        case DeleteOffsets():
            result = DeleteOffsetsResult(error=error)
        case ResetOffsets():
            result = ResetResult(error=error)
        case TopicsDeleted() | TransactionEnding() | TransactionEnded():
            return []
        case Tick() | Persisted() | PersistFailed():
            return []
        case _:
            assert_never(event)
    return [Reply(request_id=event.request_id, result=result)]

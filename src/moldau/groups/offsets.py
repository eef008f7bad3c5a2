"""Committed offsets: commit, deletion and expiry.

Allowed to commit: a member of the current generation, except while the generation waits for its
assignment; and, while the group has no members, any client without member id and generation
(consumers that assign their partitions themselves, and administrators).
"""

from collections.abc import Callable, Iterable, Iterator

from moldau.groups.consumer_protocol import subscribed_topics
from moldau.groups.deletion import RemoveOffsets
from moldau.groups.events import (
    NO_MEMBER_ID,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    OffsetToCommit,
)
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from moldau.groups.rebalance import Rebalance, StoreEmptyGroup
from moldau.groups.records import GroupsRecord, OffsetRecord
from moldau.groups.results import CommitResult, CommittedOffset, DeleteOffsetsResult, GroupState
from moldau.groups.runtime import Runtime
from moldau.groups.sync_handler import generation_error
from moldau.groups.write import Write
from moldau.model.coordinator_events import TOO_LARGE, client_error
from moldau.model.errors import ErrorCode
from moldau.model.ids import TimestampMs, TopicPartition

_TIMESTAMP_MS_MAX = 2**63 - 1
_EXPIRY_SLICE_MAX = 5_000
"""Offsets checked per slice of an expiry round: blocks the event loop for a few milliseconds."""


class GroupOffsets:
    """Handles CommitOffsets, DeleteOffsets and TopicsDeleted, and expires old offsets."""

    def __init__(
        self,
        runtime: Runtime,
        rebalance: Rebalance,
        consumer_topics: Callable[[Group], frozenset[str]],
    ) -> None:
        self.runtime = runtime
        self.rebalance = rebalance
        self.consumer_topics = consumer_topics
        """Topics that the members of a consumer-protocol group subscribe to."""
        self._unchecked: list[str] = []
        """Groups that this expiry round has not checked yet."""

    def commit(self, now: float, event: CommitOffsets) -> None:
        if event.group_id not in self.runtime.groups and event.generation >= 0:
            # A member of an unknown group: of an older generation, or of another coordinator.
            self.reply_to_commit(event, ErrorCode.ILLEGAL_GENERATION)
            return
        if not self.runtime.has_room_for(event.group_id):
            self.reply_to_commit(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        group = self.runtime.group(event.group_id)
        error = self.commit_error(now, group, event)
        if error is ErrorCode.NONE or group.state is GroupState.DEAD:
            # For a group that is being deleted, the commit is decided after the deletion.
            self.runtime.submit(now, group, CommitOffsetsWrite(self, group, event))
        else:
            self.reply_to_commit(event, error)

    def commit_error(self, now: float, group: Group, event: CommitOffsets) -> ErrorCode:
        if group.is_empty and event.generation < 0:
            return ErrorCode.NONE
        if group.has_consumers:
            return group.consumer_error(event.member_id, event.instance_id, event.generation)
        if event.generation < 0 and event.member_id == NO_MEMBER_ID and event.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = generation_error(group, event.member_id, event.instance_id, event.generation)
        if error is not ErrorCode.NONE:
            return error
        self.rebalance.renew_session(now, group, group.members[event.member_id])
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def reply_to_commit(
        self, event: CommitOffsets | CommitTransactionOffsets, error: ErrorCode
    ) -> None:
        """`error` for every partition; on NONE, only those with too large metadata fail."""
        errors = tuple(
            (offset.partition, self.offset_error(offset) if error is ErrorCode.NONE else error)
            for offset in event.offsets
        )
        self.runtime.reply(event.request_id, CommitResult(errors=errors))

    def commit_failed(
        self, event: CommitOffsets | CommitTransactionOffsets, error: ErrorCode
    ) -> None:
        """`error` is that of the append."""
        too_large = error in TOO_LARGE
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if too_large else client_error(error)
        self.reply_to_commit(event, code)

    def offset_error(self, offset: OffsetToCommit) -> ErrorCode:
        most = self.runtime.config.offset_metadata_bytes_max
        # A character has at most 4 bytes: short texts, nearly all, need not be encoded.
        if len(offset.metadata) * 4 > most and len(offset.metadata.encode()) > most:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def records(
        self, group: Group, offsets: Iterable[OffsetToCommit], retention_ms: int = -1
    ) -> list[GroupsRecord]:
        commit_ms = self.runtime.wall_ms()
        # The client may send any retention; cap it at the largest timestamp.
        expire_ms = TimestampMs(min(commit_ms + retention_ms, _TIMESTAMP_MS_MAX))
        return [
            OffsetRecord(
                group_id=group.group_id,
                partition=offset.partition,
                value=CommittedOffset(
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    commit_timestamp=commit_ms,
                    expire_timestamp=expire_ms if retention_ms >= 0 else None,
                ),
            )
            for offset in offsets
            if self.offset_error(offset) is ErrorCode.NONE
        ]

    def delete(self, now: float, event: DeleteOffsets) -> None:
        group = self.runtime.groups.get(event.group_id)
        error = ErrorCode.NONE
        if group is None or group.state is GroupState.DEAD:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif (
            group.members
            and not group.has_consumers
            and group.protocol_type != CONSUMER_PROTOCOL_TYPE
        ):
            error = ErrorCode.NON_EMPTY_GROUP
        if group is None or error is not ErrorCode.NONE:
            self.runtime.reply(event.request_id, DeleteOffsetsResult(error=error))
            return
        self.runtime.submit(now, group, DeleteOffsetsWrite(self, group, event))

    def topics_deleted(self, now: float, topics: frozenset[str]) -> None:
        for group in list(self.runtime.groups.values()):
            # The write in flight may commit to such a topic: remove offsets after it.
            if group.writing is not None or any(
                partition.topic in topics
                for partition in (*group.offsets, *group.pending_partitions)
            ):
                self.runtime.submit(now, group, RemoveOffsets(self.runtime, group, topics=topics))

    def expire(self, now: float) -> bool:
        """Expire offsets in some of the groups. False: the round is not finished."""
        if not self._unchecked:
            self._unchecked = list(self.runtime.groups)
        checked = 0
        while self._unchecked and checked < _EXPIRY_SLICE_MAX:
            group = self.runtime.groups.get(self._unchecked.pop())
            if group is not None:
                checked += 1 + len(group.offsets)
                self._expire_of(now, group)
        return not self._unchecked

    def _expire_of(self, now: float, group: Group) -> None:
        if group.is_empty and _is_unstored(group) and group.offsets:
            # Storing that the last member left had failed: the retention counts from now.
            self.runtime.submit(now, group, StoreEmptyGroup(self.runtime, group))
        elif any(True for _ in self.expired(group)) or (
            group.is_empty and not group.offsets and (group.stored or group.consumer)
        ):
            self.runtime.submit(now, group, RemoveOffsets(self.runtime, group, choose=self.expired))

    def expired(self, group: Group) -> Iterator[TopicPartition]:
        """Offsets whose retention time is over."""
        now_ms = self.runtime.wall_ms()
        before = now_ms - self.runtime.config.offsets_retention_ms
        wanted: frozenset[str] = frozenset()
        if group.has_consumers:
            wanted = self.consumer_topics(group)
        elif group.members:
            topics = subscriptions(group)
            if topics is None or group.state is not GroupState.STABLE:
                return
            wanted = topics
        # An open transaction has offsets for these: a tombstone now would hide its commit.
        pending = group.pending_partitions
        for partition, offset in group.offsets.items():
            if (
                partition.topic not in wanted
                and partition not in pending
                and _is_old(group, offset, before, now_ms)
            ):
                yield partition


class CommitOffsetsWrite(Write):
    __slots__ = ("_event", "_group", "_offsets")
    merges = "offsets"

    def __init__(self, offsets: GroupOffsets, group: Group, event: CommitOffsets) -> None:
        self._offsets = offsets
        self._group = group
        self._event = event

    def decide(self, now: float) -> list[GroupsRecord]:
        event = self._event
        error = self._offsets.commit_error(now, self._group, event)
        records: list[GroupsRecord] = []
        if error is ErrorCode.NONE:
            records = self._offsets.records(self._group, event.offsets, event.retention_ms)
        if not records:
            self._offsets.reply_to_commit(event, error)
        return records

    def committed(self, now: float) -> None:
        self._offsets.reply_to_commit(self._event, ErrorCode.NONE)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._offsets.commit_failed(self._event, error)


class DeleteOffsetsWrite(Write):
    """OffsetDelete: the partitions of one request, except those of topics still subscribed to."""

    __slots__ = ("_event", "_group", "_offsets")

    def __init__(self, offsets: GroupOffsets, group: Group, event: DeleteOffsets) -> None:
        self._offsets = offsets
        self._group = group
        self._event = event

    def decide(self, now: float) -> list[GroupsRecord]:
        records: list[GroupsRecord] = [
            OffsetRecord(group_id=self._group.group_id, partition=partition, value=None)
            for partition in dict.fromkeys(self._event.partitions)
            if self._holds(partition) and not self._subscribed(partition)
        ]
        if not records:
            self._reply(ErrorCode.NONE)
        return records

    def committed(self, now: float) -> None:
        self._reply(ErrorCode.NONE)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._reply(client_error(error))

    def _reply(self, error: ErrorCode) -> None:
        errors = tuple(
            (partition, self._partition_error(partition)) for partition in self._event.partitions
        )
        self._offsets.runtime.reply(
            self._event.request_id,
            DeleteOffsetsResult(error=error, errors=errors if error is ErrorCode.NONE else ()),
        )

    def _partition_error(self, partition: TopicPartition) -> ErrorCode:
        if self._holds(partition) and self._subscribed(partition):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE

    def _holds(self, partition: TopicPartition) -> bool:
        """Includes offsets of open transactions."""
        return partition in self._group.offsets or partition in self._group.pending_partitions

    def _subscribed(self, partition: TopicPartition) -> bool:
        if self._group.has_consumers:
            return partition.topic in self._offsets.consumer_topics(self._group)
        topics = subscriptions(self._group)
        return topics is None or partition.topic in topics


def subscriptions(group: Group) -> frozenset[str] | None:
    """Topics that members subscribe to; None if unknown."""
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    wanted: set[str] = set()
    for member in group.members.values():
        for subscription in _current_or_all(group, member.protocols):
            topics = subscribed_topics(subscription)
            if topics is None:
                return None
            wanted |= topics
    return frozenset(wanted)


def _current_or_all(group: Group, protocols: tuple[tuple[str, bytes], ...]) -> Iterable[bytes]:
    # During a rebalance no protocol is chosen yet: count the topics of all of them.
    chosen = [data for name, data in protocols if name == group.protocol_name]
    return chosen or [data for _, data in protocols]


def _is_unstored(group: Group) -> bool:
    """The stored group still has members: when they left is unknown."""
    return not group.members and group.stored is not None and bool(group.stored.members)


def _is_old(group: Group, offset: CommittedOffset, before: int, now_ms: int) -> bool:
    if offset.expire_timestamp is not None:
        return offset.expire_timestamp <= now_ms
    if _is_unstored(group):
        return False
    since = offset.commit_timestamp
    if not group.members and group.stored is not None and group.stored.state_timestamp >= 0:
        # The retention counts from the time that the last member left.
        since = max(since, group.stored.state_timestamp)
    if group.consumer is not None and group.consumer.epoch is not None:
        since = max(since, group.consumer.epoch.empty_since)
    return since <= before

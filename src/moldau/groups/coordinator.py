"""Entry point of the group coordinator: loading, dispatch of events, and reads.

    for key, value in the partition: coordinator.replay(key, value)
    effects = coordinator.finish_loading(now)
    effects = coordinator.handle(now, event)      # for every event, from one thread
    ... run the effects; call handle(now, Tick()) at next_deadline() ...

`now` is monotonic seconds; `wall_ms` returns the timestamp that is stored. A coordinator serves the
groups of one partition of `__consumer_offsets`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never

from moldau.groups.assignors.interface import Assignor
from moldau.groups.assignors.range import RangeAssignor
from moldau.groups.assignors.uniform import UniformAssignor
from moldau.groups.config import GroupConfig
from moldau.groups.consumer.classic_members import ClassicMembers
from moldau.groups.consumer.consumer_groups import ConsumerGroups
from moldau.groups.consumer.context import ConsumerContext
from moldau.groups.consumer.migration import downgrade
from moldau.groups.consumer.subscriptions import Subscriptions, TopicSource
from moldau.groups.deletion import GroupDeletion
from moldau.groups.error_replies import error_replies
from moldau.groups.events import (
    CommitOffsets,
    CommitTransactionOffsets,
    ConsumerHeartbeat,
    DeleteGroups,
    DeleteOffsets,
    Event,
    GroupRequest,
    Heartbeat,
    Join,
    Leave,
    ResetOffsets,
    Sync,
    TopicsDeleted,
    TransactionEnded,
    TransactionEnding,
)
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from moldau.groups.invariants import check_invariants
from moldau.groups.join_handler import JoinHandler
from moldau.groups.offsets import GroupOffsets
from moldau.groups.rebalance import Rebalance
from moldau.groups.records import TEXT_BYTES_MAX, decode
from moldau.groups.reset import GroupReset
from moldau.groups.results import (
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedMember,
    Effect,
    FetchOffsetsResult,
    GroupState,
    GroupType,
    ListedGroup,
)
from moldau.groups.runtime import Runtime
from moldau.groups.sync_handler import SyncHandler
from moldau.groups.timers import TimerKey, TimerKind
from moldau.groups.topic_consumers import TopicConsumers, consumers_of
from moldau.groups.transactional_offsets import TransactionalOffsets
from moldau.groups.weights import GroupMemory
from moldau.model.coordinator_events import Persisted, PersistFailed, Reply, Tick
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId, TimestampMs, TopicPartition
from moldau.model.queue_limits import CLIENT_ID_BYTES_MAX

BUILT_IN_ASSIGNORS: Final[tuple[Assignor, ...]] = (UniformAssignor(), RangeAssignor())
"""The first one is the default."""
_EXPIRY = TimerKey(TimerKind.EXPIRY)
_EXPIRY_PAUSE_SECONDS = 0.02
"""Between two slices of an expiry round, so that requests are served in between."""


class GroupCoordinator:
    """All groups of one partition. `new_member_id` makes a unique id from the beginning of a client
    id; `memory` is shared with the other coordinators of the broker."""

    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        wall_ms: Callable[[], TimestampMs],
        topics: TopicSource,
        assignors: Sequence[Assignor] = BUILT_IN_ASSIGNORS,
        memory: GroupMemory | None = None,
    ) -> None:
        def make_member_id(client_id: str) -> str:
            return new_member_id(client_id.encode()[:CLIENT_ID_BYTES_MAX].decode(errors="ignore"))

        self._runtime = Runtime(config, wall_ms, memory or GroupMemory())
        self._rebalance = Rebalance(self._runtime)
        self._sync_handler = SyncHandler(self._runtime, self._rebalance)
        context = ConsumerContext(
            self._runtime,
            Subscriptions(topics),
            {assignor.name: assignor for assignor in assignors},
            make_member_id,
            self._rebalance,
        )
        self._context = context
        self._consumers = ConsumerGroups(context)
        self._classic_members = ClassicMembers(context)
        self._join_handler = JoinHandler(
            self._runtime, self._rebalance, self._classic_members, make_member_id
        )
        self._offsets = GroupOffsets(
            self._runtime, self._rebalance, self._consumers.subscribed_topics
        )
        self._reset = GroupReset(context, self._offsets)
        self._transactional = TransactionalOffsets(self._runtime, self._offsets)
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # Life cycle

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a committed record, in log order. Raises CorruptionError if it is malformed."""
        record = decode(key, value)
        if record is not None:
            group = self._runtime.group(record.group_id)
            group.apply(record)
            self._runtime.forget_if_empty(group)

    def replay_pending(self, producer_id: ProducerId, key: bytes, value: bytes | None) -> None:
        """Like `replay`, for records of open transactions; call it after all other records."""
        record = decode(key, value)
        if record is not None:
            self._transactional.replay(producer_id, record)

    def finish_loading(self, now: float) -> list[Effect]:
        """Start serving. Members keep their assignment, and their session timeouts restart."""
        for group in list(self._runtime.groups.values()):
            group.restore()
            for member in group.members.values():
                self._rebalance.renew_session(now, group, member)
            if group.stored is not None and group.stored.members and group.stored.leader is None:
                self._rebalance.prepare(now, group)
            self._consumers.load(now, group)
            self._runtime.count_by_name(group.group_id)
        self._schedule_expiry(now)
        self._unavailable = ErrorCode.NONE
        return self._runtime.take_effects()

    def close(self, now: float, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Reply to all waiting requests, and reject every later one, with `error`."""
        self._unavailable = error
        self._runtime.abandon_writes(now, error)
        for group in self._runtime.groups.values():
            for member in group.members.values():
                self._rebalance.reject_waiting(member, error)
            self._runtime.count(group, 0)
        return [effect for effect in self._runtime.take_effects() if isinstance(effect, Reply)]

    @property
    def is_writing(self) -> bool:
        return bool(self._runtime.tokens())

    @property
    def loaded(self) -> bool:
        return self._unavailable is ErrorCode.NONE

    # Events

    def handle(self, now: float, event: Event) -> list[Effect]:
        if self._unavailable is not ErrorCode.NONE:
            return error_replies(event, self._unavailable)
        match event:
            case Persisted():
                self._runtime.persisted(now, event.token)
            case PersistFailed():
                self._runtime.persist_failed(now, event.token, event.error)
            case Tick():
                self._run_timers(now)
            case TopicsDeleted():
                self._offsets.topics_deleted(now, event.topics)
            case TransactionEnding():
                self._transactional.ends(event)
            case TransactionEnded():
                self._transactional.ended(event)
            case DeleteGroups():
                GroupDeletion(self._runtime, event).start(now)
            case _:
                return self._handle_group_request(now, event)
        return self._runtime.take_effects()

    def _handle_group_request(self, now: float, event: GroupRequest) -> list[Effect]:
        # Old simple consumers commit offsets to the group with the empty name.
        needs_name = not isinstance(event, CommitOffsets | DeleteOffsets)
        if (needs_name and not event.group_id) or len(event.group_id.encode()) > TEXT_BYTES_MAX:
            return error_replies(event, ErrorCode.INVALID_GROUP_ID)
        match event:
            case Join():
                self._join_handler.join(now, event)
            case Sync() | Heartbeat() | Leave():
                self._handle_classic_member(now, event)
            case ConsumerHeartbeat():
                self._consumers.heartbeat(now, event)
            case CommitOffsets():
                self._offsets.commit(now, event)
            case CommitTransactionOffsets():
                self._transactional.commit(now, event)
            case DeleteOffsets():
                self._offsets.delete(now, event)
            case ResetOffsets():
                self._reset.reset(now, event)
            case _:
                assert_never(event)
        self._runtime.count_by_name(event.group_id)
        return self._runtime.take_effects()

    def _handle_classic_member(self, now: float, event: Sync | Heartbeat | Leave) -> None:
        """The group may use the consumer protocol (KIP-848), with classic members in it."""
        group = self._runtime.groups.get(event.group_id)
        if group is not None and group.has_consumers:
            match event:
                case Sync():
                    self._classic_members.sync(now, group, event)
                case Heartbeat():
                    self._classic_members.heartbeat(now, group, event)
                case Leave():
                    self._consumers.leave(now, group, event, self._sync_handler.leave)
            return
        match event:
            case Sync():
                self._sync_handler.sync(now, event)
            case Heartbeat():
                self._sync_handler.heartbeat(now, event)
            case Leave():
                self._sync_handler.leave(now, event)

    # Time

    def next_deadline(self) -> float | None:
        """When the next Tick is due."""
        if self._unavailable is not ErrorCode.NONE:
            return None
        return self._runtime.timers.next_deadline()

    def _run_timers(self, now: float) -> None:
        while (key := self._runtime.timers.pop_due(now)) is not None:
            if key == _EXPIRY:
                if self._offsets.expire(now):
                    self._schedule_expiry(now)
                else:
                    self._runtime.timers.set(_EXPIRY, now + _EXPIRY_PAUSE_SECONDS)
                continue
            group = self._runtime.groups.get(key.group_id)
            if group is not None:
                self._run_timer(now, group, key)
                self._runtime.count_by_name(key.group_id)

    def _run_timer(self, now: float, group: Group, key: TimerKey) -> None:
        match key.kind:
            case TimerKind.SESSION | TimerKind.REVOKE if group.has_consumers:
                self._consumers.expired(now, group, key)
            case TimerKind.SESSION:
                self._rebalance.session_expired(now, group, key.member_id)
            case TimerKind.PENDING:
                self._rebalance.pending_expired(now, group, key.member_id)
            case TimerKind.JOIN:
                self._rebalance.join_expired(now, group)
            case TimerKind.SYNC:
                self._rebalance.sync_expired(now, group)
            case TimerKind.DOWNGRADE:
                downgrade(self._context, now, group)
            case TimerKind.EXPIRY | TimerKind.REVOKE:
                pass

    def _schedule_expiry(self, now: float) -> None:
        every = self._runtime.config.offsets_retention_check_ms / 1000
        self._runtime.timers.set(_EXPIRY, now + every)

    # Reads

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchOffsetsResult:
        """Committed offsets of these partitions, or of all.

        A member of a consumer group names its id and epoch, and is rejected if they are stale.
        """
        group = self._runtime.groups.get(group_id)
        if self._unavailable is not ErrorCode.NONE or group is None:
            return FetchOffsetsResult(error=self._unavailable, offsets={})
        if group.has_consumers and (member_id or member_epoch >= 0):
            error = group.consumer_error(member_id or "", None, member_epoch)
            if error is not ErrorCode.NONE:
                return FetchOffsetsResult(error=error, offsets={})
        unstable = group.pending_partitions
        if partitions is None:
            return FetchOffsetsResult(
                error=ErrorCode.NONE, offsets=dict(group.offsets), unstable=unstable
            )
        stored = group.offsets
        wanted = list(partitions)
        found = {partition: stored[partition] for partition in wanted if partition in stored}
        return FetchOffsetsResult(
            error=ErrorCode.NONE, offsets=found, unstable=unstable.intersection(wanted)
        )

    def transaction_guard(self) -> int:
        """Read it before verifying a transaction: offsets are rejected if it ended since."""
        return self._transactional.guard

    def offset_topics(self) -> frozenset[str]:
        """Topics for which any group has offsets."""
        groups = self._runtime.groups.values()
        return frozenset(
            partition.topic
            for group in groups
            for partition in (*group.offsets, *group.pending_partitions)
        )

    def describe(self, group_id: str) -> DescribedGroup:
        if self._unavailable is not ErrorCode.NONE:
            return DescribedGroup(error=self._unavailable)
        group = self._runtime.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD or group.consumer is not None:
            return DescribedGroup(error=ErrorCode.GROUP_ID_NOT_FOUND)
        # Subscriptions and assignments belong to a generation: shown only while it is stable.
        stable = group.state is GroupState.STABLE
        return DescribedGroup(
            error=ErrorCode.NONE,
            state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_name=(group.protocol_name or "") if stable else "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscription=member.subscription(group.protocol_name) if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in group.members.values()
            ),
        )

    def list_groups(
        self, states: Iterable[str] = (), group_types: Iterable[str] = ()
    ) -> tuple[ErrorCode, list[ListedGroup]]:
        """Groups in one of these states and of one of these types; empty filters match all."""
        if self._unavailable is not ErrorCode.NONE:
            return self._unavailable, []
        wanted = {state.lower() for state in states}
        types = {name.lower() for name in group_types}
        listed = map(_listed, self._runtime.groups.values())
        return ErrorCode.NONE, [
            one
            for one in listed
            if (not wanted or one.state.lower() in wanted)
            and (not types or one.group_type in types)
        ]

    def group_ids(self) -> list[str]:
        return list(self._runtime.groups)

    def consumers_of(
        self, group_id: str, topic: str, partitions: int, *, with_offsets: bool
    ) -> TopicConsumers | None:
        """What a group has to do with a topic of so many partitions; None: nothing."""
        group = self._runtime.groups.get(group_id)
        if self._unavailable is not ErrorCode.NONE or group is None:
            return None
        topics = self._consumers.subscribed_topics
        return consumers_of(group, topic, partitions, topics, with_offsets=with_offsets)

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        if self._unavailable is not ErrorCode.NONE:
            return DescribedConsumerGroup(error=self._unavailable)
        return self._consumers.describe(group_id)

    def consumer(self, group_id: str, member_id: str) -> DescribedConsumer | None:
        if self._unavailable is not ErrorCode.NONE:
            return None
        return self._consumers.member(group_id, member_id)

    # Tests and simulation

    def check_invariants(self) -> None:
        """Raises InvariantError if the state is inconsistent; for tests and the simulator."""
        check_invariants(self._runtime)


def _listed(group: Group) -> ListedGroup:
    if group.consumer is None:
        return ListedGroup(
            group_id=group.group_id, protocol_type=group.protocol_type or "", state=group.state
        )
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        state=group.consumer.state,
        group_type=GroupType.CONSUMER,
    )

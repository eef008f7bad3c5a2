"""Decides one ConsumerGroupHeartbeat: join, reconcile or leave.

The member's subscription is updated, the group epoch is bumped if it or the topics changed, the
target assignment is computed for the new epoch, and the member moves one step towards its target.
The result is stored before the member gets it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.groups.assignors.interface import (
    NOTHING,
    Assignment,
    AssignorError,
    GroupSpec,
    MemberSpec,
)
from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.consumer.context import ConsumerContext, revoke_key
from moldau.groups.consumer.migration import upgrade_records
from moldau.groups.consumer.reconcile import covers, next_step
from moldau.groups.consumer.records import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    ConsumerRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from moldau.groups.consumer.state import ConsumerState, consumer_weight
from moldau.groups.consumer.writes import ConsumerWrite
from moldau.groups.events import ConsumerHeartbeat
from moldau.groups.group import Group
from moldau.groups.rebalance import pending_key
from moldau.groups.records import GroupRecord, GroupsRecord
from moldau.groups.results import ConsumerHeartbeatResult, GroupState, JoinResult
from moldau.model.coordinator_events import client_error
from moldau.model.errors import ErrorCode, RefusedError


class AdmittedMember(NamedTuple):
    """The member that sent the heartbeat."""

    member_id: str
    before: ConsumerMember | None
    """Its stored state; None: it is new."""
    current: CurrentAssignment
    records: list[ConsumerRecord]
    """Tombstones of the static member that it replaces, if any."""


class HeartbeatWrite(ConsumerWrite):
    __slots__ = ("_event", "_member_id", "_removed", "_result", "_seen_topics", "_upgraded")

    def __init__(self, context: ConsumerContext, group: Group, event: ConsumerHeartbeat) -> None:
        super().__init__(context, group)
        self._event = event
        self._member_id = event.member_id
        self._removed: str | None = None
        self._seen_topics: int | None = None
        self._result: ConsumerHeartbeatResult | JoinResult | None = None
        self._upgraded: list[str] | None = None
        """Classic members upgraded with this heartbeat; None: no upgrade."""

    # ---- the write

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self.group
        # An upgrade deletes the record of the classic group.
        is_classic = group.stored is not None and group.draft is None
        try:
            upgraded, state = self._upgrade()
            if self._event.member_epoch < JOIN_EPOCH:
                records = self._leave(state)
            else:
                records = self._reconcile(now, state)
        except RefusedError as error:
            self._refuse(error)
            return []
        old = [GroupRecord(group_id=group.group_id, value=None)] if is_classic else []
        stored = old + self.drafted(upgraded + records)
        if group.draft is not None and self._seen_topics is not None:
            group.draft.seen_topics = self._seen_topics
        if not stored and self._result is not None:
            self.context.runtime.reply(self._event.request_id, self._result)
        if not stored:
            self.context.runtime.forget_if_empty(group)
        return stored

    def committed(self, now: float) -> None:
        self.group.draft = None
        if self._upgraded is not None:
            self.context.upgraded(now, self.group, self._upgraded)
        self.group.generation, self.group.protocol_type = 0, None
        if self.group.consumer is not None and self._seen_topics is not None:
            self.group.consumer.seen_topics = self._seen_topics
        if self._removed is not None:
            self.context.forget(self.group, self._removed)
        if self._event.member_epoch >= JOIN_EPOCH:
            self.group.pending.pop(self._member_id, None)
            self.context.runtime.timers.cancel(pending_key(self.group, self._member_id))
            self.context.renew_session(now, self.group, self._member_id)
            self.context.start_revoke_timeout(now, self.group, self._member_id)
        if self._result is not None:
            self.context.runtime.reply(self._event.request_id, self._result)

    def failed(self, now: float, error: ErrorCode) -> None:
        self.undo(now)
        self._refuse(RefusedError(client_error(error)))

    def _refuse(self, error: RefusedError) -> None:
        self.context.reject(self._event, error)

    # ---- decisions

    def _upgrade(self) -> tuple[list[ConsumerRecord], ConsumerState]:
        """Upgrade a classic group, with its members. Raises RefusedError."""
        group, state = self.group, self.state
        if group.state is GroupState.DEAD:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted.")
        if group.draft is not None or group.consumer is not None:
            return [], state
        if self._event.member_epoch != JOIN_EPOCH:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not group.members:
            return [], state
        upgraded = upgrade_records(group, self.context.subscriptions)
        for record in upgraded:
            state.apply(record)
        self._upgraded = list(state.members)
        return upgraded, state

    def _leave(self, state: ConsumerState) -> list[ConsumerRecord]:
        event = self._event
        member_id = self._known(state)
        self._result = ConsumerHeartbeatResult(
            error=ErrorCode.NONE, member_id=event.member_id, member_epoch=event.member_epoch
        )
        if event.member_epoch == LEAVE_EPOCH:
            self._removed = member_id
            return self.without(state, member_id)
        # A static member that will rejoin: it keeps its partitions until its session expires.
        current = state.current(member_id)
        self.context.runtime.timers.cancel(revoke_key(self.group, member_id))
        away = CurrentAssignment(
            epoch=STATIC_LEAVE_EPOCH, previous_epoch=current.epoch, assigned=current.assigned
        )
        if away == current or current.epoch == STATIC_LEAVE_EPOCH:
            return []
        return [
            CurrentAssignmentRecord(group_id=self.group.group_id, member_id=member_id, value=away)
        ]

    def _reconcile(self, now: float, state: ConsumerState) -> list[ConsumerRecord]:
        event = self._event
        member_id, before, current, records = self._identify(state)
        self._member_id = member_id
        member = self._described(before)
        self._check_room(member_id, member, before)
        _check_group_kind(member_id, member, state.members)
        # Now, not when it is stored: the expiry of its session may be the next write.
        self.context.renew_session(now, self.group, member_id, member)
        members = dict(state.members) if records else state.members
        if self._removed is not None:
            members.pop(self._removed, None)
        is_changed = before is None or _assignment_inputs(before) != _assignment_inputs(member)
        if member != before or self._removed is not None:
            members = {**members, member_id: member}
            records.append(
                MemberRecord(group_id=self.group.group_id, member_id=member_id, value=member)
            )
        epoch = self._epoch(state, members, is_changed)
        if epoch is not None:
            records.append(EpochRecord(group_id=self.group.group_id, value=epoch))
        number = state.number if epoch is None else epoch.epoch
        targets = state.targets
        if (state.target_epoch or 0) < number:
            targets = self._assign(state, members, records, number)
        inherited = state.target(self._removed) if self._removed is not None else NOTHING
        target = targets.get(member_id, inherited)
        if self._removed is not None and targets is state.targets:
            records.append(
                TargetAssignmentRecord(
                    group_id=self.group.group_id, member_id=member_id, value=target
                )
            )
        mine = {member_id, self._removed}
        stepped = next_step(
            current,
            target=target,
            target_epoch=max(number, state.target_epoch or 0),
            owned=event.owned,
            is_free=lambda topic, index: state.owner(topic, index) in (None, *mine),
        )
        if stepped != state.currents.get(member_id):
            records.append(
                CurrentAssignmentRecord(
                    group_id=self.group.group_id, member_id=member_id, value=stepped
                )
            )
        self._result = self._make_result(now, member, current, stepped)
        return records

    def _check_room(
        self, member_id: str, member: ConsumerMember, before: ConsumerMember | None
    ) -> None:
        """Raises RefusedError."""
        if member == before:
            return
        growth = consumer_weight(member_id, member)
        if before is not None:
            growth -= consumer_weight(member_id, before)
        if not self.context.runtime.may_grow(self.group, growth):
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The members of the group, or of all groups of the broker, take too much memory.",
            )

    def _make_result(
        self,
        now: float,
        member: ConsumerMember,
        current: CurrentAssignment,
        stepped: CurrentAssignment,
    ) -> ConsumerHeartbeatResult | JoinResult:
        event = self._event
        is_full = event.member_epoch == JOIN_EPOCH or (
            event.owned is not None and (event.topics is not None or event.pattern is not None)
        )
        # It may have missed the last response; the partitions that it reports show that.
        is_behind = event.member_epoch != current.epoch or (
            event.owned is not None and event.owned != stepped.assigned
        )
        is_sent = is_full or is_behind or stepped.assigned != current.assigned
        interval_ms = self.context.interval_ms(member)
        if stepped.state is MemberState.UNRELEASED:
            # The partitions may be released any time, and the broker cannot notify the member.
            interval_ms = max(interval_ms // 10, min(interval_ms, 100))
        return ConsumerHeartbeatResult(
            error=ErrorCode.NONE,
            member_id=self._member_id,
            member_epoch=stepped.epoch,
            heartbeat_interval_ms=interval_ms,
            assignment=stepped.assigned if is_sent else None,
        )

    def _identify(self, state: ConsumerState) -> AdmittedMember:
        """Identify the member and its current assignment. Raises RefusedError."""
        event = self._event
        if event.member_epoch != JOIN_EPOCH:
            member_id = self._known(state)
            current = state.current(member_id)
            _check_epoch(event, current)
            return AdmittedMember(member_id, state.members[member_id], current, [])
        member_id = event.member_id or self.context.new_member_id(event.client_id)
        holder = None
        if event.instance_id is not None:
            holder = state.static_member(event.instance_id)
        if holder is not None and holder != member_id:
            # A stopping classic member sends nothing: its successor may replace it at once.
            is_live = state.members[holder].classic is None
            if is_live and state.current(holder).epoch != STATIC_LEAVE_EPOCH:
                raise RefusedError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {event.member_id} with instance id {event.instance_id} cannot "
                    f"join the group because the instance id is owned by member {holder}.",
                )
            return self._replace(state, holder, member_id)
        return self._admit(state, member_id)

    def _replace(self, state: ConsumerState, holder: str, member_id: str) -> AdmittedMember:
        """A static member restarted: it gets a new id and keeps its assignment."""
        self._removed = holder
        kept = CurrentAssignment(assigned=state.current(holder).assigned)
        records = self.without(state, holder, is_replaced=True)
        return AdmittedMember(member_id, state.members[holder], kept, records)

    def _admit(self, state: ConsumerState, member_id: str) -> AdmittedMember:
        """A known member, or a new one."""
        known = state.members.get(member_id)
        if known is not None:
            current = state.current(member_id)
            if current.epoch == STATIC_LEAVE_EPOCH:
                current = CurrentAssignment(assigned=current.assigned)
            return AdmittedMember(member_id, known, current, [])
        most = self.context.runtime.config.consumer_group_size_max
        if len(state.members) >= most:
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )
        return AdmittedMember(member_id, None, CurrentAssignment(), [])

    def _known(self, state: ConsumerState) -> str:
        event = self._event
        error = state.member_error(event.member_id, event.instance_id)
        if error is ErrorCode.NONE and state.members[event.member_id].classic is not None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is ErrorCode.FENCED_INSTANCE_ID:
            raise RefusedError(
                error,
                f"Instance id {event.instance_id} of group {event.group_id} now belongs to another "
                f"member than {event.member_id}.",
            )
        if error is not ErrorCode.NONE:
            raise RefusedError(
                error, f"Member {event.member_id} is not a member of group {event.group_id}."
            )
        return event.member_id

    def _described(self, before: ConsumerMember | None) -> ConsumerMember:
        """The member with the fields of this heartbeat; omitted ones are unchanged."""
        event = self._event
        known = before if before is not None and before.classic is None else ConsumerMember()
        topics = known.topics if event.topics is None else tuple(sorted(set(event.topics)))
        return ConsumerMember(
            instance_id=event.instance_id or known.instance_id,
            rack=event.rack or known.rack,
            client_id=event.client_id,
            client_host=event.client_host,
            topics=topics,
            pattern=known.pattern if event.pattern is None else (event.pattern or None),
            rebalance_timeout_ms=event.rebalance_timeout_ms
            if event.rebalance_timeout_ms > 0
            else known.rebalance_timeout_ms,
            assignor=event.assignor or known.assignor,
            session_timeout_ms=known.session_timeout_ms
            if event.session_timeout_ms is None
            else event.session_timeout_ms,
        )

    def _epoch(
        self, state: ConsumerState, members: Mapping[str, ConsumerMember], is_changed: bool
    ) -> GroupEpoch | None:
        """The next group epoch, if members or their topics changed."""
        subscriptions = self.context.subscriptions
        version = subscriptions.source.version
        if not is_changed and state.seen_topics == version:
            return None
        topics_hash = subscriptions.hash(subscriptions.all_names(members))
        if not is_changed and state.epoch is not None and state.epoch.topics_hash == topics_hash:
            state.seen_topics = version
            return None
        self._seen_topics = version
        return GroupEpoch(epoch=state.number + 1, topics_hash=topics_hash)

    def _assign(
        self,
        state: ConsumerState,
        members: Mapping[str, ConsumerMember],
        records: list[ConsumerRecord],
        epoch: int,
    ) -> dict[str, Assignment]:
        """Compute the target of each member and store changed ones. Raises RefusedError."""
        subscriptions = self.context.subscriptions
        names = {member_id: subscriptions.names(member) for member_id, member in members.items()}
        ids = {wanted: subscriptions.ids(wanted) for wanted in set(names.values())}
        # A static member under a new id inherits the target of its old one.
        inherits = {} if self._removed is None else {self._member_id: self._removed}
        spec = GroupSpec(
            members={
                member_id: MemberSpec(
                    topics=ids[names[member_id]],
                    owned=state.target(inherits.get(member_id, member_id)),
                    instance_id=member.instance_id,
                    rack=member.rack,
                )
                for member_id, member in members.items()
            },
            topics=subscriptions.sizes(frozenset().union(*names.values())),
        )
        try:
            targets = self.context.assignor(members).assign(spec)
        except AssignorError as error:
            raise RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Failed to compute a new target assignment for epoch {epoch}: {error}",
            ) from None
        group_id = self.group.group_id
        for member_id, target in targets.items():
            if state.targets.get(member_id) != target:
                records.append(
                    TargetAssignmentRecord(group_id=group_id, member_id=member_id, value=target)
                )
        records.append(TargetEpochRecord(group_id=group_id, value=epoch))
        return dict(targets)


def _check_group_kind(
    member_id: str, member: ConsumerMember, members: Mapping[str, ConsumerMember]
) -> None:
    """A group has either queue members or consumers, not both. Raises RefusedError."""
    is_queue = member.assignor == QUEUE_ASSIGNOR
    for other_id, other in members.items():
        if other_id != member_id:
            if (other.assignor == QUEUE_ASSIGNOR) != is_queue:
                raise RefusedError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    "The group is a queue group, not a consumer group."
                    if not is_queue
                    else "The group is a consumer group, not a queue group.",
                )
            # The others agree with each other.
            return


def _check_epoch(event: ConsumerHeartbeat, current: CurrentAssignment) -> None:
    """Accept the current epoch, or the previous one if the last response was lost."""
    if event.member_epoch == current.epoch:
        return
    if (
        event.member_epoch == current.previous_epoch
        and event.member_epoch < current.epoch
        and event.owned is not None
        and covers(current.assigned, event.owned)
    ):
        return
    raise RefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has epoch {event.member_epoch}, the group coordinator knows "
        f"{current.epoch}. The member must abandon all its partitions and rejoin.",
    )


def _assignment_inputs(member: ConsumerMember) -> tuple[object, ...]:
    """The fields of a member that affect the assignment."""
    return member.topics, member.pattern, member.assignor, member.rack, member.instance_id

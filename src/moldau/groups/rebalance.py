"""Rebalances of classic groups: the join phase, the sync phase, and members' sessions.

    Empty ──join──▶ PreparingRebalance ──all joined, or timeout────▶ CompletingRebalance
      ▲                 ▲       │ no members                               │ leader's sync stored
      └─────────────────┼───────┘                                         ▼
                        └──────────── join, leave, session timeout ──── Stable

The session of a member with a waiting request does not expire. A member that does not rejoin before
the rebalance timeout is removed; a static member only by its session timeout, or if it does not
sync.
"""

from moldau.groups.group import Group, Member
from moldau.groups.records import GroupRecord, GroupsRecord
from moldau.groups.results import GroupState, JoinResult, SyncResult
from moldau.groups.runtime import Runtime
from moldau.groups.timers import TimerKey, TimerKind
from moldau.groups.write import Write
from moldau.model.errors import ErrorCode


class Rebalance:
    """State transitions of a classic group; `join_handler` and `sync_handler` call them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    # Sessions

    def renew_session(self, now: float, group: Group, member: Member) -> None:
        self._runtime.timers.set(
            session_key(group, member.member_id), now + member.session_timeout_ms / 1000
        )

    def session_expired(self, now: float, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        if member.waits and not member.is_new:
            # The reply to its waiting request restarts the session.
            return
        self.remove_member(now, group, member)

    def pending_expired(self, now: float, group: Group, member_id: str) -> None:
        if member_id in group.pending:
            self.remove_pending(now, group, member_id)

    # Membership

    def add_member(self, now: float, group: Group, member: Member, request_id: int) -> None:
        """Add a member with its waiting join; the group rebalances."""
        if not group.members:
            group.leader = None
        member.join_request = request_id
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
            group.new_member_added = True
        self._runtime.timers.cancel(pending_key(group, member.member_id))
        group.add(member)
        # Its client may die while it waits, unnoticed: this bounds the wait.
        self._runtime.timers.set(
            session_key(group, member.member_id),
            now + self._runtime.config.new_member_timeout_ms / 1000,
        )
        self.prepare(now, group)

    def remove_member(self, now: float, group: Group, member: Member) -> None:
        """The member left, or its session expired."""
        self.drop_member(group, member)
        match group.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                self.prepare(now, group)
            case GroupState.PREPARING_REBALANCE:
                self.try_complete_join(now, group)
            case GroupState.EMPTY | GroupState.DEAD:
                pass

    def remove_all(self, group: Group) -> None:
        """An administrator removed the members; the caller stores it. Who rejoins begins a new
        generation."""
        for member in list(group.members.values()):
            self.drop_member(group, member)
        self._runtime.timers.cancel(join_key(group))
        self._runtime.timers.cancel(sync_key(group))
        group.generation += 1
        group.state = GroupState.EMPTY
        group.protocol_name = None
        group.leader = None
        group.initial_delay_left_s = None
        group.new_member_added = False

    def drop_member(self, group: Group, member: Member) -> None:
        """Remove the member and reply to its waiting requests."""
        group.remove(member)
        self._runtime.timers.cancel(session_key(group, member.member_id))
        self.reject_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)

    def reject_waiting(self, member: Member, error: ErrorCode) -> None:
        self._reply_to_join(member, JoinResult(error=error))
        if member.sync_request is not None:
            request_id, member.sync_request = member.sync_request, None
            self._runtime.reply(request_id, SyncResult(error=error))

    def _reply_to_join(self, member: Member, result: JoinResult) -> None:
        if member.join_request is not None:
            request_id, member.join_request = member.join_request, None
            self._runtime.reply(request_id, result)

    def remove_pending(self, now: float, group: Group, member_id: str) -> None:
        """A pending member id expired or left; the rebalance need not wait for it."""
        group.pending.pop(member_id, None)
        self._runtime.timers.cancel(pending_key(group, member_id))
        if group.state is GroupState.PREPARING_REBALANCE:
            self.try_complete_join(now, group)
        self._runtime.forget_if_empty(group)

    def hand_over(self, group: Group) -> None:
        """The group changes to the consumer protocol. Members with waiting requests retry; a member
        that has never been in a generation must rejoin from scratch."""
        timers = self._runtime.timers
        for member in group.members.values():
            timers.cancel(session_key(group, member.member_id))
            if member.is_new:
                self.reject_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
            # The only code for a join that lets members of every client version keep their id.
            self._reply_to_join(member, JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            self.reject_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS)
        timers.cancel(join_key(group))
        timers.cancel(sync_key(group))
        group.clear()

    # The join phase

    def prepare(self, now: float, group: Group) -> None:
        """Begin a rebalance; if one is in its join phase, complete that if possible."""
        timers = self._runtime.timers
        if group.state is GroupState.PREPARING_REBALANCE:
            self.try_complete_join(now, group)
            return
        if group.state is GroupState.DEAD:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.finish_syncs(now, group, ErrorCode.REBALANCE_IN_PROGRESS)
        timers.cancel(sync_key(group))
        first = group.state is GroupState.EMPTY
        group.state = GroupState.PREPARING_REBALANCE
        if not first:
            timers.set(join_key(group), now + group.rebalance_timeout_s)
            self.try_complete_join(now, group)
            return
        # More members of a new group are likely to follow: one generation instead of many.
        delay = min(self._initial_delay_s, group.rebalance_timeout_s)
        group.initial_delay_left_s = max(group.rebalance_timeout_s - delay, 0.0)
        if delay > 0:
            timers.set(join_key(group), now + delay)
        else:
            self._complete_join(now, group)

    def join_expired(self, now: float, group: Group) -> None:
        """The join phase timed out; a group's first one is extended while members arrive."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        left = group.initial_delay_left_s
        if left and group.new_member_added:
            group.new_member_added = False
            delay = min(self._initial_delay_s, left)
            group.initial_delay_left_s = left - delay
            self._runtime.timers.set(join_key(group), now + delay)
            return
        self._complete_join(now, group)

    def try_complete_join(self, now: float, group: Group) -> None:
        if group.initial_delay_left_s is None and group.all_joined:
            self._complete_join(now, group)

    def _complete_join(self, now: float, group: Group) -> None:
        timers = self._runtime.timers
        timers.cancel(join_key(group))
        group.initial_delay_left_s = None
        for member in list(group.members.values()):
            if member.join_request is None and member.instance_id is None:
                self.drop_member(group, member)
        if group.members and not self._elect_joined_leader(group):
            # Only static members are left, and none has rejoined: wait for their session timeout.
            timers.set(join_key(group), now + max(group.rebalance_timeout_s, 0.001))
            return
        group.new_member_added = False
        group.generation += 1
        if not group.members:
            group.state = GroupState.EMPTY
            group.protocol_name = None
            group.leader = None
            self._runtime.submit(now, group, StoreEmptyGroup(self._runtime, group))
            return
        group.protocol_name = group.vote()
        group.state = GroupState.COMPLETING_REBALANCE
        for member in list(group.members.values()):
            self._reply_to_join(member, join_result(group, member.member_id))
            member.is_new = False
            member.sync_received = False
            self.renew_session(now, group, member)
        timers.set(sync_key(group), now + group.rebalance_timeout_s)

    def _elect_joined_leader(self, group: Group) -> bool:
        leader = group.members.get(group.leader or "")
        if leader is not None and leader.join_request is not None:
            return True
        for member in group.members.values():
            if member.join_request is not None:
                group.leader = member.member_id
                return True
        return False

    # The sync phase

    def finish_syncs(self, now: float, group: Group, error: ErrorCode) -> None:
        """Reply to every waiting sync: with the assignment, or with the error."""
        for member in group.members.values():
            if error is not ErrorCode.NONE:
                group.assign(member, b"")
            if member.sync_request is not None:
                request_id, member.sync_request = member.sync_request, None
                self._runtime.reply(request_id, sync_result(group, member, error))
            self.renew_session(now, group, member)

    def sync_received(self, group: Group, member: Member) -> None:
        member.sync_received = True
        if all(other.sync_received for other in group.members.values()):
            self._runtime.timers.cancel(sync_key(group))

    def sync_expired(self, now: float, group: Group) -> None:
        """Remove members that joined but did not sync in time, and rebalance."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        late = [member for member in group.members.values() if not member.sync_received]
        for member in late:
            self.drop_member(group, member)
        if late:
            self.prepare(now, group)

    @property
    def _initial_delay_s(self) -> float:
        return self._runtime.config.initial_rebalance_delay_ms / 1000


class StoreEmptyGroup(Write):
    """The last member left: the retention of the offsets starts."""

    __slots__ = ("_generation", "_group", "_runtime")

    def __init__(self, runtime: Runtime, group: Group) -> None:
        self._runtime = runtime
        self._group = group
        self._generation = group.generation

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self._group
        is_current = group.state is GroupState.EMPTY and group.generation == self._generation
        if not is_current or group.consumer is not None:
            return []
        value = group.snapshot(self._runtime.wall_ms(), ())
        return [GroupRecord(group_id=group.group_id, value=value)]

    def committed(self, now: float) -> None:
        """No request waits for it."""

    def failed(self, now: float, error: ErrorCode) -> None:
        """The members are still stored: offset expiry retries, and a reload before that restores
        them until their sessions expire."""


def join_result(group: Group, member_id: str) -> JoinResult:
    return JoinResult(
        error=ErrorCode.NONE,
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.roster() if group.leader == member_id else (),
    )


def sync_result(group: Group, member: Member, error: ErrorCode) -> SyncResult:
    if error is not ErrorCode.NONE:
        return SyncResult(error=error)
    return SyncResult(
        error=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def session_key(group: Group, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


def pending_key(group: Group, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.PENDING, group.group_id, member_id)


def join_key(group: Group) -> TimerKey:
    return TimerKey(TimerKind.JOIN, group.group_id)


def sync_key(group: Group) -> TimerKey:
    return TimerKey(TimerKind.SYNC, group.group_id)

"""Owns the judgement of JoinGroup: who may join, as whom, and whether that means a rebalance."""

from collections.abc import Callable

from msgspec.structs import replace

from moldau.groups.consumer.classic_members import ClassicMembers
from moldau.groups.events import NO_MEMBER_ID, Join
from moldau.groups.group import Group, Member
from moldau.groups.rebalance import Rebalance, join_result, pending_key, session_key
from moldau.groups.records import TEXT_BYTES_MAX, GroupRecord, GroupsRecord, StoredGroup
from moldau.groups.results import GroupState, JoinResult
from moldau.groups.runtime import Runtime, Write, client_error
from moldau.model.errors import ErrorCode


class JoinHandler:
    """Handles Join."""

    def __init__(
        self,
        runtime: Runtime,
        rebalance: Rebalance,
        classic_members: ClassicMembers,
        new_member_id: Callable[[str], str],
    ) -> None:
        self.runtime = runtime
        self.rebalance = rebalance
        self._classic_members = classic_members
        self._new_member_id = new_member_id

    def join(self, now: float, event: Join) -> None:
        config = self.runtime.config
        is_new = event.member_id == NO_MEMBER_ID
        group = self.runtime.groups.get(event.group_id)
        if not (
            config.session_timeout_ms_min
            <= event.session_timeout_ms
            <= config.session_timeout_ms_max
        ):
            self.refuse(event, ErrorCode.INVALID_SESSION_TIMEOUT)
        elif not _storable(event):
            self.refuse(event, ErrorCode.INVALID_REQUEST)
        elif group is None and not is_new:
            self.refuse(event, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            group = self.runtime.group(event.group_id)
            self.join_group(now, group, event)
            self.runtime.forget_if_empty(group)

    def join_group(self, now: float, group: Group, event: Join) -> None:
        """Judges a join to this group, on its state of this moment."""
        if group.state is GroupState.DEAD:
            self.refuse(event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif group.consumer is not None or group.draft is not None:
            self._join_consumers(now, group, event)
        elif not self._has_room(group, event.member_id):
            member = group.members.get(event.member_id)
            if member is not None:
                self.rebalance.remove_member(now, group, member)
            self.refuse(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(event.protocol_type, event.protocols):
            self.refuse(event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif event.member_id != NO_MEMBER_ID:
            self._join_known(now, group, event)
        elif event.instance_id is not None:
            self._join_static(now, group, event)
        elif event.member_id_required:
            self._give_member_id(now, group, event)
        else:
            self._add(now, group, event, self.make_member_id(group, event))

    def _join_consumers(self, now: float, group: Group, event: Join) -> None:
        is_new = event.member_id == NO_MEMBER_ID and event.instance_id is None
        if is_new and event.member_id_required:
            self._give_member_id(now, group, event)
        else:
            self._classic_members.join(now, group, event, self._join_empty)

    def _join_empty(self, now: float, group: Group, event: Join) -> None:
        """The group was one whose broker assigns, and has no members; it may be classic by now."""
        if group.consumer is None and group.draft is None:
            self.join_group(now, group, event)
        else:
            group.waiting.appendleft(JoinEmptyConsumerGroup(self, group, event))

    def _has_room(self, group: Group, member_id: str) -> bool:
        most = self.runtime.config.group_size_max
        member = group.members.get(member_id)
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                # Those who have not joined again may be gone: whoever comes first has the place.
                if member is not None and member.join_request is not None:
                    return True
                waiting = sum(m.join_request is not None for m in group.members.values())
                return waiting < most
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < most

    def _give_member_id(self, now: float, group: Group, event: Join) -> None:
        """A client that dies now leaves an id behind, not a member that others wait for."""
        member_id = self.make_member_id(group, event)
        group.pending[member_id] = None
        self.runtime.timers.set(
            pending_key(group, member_id), now + event.session_timeout_ms / 1000
        )
        self.runtime.reply(
            event.request_id, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        )

    def _join_known(self, now: float, group: Group, event: Join) -> None:
        if event.member_id in group.pending and event.instance_id is None:
            self._add(now, group, event, event.member_id)
            return
        error = group.member_error(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            self.refuse(event, error, member_id=event.member_id)
            return
        member = group.members[event.member_id]
        same = member.protocols == event.protocols
        match group.state:
            case GroupState.COMPLETING_REBALANCE if same:
                # It has not seen our answer to its join; it is the same as before.
                self.runtime.reply(event.request_id, join_result(group, member.member_id))
            case GroupState.STABLE if same and group.leader != member.member_id:
                self.runtime.reply(event.request_id, join_result(group, member.member_id))
            case _:
                self._rejoin(now, group, member, event)

    def _rejoin(self, now: float, group: Group, member: Member, event: Join) -> None:
        """The member waits for the next generation, with what it wants now."""
        self._update(member, event)
        if member.join_request is not None:
            # The client asked again, so nobody reads the answer to its first request.
            self.runtime.reply(
                member.join_request,
                JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id),
            )
        member.join_request = event.request_id
        self.rebalance.prepare(now, group)

    def _join_static(self, now: float, group: Group, event: Join) -> None:
        """A static member without an id: new here, or back after a restart."""
        current = group.static.get(event.instance_id or "")
        if current is None:
            self._add(now, group, event, self.make_member_id(group, event))
        elif group.state is GroupState.STABLE:
            self.runtime.submit(now, group, ReplaceStaticMember(self, group, event))
        else:
            self.replace_static(now, group, group.members[current], event)
            self.rebalance.prepare(now, group)

    def replace_static(self, now: float, group: Group, member: Member, event: Join) -> None:
        """The member gets a new id, and whoever uses the old one is fenced; it waits to join."""
        self.rename_static(now, group, member, event, self.make_member_id(group, event))
        member.join_request = event.request_id

    def rename_static(
        self, now: float, group: Group, member: Member, event: Join, member_id: str
    ) -> None:
        self.rebalance.answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self.runtime.timers.cancel(session_key(group, member.member_id))
        group.rename(member, member_id)
        # Its wait is bounded by the rebalance now; the session must not end while it waits.
        member.is_new = False
        self._update(member, event)
        self.rebalance.renew_session(now, group, member)

    def _add(self, now: float, group: Group, event: Join, member_id: str) -> None:
        if not group.members:
            group.protocol_type = event.protocol_type
        member = Member.of(event, member_id)
        self.rebalance.add_member(now, group, member, event.request_id)

    def _update(self, member: Member, event: Join) -> None:
        member.protocols = event.protocols
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.session_timeout_ms = event.session_timeout_ms
        member.client_id = event.client_id
        member.client_host = event.client_host

    def make_member_id(self, group: Group, event: Join) -> str:
        consumers = {} if group.consumer is None else group.consumer.members
        while True:
            member_id = self._new_member_id(event.instance_id or event.client_id)
            if not any(member_id in some for some in (group.members, group.pending, consumers)):
                return member_id

    def refuse(self, event: Join, error: ErrorCode, member_id: str = NO_MEMBER_ID) -> None:
        self.runtime.reply(event.request_id, JoinResult(error=error, member_id=member_id))


class JoinEmptyConsumerGroup(Write):
    """A classic member joins a group whose broker assigns and that has no members: it becomes a
    classic one."""

    __slots__ = ("_event", "_group", "_joining")

    def __init__(self, joining: JoinHandler, group: Group, event: Join) -> None:
        self._joining = joining
        self._group = group
        self._event = event

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self._group
        if group.consumer is None or group.has_consumers:
            self._joining.join_group(now, group, self._event)
            return []
        return list(group.consumer.tombstones(group.group_id))

    def committed(self, now: float) -> None:
        self._joining.join_group(now, self._group, self._event)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._joining.refuse(self._event, client_error(error))


class ReplaceStaticMember(Write):
    """A static member is back in a stable group: it gets its assignment again, without a rebalance.

    Its new id is stored first, or after a reload the old one would be valid again.
    """

    __slots__ = ("_event", "_group", "_joining", "_member_id", "_old_member_id")

    def __init__(self, joining: JoinHandler, group: Group, event: Join) -> None:
        self._joining = joining
        self._group = group
        self._event = event
        self._old_member_id = ""
        self._member_id = ""

    def decide(self, now: float) -> list[GroupsRecord]:
        group, event = self._group, self._event
        old_member_id = group.static.get(event.instance_id or "")
        if group.state is not GroupState.STABLE or old_member_id is None:
            self._joining.join_group(now, group, event)
            return []
        if self._changes_protocol(group.members[old_member_id]):
            self._joining.replace_static(now, group, group.members[old_member_id], event)
            self._joining.rebalance.prepare(now, group)
            return []
        self._old_member_id = old_member_id
        self._member_id = self._joining.make_member_id(group, event)
        return [GroupRecord(group_id=group.group_id, value=self._snapshot())]

    def committed(self, now: float) -> None:
        group, event = self._group, self._event
        # Still stable means still the same generation and members: a new one needs a write, and
        # would have waited for this one.
        if group.state is not GroupState.STABLE:
            self._joining.join_group(now, group, event)
            return
        member = group.members[self._old_member_id]
        old_leader = group.leader or ""
        self._joining.rename_static(now, group, member, event, self._member_id)
        result = join_result(group, self._member_id)
        leads = group.leader == self._member_id
        self._joining.runtime.reply(
            event.request_id,
            JoinResult(
                error=ErrorCode.NONE,
                member_id=self._member_id,
                generation=result.generation,
                protocol_type=result.protocol_type,
                protocol_name=result.protocol_name,
                # An older client would compute an assignment if it were told that it leads.
                leader=result.leader if event.can_skip_assignment else old_leader,
                members=result.members if event.can_skip_assignment else (),
                skip_assignment=leads and event.can_skip_assignment,
            ),
        )

    def failed(self, now: float, error: ErrorCode) -> None:
        self._joining.runtime.reply(self._event.request_id, JoinResult(error=client_error(error)))

    def _changes_protocol(self, member: Member) -> bool:
        group = self._group
        before, member.protocols = member.protocols, self._event.protocols
        chosen = group.vote()
        member.protocols = before
        return chosen != group.protocol_name

    def _snapshot(self) -> StoredGroup:
        group, event = self._group, self._event
        members = []
        for member in group.members.values():
            stored = member.stored(group.protocol_name, member.assignment)
            if member.member_id == self._old_member_id:
                returning = Member.of(event, self._member_id)
                stored = returning.stored(group.protocol_name, member.assignment)
            members.append(stored)
        snapshot = group.snapshot(self._joining.runtime.wall_ms(), members)
        if group.leader == self._old_member_id:
            return replace(snapshot, leader=self._member_id)
        return snapshot


def _storable(event: Join) -> bool:
    """Compact strings may be longer than the format of the stored group can hold."""
    texts = (
        event.member_id,
        event.instance_id or "",
        event.client_id,
        event.client_host,
        event.protocol_type,
        *(name for name, _ in event.protocols),
    )
    # The member id that is made from the client's or instance's name needs room for more.
    return all(len(text.encode()) <= TEXT_BYTES_MAX - 256 for text in texts)

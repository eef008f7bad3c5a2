"""Handles JoinGroup: validates the member, and starts a rebalance if one is needed."""

from collections.abc import Callable

from msgspec.structs import replace

from moldau.groups.consumer.classic_members import ClassicMembers
from moldau.groups.consumer_protocol import read_subscription
from moldau.groups.events import NO_MEMBER_ID, Join
from moldau.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from moldau.groups.rebalance import Rebalance, join_result, pending_key, session_key
from moldau.groups.records import TEXT_BYTES_MAX, GroupRecord, GroupsRecord, StoredGroup
from moldau.groups.results import GroupState, JoinResult
from moldau.groups.runtime import Runtime
from moldau.groups.weights import member_weight
from moldau.groups.write import Write
from moldau.model.coordinator_events import client_error
from moldau.model.errors import ErrorCode


class JoinHandler:
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
            self.reject(event, ErrorCode.INVALID_SESSION_TIMEOUT)
        elif not _storable(event):
            self.reject(event, ErrorCode.INVALID_REQUEST)
        elif _weight(event) > config.member_bytes_max:
            self.reject(event, ErrorCode.MESSAGE_TOO_LARGE)
        elif group is None and not is_new:
            self.reject(event, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            group = self.runtime.group(event.group_id)
            self.join_group(now, group, event)
            self.runtime.forget_if_empty(group)

    def join_group(self, now: float, group: Group, event: Join) -> None:
        """Handle the join on the current state of the group."""
        if group.state is GroupState.DEAD:
            self.reject(event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif group.consumer is not None or group.draft is not None:
            self._join_consumers(now, group, event)
        elif not self._has_room(group, event):
            member = group.members.get(event.member_id)
            if member is not None:
                self.rebalance.remove_member(now, group, member)
            self.reject(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not self._has_room_for_bytes(group, event):
            self.reject(event, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=event.member_id)
        elif not group.supports(event.protocol_type, event.protocols):
            self.reject(event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
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
            consumers = group.draft or group.consumer
            taken = len(group.pending) + (len(consumers.members) if consumers is not None else 0)
            if taken >= self.runtime.config.consumer_group_size_max:
                self.reject(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
            else:
                self._give_member_id(now, group, event)
        else:
            self._classic_members.join(now, group, event, self._join_empty)

    def _join_empty(self, now: float, group: Group, event: Join) -> None:
        """The group used the consumer protocol and has no members; it may be classic by now."""
        if group.consumer is None and group.draft is None:
            self.join_group(now, group, event)
        else:
            group.waiting.appendleft(JoinEmptyConsumerGroup(self, group, event))

    def _has_room(self, group: Group, event: Join) -> bool:
        most = self.runtime.config.group_size_max
        member = group.members.get(event.member_id)
        if event.member_id == NO_MEMBER_ID:
            # Ids that were given out have a place.
            most -= len(group.pending)
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return most > 0
            case GroupState.PREPARING_REBALANCE:
                # Members that have not rejoined may be dead: the first to join get the places.
                if member is not None and member.join_request is not None:
                    return True
                waiting = sum(m.join_request is not None for m in group.members.values())
                return waiting < most
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < most

    def _has_room_for_bytes(self, group: Group, event: Join) -> bool:
        holder = group.static.get(event.instance_id or "", event.member_id)
        member = group.members.get(holder)
        before = 0 if member is None else member.weight
        return self.runtime.may_grow(group, _weight(event) - before)

    def _give_member_id(self, now: float, group: Group, event: Join) -> None:
        """If the client dies now, only an id expires; no member holds up a rebalance."""
        timeout_ms = min(event.session_timeout_ms, self.runtime.config.pending_timeout_ms_max)
        member_id = self.make_member_id(group, event)
        group.pending[member_id] = None
        self.runtime.timers.set(pending_key(group, member_id), now + timeout_ms / 1000)
        self.runtime.reply(
            event.request_id, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        )

    def _join_known(self, now: float, group: Group, event: Join) -> None:
        if event.member_id in group.pending and event.instance_id is None:
            self._add(now, group, event, event.member_id)
            return
        error = group.member_error(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            self.reject(event, error, member_id=event.member_id)
            return
        member = group.members[event.member_id]
        same = member.protocols == event.protocols
        match group.state:
            case GroupState.COMPLETING_REBALANCE if same:
                # The response to its first join was lost: send the same one.
                self.runtime.reply(event.request_id, join_result(group, member.member_id))
            case GroupState.STABLE if same and group.leader != member.member_id:
                self.runtime.reply(event.request_id, join_result(group, member.member_id))
            case _ if _has_old_claims(group, event):
                # It forgets what it owned, and comes back by its instance id.
                self.reject(event, ErrorCode.UNKNOWN_MEMBER_ID, member_id=event.member_id)
            case _:
                self._rejoin(now, group, member, event)

    def _rejoin(self, now: float, group: Group, member: Member, event: Join) -> None:
        """The member waits for the next generation, with its new subscription."""
        self._update(group, member, event)
        if member.join_request is not None:
            # The client sent a new request, so it no longer reads the response to the first.
            self.runtime.reply(
                member.join_request,
                JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id),
            )
        member.join_request = event.request_id
        self.rebalance.prepare(now, group)

    def _join_static(self, now: float, group: Group, event: Join) -> None:
        """A static member without an id: new, or restarted."""
        current = group.static.get(event.instance_id or "")
        if current is None:
            self._add(now, group, event, self.make_member_id(group, event))
        elif group.state is GroupState.STABLE:
            self.runtime.submit(now, group, ReplaceStaticMember(self, group, event))
        else:
            self.replace_static(now, group, group.members[current], event)
            self.rebalance.prepare(now, group)

    def replace_static(self, now: float, group: Group, member: Member, event: Join) -> None:
        """The member gets a new id, which fences the old one, and waits for the join phase."""
        self.rename_static(now, group, member, event, self.make_member_id(group, event))
        member.join_request = event.request_id

    def rename_static(
        self, now: float, group: Group, member: Member, event: Join, member_id: str
    ) -> None:
        self.rebalance.reject_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self.runtime.timers.cancel(session_key(group, member.member_id))
        group.rename(member, member_id)
        # The rebalance bounds its wait; the session must not expire before that.
        member.is_new = False
        self._update(group, member, event)
        self.rebalance.renew_session(now, group, member)

    def _add(self, now: float, group: Group, event: Join, member_id: str) -> None:
        if not group.members:
            group.protocol_type = event.protocol_type
        member = Member.of(event, member_id)
        self.rebalance.add_member(now, group, member, event.request_id)

    def _update(self, group: Group, member: Member, event: Join) -> None:
        member.protocols = event.protocols
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.session_timeout_ms = event.session_timeout_ms
        member.client_id = event.client_id
        member.client_host = event.client_host
        group.weigh(member)

    def make_member_id(self, group: Group, event: Join) -> str:
        consumers = {} if group.consumer is None else group.consumer.members
        while True:
            member_id = self._new_member_id(event.instance_id or event.client_id)
            if not any(member_id in some for some in (group.members, group.pending, consumers)):
                return member_id

    def reject(self, event: Join, error: ErrorCode, member_id: str = NO_MEMBER_ID) -> None:
        self.runtime.reply(event.request_id, JoinResult(error=error, member_id=member_id))


class JoinEmptyConsumerGroup(Write):
    """A classic member joins an empty consumer-protocol group: the group becomes classic."""

    __slots__ = ("_event", "_group", "_handler")

    def __init__(self, handler: JoinHandler, group: Group, event: Join) -> None:
        self._handler = handler
        self._group = group
        self._event = event

    def decide(self, now: float) -> list[GroupsRecord]:
        group = self._group
        if group.consumer is None or group.has_consumers:
            self._handler.join_group(now, group, self._event)
            return []
        return list(group.consumer.tombstones(group.group_id))

    def committed(self, now: float) -> None:
        self._handler.join_group(now, self._group, self._event)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._handler.reject(self._event, client_error(error))


class ReplaceStaticMember(Write):
    """A static member rejoins a stable group and gets its assignment back without a rebalance.

    Its new id is stored first; otherwise the old id would be valid again after a reload.
    """

    __slots__ = ("_event", "_group", "_handler", "_member_id", "_old_member_id")

    def __init__(self, handler: JoinHandler, group: Group, event: Join) -> None:
        self._handler = handler
        self._group = group
        self._event = event
        self._old_member_id = ""
        self._member_id = ""

    def decide(self, now: float) -> list[GroupsRecord]:
        group, event = self._group, self._event
        old_member_id = group.static.get(event.instance_id or "")
        if group.state is not GroupState.STABLE or old_member_id is None:
            self._handler.join_group(now, group, event)
            return []
        if self._changes_protocol(group.members[old_member_id]):
            self._handler.replace_static(now, group, group.members[old_member_id], event)
            self._handler.rebalance.prepare(now, group)
            return []
        self._old_member_id = old_member_id
        self._member_id = self._handler.make_member_id(group, event)
        return [GroupRecord(group_id=group.group_id, value=self._snapshot())]

    def committed(self, now: float) -> None:
        group, event = self._group, self._event
        # Still stable means the same generation and members: a new generation needs a write, which
        # would have waited for this one.
        if group.state is not GroupState.STABLE:
            self._handler.join_group(now, group, event)
            return
        member = group.members[self._old_member_id]
        old_leader = group.leader or ""
        self._handler.rename_static(now, group, member, event, self._member_id)
        result = join_result(group, self._member_id)
        if event.can_skip_assignment:
            result = replace(result, skip_assignment=group.leader == self._member_id)
        else:
            # An older client computes an assignment if the response names it as the leader.
            result = replace(result, leader=old_leader, members=())
        self._handler.runtime.reply(event.request_id, result)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._handler.reject(self._event, client_error(error))

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
        snapshot = group.snapshot(self._handler.runtime.wall_ms(), members)
        if group.leader == self._old_member_id:
            return replace(snapshot, leader=self._member_id)
        return snapshot


def _weight(event: Join) -> int:
    """What the member will weigh."""
    return member_weight((event.instance_id, event.client_id, event.client_host), event.protocols)


def _has_old_claims(group: Group, event: Join) -> bool:
    """Whether a static member claims partitions of a generation before the current one.

    It is in the current one without having joined. Another member may have had its partitions
    since: the leader would leave them to it, and it would go on from its old positions.
    """
    if event.instance_id is None or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    read = [read_subscription(data) for _, data in event.protocols]
    return any(said and said.owned and 0 <= said.generation < group.generation for said in read)


def _storable(event: Join) -> bool:
    """Compact strings in requests may exceed the limit of the stored format."""
    texts = (
        event.member_id,
        event.instance_id or "",
        event.client_id,
        event.client_host,
        event.protocol_type,
        *(name for name, _ in event.protocols),
    )
    # The generated member id is longer than the client or instance id it is made from.
    return all(len(text.encode()) <= TEXT_BYTES_MAX - 256 for text in texts)

"""Owns what must always be true of a coordinator; checked after every step of a simulation."""

from moldau.groups.group import Group
from moldau.groups.rebalance import join_key, pending_key, session_key, sync_key
from moldau.groups.results import GroupState
from moldau.groups.runtime import Runtime
from moldau.model.errors import MoldauError


class InvariantError(MoldauError):
    """The coordinator contradicts itself: a bug."""


def check_invariants(runtime: Runtime) -> None:
    tokens = {group.writing for group in runtime.groups.values() if group.writing is not None}
    _require(tokens >= set(runtime.tokens()), "every write under way belongs to a group")
    _require(len(tokens) == len(runtime.tokens()), "a group writes only what is under way")
    requests: list[int] = []
    for group_id, group in runtime.groups.items():
        _require(group.group_id == group_id, "a group is filed under its id")
        _check_membership(group)
        _check_state(group)
        _check_timers(runtime, group)
        _check_consumers(runtime, group)
        _require(not group.waiting or group.writing is not None, "writes wait only for a write")
        _require(not group.forgettable, "a group of which nothing is left is forgotten")
        for member in group.members.values():
            requests += [r for r in (member.join_request, member.sync_request) if r is not None]
    _require(len(requests) == len(set(requests)), "a request waits in one place")


def _check_membership(group: Group) -> None:
    for member_id, member in group.members.items():
        _require(member.member_id == member_id, "a member is filed under its id")
        _require(member_id not in group.pending, "a member is not pending")
        if member.instance_id is not None:
            _require(group.static.get(member.instance_id) == member_id, "instances have one member")
    _require(
        len(group.static) == sum(m.instance_id is not None for m in group.members.values()),
        "every instance is a member",
    )
    if group.members:
        _require(group.leader in group.members, "the leader is a member")
        _require(bool(group.common_protocols()), "members have a protocol in common")


def _check_state(group: Group) -> None:
    joins = [m for m in group.members.values() if m.join_request is not None]
    syncs = [m for m in group.members.values() if m.sync_request is not None]
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            _require(not group.members, "an empty group has no members")
        case GroupState.PREPARING_REBALANCE:
            _require(not syncs, "nobody syncs while a rebalance is prepared")
            _require(
                group.initial_delay_left_s is not None or not group.all_joined,
                "a join phase ends when all have joined",
            )
        case GroupState.COMPLETING_REBALANCE:
            _require(bool(group.members), "a generation has members")
            _require(not joins, "joins are answered when the generation begins")
            _require(group.protocol_name in group.common_protocols(), "all speak the protocol")
        case GroupState.STABLE:
            _require(bool(group.members), "a generation has members")
            _require(not joins, "nobody waits for a join in a stable group")
            _require(not syncs, "nobody waits for a sync in a stable group")


def _check_timers(runtime: Runtime, group: Group) -> None:
    for member_id, member in group.members.items():
        has_session = runtime.timers.deadline(session_key(group, member_id)) is not None
        _require(has_session or member.waits, "a member that does not wait has a session")
    for member_id in group.pending:
        pending = runtime.timers.deadline(pending_key(group, member_id))
        _require(pending is not None, "an id that was given out expires")
    joining = runtime.timers.deadline(join_key(group)) is not None
    preparing = group.state is GroupState.PREPARING_REBALANCE
    _require(joining == preparing, "a join phase, and nothing else, has a deadline")
    syncing = runtime.timers.deadline(sync_key(group)) is not None
    if group.state is GroupState.COMPLETING_REBALANCE:
        _require(syncing or group.writing is not None, "a sync phase ends")
    elif group.state is not GroupState.STABLE:
        _require(not syncing, "there are syncs to wait for only in a generation")


def _check_consumers(runtime: Runtime, group: Group) -> None:
    _require(group.draft is None or group.writing is not None, "a draft is being written")
    state = group.consumer
    if state is None:
        return
    _require(not group.members, "a group has members of one kind")
    _require(group.stored is None, "a group is stored as one kind")
    _require(not state.is_gone, "a consumer group of which nothing is left is forgotten")
    _require(not set(state.targets) - set(state.members), "targets are for members")
    is_awaited = not state.members.keys().isdisjoint(group.pending)
    _require(not is_awaited or group.writing is not None, "a member is not pending")
    _require(set(state.currents) == set(state.members), "every member stands somewhere")
    held: set[tuple[bytes, int]] = set()
    for member_id, current in state.currents.items():
        _require(current.epoch <= state.number, "no member is ahead of its group")
        for assignment in (current.assigned, current.revoking):
            for topic, indexes in assignment.items():
                _require(bool(indexes), "no topic is assigned without partitions")
                for index in indexes:
                    _require((topic, index) not in held, "a partition has one owner")
                    held.add((topic, index))
                    _require(state.owner(topic, index) == member_id, "owners are indexed")
        deadline = runtime.timers.deadline(session_key(group, member_id))
        _require(deadline is not None or group.writing is not None, "a consumer has a session")


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise InvariantError(f"broken: {fact}")

"""Invariants of the group coordinator; checked after every step of a simulation."""

from itertools import starmap

from msgspec.structs import replace

from moldau.groups.consumer.state import consumer_weight
from moldau.groups.group import Group
from moldau.groups.rebalance import join_key, pending_key, session_key, sync_key
from moldau.groups.results import GroupState
from moldau.groups.runtime import Runtime
from moldau.model.invariants import require


def check_invariants(runtime: Runtime) -> None:
    tokens = {group.writing for group in runtime.groups.values() if group.writing is not None}
    require(tokens >= set(runtime.tokens()), "every write in flight belongs to a group")
    require(len(tokens) == len(runtime.tokens()), "a group waits only for a write in flight")
    requests: list[int] = []
    counted = sum(group.counted_bytes for group in runtime.groups.values())
    require(counted <= runtime.memory.held_bytes, "what groups hold is counted")
    for group_id, group in runtime.groups.items():
        require(group.group_id == group_id, "a group is indexed by its id")
        _check_membership(group)
        _check_weight(group)
        _check_state(group)
        _check_timers(runtime, group)
        _check_consumers(runtime, group)
        require(not group.waiting or group.writing is not None, "writes wait only for a write")
        require(not group.has_no_state, "a group without state is dropped")
        for member in group.members.values():
            requests += [r for r in (member.join_request, member.sync_request) if r is not None]
    require(len(requests) == len(set(requests)), "a request waits only once")


def _check_membership(group: Group) -> None:
    for member_id, member in group.members.items():
        require(member.member_id == member_id, "a member is indexed by its id")
        require(member_id not in group.pending, "a member is not pending")
        if member.instance_id is not None:
            require(group.static.get(member.instance_id) == member_id, "instances have one member")
    require(
        len(group.static) == sum(m.instance_id is not None for m in group.members.values()),
        "every instance is a member",
    )
    if group.members:
        require(group.leader in group.members, "the leader is a member")
        require(bool(group.common_protocols()), "members have a protocol in common")


def _check_weight(group: Group) -> None:
    fresh = Group(group.group_id)
    for member in group.members.values():
        fresh.add(replace(member))
    require(group.member_bytes == fresh.member_bytes, "members are weighed")
    if group.consumer is not None:
        weights = starmap(consumer_weight, group.consumer.members.items())
        require(group.consumer.member_bytes == sum(weights), "consumers are weighed")
    require(group.counted_bytes == group.weight, "the weight of a group is counted")


def _check_state(group: Group) -> None:
    joins = [m for m in group.members.values() if m.join_request is not None]
    syncs = [m for m in group.members.values() if m.sync_request is not None]
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            require(not group.members, "an empty group has no members")
        case GroupState.PREPARING_REBALANCE:
            require(not syncs, "no sync waits while a rebalance is prepared")
            require(
                group.initial_delay_left_s is not None or not group.all_joined,
                "a join phase ends when all have joined",
            )
        case GroupState.COMPLETING_REBALANCE:
            require(bool(group.members), "a generation has members")
            require(not joins, "joins get their replies when the generation begins")
            require(group.protocol_name in group.common_protocols(), "all support the protocol")
        case GroupState.STABLE:
            require(bool(group.members), "a generation has members")
            require(not joins, "no join waits in a stable group")
            require(not syncs, "no sync waits in a stable group")


def _check_timers(runtime: Runtime, group: Group) -> None:
    for member_id, member in group.members.items():
        has_session = runtime.timers.deadline(session_key(group, member_id)) is not None
        require(has_session or member.waits, "a member that does not wait has a session")
    for member_id in group.pending:
        pending = runtime.timers.deadline(pending_key(group, member_id))
        require(pending is not None, "a pending member id expires")
    joining = runtime.timers.deadline(join_key(group)) is not None
    preparing = group.state is GroupState.PREPARING_REBALANCE
    require(joining == preparing, "exactly the join phase has a join deadline")
    syncing = runtime.timers.deadline(sync_key(group)) is not None
    if group.state is GroupState.COMPLETING_REBALANCE:
        require(syncing or group.writing is not None, "a sync phase ends")
    elif group.state is not GroupState.STABLE:
        require(not syncing, "only a generation has a sync deadline")


def _check_consumers(runtime: Runtime, group: Group) -> None:
    require(group.draft is None or group.writing is not None, "a draft is being written")
    state = group.consumer
    if state is None:
        return
    require(not group.members, "a group has members of one protocol")
    require(group.stored is None, "a group is stored for one protocol")
    require(not state.is_deleted, "a consumer group without state is dropped")
    require(not set(state.targets) - set(state.members), "targets are for members")
    is_awaited = not state.members.keys().isdisjoint(group.pending)
    require(not is_awaited or group.writing is not None, "a member is not pending")
    require(set(state.currents) == set(state.members), "every member has a current assignment")
    held: set[tuple[bytes, int]] = set()
    for member_id, current in state.currents.items():
        require(current.epoch <= state.number, "no member is ahead of its group")
        for assignment in (current.assigned, current.revoking):
            for topic, indexes in assignment.items():
                require(bool(indexes), "an assigned topic has partitions")
                for index in indexes:
                    require((topic, index) not in held, "a partition has one owner")
                    held.add((topic, index))
                    require(state.owner(topic, index) == member_id, "owners are indexed")
        deadline = runtime.timers.deadline(session_key(group, member_id))
        require(deadline is not None or group.writing is not None, "a consumer has a session")

"""Where a group is served, and what is dropped with topics that go."""

import asyncio
from collections.abc import Callable

import pytest
from group_world import ME, OTHER, World, group_of, turns

from moldau.coordination import coordinator_service as coordination_module
from moldau.groups.events import ConsumerHeartbeat, Join, OffsetToCommit
from moldau.groups.results import ConsumerHeartbeatResult, JoinResult
from moldau.metadata.commands import DefineQueueGroup
from moldau.metadata.leaders import Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    Epoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)

# ---- finding the coordinator


async def not_found(world: World, group: str) -> ErrorCode:
    with pytest.raises(RefusedError) as refused:
        await world.groups.find_coordinator(group)
    return refused.value.code


async def test_the_coordinator_is_the_leader_of_the_partition_that_the_group_hashes_to() -> None:
    world = World()
    world.lead(0)
    world.leaders[1] = Leader(OTHER, Epoch(3))
    assert await world.groups.find_coordinator(group_of(0)) == ME
    assert await world.groups.find_coordinator(group_of(1)) == OTHER


async def test_a_request_during_an_election_waits_for_its_end() -> None:
    world = World()
    asyncio.get_running_loop().call_later(0.05, world.lead)
    assert await world.groups.find_coordinator(group_of(0)) == ME


async def test_without_a_leader_the_client_is_asked_to_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination_module, "_POLL_SECONDS", 0.0)
    assert await not_found(World(), group_of(0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_the_first_request_waits_until_the_new_topic_is_led_and_loaded() -> None:
    world = World(bare=True)
    loop = asyncio.get_running_loop()

    def elect() -> None:
        # Known as the leader a moment before it is ready.
        world.leaders[0] = Leader(ME, Epoch(1))
        loop.call_later(0.03, world.lead, 0)

    world.created = lambda: loop.call_later(0.03, elect)  # type: ignore[assignment]
    assert await world.groups.find_coordinator(group_of(0)) == ME
    assert world.committed(group_of(0)) == {}


async def test_a_commit_may_be_what_comes_first() -> None:
    world = World(bare=True)
    loop = asyncio.get_running_loop()
    world.created = lambda: loop.call_later(0.03, world.lead, 0)  # type: ignore[assignment]
    assert await world.commit(group_of(0), 5) is ErrorCode.NONE
    assert world.committed(group_of(0)) == {"t": 5}


async def test_the_wait_for_the_first_leader_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination_module, "_POLL_SECONDS", 0.0)
    world = World(bare=True)
    assert await not_found(world, group_of(0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_request_while_it_loads_waits_a_little() -> None:
    world = World()
    replica = world.host()
    loop = asyncio.get_running_loop()

    def when_committed(offset: int, callback: Callable[[ErrorCode], None]) -> None:
        loop.call_later(0.05, callback, ErrorCode.NONE)

    replica.when_committed = when_committed  # type: ignore[method-assign]
    world.lead()
    assert await world.groups.find_coordinator(group_of(0)) == ME
    assert world.committed(group_of(0)) == {}


async def test_a_loading_that_takes_long_is_not_waited_for_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination_module, "_POLL_SECONDS", 0.0)
    world = World()
    replica = world.host()
    replica.when_committed = lambda offset, callback: None  # type: ignore[method-assign]
    world.lead()
    assert await world.groups.find_coordinator(group_of(0)) == ME
    assert world.committed(group_of(0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_leader_that_was_just_elected_here_is_named_once_it_is_ready() -> None:
    world = World()
    world.host(0)
    world.leaders[0] = Leader(ME, Epoch(1))
    asyncio.get_running_loop().call_later(0.05, world.lead, 0)
    assert await world.groups.find_coordinator(group_of(0)) == ME
    assert world.committed(group_of(0)) == {}


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_broker_that_is_said_to_lead_and_does_not_is_not_named(
    monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    monkeypatch.setattr(coordination_module, "_POLL_SECONDS", 0.0 if is_here else 3600.0)
    world = World()
    world.leaders[0] = Leader(ME, Epoch(1))
    if is_here:
        world.host(0)
    assert await not_found(world, group_of(0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_where_no_topic_of_offsets_is_known_no_response_says_that_nothing_is_stored() -> None:
    world = World(bare=True)
    assert world.committed(group_of(0)) is ErrorCode.NOT_COORDINATOR


async def test_a_leader_that_was_deposed_unawares_returns_no_old_offsets() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    found = await world.groups.fetch_offsets(group_of(0))
    assert [one.offset for one in found.offsets.values()] == [1]
    replica.is_deposed = True
    refused = await world.groups.fetch_offsets(group_of(0))
    assert (refused.error, refused.offsets) == (ErrorCode.NOT_COORDINATOR, {})


async def test_leadership_lost_while_it_is_confirmed_is_noticed() -> None:
    world = World()
    world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    fetching = asyncio.ensure_future(world.groups.fetch_offsets(group_of(0)))
    await asyncio.sleep(0)
    world.depose()
    assert (await fetching).error is ErrorCode.NOT_COORDINATOR


async def test_offsets_that_are_still_loading_are_refused_without_asking_others() -> None:
    world = World()
    world.lead().is_deposed = True
    found = await world.groups.fetch_offsets(group_of(0))
    assert found.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_groups_that_another_broker_coordinates_are_refused() -> None:
    world = World()
    world.lead(0)
    world.leaders[1] = Leader(OTHER, Epoch(3))
    await world.loaded()
    elsewhere = group_of(1)
    assert await world.commit(elsewhere, 1) is ErrorCode.NOT_COORDINATOR
    assert world.committed(elsewhere) is ErrorCode.NOT_COORDINATOR
    assert world.groups.describe(elsewhere).error is ErrorCode.NOT_COORDINATOR
    assert await world.groups.delete_groups([elsewhere]) == {elsewhere: ErrorCode.NOT_COORDINATOR}


async def test_a_deletion_that_loses_the_leadership_is_sent_to_another_broker() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    group = group_of(0)
    assert await world.commit(group, 1) is ErrorCode.NONE
    replica.holds = True
    deletion = asyncio.ensure_future(world.groups.delete_groups([group]))
    await turns()
    assert not deletion.done()
    world.depose()
    assert await deletion == {group: ErrorCode.NOT_COORDINATOR}


async def test_to_lead_what_is_led_already_keeps_the_members() -> None:
    world = World()
    world.lead()
    await world.loaded()
    waiting = await world.join(group_of(0))
    world.lead()
    await world.loaded()
    assert (await world.heartbeat(group_of(0), waiting)).error is ErrorCode.NONE


async def test_a_replica_that_was_opened_again_is_loaded_again() -> None:
    world = World()
    world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    world.host()
    world.lead()
    await world.loaded()
    assert world.committed(group_of(0)) == {}


# ---- deleted topics


async def test_offsets_of_a_deleted_topic_go_with_it_where_their_group_is_led() -> None:
    world = World()
    replicas = [world.lead(index) for index in (0, 1)]
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    world.depose(1)
    ends = [replica.log.end_offset for replica in replicas]
    world.delete("t")
    world.groups.topics_deleted(frozenset({"t"}))
    await turns()
    assert world.committed(group_of(0)) == {}
    assert [replica.log.end_offset - end for replica, end in zip(replicas, ends, strict=True)] == [
        1,
        0,
    ]


async def test_a_new_leader_drops_offsets_of_topics_that_were_deleted_before_its_time() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    world.create("kept")
    for topic in ("t", "kept"):
        assert await world.commit(group_of(0), 1, topic) is ErrorCode.NONE
    world.depose()
    world.delete("t")
    replica.win()
    world.lead()
    await world.loaded()
    assert world.committed(group_of(0)) == {"kept": 1}
    # And from the log, too.
    world.depose()
    world.create("t")
    replica.win()
    world.lead()
    await world.loaded()
    assert world.committed(group_of(0)) == {"kept": 1}


async def test_offsets_of_a_topic_that_is_recreated_while_they_load_are_dropped() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    world.depose()
    replica.win()
    world.lead()
    world.groups.topics_deleted(frozenset({"t"}))
    world.delete("t")
    world.create("t", partitions=4)
    await world.loaded()
    assert world.committed(group_of(0)) == {}


async def test_offsets_of_a_transaction_are_not_stored_for_a_topic_that_was_recreated() -> None:
    world = World()
    world.lead()
    await world.loaded()
    world.create("kept")

    async def admit(partition: TopicPartition) -> ErrorCode:
        world.delete("t")
        world.create("t", partitions=4)
        return ErrorCode.NONE

    offsets = [
        OffsetToCommit(partition=TopicPartition(topic, PartitionIndex(0)), offset=Offset(5))
        for topic in ("t", "kept")
    ]
    assert await world.groups.commit_transaction_offsets(
        group_of(0), ProducerId(7), ProducerEpoch(0), offsets, admit=admit
    ) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


async def test_a_leader_whose_image_lags_behind_drops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination_module, "_IMAGE_RETRY_SECONDS", 0.0)
    world = World()
    replica = world.lead()
    await world.loaded()
    world.create("new")
    assert await world.commit(group_of(0), 1, "new") is ErrorCode.NONE
    world.depose()
    current = world.image
    world.delete("new")
    lagging, world.image = world.image, current
    assert lagging.topic("new") is None

    async def fresh_image() -> object:
        return current

    world.groups = world.make_groups(fresh_image=fresh_image)
    world.image = lagging
    replica.win()
    world.lead()
    await world.loaded()
    assert world.committed(group_of(0)) == {"new": 1}


async def test_a_fresh_image_that_is_not_to_be_had_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination_module, "_IMAGE_RETRY_SECONDS", 0.0)
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    world.depose()
    world.delete("t")
    world.fresh_refusals = 2
    replica.win()
    world.lead()
    await world.loaded()
    assert (world.committed(group_of(0)), world.fresh_refusals) == ({}, 0)


async def test_a_topic_that_is_created_again_while_the_image_is_asked_for_keeps_its_offsets() -> (
    None
):
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(group_of(0), 1) is ErrorCode.NONE
    world.depose()
    world.delete("t")
    without = world.image
    asked = asyncio.Event()

    async def fresh_image() -> object:
        await asked.wait()
        return without

    world.groups = world.make_groups(fresh_image=fresh_image)
    replica.win()
    world.lead()
    await world.loaded()
    world.create("t")
    assert await world.commit(group_of(0), 2) is ErrorCode.NONE
    asked.set()
    await turns(5)
    assert world.committed(group_of(0)) == {"t": 2}


async def test_consumers_of_kafka_do_not_get_into_a_queue_group() -> None:
    world = World()
    world.lead(0)
    world.lead(1)
    await world.loaded()
    world.submit(DefineQueueGroup(name="q", topics=("t",)))
    with pytest.raises(RefusedError) as joined:
        await world.groups.submit("q", lambda number: join_event(number, "q"), JoinResult)
    assert joined.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(RefusedError) as beaten:
        await world.groups.submit(
            "q", lambda number: beat_event(number, "q"), ConsumerHeartbeatResult
        )
    assert beaten.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(RefusedError) as committed:
        await world.groups.commit_offsets(
            "q",
            [OffsetToCommit(partition=TopicPartition("t", PartitionIndex(0)), offset=Offset(1))],
        )
    assert committed.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    # Members of the queue come in by another door.
    result = await world.groups.submit_for_member(
        "q", lambda number: beat_event(number, "q"), ConsumerHeartbeatResult
    )
    assert result.error is ErrorCode.NONE
    found = world.groups.consumer("q", "m")
    assert found is not None
    assert found.member_id == "m"
    assert world.groups.consumer("q", "stranger") is None


def join_event(number: int, group: str) -> Join:
    return Join(
        request_id=number,
        group_id=group,
        member_id="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )


def beat_event(number: int, group: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        request_id=number,
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topics=("t",),
        owned={},
    )

"""Replicas that begin anew with an empty log, in a process that goes on."""

import pytest
from raft_brokers import PATIENT, key
from replica_brokers import ReplicaBroker, ReplicaCluster, make_batch, members, write

from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, BrokerId
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


async def led_by_one(cluster: ReplicaCluster) -> ReplicaBroker:
    cluster.add_group()
    await cluster.ready()
    leader = await cluster.lead(1)
    for _ in range(5):
        _, code = await write(leader.replica, make_batch(b"x"))
        assert code is ErrorCode.NONE
    await cluster.alike()
    return leader


def can_lose_replica(leader: ReplicaBroker, broker: BrokerId) -> bool:
    return leader.driver.can_lose_replica(leader.group(), broker)


def begin_anew(broker: ReplicaBroker) -> None:
    """As a repair does: the log is gone, the process and its links are not."""
    # With the vote forgotten this would be the log of a new group.
    broker.replica.drop(forget_vote=False)
    broker.logs.pop(0, None)
    broker.add(0, members((1, 2, 3)))


async def test_one_is_filled_although_no_producer_writes() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        leader = await led_by_one(cluster)
        third = cluster.at(3)
        begin_anew(third)
        assert third.replica.log.end_offset == 0
        await until(lambda: leader.group().core.replaced_voters() == [3], "the leader hears of it")
        await until(
            lambda: third.replica.log.end_offset == leader.replica.log.end_offset, "it is filled"
        )
        assert third.group().core.log_id != leader.group().core.members.log_of(BrokerId(3))


async def test_a_leader_can_spare_one_while_the_others_hold_everything() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        leader = await led_by_one(cluster)
        await until(
            lambda: all(can_lose_replica(leader, BrokerId(number)) for number in (1, 2, 3)),
            "both others are heard",
        )
        assert not can_lose_replica(cluster.at(2), BrokerId(3))
        # Whose log is not the one that the group counts on does not count.
        begin_anew(cluster.at(3))
        await until(lambda: not can_lose_replica(leader, BrokerId(2)), "the leader hears of it")
        assert can_lose_replica(leader, BrokerId(3))


async def test_a_leader_can_spare_no_replica_when_another_is_away() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        leader = await led_by_one(cluster)
        cluster.at(2).stop()
        await until(lambda: not can_lose_replica(leader, BrokerId(3)), "2 is missed")


async def test_of_two_none_can_be_spared() -> None:
    async with ReplicaCluster(2, config=PATIENT) as cluster:
        leader = await led_by_one(cluster)
        await until(lambda: leader.driver.has_recent_majority(leader.group()), "the other is heard")
        assert not can_lose_replica(leader, BrokerId(2))


async def test_a_group_counts_only_on_replicas_that_receive_from_its_leader() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        await led_by_one(cluster)
        third = cluster.at(3)
        await until(lambda: third.replica.is_active_member, "it hears its leader")
        group = third.group()
        assert third.driver.has_recent_leader(group, 10_000)
        cluster.cut_off(third)
        await until(lambda: not third.driver.has_recent_leader(group, 50), "it hears nobody")


async def test_a_log_that_was_quicker_than_the_vote_is_known_to_the_votes() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        await led_by_one(cluster)
        third = cluster.at(3)
        third.stop()
        third.votes.forget(frozenset({key(0).name}))
        await cluster.restart(3)
        await until(lambda: third.votes.get(key(0).name)[0] != NO_EPOCH, "the vote is stored")

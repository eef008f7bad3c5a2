"""Several brokers' drivers replicate groups over loopback: elect, replicate, fail over, repair."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from raft_brokers import CONFIG, PATIENT, Cluster, content, key, propose, run

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, Offset
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def test_three_brokers_elect_one_leader_and_all_logs_become_the_same(place: Path | None) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=place) as cluster:
            cluster.add_group()
            for size in (1, 3000, 20_000, 100_000):
                await cluster.produce(10, value=bytes(size))
            await cluster.agree()
            data, _ = content(cluster.brokers[1].logs[0])
            assert len(data) > 10 * 123_000
            leaders = {broker.group().core.leader for broker in cluster.brokers.values()}
            assert len(leaders) == 1
            for broker in cluster.brokers.values():
                assert broker.owners[0].commit == 40
                if not broker.group().is_leader:
                    assert [header.base_offset for header in broker.owners[0].stored] == [
                        *range(40)
                    ]

    run(scenario())


def test_proposals_of_one_turn_travel_and_are_answered_together() -> None:
    async def scenario() -> None:
        # Neither heartbeats nor repetitions count here, however long it takes.
        config = replace(PATIENT, retry_ms=10_000)
        async with Cluster(3, flush=FlushPolicy.NEVER, config=config, heartbeat_ms=1000) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            frames = sum(link.frames_total for link in leader.transport.links.values())
            await cluster.produce(500)
            sent = sum(link.frames_total for link in leader.transport.links.values()) - frames
            assert sent < 100
            await cluster.agree()

    run(scenario())


def test_a_broken_link_is_dialled_again_and_what_was_lost_is_sent_again(
    place: Path | None,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=place) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            for round_number in range(10):
                for link in leader.transport.links.values():
                    if round_number % 2:
                        link.reset("the test pulls the plug")
                for _ in range(20):
                    propose(leader, value=bytes(5000))
                await asyncio.sleep(0.02)
            await cluster.agree()
            assert leader.group().is_leader

    run(scenario())


def test_the_others_go_on_when_the_leader_stops_and_it_follows_when_it_comes_back(
    place: Path | None,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, directory=place, config=PATIENT) as cluster:
            cluster.add_group()
            end = await cluster.produce(20)
            old = await cluster.wait_for_leader()
            old.stop()
            cluster.use(CONFIG)
            new = await cluster.wait_for_leader(other_than=old.id)
            cluster.use(PATIENT)
            assert new.owners[0].commit == end
            end = await cluster.produce(20)
            assert end == 40
            back = await cluster.restart(old.id)
            await cluster.agree()
            assert back.owners[0].commit == 40
            assert back.group().core.leader == new.id

    run(scenario())


def test_all_brokers_stop_and_nothing_committed_is_gone_after_the_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(3, directory=tmp_path) as cluster:
            cluster.add_group()
            await cluster.produce(30, value=bytes(2000))
            before = content((await cluster.wait_for_leader()).logs[0])[0]
            epoch = max(broker.group().core.epoch for broker in cluster.brokers.values())
            for broker in cluster.brokers.values():
                broker.stop()
            for number in cluster.brokers:
                await cluster.restart(number)
            leader = await cluster.wait_for_leader()
            assert leader.group().core.epoch > epoch
            await cluster.agree()
            assert content(leader.logs[0])[0] == before

    run(scenario())


def test_entries_that_never_reached_a_majority_are_cut_from_the_old_leader(
    place: Path | None,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, directory=place) as cluster:
            cluster.add_group()
            kept = await cluster.produce(5)
            old = await cluster.wait_for_leader()
            for other in cluster.brokers.values():
                if other is not old:
                    other.stop()
            # At once: it leads only as long as it has heard the others lately.
            for link in old.transport.links.values():
                link.reset("the others are gone")
                assert not link.is_connected
            for _ in range(7):
                propose(old, value=b"lost" * 5000)
            await until(lambda: not old.group().is_leader, "the old leader steps down")
            old.stop()
            for other in cluster.brokers.values():
                if other is not old:
                    await cluster.restart(other.id)
            await cluster.wait_for_leader(other_than=old.id)
            end = await cluster.produce(3, value=b"kept")
            back = await cluster.restart(old.id)
            await cluster.agree()
            assert b"lost" not in content(back.logs[0])[0]
            assert back.owners[0].truncated == [kept]
            assert back.owners[0].commit == end

    run(scenario())


def test_a_follower_that_was_away_catches_up_by_pipelining(place: Path | None) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=place, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            away = next(b for b in cluster.brokers.values() if b is not leader)
            away.stop()
            await cluster.produce(300, value=bytes(100_000))
            await cluster.restart(away.id)
            await cluster.agree()
            assert leader.group().is_leader

    run(scenario())


def test_a_follower_that_fell_behind_retention_is_rebuilt_from_the_leaders_start(
    place: Path | None,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=place) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            leader = await cluster.wait_for_leader()
            away = next(b for b in cluster.brokers.values() if b is not leader)
            away.stop()
            await cluster.produce(20)
            for broker in cluster.brokers.values():
                if broker.is_running:
                    broker.logs[0].delete_before(Offset(15))
            back = await cluster.restart(away.id)
            await cluster.agree()
            assert back.logs[0].start_offset == 15
            assert back.owners[0].resets == [(15, b"state at 15")]
            await cluster.produce(3)
            await cluster.agree()

    run(scenario())


def test_leadership_is_handed_over_on_request() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            old = await cluster.wait_for_leader()
            target = next(b for b in cluster.brokers.values() if b is not old)
            old.driver.transfer(old.group(), target.id)
            with pytest.raises(RefusedError) as refused:
                propose(old)
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            new = await cluster.wait_for_leader(other_than=old.id)
            assert new is target
            await cluster.produce(5)
            await cluster.agree()

    run(scenario())


def test_a_broker_joins_as_a_learner_votes_and_another_leaves(place: Path | None) -> None:
    async def scenario() -> None:
        async with Cluster(4, directory=place, config=PATIENT) as cluster:
            cluster.add_group(voters=(1, 2, 3))
            await cluster.produce(20, value=bytes(9000))
            leader = await cluster.wait_for_leader()
            first = leader.group().core.members
            four = cluster.brokers[4]
            four.add(0, first)
            leader.driver.change_members(leader.group(), first.with_learner(four.id))
            await until(lambda: leader.group().core.progress.get(four.id) is not None
                        and leader.group().core.progress[four.id].match
                        >= leader.group().core.commit > leader.group().core.members_index,
                        "the learner has caught up")  # fmt: skip
            leader.driver.change_members(
                leader.group(), leader.group().core.members.with_voter(four.id)
            )
            await cluster.agree()
            leaving = leader.id
            await until(lambda: leader.group().core.commit > leader.group().core.members_index,
                        "the change is committed")  # fmt: skip
            leader.driver.change_members(
                leader.group(), leader.group().core.members.without(leaving)
            )
            new = await cluster.wait_for_leader(other_than=leaving)
            assert leaving not in new.group().core.members.voters
            assert four.id in new.group().core.members.voters
            leader.stop()
            await cluster.produce(5)
            await cluster.agree(brokers=[b for b in cluster.brokers if b != leaving])

    run(scenario())


def test_a_change_of_members_that_is_not_safe_is_refused_to_the_caller() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce()
            leader = await cluster.wait_for_leader()
            with pytest.raises(RaftRejection):
                leader.driver.change_members(leader.group(), Members((leader.id,)))
            await cluster.produce()

    run(scenario())


def test_a_read_index_is_confirmed_by_a_majority_or_refused() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            end = await cluster.produce(4)
            leader = await cluster.wait_for_leader()
            assert await leader.driver.read_index(leader.group()) == end
            for broker in cluster.brokers.values():
                if broker is not leader:
                    with pytest.raises(RaftRejection):
                        broker.driver.read_index(broker.group())
                    broker.stop()
            cluster.use(CONFIG)
            pending = leader.driver.read_index(leader.group())
            with pytest.raises(RefusedError) as refused:
                await pending
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_a_group_of_one_leads_at_once_and_commits_what_is_flushed(place: Path | None) -> None:
    async def scenario() -> None:
        async with Cluster(1, directory=place) as cluster:
            cluster.add_group()
            assert await cluster.produce(10) == 10
            assert cluster.brokers[1].driver.in_sync(cluster.brokers[1].group(), 1000) == [1]

    run(scenario())


def test_in_sync_replicas_are_those_that_hold_everything() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            driver, group = leader.driver, leader.group()
            await until(lambda: driver.in_sync(group, 1000) == [1, 2, 3], "all are in sync")
            away = next(b for b in cluster.brokers.values() if b is not leader)
            away.stop()
            await cluster.produce(3)
            await until(lambda: driver.in_sync(group, 1000) == sorted(
                b.id for b in cluster.brokers.values() if b is not away
            ), "the stopped one is out of sync")  # fmt: skip
            # Idle, the others stay in sync by the brokers' heartbeats alone.
            await asyncio.sleep(1.2)
            # A machine that stood still is behind until the next heartbeat, and no longer.
            await until(lambda: len(driver.in_sync(group, 1000)) == 2, "those that run are in sync")

    run(scenario())


def test_a_damaged_group_stops_alone() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group(0)
            cluster.add_group(1)
            await cluster.produce(3, number=0)
            await cluster.produce(3, number=1)
            leader = await cluster.wait_for_leader(0)
            broken = next(b for b in cluster.brokers.values() if b is not leader)
            # Its log loses an entry behind the driver's back: the next one no longer fits.
            await cluster.agree(0)
            log = broken.logs[0]
            log.truncate(log.index_of(Offset(2)))
            await cluster.produce(3, number=0)
            await until(lambda: bool(broken.owners[0].failures), "the group stops")
            assert broken.group(0).failure is not None
            assert broken.group(1).failure is None
            await cluster.produce(3, number=1)
            await cluster.agree(1)

    run(scenario())


def test_roles_are_reported_in_order_and_a_removed_group_is_forgotten() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            roles = [role for role, _, _ in leader.owners[0].roles]
            assert roles[-3:] == [Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER]
            leader.driver.remove_group(leader.group(), forget_vote=True)
            assert leader.driver.groups.get(key().name) is None
            assert (await cluster.wait_for_leader(other_than=leader.id)).id != leader.id
            await until(
                lambda: leader.memory_votes.get(key().name)[1] == -1, "the vote is forgotten"
            )

    run(scenario())


def test_the_owner_may_propose_from_inside_a_commit() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()

            def chain(offset: int) -> None:
                if leader.group().is_leader and offset < 20:
                    propose(leader)

            leader.owners[0].on_committed = chain
            propose(leader)
            await until(lambda: leader.owners[0].commit >= 20, "the chain ends")
            await cluster.agree()

    run(scenario())


def test_a_broker_with_the_wrong_directory_never_counts_as_a_peer() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            stranger = cluster.brokers[2].transport
            stranger.links[BrokerId(1)].stop()
            link = stranger.links.pop(BrokerId(1))
            stranger._incarnation = "another"
            link = stranger.add_peer(BrokerId(1), cluster.brokers[1].address)
            await until(lambda: bool(link.refusal), "the stranger is refused")
            assert link.refusal == "another directory"
            assert not link.is_connected

    run(scenario())

"""What a core hears of proposals, and when: once per turn, and before anything else."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from raft_brokers import PATIENT, Broker, Cluster, propose, run

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.raft.election import ElectionCause
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Effect, Event
from moldau.raft.membership import Members
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


def record(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Every event of group 0 from now on; each finds a core that knows its log."""
    events: list[Event] = []
    group = broker.group()
    step = group.core.step

    def recording(now: int, event: Event) -> list[Effect]:
        if not isinstance(event, e.Appended):
            group.core.check_invariants()
        events.append(event)
        return step(now, event)

    monkeypatch.setattr(group.core, "step", recording)
    return events


@pytest.mark.parametrize("flush", [FlushPolicy.NEVER, FlushPolicy.ALWAYS])
def test_a_core_gets_all_that_was_proposed_in_a_turn_at_once(
    flush: FlushPolicy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=tmp_path, flush=flush) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            owner, group = leader.owners[0], leader.group()
            events = record(leader, monkeypatch)
            for _ in range(10):
                end = propose(leader)
            assert not events
            await until(
                lambda: owner.commit == end,
                "all is committed",
                describe=lambda: cluster.describe(0),
            )
            appended = [event for event in events if isinstance(event, e.Appended)]
            assert appended == [e.Appended(group.log.end_index)]
            assert group.proposed_bytes == 0
            assert not group.proposed

    run(scenario())


def test_of_many_proposals_the_first_are_sent_while_more_come() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            await cluster.agree()
            links = leader.transport.links.values()
            sent = [link.frames_total for link in links]
            count = 0
            while [link.frames_total for link in links] == sent:
                propose(leader)
                count += 1
            assert 10 < count < 40
            assert [link.frames_total for link in links] == [frames + 1 for frames in sent]
            for _ in range(100):
                end = propose(leader)
            # The rest goes together.
            assert [link.frames_total for link in links] == [frames + 1 for frames in sent]
            await until(
                lambda: leader.owners[0].commit == end,
                "all is committed",
                describe=lambda: cluster.describe(0),
            )

    run(scenario())


def test_a_group_of_one_commits_at_once_what_waits_for_no_flush() -> None:
    async def scenario() -> None:
        async with Cluster(1, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            owner, group = leader.owners[0], leader.group()
            for _ in range(3):
                end = propose(leader)
                assert owner.commit == end == group.log.end_offset
                assert group.core.commit == group.log.end_index
                group.core.check_invariants()
            assert not group.proposed
            assert group.proposed_bytes == 0

    run(scenario())


def test_a_group_of_one_commits_nothing_that_is_not_flushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(1, directory=tmp_path, flush=FlushPolicy.ALWAYS) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            owner, group = leader.owners[0], leader.group()
            before = owner.commit
            for _ in range(3):
                end = propose(leader)
            assert owner.commit == before
            assert group.core.commit == group.log.flushed_index < group.log.end_index
            assert group.proposed_bytes > 0
            await until(
                lambda: owner.commit == end,
                "all is committed",
                describe=lambda: cluster.describe(0),
            )
            group.core.check_invariants()
            assert not group.proposed

    run(scenario())


def test_a_group_that_was_alone_waits_for_the_member_that_it_gets() -> None:
    async def scenario() -> None:
        async with Cluster(2, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group(voters=(1,))
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            owner, group = leader.owners[0], leader.group()
            leader.driver.change_members(group, Members((BrokerId(1),), (BrokerId(2),)))
            await until(lambda: owner.commit == group.log.end_offset, "the change is committed")
            before = owner.commit
            end = propose(leader)
            # A learner does not count, but is sent to: the core must hear of it.
            assert owner.commit == before
            await until(lambda: owner.commit == end, "it is committed")

    run(scenario())


def test_whatever_happens_next_in_a_group_finds_a_core_that_knows_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            await cluster.agree()
            driver, group = leader.driver, leader.group()
            other = next(broker for broker in cluster.brokers.values() if broker is not leader)
            events = record(leader, monkeypatch)

            def is_told(event: type[Event]) -> bool:
                place = next(n for n, one in enumerate(events) if isinstance(one, event))
                return place > 0 and isinstance(events[place - 1], e.Appended)

            propose(leader)
            read = driver.read_index(group)
            assert is_told(e.ReadIndexRequested)
            propose(leader)
            with pytest.raises(RaftRejection):
                driver.transfer(group, BrokerId(9))
            assert is_told(e.TransferRequested)
            propose(leader)
            with pytest.raises(RaftRejection):
                driver.change_members(group, Members((BrokerId(7), BrokerId(8))))
            assert is_told(e.MembershipChangeRequested)
            propose(leader)
            driver.on_link_lost(other.id)
            driver.on_link_up(other.id)
            assert is_told(e.PeerDisconnected)
            propose(leader)
            driver._on_due(group, driver.now)
            group.core.check_invariants()
            propose(leader)
            assert leader.id in driver.in_sync(group, 1000)
            group.core.check_invariants()
            await read
            await cluster.agree()

    run(scenario())


def test_the_bound_of_what_waits_counts_every_proposal_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            owner, group, driver = leader.owners[0], leader.group(), leader.driver
            monkeypatch.setattr(driver, "_uncommitted_bytes_max", 1000)
            for _ in range(3):
                end = propose(leader, value=bytes(300))
            with pytest.raises(RefusedError) as refused:
                propose(leader)
            assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            assert group.proposed_bytes > 1000
            await until(lambda: owner.commit == end, "it is committed")
            assert group.proposed_bytes == 0
            propose(leader)

    run(scenario())


def test_what_was_appended_in_the_turn_in_which_a_group_was_removed_is_ignored() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            group, owner = leader.group(), leader.owners[0]
            commits = owner.commits
            propose(leader)
            leader.driver.remove_group(group)
            await asyncio.sleep(0.05)
            assert owner.commits == commits
            with pytest.raises(RefusedError):
                leader.driver.check_leadership(group)

    run(scenario())


def test_an_owner_of_a_group_of_one_may_propose_from_inside_a_commit() -> None:
    async def scenario() -> None:
        async with Cluster(1, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            owner = leader.owners[0]

            def more(offset: int) -> None:
                if offset < 5:
                    propose(leader)

            owner.on_committed = more
            propose(leader)
            await until(lambda: owner.commit == 5, "five are committed, each by the one before")
            leader.group().core.check_invariants()

    run(scenario())


def test_a_heartbeat_in_between_sends_followers_a_commit_at_once() -> None:
    async def scenario() -> None:
        # The leader is silent for a while here, and repeats nothing.
        config = replace(PATIENT, retry_ms=30_000)
        async with Cluster(3, flush=FlushPolicy.NEVER, config=config) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.produce()
            await cluster.agree()
            owner, driver = leader.owners[0], leader.driver
            others = [broker for broker in cluster.brokers.values() if broker is not leader]
            # Until the followers are on the list of the heartbeat.
            await until(
                lambda: all(not peer.heartbeat.unconfirmed for peer in driver._peers.values()),
                "the followers are confirmed",
            )
            driver._heartbeats.stop()
            end = propose(leader)
            await until(lambda: owner.commit == end, "the leader commits")
            assert all(broker.owners[0].commit < end for broker in others)
            frames = [link.frames_total for link in leader.transport.links.values()]
            driver.send_heartbeats_now()
            driver.send_heartbeats_now()
            await until(
                lambda: all(broker.owners[0].commit == end for broker in others),
                "the followers commit",
            )
            assert [link.frames_total for link in leader.transport.links.values()] == [
                count + 1 for count in frames
            ]
            driver._heartbeats.start()
            # From inside a commit: in the same turn.
            owner.on_committed = lambda _: driver.send_heartbeats_now()
            await cluster.produce()
            await cluster.agree()

    run(scenario())


def test_peers_are_alive_as_long_as_their_heartbeats_come() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            one = cluster.brokers[1].driver
            assert one.alive(1 << 40) == set()
            await until(lambda: one.alive(10_000) == {2, 3}, "the first heartbeats came")
            cluster.brokers[3].stop()
            await until(lambda: one.alive(500) == {2}, "broker 3 is silent")
            assert one.alive(60_000) == {2, 3}

    run(scenario())


def test_a_transfer_of_leadership_returns_its_result() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            old = await cluster.wait_for_leader()
            group = old.group()
            target = next(broker for broker in cluster.brokers.values() if broker is not old)
            handed = old.driver.transfer(group, target.id)
            with pytest.raises(RaftRejection):
                old.driver.transfer(group, target.id)
            assert await handed
            assert group.core.leader == target.id
            counts = target.driver.counts
            assert counts.won[ElectionCause.TRANSFER] == 1
            assert counts.elections[ElectionCause.TRANSFER] == 1
            # Its no-op is no proposal.
            assert sum(old.driver.counts.commit_seconds.counts) == 5
            with pytest.raises(RaftRejection):
                old.driver.transfer(group, BrokerId(9))

    run(scenario())


def test_a_transfer_of_leadership_to_a_dead_broker_is_given_up_and_the_leader_still_leads() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=replace(PATIENT, transfer_ms_max=500)) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            leader = await cluster.wait_for_leader()
            gone = next(broker for broker in cluster.brokers.values() if broker is not leader)
            gone.stop()
            await cluster.produce(5)
            assert not await leader.driver.transfer(leader.group(), gone.id)
            assert leader.group().is_leader

    run(scenario())


def test_a_transfer_ends_with_its_group() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            for broker in cluster.brokers.values():
                if broker is not leader:
                    broker.stop()
            group, driver = leader.group(), leader.driver
            target = next(voter for voter in group.core.members.voters if voter != leader.id)
            handed = driver.transfer(group, target)
            driver.remove_group(group)
            assert handed.done()
            assert not handed.result()
            assert not await driver.transfer(group, target)

    run(scenario())

"""Replicas of one partition on three brokers: what is promised survives a change of leaders."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from raft_brokers import CONFIG, PATIENT
from raft_brokers import propose as propose_plain
from replica_brokers import (
    ReplicaCluster,
    Watching,
    make_batch,
    members,
    propose,
    said_by,
    values,
    write,
)

from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, Offset, ProducerId, TimestampMs
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members
from moldau.replica.replica import Replica
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

PRODUCER = ProducerId(4)


def remembered(replica: Replica, producer: int = PRODUCER) -> list[tuple[int, int]]:
    """Sequence and offset of the producer's batches, as the replica knows them."""
    state = replica.producers.get(ProducerId(producer))
    batches = [] if state is None else state.batches
    return [(batch.base_sequence, batch.base_offset) for batch in batches]


async def test_a_leader_that_stood_still_is_not_sure_to_lead() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await cluster.alike()
        cluster.use(CONFIG)
        await until(leader.replica.has_recent_majority, "a majority answers")
        assert [b.replica.has_recent_majority() for b in cluster.all if b is not leader] == [
            False
        ] * 2
        # The whole process stands still, as one that is paused.
        time.sleep(cluster.config.election_ms_min / 1000 + 0.05)
        assert not leader.replica.has_recent_majority()
        # It may be deposed by then: the others stood still as well, and heard nothing of it.
        await until(
            lambda: any(broker.replica.has_recent_majority() for broker in cluster.all),
            "a majority answers somebody",
        )


async def test_a_deposed_leader_fails_all_who_wait_and_follows_the_next_one() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        old = await cluster.ready()
        await write(old.replica, make_batch(b"kept"))
        await cluster.alike()
        cluster.cut_off(old)
        told: list[ErrorCode] = []
        watcher = Watching()
        old.replica.watchers[watcher] = None
        proposal = propose(old.replica, make_batch(b"lost"))
        old.replica.when_committed(proposal.end_offset, told.append)
        old.replica.trim(Offset(1), told.append)
        cluster.use(CONFIG)
        await until(lambda: len(told) == 2, "all are answered")
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert (watcher.gone, old.replica.watchers) == (1, {})
        assert (old.replica.is_leader, old.replica.is_ready) == (False, False)
        assert old.replica.high_watermark == 1
        new = await cluster.ready(other_than=old.id)
        cluster.use(PATIENT)
        await write(new.replica, make_batch(b"next"))
        cluster.introduce()
        await cluster.alike()
        assert values(old.replica) == [b"kept", b"next"]
        # A trim that was cut off with the records does not come back.
        assert [broker.replica.log.start_offset for broker in cluster.all] == [0, 0, 0]
        assert (len(told), watcher.gone) == (2, 1)


async def test_a_new_leader_is_reported_once_it_is_ready_and_followers_learn_who_leads() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        others = [broker for broker in cluster.all if broker is not leader]
        await until(
            lambda: all(broker.replica.leader == leader.id for broker in others),
            "the followers know their leader",
        )
        assert leader.listeners[0].leaders[-1] == (leader.id, True)
        assert leader.listeners[0].leaders.count((leader.id, True)) == 1
        for broker in others:
            assert broker.listeners[0].leaders[-1] == (leader.id, False)
            assert broker.replica.in_sync(10_000) == ()
        await until(lambda: leader.replica.in_sync(10_000) == (1, 2, 3), "all are in sync")
        assert leader.replica.members.voters == (1, 2, 3)


async def test_a_follower_takes_nothing_from_clients() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await write(leader.replica, make_batch(b"a"))
        await cluster.alike()
        follower = next(broker for broker in cluster.all if broker is not leader)
        for act in (
            follower.replica.check_leadership,
            lambda: propose(follower.replica, make_batch(b"b")),
            lambda: follower.replica.trim(Offset(1), lambda _: None),
        ):
            with pytest.raises(RefusedError) as refused:
                act()
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(RefusedError, match=f"broker {leader.id} leads it"):
            follower.replica.check_leadership()
        leader.replica.check_leadership()
        assert values(follower.replica) == [b"a"]


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_a_retry_after_a_failover_gets_the_original_offset_and_is_stored_once(
    is_on_disk: bool, tmp_path: Path
) -> None:
    directory = tmp_path if is_on_disk else None
    async with ReplicaCluster(3, directory=directory, config=PATIENT) as cluster:
        cluster.add_group()
        first = await cluster.ready()
        await write(first.replica, make_batch(b"x"))
        originals = [
            await write(first.replica, make_batch(b"%d" % n, producer=4, sequence=n))
            for n in range(3)
        ]
        await cluster.alike()
        for broker in cluster.all:
            assert remembered(broker.replica) == [(0, 1), (1, 2), (2, 3)]
        first.stop()
        cluster.use(CONFIG)
        second = await cluster.ready(other_than=first.id)
        cluster.use(PATIENT)
        for n, original in enumerate(originals):
            again = await write(second.replica, make_batch(b"%d" % n, producer=4, sequence=n))
            assert said_by(again[0]) == said_by(original[0])
            assert again[1] == original[1]
        with pytest.raises(RefusedError) as refused:
            propose(second.replica, make_batch(b"gap", producer=4, sequence=9))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await write(second.replica, make_batch(b"3", producer=4, sequence=3))
        await cluster.restart(first.id)
        await cluster.alike()
        third = await cluster.lead(first.id)
        last, _ = await write(third.replica, make_batch(b"3", producer=4, sequence=3))
        assert last.base_offset == 4
        assert values(third.replica) == [b"x", b"0", b"1", b"2", b"3"]


async def test_what_a_deposed_leader_knew_of_producers_is_cut_with_its_records() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        old = await cluster.ready()
        await write(old.replica, make_batch(b"0", producer=4, sequence=0))
        await write(old.replica, make_batch(b"e0", producer=5, sequence=0))
        await cluster.alike()
        cluster.cut_off(old)
        # Of 4 something is left, of 5 only what its new epoch has pushed out, of 6 nothing.
        propose(old.replica, make_batch(b"lost", producer=4, sequence=1))
        propose(old.replica, make_batch(b"lost", producer=5, sequence=0, epoch=1))
        propose(old.replica, make_batch(b"lost", producer=6, sequence=0))
        assert remembered(old.replica, 6) == [(0, 4)]
        cluster.use(CONFIG)
        new = await cluster.ready(other_than=old.id)
        cluster.use(PATIENT)
        await write(new.replica, make_batch(b"other"))
        cluster.introduce()
        await cluster.alike()
        for broker in cluster.all:
            assert remembered(broker.replica, 4) == [(0, 0)]
            assert remembered(broker.replica, 5) == [(0, 1)]
            assert remembered(broker.replica, 6) == []
        again = await cluster.lead(old.id)
        for producer, sequence, place in ((4, 1, 3), (6, 0, 4)):
            stored, _ = await write(
                again.replica, make_batch(b"anew", producer=producer, sequence=sequence)
            )
            assert stored.base_offset == place
        original, _ = await write(again.replica, make_batch(b"e0", producer=5, sequence=0))
        assert original.base_offset == 1
        assert values(again.replica) == [b"0", b"e0", b"other", b"anew", b"anew"]


async def test_what_comes_in_place_of_what_was_cut_is_remembered_once() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        old = await cluster.ready()
        await cluster.alike()
        cluster.cut_off(old)
        # Nothing is left of this one, so that its table is built anew from the log.
        propose(old.replica, make_batch(b"lost", producer=6, sequence=0))
        cluster.use(CONFIG)
        new = await cluster.ready(other_than=old.id)
        cluster.use(PATIENT)
        for sequence in range(3):
            await write(new.replica, make_batch(b"k", producer=PRODUCER, sequence=sequence))
        cluster.introduce()
        await cluster.alike()
        for broker in cluster.all:
            assert remembered(broker.replica) == [(0, 0), (1, 1), (2, 2)]
            assert remembered(broker.replica, 6) == []


async def test_a_snapshot_brings_the_producers_to_who_fell_behind_the_start(
    tmp_path: Path,
) -> None:
    async with ReplicaCluster(3, config=PATIENT, directory=tmp_path) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await write(leader.replica, make_batch(b"a", producer=4, sequence=0))
        await cluster.alike()
        late = next(broker for broker in cluster.all if broker is not leader)
        late.stop()
        leader = await cluster.ready()
        for n in range(1, 6):
            await write(leader.replica, make_batch(b"%d" % n, producer=4, sequence=n))
        done: list[ErrorCode] = []
        leader.replica.trim(Offset(6), done.append)
        await until(lambda: done == [ErrorCode.NONE], "it is trimmed")
        await write(leader.replica, make_batch(b"b", producer=5, sequence=0))
        await cluster.restart(late.id)
        await cluster.alike()
        assert (late.replica.log.start_offset, values(late.replica)) == (6, [b"b"])
        assert remembered(late.replica) == [(n, n) for n in range(1, 6)]
        # Also after a restart: the snapshot was kept beside the log that it began.
        late.stop()
        await cluster.restart(late.id)
        await cluster.alike()
        assert remembered(late.replica) == [(n, n) for n in range(1, 6)]
        await cluster.lead(late.id)
        again, _ = await write(late.replica, make_batch(b"5", producer=4, sequence=5))
        assert again.base_offset == 5
        assert remembered(late.replica, 5) == [(0, 6)]


async def test_a_follower_knows_the_producer_of_what_it_stored_before_its_disk_was_full() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.lead(1)
        await cluster.alike()
        log = cluster.at(2).replica.log
        store = log.append_control
        refused: list[object] = []

        def refuse_once(*arguments: Any) -> None:
            if not refused:
                refused.append(arguments)
                raise DiskFullError("no room")
            store(*arguments)

        log.append_control = refuse_once  # type: ignore[method-assign, assignment]
        # One message brings both, and only the first of them finds room.
        propose(leader.replica, make_batch(b"a", producer=PRODUCER, sequence=0))
        leader.replica.trim(Offset(0), lambda _: None)
        await cluster.alike()
        assert len(refused) == 1
        assert remembered(cluster.at(2).replica) == [(0, 0)]


async def test_a_snapshot_says_nothing_of_what_comes_after_its_offset() -> None:
    async with ReplicaCluster(1) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        for n in range(3):
            await write(leader.replica, make_batch(b"%d" % n, producer=4, sequence=n))
        payload = leader.replica.snapshot(leader.group(), Offset(2))
        leader.replica.on_reset(leader.group(), Offset(2), payload)
        assert remembered(leader.replica) == [(0, 0), (1, 1)]
        assert leader.replica.high_watermark == 2


async def test_a_snapshot_that_cannot_be_read_ends_the_replica_and_not_the_broker() -> None:
    async with ReplicaCluster(1) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await write(leader.replica, make_batch(b"a", producer=4, sequence=0))
        leader.replica.on_reset(leader.group(), Offset(0), b"damaged")
        assert [type(error).__name__ for error in leader.listeners[0].failures] == [
            "CorruptionError"
        ]
        assert (remembered(leader.replica), leader.failures) == ([(0, 0)], [])


async def test_records_deleted_on_the_leader_are_deleted_on_all_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with ReplicaCluster(3, config=PATIENT, directory=tmp_path) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        for n in range(5):
            await write(leader.replica, make_batch(b"%d" % n))
        await cluster.alike()
        absent = next(broker for broker in cluster.all if broker is not leader)
        absent.stop()
        leader = await cluster.ready()
        done: list[ErrorCode] = []
        leader.replica.trim(Offset(3), done.append)
        assert (done, leader.replica.log.start_offset) == ([], 0)
        await until(lambda: done == [ErrorCode.NONE], "it is trimmed")
        assert leader.replica.log.start_offset == 3
        await cluster.restart(absent.id)
        await until(
            lambda: all(broker.replica.log.start_offset == 3 for broker in cluster.all),
            "all are trimmed",
        )
        await cluster.alike()
        for broker in cluster.all:
            assert values(broker.replica) == [b"3", b"4"]


async def test_a_second_trim_waits_for_its_own_and_an_older_one_takes_nothing_back() -> None:
    async with ReplicaCluster(1) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        for n in range(4):
            await write(leader.replica, make_batch(b"%d" % n))
        told: list[str] = []
        leader.replica.trim(Offset(3), lambda _: told.append("three"))
        await until(lambda: told == ["three"], "it is trimmed")
        leader.replica.trim(Offset(1), lambda _: told.append("one"))
        await until(lambda: told == ["three", "one"], "it is trimmed")
        assert leader.replica.log.start_offset == 3


async def test_a_trim_to_where_retention_was_already_is_agreed_by_all() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        for n in range(4):
            await write(leader.replica, make_batch(b"%d" % n))
        await cluster.alike()
        leader.replica.log.delete_before(Offset(3))
        told: list[ErrorCode] = []
        leader.replica.trim(Offset(3), told.append)
        leader.replica.retain(TimestampMs(0))
        assert told == []
        await until(lambda: told == [ErrorCode.NONE], "it is agreed")
        await until(
            lambda: all(broker.replica.log.start_offset == 3 for broker in cluster.all),
            "all are trimmed",
        )


async def test_one_that_learns_votes_when_its_group_has_made_it_a_voter_and_not_before() -> None:
    async with ReplicaCluster(4, config=PATIENT) as cluster:
        first = members((1, 2, 3))
        for number in (1, 2, 3):
            cluster.at(number).add(0, first)
        leader = await cluster.ready()
        for n in range(3):
            await write(leader.replica, make_batch(b"%d" % n))
        learner = cluster.at(4)
        learner.add(0, members((1, 2, 3), (4,)))
        core = learner.group().core
        await change_members(cluster, members((1, 2, 3), (4,)))
        await cluster.alike()
        assert not core.is_voter
        await change_members(cluster, members((1, 2, 3, 4)))
        await until(lambda: core.is_voter, "it votes")
        assert core.members.logs == ((4, learner.logs[0].log_id),)
        await write((await cluster.ready()).replica, make_batch(b"more"))
        await cluster.alike()
        assert (await cluster.lead(4)).replica.leader == 4


async def change_members(cluster: ReplicaCluster, wanted: Members) -> None:
    leader = await cluster.ready()

    def is_taken() -> bool:
        """A learner's log may be whole before its leader has heard so: it refuses until then."""
        try:
            leader.driver.change_members(leader.group(), wanted)
        except RaftRejection:
            return False
        return True

    await until(is_taken, "the change is taken")
    await until(
        lambda: (
            leader.replica.members.has_same_brokers(wanted)
            and leader.group().core.members_index < leader.group().core.commit
        ),
        "the change is committed",
    )


async def test_a_voter_that_its_own_log_calls_a_voter_votes_after_a_restart() -> None:
    async with ReplicaCluster(4, config=PATIENT) as cluster:
        for number in (1, 2, 3):
            cluster.at(number).add(0, members((1, 2, 3)))
        await cluster.ready()
        late = cluster.at(4)
        late.add(0, members((1, 2, 3), (4,)))
        await change_members(cluster, members((1, 2, 3), (4,)))
        await cluster.alike()
        late.stop()
        await cluster.restart(4)
        assert not late.group().core.is_voter
        await cluster.alike()
        await change_members(cluster, members((1, 2, 3, 4)))
        await cluster.alike()
        late.stop()
        await cluster.restart(4)
        assert late.group().core.is_voter


async def test_records_of_an_interval_policy_are_committed_by_a_majority_without_flushes() -> None:
    async with ReplicaCluster(3, flush=FlushPolicy.NEVER, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        cluster.cut_off(leader)
        propose(leader.replica, make_batch(b"a"))
        await asyncio.sleep(0.05)
        # Alone it has no majority, whatever the disk does.
        assert leader.replica.high_watermark == 0
        cluster.use(CONFIG)
        new = await cluster.ready(other_than=leader.id)
        cluster.use(PATIENT)
        assert propose_plain(new) == 1
        await until(lambda: new.replica.high_watermark == 1, "it is committed")


async def test_in_sync_are_those_with_recent_contact() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await until(lambda: leader.replica.in_sync(10_000) == (1, 2, 3), "all are in sync")
        absent = next(broker for broker in cluster.all if broker is not leader)
        absent.stop()
        await until(lambda: absent.id not in leader.replica.in_sync(100), "one is out of sync")
        others = [broker.id for broker in cluster.running]
        await until(
            lambda: set(leader.replica.in_sync(5_000)) >= set(others), "the others are in sync"
        )
        assert BrokerId(leader.id) in leader.replica.in_sync(0)


# ---- min.insync.replicas beyond a majority


async def test_all_copies_are_waited_for_where_that_is_configured() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        absent = next(broker for broker in cluster.all if broker is not leader)
        absent.stop()
        leader = await cluster.ready()
        told: list[str] = []

        def tell(which: int, code: ErrorCode) -> None:
            told.append(f"{which} {code.name}")

        for copies in (1, 2):
            leader.replica.min_insync_replicas = copies
            proposal = propose(leader.replica, make_batch(b"v"))
            assert not leader.replica.is_acknowledged(proposal.end_offset)
            leader.replica.when_acknowledged(proposal.end_offset, partial(tell, copies))
            await until(lambda: len(told) == copies, "a majority has it")  # noqa: B023
            assert leader.replica.is_acknowledged(proposal.end_offset)
        assert told == ["1 NONE", "2 NONE"]
        leader.replica.min_insync_replicas = 3
        ends = [propose(leader.replica, make_batch(b"v")).end_offset for _ in range(3)]
        for end in (ends[1], ends[0], ends[2]):
            leader.replica.when_acknowledged(end, partial(tell, end))
        await until(lambda: leader.replica.high_watermark == ends[2], "it is committed")
        # Once it is committed, too, and behind those that wait already.
        leader.replica.when_acknowledged(ends[0], lambda code: told.append(f"again {code.name}"))
        await asyncio.sleep(0.05)
        assert len(told) == 2
        assert not leader.replica.is_acknowledged(ends[0])
        await cluster.restart(absent.id)
        await until(lambda: len(told) == 6, "the third copy is made")
        assert told[2:] == ["3 NONE", "again NONE", "4 NONE", "5 NONE"]
        assert leader.replica.is_acknowledged(ends[2])


async def test_a_learners_copy_does_not_count() -> None:
    async with ReplicaCluster(4, config=PATIENT) as cluster:
        for number in (1, 2, 3):
            cluster.at(number).add(0, members((1, 2, 3)))
        leader = await cluster.ready()
        cluster.at(4).add(0, members((1, 2, 3), (4,)))
        await change_members(cluster, members((1, 2, 3), (4,)))
        await cluster.alike()
        absent = next(broker for broker in cluster.all[:3] if broker is not leader)
        absent.stop()
        leader = await cluster.ready()
        leader.replica.min_insync_replicas = 3
        told: list[ErrorCode] = []
        end = propose(leader.replica, make_batch(b"v")).end_offset
        leader.replica.when_acknowledged(end, told.append)
        await until(lambda: cluster.at(4).replica.high_watermark == end, "the learner has it")
        await asyncio.sleep(0.05)
        assert told == []
        await cluster.restart(absent.id)
        await until(lambda: told == [ErrorCode.NONE], "the third voter has it")


async def test_a_request_that_waits_for_copies_fails_when_the_leader_is_deposed() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        others = [broker for broker in cluster.all if broker is not leader]
        others[0].stop()
        leader = await cluster.ready()
        leader.replica.min_insync_replicas = 3
        told: list[ErrorCode] = []
        end = propose(leader.replica, make_batch(b"v")).end_offset
        leader.replica.when_acknowledged(end, told.append)
        await until(lambda: leader.replica.high_watermark == end, "it is committed")
        cluster.use(CONFIG)
        for broker in cluster.running:
            if broker is not leader:
                broker.stop()
        await until(lambda: bool(told), "the leader falls")
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        leader.replica.when_acknowledged(end, told.append)
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


async def test_more_copies_than_there_are_voters_are_never_reached_and_cost_one_timer() -> None:
    async with ReplicaCluster(1) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        leader.replica.min_insync_replicas = 2
        told: list[ErrorCode] = []
        looks = 0
        look = leader.replica._insync_waiters.end

        def count() -> int:
            nonlocal looks
            looks += 1
            return look()

        ends = [propose(leader.replica, make_batch(b"v")).end_offset for _ in range(200)]
        for end in ends:
            leader.replica.when_acknowledged(end, told.append)
        await until(lambda: leader.replica.high_watermark == ends[-1], "it is committed")
        leader.replica._insync_waiters.end = count  # type: ignore[method-assign]
        for _ in range(5):
            # A timer for each of the 200 would look as often within the first round.
            seen = looks
            await until(lambda: looks > seen, "the timer fires")  # noqa: B023
            assert (told, looks - seen < 50) == ([], True)
        leader.replica.min_insync_replicas = 1
        await until(lambda: len(told) == 200, "all are answered")
        assert set(told) == {ErrorCode.NONE}

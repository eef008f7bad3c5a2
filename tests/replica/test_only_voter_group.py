"""A group after one replica was made its only voter, with brokers on files and sockets."""

from pathlib import Path

import pytest
from only_voter_files import force_on_disk
from raft_brokers import PATIENT, Broker, Cluster, key, propose, run

from moldau.log.disk_log import open_disk_log
from moldau.log.os_filesystem import OsFiles
from moldau.log.vote_journal import VoteJournal
from moldau.model.ids import Epoch
from moldau.raft.membership import Members
from moldau.replica.only_voter import (
    Survivor,
    forced_epoch,
    survey,
)
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


def on_disk(broker: Broker, initial: Members) -> tuple[OsFiles, Epoch, Survivor]:
    """What a stopped broker has in its files."""
    assert broker.directory is not None
    files = OsFiles(broker.directory)
    votes = VoteJournal.open(files, "votes")
    voted, _ = votes.get(key(0).name)
    votes.close()
    log = open_disk_log(files, "log0", broker.log_config)
    found = survey(log, me=broker.id, voted_epoch=voted, initial=initial)
    log.close()
    return files, voted, found


def test_the_survivor_leads_and_the_others_follow_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(5, directory=tmp_path) as cluster:
            cluster.add_group()
            initial = cluster.brokers[1].members[0]
            await cluster.produce(5)
            await cluster.agree()
            cluster.use(PATIENT)
            leader = await cluster.wait_for_leader()
            first, second = [broker for broker in cluster.brokers.values() if broker is not leader][
                :2
            ]
            lost = [broker for broker in cluster.brokers.values() if broker not in (first, second)]
            second.stop()
            end = await cluster.produce(3)
            await cluster.agree(brokers=[first.id, *(broker.id for broker in lost)])
            for broker in lost:
                broker.stop()
            first.stop()
            states = {}
            for broker in (first, second):
                files, voted, found = on_disk(broker, initial)
                states[found] = (broker, files, voted)
            best = max(states, key=lambda found: found.position)
            broker, files, voted = states[best]
            assert broker is first
            epoch = forced_epoch(found.known_epoch for found in states)
            assert force_on_disk(
                files, "log0", broker.log_config,
                me=broker.id, voted_epoch=voted, initial=initial, epoch=epoch,
            )  # fmt: skip
            await cluster.restart(first.id)
            assert await cluster.wait_for_leader() is first
            assert first.group().core.epoch > epoch
            await until(lambda: first.owners[0].commit >= end, "all that it has is committed")
            await cluster.produce(2)
            # The other one that is left comes to it as an ordinary new member.
            await cluster.restart(second.id)
            for members in (
                Members((first.id,), (second.id,)),
                Members(tuple(sorted((first.id, second.id)))),
            ):
                await until(
                    lambda: first.group().core.members_index < first.group().core.commit,
                    "the change before it is committed",
                )
                await until(
                    lambda: all(
                        progress.match > first.group().core.epoch_start
                        for progress in first.group().core.progress.values()
                    ),
                    "it has caught up",
                )
                first.driver.change_members(first.group(), members)
            await cluster.agree(brokers=[first.id, second.id])
            assert set(second.group().core.members.voters) == {first.id, second.id}

    run(scenario())


def test_what_nobody_committed_is_committed_and_a_lost_voter_changes_nothing(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, directory=tmp_path) as cluster:
            cluster.add_group()
            initial = cluster.brokers[1].members[0]
            await cluster.produce(5)
            await cluster.agree()
            cluster.use(PATIENT)
            survivor = await cluster.wait_for_leader()
            lost = [broker for broker in cluster.brokers.values() if broker is not survivor]
            for broker in lost:
                broker.stop()
            end = propose(survivor)
            assert survivor.owners[0].commit < end
            survivor.stop()
            files, voted, found = on_disk(survivor, initial)
            epoch = forced_epoch([found.known_epoch])
            assert force_on_disk(
                files,
                "log0",
                survivor.log_config,
                me=survivor.id,
                voted_epoch=voted,
                initial=initial,
                epoch=epoch,
            )
            await cluster.restart(survivor.id)
            assert await cluster.wait_for_leader() is survivor
            # Nobody can say that it was not committed: the two could have known.
            await until(lambda: survivor.owners[0].commit >= end, "its last entry is committed")
            await cluster.produce(2)
            last, epoch = survivor.logs[0].end_index, survivor.group().core.epoch
            old = await cluster.restart(lost[0].id)
            await until(
                lambda: (
                    old.transport.links[survivor.id].is_connected
                    and survivor.transport.links[old.id].is_connected
                ),
                "they hear each other",
            )
            # It stands for election, as the old members ask of it.
            old.driver.campaign(old.group())
            await until(
                lambda: old.group().core.epoch >= epoch, "it hears that its epoch is long over"
            )
            assert survivor.group().core.is_ready
            assert (survivor.logs[0].end_index, survivor.group().core.epoch) == (last, epoch)
            assert not old.group().is_leader

    run(scenario())

"""A broker whose process has ended is told from one that is only silent, and not waited for."""

import asyncio

import pytest
from msgspec.structs import replace
from raft_brokers import PATIENT, Cluster, run

from moldau.raft.election import ElectionCause
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

_AGES_MS = 1 << 42
ENDLESS = replace(PATIENT, election_ms_min=_AGES_MS, election_ms_max=_AGES_MS + 100)
"""Nobody stands for election because of a silence. Longer than any machine has been up: a silence
that long began before its clock."""


def test_the_followers_of_a_process_that_ended_elect_another_leader_at_once() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=ENDLESS) as cluster:
            cluster.add_group()
            await cluster.produce(3)
            old = await cluster.wait_for_leader()
            await cluster.agree()
            # When both know of the end; and one after the other, or both would vote for themselves,
            # and not try again.
            others = [broker for broker in cluster.brokers.values() if broker is not old]
            for rest_ms, broker in zip((1_000, 20_000), others, strict=True):
                broker.group().core.election.timeout_ms = ENDLESS.election_ms_min + rest_ms
            old.stop()
            new = await cluster.wait_for_leader(other_than=old.id)
            assert new.driver.counts.won == {ElectionCause.LEADER_EXITED: 1}
            assert await cluster.produce(2) == 5
            await cluster.restart(old.id)
            await cluster.agree()

    run(scenario())


def test_only_both_signs_together_are_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            await cluster.agree()
            ended: list[int] = []
            followers = [broker for broker in cluster.brokers.values() if broker is not leader]
            for broker in followers:
                monkeypatch.setattr(broker.driver, "on_peer_exited", ended.append)
                # Both ways, one after the other: somebody listens at both ends.
                broker.transport.links[leader.id].reset("a fault of the network")
                broker.transport.listener.disconnect(leader.id, "a fault of the network")
            await until(
                lambda: all(
                    broker.transport.links[leader.id].is_connected
                    and leader.id in broker.transport.listener.peers
                    for broker in followers
                ),
                "they are connected again",
            )
            # Nobody listens, as far as the dial can tell; but the leader's own connection stands.
            for broker in followers:
                link = broker.transport.links[leader.id]
                address = link.address
                link.set_address(("127.0.0.1", 1))
                await until(lambda link=link: link.is_connection_refused, "nobody answers")
                await asyncio.sleep(0)
                assert ended == []
                # Without that one, there is no sign of the leader left.
                broker.transport.listener.disconnect(leader.id, "a fault of the network")
                await until(lambda: ended, "it is taken for ended")
                assert set(ended) == {leader.id}
                ended.clear()
                link.set_address(address)
                assert not link.is_connection_refused

    run(scenario())

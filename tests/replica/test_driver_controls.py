"""Entries of an owner that are no records: told on every member, once they count."""

import asyncio
from pathlib import Path

import pytest
from raft_brokers import PATIENT, Broker, Cluster, propose, run

from moldau.log.interface import ControlKind
from moldau.model.errors import RefusedError
from moldau.model.flush import FlushPolicy
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def heard(broker: Broker) -> list[bytes]:
    return [payload for _, payload, _ in broker.owners[0].controls]


@pytest.mark.parametrize("flush", [FlushPolicy.NEVER, FlushPolicy.ALWAYS])
def test_every_member_learns_in_order_what_was_trimmed_and_again_after_a_restart(
    place: Path | None, flush: FlushPolicy
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=place, flush=flush) as cluster:
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            # Between records of one turn, and last in the log.
            propose(leader)
            leader.driver.append_control(leader.group(), ControlKind.TRIM, b"one")
            propose(leader)
            index = leader.driver.append_control(leader.group(), ControlKind.TRIM, b"two")
            assert index == leader.logs[0].end_index - 1
            for broker in cluster.brokers.values():
                await until(
                    lambda broker=broker: heard(broker) == [b"one", b"two"],
                    "it heard of both",
                    describe=lambda: cluster.describe(0),
                )
                assert broker.owners[0].controls[1] == (ControlKind.TRIM, b"two", index)
            await cluster.agree()
            other = next(b for b in cluster.brokers.values() if b is not leader)
            other.stop()
            await cluster.restart(other.id)
            await until(lambda: heard(other) == [b"one", b"two"], "it heard again")
            assert heard(leader) == [b"one", b"two"]

    run(scenario())


def test_a_group_of_one_gets_its_own_entries(place: Path | None) -> None:
    async def scenario() -> None:
        async with Cluster(1, directory=place, flush=FlushPolicy.NEVER) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            leader.driver.append_control(leader.group(), ControlKind.TRIM, b"x")
            await until(lambda: heard(leader) == [b"x"], "it heard of the entry")
            await cluster.produce()
            assert heard(leader) == [b"x"]
            assert not leader.group().has_controls

    run(scenario())


def test_an_entry_that_no_majority_has_is_not_reported_and_truncated() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            cluster.add_group()
            await cluster.produce(2)
            await cluster.agree()
            old = await cluster.wait_for_leader()
            others = [broker for broker in cluster.brokers.values() if broker is not old]
            for broker in others:
                broker.stop()
            old.driver.append_control(old.group(), ControlKind.TRIM, b"lost")
            await asyncio.sleep(0.1)
            old.stop()
            for broker in others:
                await cluster.restart(broker.id)
            await cluster.produce(2)
            await cluster.restart(old.id)
            await cluster.produce(2)
            await cluster.agree()
            assert [heard(broker) for broker in cluster.brokers.values()] == [[], [], []]

    run(scenario())


def test_only_a_leader_may_and_the_consensus_own_entries_are_its_own() -> None:
    async def scenario() -> None:
        async with Cluster(2, config=PATIENT) as cluster:
            cluster.add_group()
            leader = await cluster.wait_for_leader()
            other = next(broker for broker in cluster.brokers.values() if broker is not leader)
            end = other.logs[0].end_index
            with pytest.raises(RefusedError):
                other.driver.append_control(other.group(), ControlKind.TRIM, b"x")
            assert other.logs[0].end_index == end
            for kind in (ControlKind.NOOP, ControlKind.MEMBERSHIP):
                with pytest.raises(ValueError, match="only the Raft core"):
                    leader.driver.append_control(leader.group(), kind, b"")

    run(scenario())

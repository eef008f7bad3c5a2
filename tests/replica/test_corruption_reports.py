"""A leader's damaged entries: no follower takes them, that group alone stops, the rest goes on."""

from pathlib import Path
from typing import Any

import pytest
from memory_log import MemoryLog
from raft_brokers import PATIENT, Broker, Cluster, propose, run

from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, RaftIndex
from moldau.raft.config import RaftConfig
from moldau.replica import corruption_reports
from moldau.replica.peer_codec import (
    CorruptAppend,
    RaftEnvelope,
    decode_frame,
    encode_message,
)
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

MARK = b"the value that is damaged"
UNHURRIED = RaftConfig(
    election_ms_min=2000, election_ms_max=4000, retry_ms=150, snapshot_retry_ms=500
)


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def spoil(broker: Broker) -> None:
    """Change what group 0 has stored, behind everybody's back."""
    broker.group(0).view.forget_read()
    if broker.directory is None:
        log = broker.logs[0]
        assert isinstance(log, MemoryLog)
        log._batches = [batch.replace(MARK, MARK[::-1]) for batch in log._batches]
        return
    (path,) = [
        path for path in (broker.directory / "log0").glob("*.log") if MARK in path.read_bytes()
    ]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(MARK))
        file.write(MARK[::-1])


async def led_by_one(cluster: Cluster, *numbers: int) -> list[Broker]:
    """All groups have the same leader; returns it and the others."""
    for number in numbers:
        cluster.add_group(number)
        await cluster.produce(3, number=number)
        await cluster.agree(number)
    one = await cluster.wait_for_leader(numbers[0])
    for number in numbers[1:]:
        while (leader := await cluster.wait_for_leader(number)) is not one:
            await leader.driver.transfer(leader.group(number), one.id)
    return [one, *(broker for broker in cluster.brokers.values() if broker is not one)]


def test_a_leader_with_damaged_entries_stops_in_that_group_and_another_takes_over(
    place: Path | None,
) -> None:
    async def scenario() -> None:
        async with Cluster(3, directory=place, config=UNHURRIED) as cluster:
            one, two, three = await led_by_one(cluster, 0, 1)
            three.stop()
            propose(one, value=MARK)
            end = await cluster.produce(3)
            await until(lambda: two.owners[0].commit == end, "the other follower has it all")
            spoil(one)
            lost: list[str] = []
            link = one.transport.links[two.id]
            link._on_lost = lost.append
            await cluster.restart(three.id)
            await until(
                lambda: bool(one.owners[0].failures),
                "the group stops",
                describe=lambda: cluster.describe(0),
            )
            assert isinstance(one.owners[0].failures[0], CorruptionError)
            assert one.group(0).failure is not None
            assert one.group(1).failure is None
            # Nobody lost a connection, and the other group its leader.
            await cluster.produce(3, number=1)
            await cluster.agree(1)
            assert one.group(1).is_leader
            assert lost == []
            assert one.transport.links[three.id].is_connected
            # The others hold everything that was ever acknowledged, and go on.
            assert await cluster.wait_for_leader(0, other_than=one.id) is two
            await cluster.produce(3)
            await cluster.agree(0, [two.id, three.id])
            assert not one.failures

    run(scenario())


def test_entries_that_were_damaged_on_the_way_are_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            one, two, _ = await led_by_one(cluster, 0)
            told = 0
            receive = two.driver._receiver._receive

            def once(peer: Any, group: Any, parcel: RaftEnvelope) -> None:
                nonlocal told
                if parcel.parts and not told:
                    told += 1
                    corruption_reports.report_to_leader(
                        peer, group, parcel._replace(corruption="a flipped bit")
                    )
                else:
                    receive(peer, group, parcel)

            monkeypatch.setattr(two.driver._receiver, "_receive", once)
            await cluster.produce(3)
            await cluster.agree()
            await until(lambda: "are intact here" in caplog.text, "the leader has looked")
            assert told == 1
            assert not one.owners[0].failures

    run(scenario())


def test_what_a_peer_says_of_damage_is_looked_into_only_where_it_can_be_true() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce(3, records=5)
            await cluster.agree()
            leader = await cluster.wait_for_leader()
            other = next(broker for broker in cluster.brokers.values() if broker is not leader)
            spoiled = leader.logs[0]
            assert isinstance(spoiled, MemoryLog)
            spoiled._batches = [batch[:-1] + b"?" for batch in spoiled._batches]
            group, epoch = leader.group(), leader.group().core.epoch

            def tell(epoch: int, start: int) -> None:
                told = CorruptAppend(Epoch(epoch), RaftIndex(start))
                leader.driver.on_raft(other.id, memoryview(encode_message(group.wire, told)))

            end = spoiled.end_index
            for wrong in ((epoch - 1, 2), (epoch + 1, 2), (epoch, end), (epoch, 3)):
                group.corruption_checked_at = -10_000
                tell(*wrong)
                assert group.failure is None
            # Just now, however slow the machine is.
            group.corruption_checked_at = leader.driver.now + 60_000
            tell(epoch, 1)
            assert group.failure is None
            group.corruption_checked_at = -10_000
            tell(epoch, 1)
            assert isinstance(group.failure, CorruptionError)
            (parcel,) = decode_frame(
                memoryview(encode_message(group.wire, CorruptAppend(epoch, RaftIndex(1))))
            )
            assert parcel.corruption == ""

    run(scenario())

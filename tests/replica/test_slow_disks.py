"""What waits for a disk while many groups share one loop: threads read, and cuts take turns."""

import asyncio
import threading
from pathlib import Path

import pytest
from raft_brokers import PATIENT, Broker, Cluster, content, propose, run

from moldau.log.disk_log import DiskLog
from moldau.log.prefetch import Prefetch
from moldau.model.ids import RaftIndex
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

GROUPS = 12


async def lead(cluster: Cluster, chosen: Broker, number: int = 0) -> None:
    """Let that broker stand for election, without waiting for the timers, and win."""
    running = [broker for broker in cluster.brokers.values() if broker.is_running]
    links = [broker.transport.links[b.id] for broker in running for b in running if b != broker]
    await until(lambda: all(link.is_connected for link in links), "all brokers are linked")
    chosen.driver.campaign(chosen.group(number))
    await until(lambda: chosen.group(number).is_leader, "it leads")


async def fall_behind(cluster: Cluster, count: int) -> tuple[Broker, Broker]:
    """All brokers are stopped. The second of the two has everything, the first lacks records; what
    was written before a start is cold, because nobody has looked at it since."""
    cluster.add_group()
    leader = await cluster.wait_for_leader()
    away = next(b for b in cluster.brokers.values() if b is not leader)
    away.stop()
    await cluster.produce(count, value=bytes(100_000))
    for broker in cluster.brokers.values():
        broker.stop()
    return away, next(b for b in cluster.brokers.values() if b is not away)


async def restart(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        await cluster.restart(broker.id)


def test_a_thread_reads_what_a_follower_far_behind_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    check = Prefetch.run

    def recorded(task: Prefetch) -> None:
        threads.append(threading.current_thread() is not threading.main_thread())
        check(task)

    monkeypatch.setattr(Prefetch, "run", recorded)

    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=tmp_path) as cluster:
            _, held = await fall_behind(cluster, 40)
            await restart(cluster)
            await lead(cluster, held)
            await cluster.agree()

    run(scenario())
    assert threads
    assert all(threads)


def test_damage_that_the_thread_finds_stops_the_group_and_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT, directory=tmp_path) as cluster:
            away, held = await fall_behind(cluster, 3)
            segment = next((tmp_path / f"b{held.id}" / "log0").glob("*.log"))
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 1
            segment.write_bytes(data)
            await restart(cluster)
            await lead(cluster, held)
            await until(lambda: held.owners[0].failures, "the damage is found")
            assert away.logs[0].end_offset < 2
            assert not held.failures

    run(scenario())


def test_a_former_leader_cuts_one_log_at_a_time_and_others_get_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        turns = 0
        cuts: list[int] = []
        cut = DiskLog.truncate

        def recorded(log: DiskLog, index: RaftIndex) -> None:
            cuts.append(turns)
            cut(log, index)

        def count() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(count)

        async with Cluster(3, config=PATIENT, directory=tmp_path) as cluster:
            old, new = cluster.brokers[1], cluster.brokers[2]
            for number in range(GROUPS):
                cluster.add_group(number)
            for number in range(GROUPS):
                await lead(cluster, old, number)
                await cluster.produce(2, number=number)
                await cluster.agree(number)
            for number in (2, 3):
                cluster.brokers[number].stop()
            for link in old.transport.links.values():
                link.reset("the others are gone")
            for number in range(GROUPS):
                propose(old, value=b"lost" * 1000, number=number)
            old.stop()
            for number in (2, 3):
                await cluster.restart(number)
            for number in range(GROUPS):
                await lead(cluster, new, number)
                await cluster.produce(3, number=number, value=b"kept")
            monkeypatch.setattr(DiskLog, "truncate", recorded)
            await cluster.restart(1)
            count()
            for number in range(GROUPS):
                await cluster.agree(number)
                assert b"lost" not in content(old.logs[number])[0]
        assert len(cuts) == GROUPS
        assert len(set(cuts)) == GROUPS

    run(scenario())

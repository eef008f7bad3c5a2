"""What replication may cost: idle groups, slow followers, full and failing disks, chaos."""

import asyncio
import random
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from memory_log import MemoryLog
from msgspec.structs import replace
from peer_handshake import answer_as_peer, peer_secret
from raft_brokers import CLUSTER, PATIENT, SECRET, Broker, Cluster, content, key, propose, run

from moldau.model.errors import DiskFullError, ErrorCode, RefusedError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, Offset
from moldau.net.peers.handshake import Hello
from moldau.net.peers.limits import LinkLimits
from moldau.raft import events as e
from moldau.raft.config import RaftConfig
from moldau.raft.membership import Members
from moldau.records.batch import BatchHeader
from moldau.replica import effect_executor
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


def frames_of(cluster: Cluster) -> dict[tuple[int, int], int]:
    return {
        (broker.id, peer): link.frames_total
        for broker in cluster.brokers.values()
        for peer, link in broker.transport.links.items()
    }


def test_hundreds_of_idle_groups_cost_one_heartbeat_per_pair_of_brokers() -> None:
    async def scenario() -> None:
        # Patient followers: a busy machine must not look like a dead leader here.
        config = RaftConfig(election_ms_min=3000, election_ms_max=4500)
        async with Cluster(3, config=config) as cluster:
            await connected(cluster)
            for number in range(500):
                cluster.add_group(number)
            for number in range(500):
                preferred = cluster.brokers[number % 3 + 1]
                preferred.driver.campaign(preferred.group(number))
            # One that stood still for longer than that is measured again.
            while not await are_quiet_for(cluster, 4.8):
                pass

    run(scenario())


async def connected(cluster: Cluster) -> None:
    links = [link for b in cluster.brokers.values() for link in b.transport.links.values()]
    await until(lambda: all(link.is_connected for link in links), "all links are up")


async def are_quiet_for(cluster: Cluster, seconds: float) -> bool:
    """Whether 500 groups keep their leaders; if they do, at one heartbeat per pair of brokers."""
    leaders = [await cluster.wait_for_leader(number) for number in range(500)]
    assert {leader.id for leader in leaders} == {1, 2, 3}
    # Until every follower knows the last commit, and every list is confirmed.
    await asyncio.gather(*(cluster.produce(number=number) for number in range(500)))
    for number in range(500):
        await cluster.agree(number)
    await until(
        lambda: (
            not any(
                peer.heartbeat.unconfirmed
                for broker in cluster.brokers.values()
                for peer in broker.driver._peers.values()
            )
        ),
        "every list is confirmed",
    )
    leaders = [await cluster.wait_for_leader(number) for number in range(500)]
    epochs = [leader.group(number).core.epoch for number, leader in enumerate(leaders)]
    before, began = frames_of(cluster), time.monotonic()
    await asyncio.sleep(seconds)
    heartbeats = (time.monotonic() - began) * 1000 / cluster.heartbeat_ms
    sent = {link: count - before[link] for link, count in frames_of(cluster).items()}
    # Longer than an election takes: the heartbeats do keep all leaders in office.
    if [leader.group(number).core.epoch for number, leader in enumerate(leaders)] != epochs:
        return False
    assert all(0 < count <= heartbeats + 5 for count in sent.values()), (sent, heartbeats)
    return True


def test_votes_of_many_groups_share_few_writes() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            for number in range(300):
                cluster.add_group(number)
            for number in range(300):
                await cluster.wait_for_leader(number)
            assert cluster.brokers[1].driver._votes.writes_total < 10

    run(scenario())


async def shake_hands(server: socket.socket) -> socket.socket:
    """Accept a broker's link as a broker would."""
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(server)
    peer.setblocking(False)
    hello = await answer_as_peer(peer, peer_secret(SECRET))
    assert hello == Hello(CLUSTER, hello.sender, f"dir{hello.sender}", BrokerId(3))
    return peer


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_follower_that_does_not_read_delays_no_other_and_costs_bounded_memory(
    place: str, tmp_path: Path
) -> None:
    limits = LinkLimits(queue_bytes_max=256 * 1024)

    async def scenario() -> None:
        directory = tmp_path if place == "disk" else None
        server = socket.create_server(("127.0.0.1", 0))
        server.setblocking(False)
        async with Cluster(
            2, config=PATIENT, directory=directory, flush=FlushPolicy.NEVER, link_limits=limits
        ) as cluster:
            members = Members((BrokerId(1), BrokerId(2), BrokerId(3)))
            for broker in cluster.brokers.values():
                broker.driver.add_peer(BrokerId(3), server.getsockname())
                broker.add(0, members)
            silent = [await shake_hands(server) for _ in cluster.brokers]
            leader = await cluster.wait_for_leader()
            link = leader.transport.links[BrokerId(3)]
            # The silent one never answers, so nothing but probes goes there; pretend it did once.
            progress = leader.group().core.progress[BrokerId(3)]
            progress.become_replicate()
            for _ in range(40):
                await cluster.produce(5, value=bytes(100_000))
                assert link.queued_bytes <= 2 * 256 * 1024 + (2 << 20)
                assert len(leader.driver._peers[BrokerId(3)].waiting) <= 1
            await cluster.agree()
            assert leader.group().is_leader
            for sock in silent:
                sock.close()
        server.close()

    run(scenario())


def test_a_log_that_is_cut_takes_back_what_waits_to_be_sent_from_its_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = socket.create_server(("127.0.0.1", 0))
        server.setblocking(False)
        async with Cluster(
            2, config=PATIENT, directory=tmp_path, flush=FlushPolicy.NEVER
        ) as cluster:
            for broker in cluster.brokers.values():
                broker.driver.add_peer(BrokerId(3), server.getsockname())
                broker.add(0, Members((BrokerId(1), BrokerId(2), BrokerId(3))))
            silent = [await shake_hands(server) for _ in cluster.brokers]
            leader = await cluster.wait_for_leader()
            leader.group().core.progress[BrokerId(3)].become_replicate()
            link = leader.transport.links[BrokerId(3)]
            while not link.has_files_queued:
                await cluster.produce(5, value=bytes(500_000))
            group = leader.group()
            leader.driver._effects.execute(group, e.Truncate(group.log.end_index))
            assert not link.is_connected
            for sock in silent:
                sock.close()
        server.close()

    run(scenario())


class FaultyLog(MemoryLog):
    """Refuses to be written to, as the test says."""

    failure: StorageError | None = None
    refused_count = 0

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        if self.failure is not None:
            self.refused_count += 1
            raise self.failure
        super().append(data, headers)


def with_faulty_log(cluster: Cluster, number: int) -> FaultyLog:
    log = FaultyLog(cluster.brokers[number].log_config)
    cluster.brokers[number].logs[0] = log
    return log


def test_a_follower_whose_disk_is_full_falls_behind_and_catches_up_when_there_is_room() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            logs = {number: with_faulty_log(cluster, number) for number in cluster.brokers}
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            await cluster.agree()
            full = next(number for number in logs if number != leader.id)
            logs[full].failure = DiskFullError("no room")
            await cluster.produce(5)
            assert cluster.brokers[full].group().failure is None
            assert logs[full].end_offset == 3
            logs[full].failure = None
            await cluster.agree()
            assert cluster.brokers[full].owners[0].commit == 8

    run(scenario())


def test_a_full_disk_is_not_logged_for_every_retry(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        # A retry every 10 ms.
        config = RaftConfig(election_ms_min=30_000, election_ms_max=60_000, retry_ms=10)
        async with Cluster(2, config=config) as cluster:
            logs = {number: with_faulty_log(cluster, number) for number in cluster.brokers}
            cluster.add_group()
            leader = cluster.brokers[1]
            links = leader.transport.links.values()
            await until(lambda: all(k.is_connected for k in links), "the links are up")
            leader.driver.campaign(leader.group())
            await cluster.produce(1)
            logs[2].failure = DiskFullError("no room")
            propose(leader)
            await until(lambda: logs[2].refused_count > 20, "it was tried again and again")
            logged = [one for one in caplog.messages if "disk full, will retry" in one]
            assert len(logged) == 1

    run(scenario())


def test_a_commit_that_came_with_entries_for_a_full_disk_is_reported_all_the_same() -> None:
    async def scenario() -> None:
        # No heartbeat and no election comes in between.
        config = RaftConfig(election_ms_min=30_000, election_ms_max=60_000, retry_ms=20_000)
        async with Cluster(2, config=config, heartbeat_ms=30_000) as cluster:
            logs = {number: with_faulty_log(cluster, number) for number in cluster.brokers}
            cluster.add_group()
            leader, follower = cluster.brokers[1], cluster.brokers[2]
            for broker in (leader, follower):
                links = broker.transport.links.values()
                await until(
                    lambda links=links: all(k.is_connected for k in links), "the links are up"
                )
            leader.driver.campaign(leader.group())
            await cluster.produce(1)
            assert follower.owners[0].commit == 0
            logs[2].failure = DiskFullError("no room")
            propose(leader)
            await until(lambda: follower.owners[0].commit == 1, "it is committed")
            assert logs[2].end_offset == 1

    run(scenario())


def test_a_leader_whose_disk_is_full_refuses_and_still_leads() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            logs = {number: with_faulty_log(cluster, number) for number in cluster.brokers}
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            logs[leader.id].failure = DiskFullError("no room")
            with pytest.raises(DiskFullError):
                propose(leader)
            logs[leader.id].failure = None
            assert await cluster.produce(3) == 6
            await cluster.agree()
            assert leader.failures == []

    run(scenario())


def test_a_failed_disk_is_reported_so_that_the_process_ends() -> None:
    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            logs = {number: with_faulty_log(cluster, number) for number in cluster.brokers}
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            broken = next(number for number in logs if number != leader.id)
            error = logs[broken].failure = StorageError("I/O error")
            await cluster.produce(2)
            await until(lambda: bool(cluster.brokers[broken].failures), "the failure is reported")
            assert cluster.brokers[broken].failures == [error]
            assert cluster.brokers[broken].owners[0].failures == [error]

    run(scenario())


def test_votes_wait_for_room_on_the_disk() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            broker = cluster.brokers[1]
            broker.memory_votes.failure = DiskFullError("no room")
            cluster.add_group()
            await until(lambda: broker.driver._votes._is_waiting, "the vote found no room")
            assert cluster.leader() is None
            assert broker.failures == []
            broker.memory_votes.failure = None
            await cluster.produce()

    run(scenario())


def test_a_leader_that_receives_but_cannot_send_steps_down() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            cluster.add_group()
            await cluster.produce(3)
            old = await cluster.wait_for_leader()
            # Its own links are gone for good; the others still reach it.
            for link in old.transport.links.values():
                link.stop()
            new = await cluster.wait_for_leader(other_than=old.id)
            await until(lambda: not old.group().is_leader, "the deaf leader steps down")
            assert new.group().core.epoch > 0
            await cluster.produce(3)

    run(scenario())


async def torment(
    cluster: Cluster, rng: random.Random, seconds: float, is_enough: Callable[[], bool]
) -> None:
    """Break links and restart brokers, one at a time, for a while, and until it is enough."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or not is_enough():
        await asyncio.sleep(rng.random() * 0.4)
        broker = rng.choice(list(cluster.brokers.values()))
        if rng.random() < 0.7:
            for link in broker.transport.links.values():
                link.reset("torment")
        else:
            broker.stop()
            await asyncio.sleep(rng.random() * 0.5)
            await cluster.restart(broker.id)


def note_acks(broker: Broker, pending: dict[int, tuple[int, int]], acked: dict[int, int]) -> None:
    """Whatever was proposed here in the epoch that still lasts, and is committed, is acked."""

    def committed(offset: int) -> None:
        group = broker.group()
        for number, (end, epoch) in list(pending.items()):
            if end <= offset and group.is_leader and group.core.epoch == epoch:
                acked[number] = end
                del pending[number]

    broker.owners[0].on_committed = committed


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_whatever_was_acknowledged_is_on_all_logs_after_broken_links_and_restarts(
    place: str, tmp_path: Path
) -> None:
    seed = time.time_ns()
    rng = random.Random(seed)
    print(f"seed={seed}")

    async def scenario() -> None:
        async with Cluster(3, directory=tmp_path if place == "disk" else None) as cluster:
            cluster.add_group()
            acked: dict[int, int] = {}
            count = 0

            async def produce() -> None:
                nonlocal count
                while True:
                    await asyncio.sleep(0.002)
                    leader = cluster.leader()
                    if leader is None:
                        continue
                    pending: dict[int, tuple[int, int]] = {}
                    note_acks(leader, pending, acked)
                    epoch = leader.group().core.epoch
                    while leader.is_running and leader.group().core.epoch == epoch:
                        try:
                            for _ in range(rng.randint(1, 8)):
                                value = b"<%d>" % count + bytes(rng.choice((0, 100, 20_000)))
                                end = propose(leader, value=value)
                                pending[count] = (end, epoch)
                                count += 1
                        except RefusedError:
                            break
                        await asyncio.sleep(rng.random() * 0.02)

            producer = asyncio.ensure_future(produce())
            await torment(cluster, rng, 2, lambda: len(acked) > 100)
            producer.cancel()
            await cluster.produce(1, value=b"<end>")
            await cluster.agree()
            data, _ = content(cluster.brokers[1].logs[0])
            found = [int(number) for number in re.findall(rb"<(\d+)>", data)]
            assert len(set(found)) == len(found)
            assert acked.keys() <= set(found)
            assert [number for number in found if number in acked] == sorted(acked)
            for broker in cluster.brokers.values():
                assert broker.owners[0].failures == []
                assert broker.failures == []

    run(scenario())


def test_a_group_is_found_by_its_key_only_while_it_runs() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            cluster.add_group()
            broker = cluster.brokers[1]
            with pytest.raises(ValueError, match="already running"):
                broker.driver.add_group(
                    key(), broker.logs[0], Members((BrokerId(1),)), broker.owners[0]
                )
            broker.driver.remove_group(broker.group())
            assert broker.driver.groups.get(key().name) is None
            assert broker.logs[0].start_offset == Offset(0)

    run(scenario())


def test_proposals_are_refused_while_too_much_waits_for_a_majority() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            cluster.add_group()
            await cluster.produce(3)
            leader = await cluster.wait_for_leader()
            leader.driver._uncommitted_bytes_max = 500_000
            others = [broker for broker in cluster.brokers.values() if broker is not leader]
            for broker in others:
                broker.stop()
            for _ in range(5):
                propose(leader, value=bytes(100_000))
            with pytest.raises(RefusedError) as refused:
                propose(leader)
            assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            await until(lambda: not leader.group().is_leader, "the lonely leader steps down")
            assert leader.group().proposed_bytes == 0
            for broker in others:
                await cluster.restart(broker.id)
            await cluster.produce(3)
            await cluster.agree()
            assert all(broker.group().proposed_bytes == 0 for broker in cluster.brokers.values())

    run(scenario())


class DefectError(Exception):
    pass


def test_an_internal_error_in_the_owner_of_one_group_costs_the_others_nothing() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        defects: list[object] = []
        loop.set_exception_handler(lambda _, context: defects.append(context.get("exception")))
        async with Cluster(3) as cluster:
            for number in range(20):
                cluster.add_group(number)
            for broker in cluster.brokers.values():

                def defect(offset: int) -> None:
                    raise DefectError

                broker.owners[0].on_committed = defect
            # First of all: the owner of a broker that starts again has no defect.
            await cluster.wait_for_leader(0)
            await until(lambda: defects, "the owner of group 0 fails")
            for number in range(1, 20):
                await cluster.produce(5, number=number)
            old = await cluster.wait_for_leader(1)
            old.stop()
            for number in range(1, 20):
                await cluster.produce(5, number=number)
            await cluster.restart(old.id)
            for number in range(1, 20):
                await cluster.agree(number)
            assert all(isinstance(error, DefectError) for error in defects)

    run(scenario())


def test_a_follower_that_alone_misses_its_leader_does_not_depose_it() -> None:
    async def scenario() -> None:
        # Long before the others' own timers: they know by the heartbeats that the leader lives,
        # and on a busy machine for as long as it may stand still.
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await connected(cluster)
            first = cluster.brokers[1]
            first.driver.campaign(first.group())
            await cluster.produce(3)
            await cluster.agree()
            leader = await cluster.wait_for_leader()
            epoch = leader.group().core.epoch
            deaf = next(b for b in cluster.brokers.values() if b is not leader)
            leader.transport.links[deaf.id].stop()
            for _ in range(6):
                await asyncio.sleep(0.3)
                deaf.driver.campaign(deaf.group())
            assert leader.group().is_leader
            assert leader.group().core.epoch == epoch

    run(scenario())


def test_a_snapshot_larger_than_what_may_wait_in_a_link_arrives_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = random.Random(1).randbytes(20 * 1024 * 1024)

    async def scenario() -> None:
        async with Cluster(3, config=PATIENT) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            leader = await cluster.wait_for_leader()
            away = next(broker for broker in cluster.brokers.values() if broker is not leader)
            away.stop()
            end = await cluster.produce(5)
            for broker in cluster.brokers.values():
                if broker is not away:
                    owner, log = broker.owners[0], broker.logs[0]
                    await until(lambda owner=owner: owner.commit == end, "it is committed")
                    log.delete_before(Offset(end - 1))
                    monkeypatch.setattr(owner, "snapshot", lambda group, offset: payload)
            back = await cluster.restart(away.id)
            await until(lambda: bool(back.owners[0].resets), "the snapshot has arrived")
            assert back.owners[0].resets[0] == (end - 1, payload)
            assert back.driver.counts.snapshots_received == 1
            assert leader.driver.counts.snapshots_sent >= 1
            await cluster.produce(2)
            await cluster.agree()

    run(scenario())


def test_a_snapshot_that_no_frame_can_take_is_not_sent_and_the_group_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(effect_executor, "_SNAPSHOT_BYTES_MAX", 10_000)

    async def scenario() -> None:
        async with Cluster(3, config=replace(PATIENT, snapshot_retry_ms=500)) as cluster:
            cluster.add_group()
            await cluster.produce(5)
            leader = await cluster.wait_for_leader()
            away = next(broker for broker in cluster.brokers.values() if broker is not leader)
            away.stop()
            end = await cluster.produce(5)
            for broker in cluster.brokers.values():
                if broker is not away:
                    owner, log = broker.owners[0], broker.logs[0]
                    await until(lambda owner=owner: owner.commit == end, "it is committed")
                    log.delete_before(Offset(end - 1))
                    monkeypatch.setattr(owner, "snapshot", lambda group, offset: bytes(20_000))
            back = await cluster.restart(away.id)
            await until(lambda: "exceeds the limit of" in caplog.text, "the error is logged")
            await cluster.produce(2)
            assert not back.owners[0].resets
            monkeypatch.setattr(effect_executor, "_SNAPSHOT_BYTES_MAX", 100_000)
            await cluster.agree()

    run(scenario())

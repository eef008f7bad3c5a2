"""Consumer groups: many members that join, many groups that commit, many offsets to load."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time

from benchmarks import servers
from benchmarks.bench import Bench, Target, topic
from benchmarks.group_members import HEARTBEAT_S, Assigned, Classic, Member, Wire
from benchmarks.harness import BenchmarkError, free_port
from moldau.client.wire.client import KafkaClient
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

STEPS = 4
MEMBERS = 100
PARTITIONS = 300
JOIN_APART_S = 0.02
JOIN_SECONDS_MAX = 60.0
GROUPS = 1_000
PARTITIONS_PER_GROUP = 10
CONNECTIONS = 20
LOADED_OFFSETS = 100_000
OFFSETS_PER_GROUP = 100
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 9, 9, 2


def run(bench: Bench) -> None:
    settings = {
        **_ports(),
        "MOLDAU_GROUP__INITIAL_REBALANCE_DELAY_MS": "0",
        "MOLDAU_GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": str(int(HEARTBEAT_S * 1000)),
    }
    with servers.moldau(bench.directory, settings=settings, name="groups") as running:
        for name, kind in (("consumer", Assigned), ("classic", Classic)):
            bench.step(f"{MEMBERS} members join a {name} group of {PARTITIONS} partitions")
            for turn in range(bench.repetitions):
                with topic(running, PARTITIONS) as made:
                    took = asyncio.run(_join(running.port, kind, f"{name}-{turn}", made))
                    bench.record(f"groups.join.{name}.stable_s", took)
            bench.done()
        _commit(bench, running)
    _load(bench)


def _ports() -> dict[str, str]:
    """Beside a broker that runs on this machine."""
    return {
        "MOLDAU_RAFT__ADDR": f"127.0.0.1:{free_port()}",
        "MOLDAU_HTTP__ADDR": f"127.0.0.1:{free_port()}",
        "MOLDAU_GRPC__ADDR": "127.0.0.1:0",
    }


# --- members that join ----------------------------------------------------------------------------


async def _join(port: int, kind: type[Member], group: str, topic_name: str) -> float:
    """Seconds from the last member's first answer until everybody has its share."""
    await _find(await Wire.open(port), group)
    members = [kind(port, group, topic_name, number) for number in range(MEMBERS)]
    tasks = []
    try:
        for member in members:
            tasks.append(asyncio.create_task(member.live()))
            await asyncio.sleep(JOIN_APART_S)
        deadline = time.perf_counter() + JOIN_SECONDS_MAX
        while not _is_stable(members, kind):
            for task in tasks:
                if task.done():
                    task.result()
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"group {group} is not stable after {JOIN_SECONDS_MAX} s")
            await asyncio.sleep(0.02)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    last_join = max(member.joined_at or 0.0 for member in members)
    return max(0.0, max(member.changed_at for member in members) - last_join)


def _is_stable(members: list[Member], kind: type[Member]) -> bool:
    if any(member.joined_at is None for member in members):
        return False
    shares = [member.share for member in members]
    is_shared = kind is Classic or (sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1)
    return is_shared and len({member.epoch for member in members}) == 1


# --- offsets --------------------------------------------------------------------------------------


def _commit(bench: Bench, running: Target) -> None:
    seconds = bench.scale(10, 3)
    bench.step(f"{GROUPS:,} groups commit {PARTITIONS_PER_GROUP} partitions every second")
    with topic(running, PARTITIONS_PER_GROUP) as name:
        used, wall, late = asyncio.run(_commit_for(running, name, seconds))
    bench.record("groups.commit.core_percent", 100 * used / wall)
    bench.note(
        f"Commits: {GROUPS:,} groups, {CONNECTIONS} connections, {seconds} s; the slowest round "
        f"took {late:.2f} s."
    )
    bench.done()


async def _commit_for(running: Target, name: str, seconds: int) -> tuple[float, float, float]:
    wires = [await Wire.open(running.port) for _ in range(CONNECTIONS)]
    await _find(wires[0], "commit-0")
    share = GROUPS // CONNECTIONS

    async def commit_share(number: int, offset: int) -> None:
        for group in range(number * share, (number + 1) * share):
            await _commit_once(wires[number], f"commit-{group}", name, offset)

    async def round_of_all(offset: int) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(commit_share(number, offset) for number in range(CONNECTIONS)))
        return time.perf_counter() - begun

    await round_of_all(0)
    cpu, begun, slowest = running.server.cpu_seconds(), time.perf_counter(), 0.0
    for turn in range(1, seconds + 1):
        slowest = max(slowest, await round_of_all(turn))
        await asyncio.sleep(max(0.0, begun + turn - time.perf_counter()))
    return running.server.cpu_seconds() - cpu, time.perf_counter() - begun, slowest


def _load(bench: Bench) -> None:
    """From the first answer of a restarted broker to the first answer of its coordinator."""
    groups = bench.scale(LOADED_OFFSETS, LOADED_OFFSETS // 10) // OFFSETS_PER_GROUP
    bench.step(f"a coordinator loads {groups * OFFSETS_PER_GROUP:,} offsets")
    before = servers.start_moldau(bench.directory, name="offsets", settings=_ports())
    try:
        with KafkaClient(before.bootstrap) as client:
            client.create_topic("bench", partitions=OFFSETS_PER_GROUP)
        asyncio.run(_fill(before.port, groups))
    finally:
        before.server.stop(signal.SIGKILL)
    after = servers.start_moldau(bench.directory, name="offsets", settings=_ports())
    try:
        begun = time.perf_counter()
        asyncio.run(_await_offsets(after.port))
        bench.record("groups.load.ready_s", time.perf_counter() - begun)
    finally:
        after.server.stop()
        shutil.rmtree(bench.directory / "offsets-data", ignore_errors=True)
    bench.done()


async def _fill(port: int, groups: int) -> None:
    wires = [await Wire.open(port) for _ in range(CONNECTIONS)]
    await _find(wires[0], "load-0")

    async def fill(number: int) -> None:
        for group in range(number, groups, CONNECTIONS):
            await _commit_once(wires[number], f"load-{group}", "bench", 7, OFFSETS_PER_GROUP)

    await asyncio.gather(*(fill(number) for number in range(CONNECTIONS)))


async def _await_offsets(port: int) -> None:
    wire = await Wire.open(port)
    deadline = time.perf_counter() + JOIN_SECONDS_MAX
    while time.perf_counter() < deadline:
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="load-0", topics=None)])
        (group,) = (await wire.ask(asked, FETCH_VERSION, OffsetFetchResponse)).groups
        if not group.error_code:
            found = sum(len(one.partitions) for one in group.topics)
            if found != OFFSETS_PER_GROUP:
                raise BenchmarkError(f"{found} offsets of {OFFSETS_PER_GROUP} survived the restart")
            return
        await asyncio.sleep(0.005)
    raise BenchmarkError(f"the coordinator is not ready after {JOIN_SECONDS_MAX} s")


async def _commit_once(
    wire: Wire, group: str, name: str, offset: int, partitions: int = PARTITIONS_PER_GROUP
) -> None:
    parts = [
        OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_metadata=""
        )
        for number in range(partitions)
    ]
    request = OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=name, partitions=parts)],
    )
    answer = await wire.ask(request, COMMIT_VERSION, OffsetCommitResponse)
    if any(part.error_code for one in answer.topics for part in one.partitions):
        raise BenchmarkError(f"a commit of group {group} was refused")


async def _find(wire: Wire, group: str) -> None:
    """The first request makes the topic of offsets."""
    asked = FindCoordinatorRequest(key=group)
    answer = await wire.ask(asked, FIND_VERSION, FindCoordinatorResponse)
    if answer.error_code:
        raise BenchmarkError(f"group {group} has no coordinator")
